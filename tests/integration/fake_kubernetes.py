"""An API server of a few dozen lines: objects as JSON under their paths, with resourceVersions that conflict.

It keeps what the real one keeps where scaling looks: 404, 409 on a stale resourceVersion or a name that exists, 403
where told, Status bodies, one version for an object and its `scale`. Pods are started and made ready by the test.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
CHAT = "/apis/apps/v1/namespaces/default/deployments/chat"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/default/leases/tidegate"
HPAS = "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers"


class FakeKubernetes:
    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.forbidden: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        self.is_down = False
        """Takes the connection and drops it."""
        self.num_dropped = 0
        self.obeys = False
        """Pods come and go at once when a count is written."""
        self.before_write: list[Json] = []
        """Each is put in the place of the object that the next write is for, just before it."""
        self._versions = 0
        self.lock = threading.RLock()

    def put(self, path: str, body: Json) -> Json:
        with self.lock:
            self._versions += 1
            body.setdefault("metadata", {})["resourceVersion"] = str(self._versions)
            self.objects[path] = body
            return body

    def deployment(self, replicas: int, running: int | None = None, ready: int | None = None) -> Json:
        """`chat`, and what its pods are up to. Zero ready ones are left out, as the real one does."""
        status = {"replicas": replicas if running is None else running}
        num_ready = replicas if ready is None else ready
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "chat", "namespace": "default"},
            "spec": {"replicas": replicas},
            "status": status | ({"readyReplicas": num_ready} if num_ready else {}),
        }

    def answer(self, method: str, path: str, body: Json | None) -> tuple[int, Json]:
        path = path.partition("?")[0]
        with self.lock:
            self.requests.append((method, path))
            if path in self.forbidden:
                return status(403, f"{path} is forbidden")
            if path == HPAS:
                items = [value for key, value in self.objects.items() if key.startswith(HPAS)]
                return 200, {"items": items}
            if path.endswith("/scale"):
                return self._answer_scale(method, path.removesuffix("/scale"), body)
            if method == "POST" and body:
                path = f"{path}/{body['metadata']['name']}"
                return (
                    status(409, f"{path} already exists")
                    if path in self.objects
                    else (201, self.put(path, body))
                )
            if path not in self.objects:
                return status(404, f"{path} not found")
            if method == "PUT" and body:
                return self._write(path, body["metadata"].get("resourceVersion"), body)
            return 200, self.objects[path]

    def _answer_scale(self, method: str, path: str, body: Json | None) -> tuple[int, Json]:
        if path not in self.objects:
            return status(404, f"{path} not found")
        if method == "PUT" and body:
            if self.before_write:
                self.put(path, self.before_write.pop(0))
            wanted = json.loads(json.dumps(self.objects[path]))
            wanted["spec"]["replicas"] = body["spec"].get("replicas", 0)
            if self.obeys:
                wanted["status"] = self.deployment(wanted["spec"]["replicas"])["status"]
            code, reply = self._write(path, body["metadata"].get("resourceVersion"), wanted)
            if code != 200:
                return code, reply
        found = self.objects[path]
        return 200, {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": "chat", "resourceVersion": found["metadata"]["resourceVersion"]},
            "spec": {"replicas": found["spec"]["replicas"]} if found["spec"]["replicas"] else {},
            "status": {"replicas": found["status"]["replicas"], "selector": "app=chat"},
        }

    def _write(self, path: str, version: str | None, body: Json) -> tuple[int, Json]:
        if version != self.objects[path]["metadata"]["resourceVersion"]:
            return status(
                409, "the object has been modified; please apply your changes to the latest version"
            )
        return 200, self.put(path, body)


def status(code: int, message: str) -> tuple[int, Json]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


@contextmanager
def serving(fake: FakeKubernetes, folder: Path) -> Iterator[str]:
    """Yields the path of a kubeconfig."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "null")
            if fake.is_down:
                fake.num_dropped += 1
                self.close_connection = True
                return
            code, reply = fake.answer(self.command, self.path, body)
            text = json.dumps(reply).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PUT = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    config = folder / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config.write_text(
        yaml.safe_dump({"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"})
    )
    try:
        yield str(config)
    finally:
        server.shutdown()
        server.server_close()
