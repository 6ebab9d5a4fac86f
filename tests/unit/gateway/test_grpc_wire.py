"""Fields read from KServe's messages without decoding them, against protobuf's own reading."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.errors import InvalidRequest
from gateway.grpc_rpcs import METHODS, Kind, kind_of
from gateway.grpc_wire import read_reply, read_request, with_model

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0"), min_size=1, max_size=40).filter(
    lambda name: name not in (".", "..")
)


def request(model: str = "chat", request_id: str = "r1", payload: bytes = b"\x08\x96\x01" * 9) -> bytes:
    """With a tensor whose bytes look like fields."""
    message = service_pb2.ModelInferRequest(model_name=model, model_version="3", id=request_id)
    message.parameters["priority"].int64_param = 2**62
    message.inputs.add(name="IN", datatype="BYTES", shape=[1, 2**40])
    message.outputs.add(name="OUT")
    message.raw_input_contents.append(payload)
    data: bytes = message.SerializeToString()
    return data


@given(NAMES, st.text(max_size=20), st.binary(max_size=300), NAMES)
def test_name_and_id_are_read_and_the_name_is_changed_for_any_content(
    name: str, request_id: str, payload: bytes, other: str
) -> None:
    """Protobuf reads the changed request as the same one for another model."""
    data = request(name, request_id, payload)
    head = read_request(data)
    assert (head.model_name, head.request_id) == (name, request_id)
    before, after = service_pb2.ModelInferRequest(), service_pb2.ModelInferRequest()
    before.ParseFromString(data)
    after.ParseFromString(with_model(data, other))
    before.model_name = other
    assert after == before
    assert read_request(with_model(data, other)).model_name == other


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused_and_never_crash(data: bytes) -> None:
    """Whatever they are; replies that can't be read count as ordinary ones."""
    with contextlib.suppress(InvalidRequest):
        read_request(data)
    read_reply(data)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "..", "a\\b", "x" * 256])
def test_a_name_that_no_model_can_have_is_refused(name: str) -> None:
    """Triton answers INTERNAL to some of them."""
    with pytest.raises(InvalidRequest, match="model_name"):
        read_request(request(name))


@pytest.mark.parametrize(("is_final", "error"), [(True, ""), (False, ""), (False, "invalid argument: no")])
def test_a_reply_tells_whose_it_is_and_whether_it_is_the_last(is_final: bool, error: str) -> None:
    """The flag is one of the response's parameters, among others."""
    message = service_pb2.ModelStreamInferResponse(error_message=error)
    message.infer_response.id = "r7"
    message.infer_response.parameters["other"].bool_param = True
    message.infer_response.parameters["triton_final_response"].bool_param = is_final
    message.infer_response.raw_output_contents.append(b"x" * 1000)
    head = read_reply(message.SerializeToString())
    assert (head.request_id, head.is_final, head.error) == ("r7", is_final, error)


def test_every_rpc_of_the_protocol_has_its_kind() -> None:
    """Whatever changes the server or shows what others do is management."""
    assert kind_of("ModelInfer") is Kind.INFER
    assert kind_of("ServerReady") is Kind.HEALTH
    assert kind_of("ModelConfig") is Kind.READ
    managing = {name for name in METHODS if kind_of(name) is Kind.MANAGE}
    assert managing == {
        "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
        "SystemSharedMemoryStatus", "SystemSharedMemoryRegister", "SystemSharedMemoryUnregister",
        "CudaSharedMemoryStatus", "CudaSharedMemoryRegister", "CudaSharedMemoryUnregister",
        "TraceSetting", "LogSettings",
    }  # fmt: skip
    assert kind_of("Nothing") is None
