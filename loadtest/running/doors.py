"""Whether the two doors of the target answer, know the services, and take the key."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import grpc
import httpx

from loadtest.planning.plan import Plan, Target
from loadtest.running.target import DOORS, needs

TIMEOUT_S = 10.0


def api_key(target: Target) -> tuple[str, list[str]]:
    """The key, "" without one, and what is wrong."""
    if target.key_env is None:
        return "", []
    key = os.environ.get(target.key_env, "")
    if key:
        return key, []
    return "", [
        f"target.key_env = {target.key_env}: no such environment variable is set; export it, or leave it out"
    ]


def http_problems(plan: Plan) -> list[str]:
    target = plan.target
    if target.http is None or not needs(plan, "http"):
        return []
    key, problems = api_key(target)
    if problems:
        return problems
    headers = {"authorization": f"Bearer {key}"} if key else {}
    url = f"{target.http.rstrip('/')}/v1/models"
    try:
        reply = httpx.get(url, headers=headers, timeout=TIMEOUT_S, trust_env=False, verify=_tls(target))
    except (httpx.HTTPError, OSError) as exc:
        return [f"no answer from {url}: {exc!r}; is the target up, and target.http right?"]
    if reply.status_code in (401, 403):
        return [_refused(target, f"{url} answered {reply.status_code}")]
    if reply.status_code == 404:
        return []  # another server that cannot list its models; its own errors will tell
    if reply.status_code != 200:
        return [f"{url} answered {reply.status_code}: {reply.text[:200]}; wait until it is ready"]
    return _missing(plan, "http", _listed(reply), url)


def _listed(reply: httpx.Response) -> set[str] | None:
    try:
        return {str(each["id"]) for each in reply.json()["data"]}
    except (ValueError, KeyError, TypeError):
        return None


def _missing(plan: Plan, door: str, served: set[str] | None, where: str) -> list[str]:
    if served is None:
        return []
    wanted = {user.service for user in plan.users if DOORS[user.kind] == door}
    return [
        f"service {name} is not served at {where} (there are {', '.join(sorted(served)) or 'none'})"
        for name in sorted(wanted - served)
    ]


def _tls(target: Target) -> ssl.SSLContext | bool:
    if not (target.http or "").startswith("https"):
        return True
    context = ssl.create_default_context(cafile=str(target.ca) if target.ca else None)
    if target.cert is not None and target.cert_key is not None:
        context.load_cert_chain(target.cert, target.cert_key)
    return context


def _refused(target: Target, what: str) -> str:
    if target.key_env is None:
        return (
            f"{what}: it wants an API key; put one into an environment variable and name it in target.key_env"
        )
    return f"{what}: the key in ${target.key_env} is refused; `tidegate keys list` shows those that are valid"


def grpc_problems(plan: Plan) -> list[str]:
    target = plan.target
    if target.grpc is None or not needs(plan, "grpc"):
        return []
    key, problems = api_key(target)
    if problems:
        return problems
    wanted = sorted({user.service for user in plan.users if DOORS[user.kind] == "grpc"})
    with _channel(target.grpc, target) as channel:
        return [text for name in wanted if (text := _grpc_problem(channel, target, name, key))]


def _grpc_problem(channel: grpc.Channel, target: Target, service: str, key: str) -> str:
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    metadata = [("authorization", f"Bearer {key}")] if key else []
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        reply = stub.ModelReady(
            service_pb2.ModelReadyRequest(name=service),
            timeout=TIMEOUT_S,
            metadata=metadata,
            wait_for_ready=False,
        )
    except grpc.RpcError as exc:
        if exc.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return _refused(target, f"gRPC at {target.grpc}, service {service}: {exc.details()}")
        if exc.code() is grpc.StatusCode.NOT_FOUND:
            return f"service {service} is not served at {target.grpc}: {exc.details()}"
        return (
            f"no answer from gRPC at {target.grpc}: {exc.code().name.lower()}: {exc.details()}; "
            f"is the target up, and target.grpc right?"
        )
    return "" if reply.ready else f"service {service} is not ready at {target.grpc}; wait until it is"


def _channel(address: str, target: Target) -> grpc.Channel:
    if not target.grpc_tls:
        return grpc.insecure_channel(address)
    files = (target.ca, target.cert_key, target.cert)
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(*map(_bytes, files)))


def _bytes(path: Path | None) -> bytes | None:
    return path.read_bytes() if path else None
