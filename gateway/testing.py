"""FakeTriton: a real gRPC server that answers by script, so that tests run the real gateway without Triton.

Beside it what such tests need: a model folder of a few hundred bytes, and the gateway as a process.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import grpc
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tritonclient.grpc import service_pb2, service_pb2_grpc

EMBEDDING_DIM = 4
TINY_CONTEXT_TOKENS = 256
TINY_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Script:
    """How a generate model answers."""

    pieces: tuple[str, ...] = ("Hello", " world")
    """One response each; the last one carries the finish reason."""
    finish_reason: str = "stop"
    num_cached_tokens: int = 0
    logprobs: str = ""
    """JSON, sent with every piece; "": none."""
    delay_s: float = 0.0
    """Before each piece."""
    error: str = ""
    """An error message on the stream, after the pieces."""
    code: grpc.StatusCode | None = None
    """The stream ends with this status instead, after the pieces."""
    ending: Literal["with-last", "alone", "cut", "no-flag", "no-reason"] = "with-last"
    """The final flag: on the last piece, on a response of its own; or the stream ends in the middle, after the
    reason but without the flag, with the flag but without a reason."""


@dataclass(frozen=True)
class SeenGenerate:
    """A generate request as it arrived."""

    model: str
    request_id: str
    text: str
    sampling: str
    inputs: dict[str, bytes]
    parameters: dict[str, bool | int]


@dataclass
class FakeTriton:
    """`async with FakeTriton() as triton`: serves at `triton.address`; set `script` and friends at any time."""

    script: Script = field(default_factory=Script)
    is_live: bool = True
    ready_models: set[str] = field(default_factory=lambda: {"chat", "embed"})
    embed_delay_s: float = 0.0
    embed_error: tuple[grpc.StatusCode, str] | None = None
    embed_value: float = 0.5
    generates: list[SeenGenerate] = field(default_factory=list)
    embed_batches: list[list[str]] = field(default_factory=list)
    num_cancelled: int = 0
    """Generate streams whose client left before the end."""
    num_unary_cancelled: int = 0
    num_active: int = 0
    era: int = 0
    """Counted up by `reset`: what began before it ends uncounted."""
    port: int = 0
    """0: a free one."""
    address: str = ""

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(_Servicer(self), self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port(f'127.0.0.1:{self.port}')}"
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(grace=None)

    def reset(self) -> None:
        """As new, at the same address."""
        fresh, address, era = FakeTriton(), self.address, self.era
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(fresh, name))
        self.address = address
        self.era = era + 1

    async def generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.generates.append(_seen(request))
        script = self.script
        for index, piece in enumerate(script.pieces):
            await asyncio.sleep(script.delay_s)
            is_last = index == len(script.pieces) - 1
            is_whole = script.ending not in ("cut", "no-reason") and not script.error and script.code is None
            has_reason = is_last and is_whole
            yield _text_response(
                request,
                piece,
                script.finish_reason if has_reason else "null",
                is_final=has_reason and script.ending == "with-last",
                script=script,
            )
        if script.code is not None:
            await context.abort(script.code, script.error)
        if script.error:
            yield service_pb2.ModelStreamInferResponse(error_message=script.error)
        elif script.ending in ("alone", "no-reason"):
            yield _final_response(request)


class _Servicer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    def __init__(self, fake: FakeTriton) -> None:
        self._fake = fake

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=self._fake.is_live)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return service_pb2.ModelReadyResponse(ready=request.name in self._fake.ready_models)

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        self._fake.num_active += 1
        era = self._fake.era
        try:
            async for request in requests:
                async for response in self._fake.generate(request, context):
                    yield response
                if self._fake.script.ending in ("cut", "no-flag"):
                    return
        except asyncio.CancelledError:
            self._fake.num_cancelled += era == self._fake.era
            raise
        finally:
            self._fake.num_active -= era == self._fake.era

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        fake = self._fake
        texts = _texts(request.raw_input_contents[0])
        fake.embed_batches.append(texts)
        try:
            await asyncio.sleep(fake.embed_delay_s)
        except asyncio.CancelledError:
            fake.num_unary_cancelled += 1
            raise
        if fake.embed_error is not None:
            await context.abort(*fake.embed_error)
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        response.outputs.add(name="embedding", datatype="FP32", shape=[len(texts), EMBEDDING_DIM])
        response.raw_output_contents.append(b"".join(_vector(text, fake.embed_value) for text in texts))
        return response


def _vector(text: str, value: float) -> bytes:
    """The first number tells the texts apart."""
    return struct.pack("<4f", len(text), value, value, value)


def _seen(request: Any) -> SeenGenerate:
    inputs = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
    return SeenGenerate(
        model=request.model_name,
        request_id=request.id,
        text=_texts(inputs["text_input"])[0],
        sampling=_texts(inputs["sampling_parameters"])[0] if "sampling_parameters" in inputs else "",
        inputs=inputs,
        parameters={
            key: getattr(value, value.WhichOneof("parameter_choice"))
            for key, value in request.parameters.items()
        },
    )


def _texts(raw: bytes) -> list[str]:
    texts, at = [], 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        texts.append(raw[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts


def _text_response(request: Any, text: str, finish_reason: str, *, is_final: bool, script: Script) -> Any:
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    texts = {"text_output": text, "finish_reason": finish_reason}
    if script.logprobs:
        texts["logprobs"] = script.logprobs
    for name, value in texts.items():
        response.outputs.add(name=name, datatype="BYTES", shape=[1])
        raw = value.encode()
        response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    for name, count in (("num_output_tokens", 1), ("num_cached_tokens", script.num_cached_tokens)):
        response.outputs.add(name=name, datatype="UINT32", shape=[1])
        response.raw_output_contents.append(count.to_bytes(4, "little"))
    response.parameters["triton_final_response"].bool_param = is_final
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def _final_response(request: Any) -> Any:
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    response.parameters["triton_final_response"].bool_param = True
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def write_tiny_model(folder: Path, template: str | None = TINY_TEMPLATE) -> Path:
    """A folder the gateway can serve: a token per byte, 256 tokens of context."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|im_start|>", "<|im_end|>")])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"max_position_embeddings": TINY_CONTEXT_TOKENS}
    (folder / "config.json").write_text(json.dumps(config))
    tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokens))
    return folder


