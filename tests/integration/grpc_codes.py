"""Every RPC of Triton's service as one question: what status does this key get?"""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.message_factory import GetMessageClass
from tritonclient.grpc import service_pb2

from gateway.grpc_rpcs import NAMES_A_MODEL

REQUESTS = {
    method.name: GetMessageClass(method.input_type)
    for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
}
"""Method -> its request's class."""


async def code_of(
    stub: Any, method: str, key: str, model: str = "chat", *, writes: bool = True
) -> grpc.StatusCode:
    """`key`: "" for none. `model`: named by the RPCs that infer, or that tell of one model.

    `writes` False: not a word on a stream, because its key is refused at once. grpc.aio calls a stream INTERNAL
    whose server ended it under a write.
    """
    metadata = (("authorization", f"Bearer {key}"),) if key else ()
    if method == "ModelStreamInfer":
        stream = stub.ModelStreamInfer(metadata=metadata)
        if writes:
            await stream.write(service_pb2.ModelInferRequest(model_name=model))
        code: grpc.StatusCode = await stream.code()
        return code
    try:
        await getattr(stub, method)(request_of(method, model), metadata=metadata)
    except grpc.aio.AioRpcError as exc:
        code = exc.code()
        return code
    return grpc.StatusCode.OK


def request_of(method: str, model: str) -> Any:
    if method == "ModelInfer":
        return REQUESTS[method](model_name=model)
    return REQUESTS[method](**({"name": model} if method in NAMES_A_MODEL else {}))
