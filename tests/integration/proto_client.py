"""A gRPC client made from a .proto file at run time; two versions of one proto fit side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc


class ProtoClient:
    """`client.call("GetMetrics", request)`; `client.message("MetricValue")` is the class of that name."""

    def __init__(self, proto: Path, work_dir: Path, address: str) -> None:
        out = work_dir / "descriptors.bin"
        arguments = ["protoc", f"-I{proto.parent}", f"--descriptor_set_out={out}", str(proto)]
        assert protoc.main(arguments) == 0
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        pool = descriptor_pool.DescriptorPool()
        found = pool.AddSerializedFile(file.SerializeToString()) or pool.FindFileByName(file.name)
        self._package = file.package
        self._pool = pool
        (self._service,) = found.services_by_name.values()
        self._channel = grpc.aio.insecure_channel(address)

    @property
    def methods(self) -> dict[str, bool]:
        """By name: does it stream?"""
        return {method.name: method.server_streaming for method in self._service.methods}

    def message(self, name: str) -> Any:
        found = self._pool.FindMessageTypeByName(f"{self._package}.{name}")
        return message_factory.GetMessageClass(found)

    def call(self, name: str, request: Any) -> Any:
        """To await, or to iterate when it streams."""
        method = self._service.methods_by_name[name]
        kind = self._channel.unary_stream if method.server_streaming else self._channel.unary_unary
        reply = message_factory.GetMessageClass(method.output_type)
        return kind(
            f"/{self._service.full_name}/{name}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=reply.FromString,
        )(request, timeout=20)

    async def close(self) -> None:
        await self._channel.close()
