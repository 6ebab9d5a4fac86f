"""The peer of every instance figure: a Python-backend model as one writes it without tidegate, torch in the stub.

Each instance loads the model for itself, either as a copy of its own (what a cast, a quantization or a checkpoint
in another format leads to) or mapped from the safetensors file, whose pages the processes then share. `bare_model`
is the least that an instance can be: a stub that imports nothing but Triton's own utilities.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tritonclient.grpc import service_pb2

from benchmarks.clients import TritonLoad
from contracts.stack import tidegate_home
from scaler.triton_client import TritonClient
from tidegate.stubs import Stub, children
from tidegate.testing import RunningStack, running_stack

NAME = "plain"
LOAD_TIMEOUT_S = 300.0
MAX_NEW_TOKENS = 4

CONFIG = """
name: "plain"
backend: "python"
max_batch_size: 0
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [
  { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "pid" data_type: TYPE_INT64 dims: [ 1 ] }
]
"""
GROUP = 'instance_group [ { name: "plain-0" kind: KIND_CPU count: 1 host_policy: "plain-0" } ]\n'

MODEL = """
import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # else the idle threads of four instances spin on each other

import numpy as np
import tokenizers
import torch
import triton_python_backend_utils as pb_utils
from transformers import AutoModelForCausalLM

FOLDER, OWNS_COPY, MAX_NEW_TOKENS = {folder!r}, {owns_copy!r}, {max_new_tokens!r}


class TritonPythonModel:
    def initialize(self, args):
        self.tokenizer = tokenizers.Tokenizer.from_file(FOLDER + "/tokenizer.json")
        self.model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        if OWNS_COPY:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clone()

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(each, "text_input")) for each in requests]

    def answer(self, text):
        ids = torch.tensor([self.tokenizer.encode(text.as_numpy()[0].decode()).ids])
        with torch.inference_mode():
            output = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=MAX_NEW_TOKENS,
                do_sample=False,
                pad_token_id=0,
            )
        answer = self.tokenizer.decode(output[0, ids.shape[1] :].tolist())
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([answer.encode()], dtype=np.object_)),
                pb_utils.Tensor("pid", np.array([os.getpid()])),
            ]
        )
"""


BARE_MODEL = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        error = pb_utils.TritonError("it only starts")
        return [pb_utils.InferenceResponse(output_tensors=[], error=error) for _ in requests]
"""


def weights_folder() -> Path:
    """Of the model that `chat` serves. Raises FileNotFoundError."""
    folder = tidegate_home() / "models" / "smollm2-135m-instruct"
    if not folder.exists():
        raise FileNotFoundError(f"{folder} is not there; run `tidegate models fetch`")
    return folder


@dataclass(frozen=True)
class OrdinaryModel:
    """`plain` on a running Triton."""

    running: RunningStack

    def stubs(self) -> Sequence[Stub]:
        living, _ = children(self.running.stack.pids["tritonserver"])
        return [stub for stub in living if stub.model == NAME]

    def set_instances(self, num_instances: int) -> float:
        """Returns the milliseconds that the load took, which adds instances in place."""

        async def load() -> float:
            stack = self.running.stack
            client = TritonClient(stack.triton_grpc, stack.triton_key)
            started_s = time.monotonic()
            try:
                await client.load(NAME, _config_json(num_instances), LOAD_TIMEOUT_S)
            finally:
                await client.close()
            return (time.monotonic() - started_s) * 1000

        return asyncio.run(load())

    def use_all(self, prompt: str) -> None:
        """Requests until every instance has answered one. Raises RuntimeError when one never does."""
        wanted, answered = {stub.pid for stub in self.stubs()}, set[int]()

        async def ask() -> None:
            async with TritonLoad(self.running.stack.triton_grpc) as load:
                for _ in range(8):
                    replies = [load.stub.ModelInfer(_request(prompt)) for _ in wanted]
                    answered.update(_pid(reply) for reply in await asyncio.gather(*replies))
                    if wanted <= answered:
                        return
            raise RuntimeError(f"stubs {wanted - answered} of the ordinary model were never asked")

        asyncio.run(ask())


@contextmanager
def ordinary_model(*, owns_copy: bool) -> Iterator[OrdinaryModel]:
    """One instance of it, on a Triton of its own, without node and gateway."""
    text = MODEL.format(folder=str(weights_folder()), owns_copy=owns_copy, max_new_tokens=MAX_NEW_TOKENS)
    with _serving(text) as model:
        yield model


@contextmanager
def bare_model() -> Iterator[OrdinaryModel]:
    """The same with a model that does nothing."""
    with _serving(BARE_MODEL) as model:
        yield model


@contextmanager
def _serving(model_text: str) -> Iterator[OrdinaryModel]:
    with tempfile.TemporaryDirectory(prefix="tg-plain-") as name:
        version = Path(name) / NAME / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(CONFIG + GROUP)
        (version / "model.py").write_text(model_text)
        with running_stack("--repository", name, "--model", NAME, "--no-gateway") as running:
            yield OrdinaryModel(running)


def _config_json(num_instances: int) -> str:
    groups = ", ".join(
        f'{{"name": "{NAME}-{i}", "kind": "KIND_CPU", "count": 1, "host_policy": "{NAME}-{i}"}}'
        for i in range(num_instances)
    )
    return (
        f'{{"name": "{NAME}", "backend": "python", "max_batch_size": 0,'
        ' "input": [{"name": "text_input", "data_type": "TYPE_STRING", "dims": ["1"]}],'
        ' "output": [{"name": "text_output", "data_type": "TYPE_STRING", "dims": ["1"]},'
        ' {"name": "pid", "data_type": "TYPE_INT64", "dims": ["1"]}],'
        f' "instance_group": [{groups}]}}'
    )


def _request(prompt: str) -> service_pb2.ModelInferRequest:
    raw = prompt.encode()
    request = service_pb2.ModelInferRequest(model_name=NAME)
    request.inputs.add(name="text_input", shape=[1], datatype="BYTES")
    request.raw_input_contents.append(len(raw).to_bytes(4, "little") + raw)
    return request


def _pid(reply: service_pb2.ModelInferResponse) -> int:
    names = [output.name for output in reply.outputs]
    return int(np.frombuffer(reply.raw_output_contents[names.index("pid")], np.int64)[0])