@dataclass(frozen=True)
class RunningGateway:
    """`python -m gateway` in a process of its own."""

    url: str
    process: asyncio.subprocess.Process
    log_path: Path
    """Its stderr."""

    async def stop(self) -> int:
        """SIGTERM; the exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await self.process.wait()

    def access_lines_of(self, request_id: str) -> list[dict[str, Any]]:
        """The access log's lines of one request id so far. A line comes after its answer's last byte."""
        lines = [json.loads(line) for line in self.log_path.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["request_id"] == request_id]


@asynccontextmanager
async def running_gateway(
    triton_address: str, *, more_models: Sequence[str] = (), **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Serves `chat` and `embed`, both tiny, and `more_models` like `chat`, from a Triton at that address.

    Stopped at the end."""
    with tempfile.TemporaryDirectory() as name, free_port() as port:
        folder = Path(name)
        path = str(write_tiny_model(folder / "tiny"))
        kinds = {"chat": "generate", "embed": "embed", **dict.fromkeys(more_models, "generate")}
        config = {
            "port": port,
            "triton_grpc": triton_address,
            "models": [
                {"name": name, "kind": kind, "weights": "tiny", "path": path} for name, kind in kinds.items()
            ],
        }
        config_path, log_path = folder / "gateway.json", folder / "gateway.log"
        config_path.write_text(json.dumps(config | settings))
        gateway = await start_gateway(config_path, log_path, port)
        try:
            yield gateway
        finally:
            await gateway.stop()


async def start_gateway(config_path: Path, log_path: Path, port: int) -> RunningGateway:
    """Returns when it serves. Raises RuntimeError when it does not."""
    with log_path.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gateway", "--config", str(config_path)),
            stdout=subprocess.PIPE,
            stderr=log,
        )
    assert process.stdout is not None  # noqa: S101 - for mypy: it is a pipe
    line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
    if line != b"tidegate-ready gateway\n":
        await process.wait()
        raise RuntimeError(f"the gateway did not start; its log: {log_path}")
    return RunningGateway(f"http://127.0.0.1:{port}", process, log_path)


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody listens on, kept from others that ask the same way until the block ends."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])
