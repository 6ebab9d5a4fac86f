"""The few calls to the Kubernetes API that scaling needs, as dictionaries. The only file that knows its client.

All goes through the client's generic calls: a Deployment, a Lease and somebody's custom resource are the same three
verbs at other paths, and a dictionary that is read and written back loses no field that this version does not know.
The client blocks, so calls run in threads of ours, each with a deadline.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from scaler.errors import Conflict, KubernetesMissing, KubernetesRefused, KubernetesUnreachable

CALL_TIMEOUT_S = 5.0
MAX_CALLS = 8
"""At once; one more waits for its turn."""
FIELD_MANAGER = "tidegate"
"""Under this name the API server notes which fields we set."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Resource:
    """A kind of object in a namespace."""

    group: str
    version: str
    plural: str
    namespace: str

    @property
    def path(self) -> Json:
        return {
            "group": self.group,
            "version": self.version,
            "plural": self.plural,
            "namespace": self.namespace,
        }


class KubernetesApi:
    """Raises what `scaler.errors` names, never the client's own errors. Close it."""

    def __init__(self, kubeconfig: str | None = None) -> None:
        """`kubeconfig` None: this pod's service account, or else the user's own configuration."""
        try:
            self._client: Any = importlib.import_module("kubernetes").client
            config: Any = importlib.import_module("kubernetes").config
            self._http_error: Any = importlib.import_module("urllib3").exceptions.HTTPError
        except ImportError as exc:
            raise KubernetesMissing(
                "scaling on Kubernetes needs its client: pip install 'tidegate[kubernetes]'"
            ) from exc
        settings = self._client.Configuration()
        try:
            if kubeconfig is None:
                try:
                    config.load_incluster_config(client_configuration=settings)
                except config.ConfigException:
                    config.load_kube_config(client_configuration=settings)
            else:
                config.load_kube_config(kubeconfig, client_configuration=settings)
        except (config.ConfigException, OSError) as exc:
            raise KubernetesMissing(
                f"no cluster to talk to: {exc}; run in a pod with a service account, or name a kubeconfig"
            ) from exc
        settings.retries = False  # a call that is repeated in secret outlives its deadline
        self.server = settings.host
        self._objects: Any = self._client.CustomObjectsApi(self._client.ApiClient(settings))
        self._threads = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="kubernetes")

    async def close(self) -> None:
        """Waits for the calls under way, each at most its deadline."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self._objects.api_client.close()

    async def get(self, kind: Resource, name: str) -> Json | None:
        """None: there is no such object."""
        return await self._find(self._objects.get_namespaced_custom_object, **kind.path, name=name)

    async def list(self, kind: Resource) -> list[Json]:
        reply = await self._call(self._objects.list_namespaced_custom_object, **kind.path)
        return list(reply["items"])

    async def create(self, kind: Resource, body: Json) -> Json:
        """Raises Conflict when it is there already."""
        return await self._call(self._objects.create_namespaced_custom_object, **kind.path, body=body)

    async def replace(self, kind: Resource, name: str, body: Json) -> Json:
        """Raises Conflict unless `body` carries the newest resourceVersion."""
        return await self._call(
            self._objects.replace_namespaced_custom_object, **kind.path, name=name, body=body
        )

    async def scale(self, kind: Resource, name: str) -> Json | None:
        """The `scale` subresource: an autoscaling/v1 Scale, whatever the kind."""
        return await self._find(self._objects.get_namespaced_custom_object_scale, **kind.path, name=name)

    async def replace_scale(self, kind: Resource, name: str, body: Json) -> Json:
        """As `replace`."""
        return await self._call(
            self._objects.replace_namespaced_custom_object_scale,
            **kind.path,
            name=name,
            body=body,
            field_manager=FIELD_MANAGER,
        )

    async def _find(self, function: Callable[..., Json], **arguments: Any) -> Json | None:
        try:
            return await self._call(function, **arguments)
        except KubernetesRefused as exc:
            if getattr(exc.__cause__, "status", 0) == 404:
                return None
            raise

    async def _call(self, function: Callable[..., Json], **arguments: Any) -> Json:
        loop = asyncio.get_running_loop()
        timeout_s = CALL_TIMEOUT_S
        try:
            # Not wait_for: Python 3.11's loses a cancel that comes together with the answer.
            async with asyncio.timeout(timeout_s + 1):
                return await loop.run_in_executor(
                    self._threads, lambda: function(**arguments, _request_timeout=timeout_s)
                )
        except self._client.ApiException as exc:
            kind = Conflict if exc.status == 409 else KubernetesRefused
            raise kind(f"Kubernetes at {self.server}: {exc.status} {_words(exc)}") from exc
        except (self._http_error, OSError, TimeoutError) as exc:
            raise KubernetesUnreachable(
                f"no answer from Kubernetes at {self.server} ({timeout_s:g} s allowed): {exc}"
            ) from exc


def _words(exc: Any) -> str:
    """The message of the Status that comes as the body, else the reason."""
    try:
        return str(json.loads(exc.body)["message"])
    except (TypeError, ValueError, KeyError):
        return str(exc.reason)
