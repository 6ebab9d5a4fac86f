"""Fields read from KServe's messages without decoding them, against protobuf's own reading."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from gateway.errors import InvalidRequest
from gateway.grpc_rpcs import METHODS, NAMES_A_MODEL, Kind, kind_of
from gateway.grpc_wire import read_model, read_reply, read_request, with_model

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


@pytest.mark.parametrize("method", sorted(NAMES_A_MODEL))
def test_the_model_that_a_reading_rpc_names_is_its_first_field(method: str) -> None:
    """Set twice, the last one holds, as for Triton. None is none; bytes that are no message are refused."""
    message = getattr(service_pb2, f"{method}Request")
    first, last = (message(name=name, version="1").SerializeToString() for name in ("chat", "embed"))
    assert read_model(first) == "chat"
    assert read_model(first + last) == message.FromString(first + last).name == "embed"
    assert read_model(b"") == ""
    with pytest.raises(InvalidRequest, match="no message"):
        read_model(first[:-1])


@pytest.mark.parametrize(
    "disguised", [b"\x0dchat", b"\x09chatchat", b"\x08A"], ids=["fixed32", "fixed64", "number"]
)
def test_a_name_of_another_kind_is_none(disguised: bytes) -> None:
    """Protobuf skips it. Were it read, a key for `chat` would open `embed`."""
    data = request("embed") + disguised
    assert service_pb2.ModelInferRequest.FromString(data).model_name == "embed"
    assert read_request(data).model_name == "embed"
    assert read_model(service_pb2.ModelConfigRequest(name="embed").SerializeToString() + disguised) == "embed"


def test_a_tag_of_more_than_32_bits_is_refused() -> None:
    """C++ cuts it to the name's tag, and would read `embed`; Python refuses it."""
    disguised = b"\x8a\x80\x80\x80\x10\x05embed"
    for read in (read_request, read_model):
        with pytest.raises(InvalidRequest, match="32 bits"):
            read(request("chat") + disguised)


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
