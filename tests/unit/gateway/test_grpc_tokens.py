"""Tokens at the gRPC door: read from the messages of language models, with nothing changed that a client sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tritonclient.grpc import service_pb2 as pb

from gateway.call import Call
from gateway.grpc_tokens import TokenRequest


def element(text: str) -> bytes:
    raw = text.encode()
    return len(raw).to_bytes(4, "little") + raw


def request(*, inline: bool = False, outputs: tuple[str, ...] = (), **tensors: Any) -> bytes:
    message = pb.ModelInferRequest(model_name="chat", id="r1")
    for name, value in tensors.items():
        is_flag = isinstance(value, bool)
        tensor = message.inputs.add(name=name, datatype="BOOL" if is_flag else "BYTES", shape=[1])
        if not inline:
            message.raw_input_contents.append(bytes([value]) if is_flag else element(value))
        elif is_flag:
            tensor.contents.bool_contents.append(value)
        else:
            tensor.contents.bytes_contents.append(value.encode())
    for name in outputs:
        message.outputs.add(name=name)
    return message.SerializeToString()


def read(data: bytes) -> TokenRequest:
    found = TokenRequest.read(data)
    assert found is not None
    return found


def answer(**outputs: bytes) -> bytes:
    message = pb.ModelStreamInferResponse()
    for name, raw in outputs.items():
        message.infer_response.outputs.add(name=name, datatype="BYTES", shape=[1])
        message.infer_response.raw_output_contents.append(raw)
    return message.SerializeToString()


@pytest.mark.parametrize("inline", [False, True])
def test_text_and_wish_are_read_in_either_form(inline: bool) -> None:
    """Raw contents or typed ones: KServe knows both."""
    found = read(request(inline=inline, text_input="hello", sampling_parameters='{"max_tokens": 99}'))
    assert (found.texts, found.max_tokens) == (["hello"], 99)


@pytest.mark.parametrize(
    "sampling", ["", "[]", "{", '{"max_tokens": -1}', '{"max_tokens": true}', "[" * 5000]
)
def test_a_wish_that_the_engine_will_refuse_counts_as_its_default(sampling: str) -> None:
    """It is the engine that says what is wrong."""
    assert read(request(text_input="hello", sampling_parameters=sampling)).max_tokens == 16


@pytest.mark.parametrize("inline", [False, True])
def test_counts_are_asked_for_in_the_form_of_the_request(inline: bool) -> None:
    """Triton refuses a request that has some tensors raw and some not."""
    data, counter = read(request(inline=inline, text_input="hello", return_num_output_tokens=False)).counted(
        16
    )
    message = pb.ModelInferRequest.FromString(data)
    assert [tensor.name for tensor in message.inputs] == [
        *("text_input", "return_num_output_tokens", "return_num_cached_tokens")
    ]
    assert len(message.raw_input_contents) == (0 if inline else 3)
    flags = [tensor.contents.bool_contents for tensor in message.inputs[1:]]
    assert flags == [[True], [True]] if inline else message.raw_input_contents[1:] == [b"\1", b"\1"]
    assert counter.hidden == {"num_output_tokens", "num_cached_tokens"}


def test_a_limit_lowers_max_tokens_and_leaves_the_rest() -> None:
    """What else the client said of sampling holds."""
    sampling = json.dumps({"temperature": 0, "max_tokens": 50})
    data, _ = read(request(text_input="hello", sampling_parameters=sampling)).counted(7)
    raw = pb.ModelInferRequest.FromString(data).raw_input_contents[1]
    assert json.loads(raw[4:]) == {"temperature": 0, "max_tokens": 7}
    assert int.from_bytes(raw[:4], "little") == len(raw) - 4


def test_what_the_client_did_not_ask_for_it_does_not_get() -> None:
    """It gets the bytes that it would have got; the call knows the tokens."""
    _, counter = read(request(text_input="hello")).counted(16)
    call = Call("r1", "grpc")
    full = answer(text_output=element("a"), num_output_tokens=b"\3\0\0\0", num_cached_tokens=b"\2\0\0\0")
    for _ in range(2):
        assert counter.read(call, full) == answer(text_output=element("a"))
    assert (call.num_output_tokens, call.num_cached_tokens) == (6, 2)


def test_what_the_client_asked_for_stays() -> None:
    """Its own flag, and its own list of outputs, which has to name ours too for Triton to send it."""
    data, counter = read(
        request(
            text_input="hello", return_num_output_tokens=True, outputs=("text_output", "num_output_tokens")
        )
    ).counted(16)
    assert [output.name for output in pb.ModelInferRequest.FromString(data).outputs] == [
        *("text_output", "num_output_tokens", "num_cached_tokens")
    ]
    mine = answer(text_output=element("a"), num_output_tokens=b"\1\0\0\0")
    assert counter.read(Call("r1", "grpc"), mine) == mine


def test_a_tensor_in_shared_memory_has_no_raw_content() -> None:
    """The others' places move up by one; what stood in their way was another tensor's content."""
    message = pb.ModelInferRequest(model_name="chat")
    shared = message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    shared.parameters["shared_memory_region"].string_param = "mine"
    message.inputs.add(name="sampling_parameters", datatype="BYTES", shape=[1])
    message.raw_input_contents.append(element('{"max_tokens": 5}'))
    found = read(message.SerializeToString())
    assert (found.texts, found.max_tokens) == ([], 5)


def test_bytes_that_are_no_message_pass_as_they_are() -> None:
    """Triton refuses them in its own words."""
    assert TokenRequest.read(b"\xff\xff") is None
    _, counter = read(request(text_input="hello")).counted(16)
    assert counter.read(Call("r1", "grpc"), b"\xff\xff") == b"\xff\xff"
