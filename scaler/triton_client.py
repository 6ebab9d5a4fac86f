"""Triton's gRPC calls that scaling needs, no more. The only file of this package that talks to Triton.

gRPC and never HTTP: a load over HTTP blocks Triton's HTTP workers for as long as it takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from contracts.triton_key import REFUSAL, grpc_metadata
from scaler.errors import LoadPending, LoadRefused, ModelUnknown, ScaleError, TritonUnreachable
from scaler.serving.channels import connect

CALL_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class IndexEntry:
    """One line of Triton's repository index. `state`: READY, LOADING, UNLOADING, UNAVAILABLE or ""."""

    name: str
    state: str
    reason: str


class TritonClient:
    """Raises what `scaler.errors` names, never grpc's own errors. Close it."""

    def __init__(self, address: str, key: str = "") -> None:
        """`key` opens what that Triton restricts."""
        self.address = address
        self._metadata = grpc_metadata(key)
        self._channel = connect(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close()

    async def is_ready(self, model: str) -> bool:
        reply = await self._call("ModelReady", service_pb2.ModelReadyRequest(name=model))
        return bool(reply.ready)

    async def config(self, model: str) -> ModelConfig:
        """The config that is served now, overrides included. Raises ModelUnknown."""
        reply = await self._call("ModelConfig", service_pb2.ModelConfigRequest(name=model))
        return reply.config

    async def index(self) -> list[IndexEntry]:
        reply = await self._call("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [IndexEntry(entry.name, entry.state, entry.reason) for entry in reply.models]

    async def statistics(self, model: str) -> Any:
        """service_pb2.ModelStatistics of the one version that is served. Raises ModelUnknown."""
        reply = await self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model))
        return reply.model_stats[0]

    async def load(self, model: str, config_json: str, timeout_s: float) -> None:
        """Returns when Triton has done it. Raises LoadRefused; LoadPending past the deadline, in which case
        Triton goes on with it: watch `config`, don't send it again."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        request.parameters["config"].string_param = config_json
        await self._load(request, timeout_s)

    async def load_from_repository(self, model: str, timeout_s: float) -> None:
        """As `load`, with the repository's own config; on a loaded model that undoes what was set by `load`."""
        await self._load(service_pb2.RepositoryModelLoadRequest(model_name=model), timeout_s)

    async def _load(self, request: Any, timeout_s: float) -> None:
        model = request.model_name
        try:
            await self._stub.RepositoryModelLoad(request, timeout=timeout_s, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            if exc.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise LoadPending(f"load of {model!r} has not returned after {timeout_s:g} s") from exc
            if exc.code() == grpc.StatusCode.UNAVAILABLE:
                raise self._translate(exc) from exc
            raise LoadRefused(f"Triton refused the load of {model!r}: {exc.details()}") from exc

    async def unload(self, model: str) -> None:
        """Returns at once; the model is gone when `index` says UNAVAILABLE."""
        await self._call("RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=model))

    async def _call(self, method: str, request: Any) -> Any:
        try:
            return await getattr(self._stub, method)(request, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        except grpc.aio.AioRpcError as exc:
            raise self._translate(exc) from exc

    def _translate(self, exc: grpc.aio.AioRpcError) -> ScaleError:
        if (exc.details() or "").startswith(REFUSAL):
            return ScaleError(
                f"Triton at {self.address} asks for its key: {exc.details()}; name the file: triton_key_file"
            )
        if exc.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return TritonUnreachable(f"no answer from Triton at {self.address}: {exc.details()}")
        if exc.code() == grpc.StatusCode.NOT_FOUND or any(
            words in (exc.details() or "") for words in ("unknown model", "is not available")
        ):
            return ModelUnknown(f"{exc.details()}; see `tidegate status` for what is loaded")
        return ScaleError(f"Triton at {self.address}: {exc.code().name}: {exc.details()}")
