"""A language model and an embedding model of a few lines for a plain Triton, with the tensors the gateway asks for.

The chat answers PIECES, one a response. A prompt that says "wait before 1" waits before piece 1: it leaves a file
in the waiting room until somebody takes that away.
"""

from __future__ import annotations

from pathlib import Path

from tidegate.repository import compile_entry

PIECES = ("The", " tide", " turns", ".")
EMBEDDING_DIM = 4
ANSWER_S = 0.02
"""Before the first piece, and of a batch of texts."""

_CHAT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input [
  { name: "text_input"               data_type: TYPE_STRING dims: [ 1 ] },
  { name: "stream"                   data_type: TYPE_BOOL   dims: [ 1 ] },
  { name: "sampling_parameters"      data_type: TYPE_STRING dims: [ 1 ] optional: true },
  { name: "exclude_input_in_output"  data_type: TYPE_BOOL   dims: [ 1 ] optional: true },
  { name: "return_finish_reason"     data_type: TYPE_BOOL   dims: [ 1 ] optional: true },
  { name: "return_num_output_tokens" data_type: TYPE_BOOL   dims: [ 1 ] optional: true },
  { name: "return_num_cached_tokens" data_type: TYPE_BOOL   dims: [ 1 ] optional: true }
]
output [
  { name: "text_output"       data_type: TYPE_STRING dims: [ 1 ] },
  { name: "finish_reason"     data_type: TYPE_STRING dims: [ 1 ] },
  { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ 1 ] }
]
instance_group [ { kind: KIND_CPU count: 1 } ]
"""

_CHAT_MODEL = """
import os
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


def strings(name, value):
    return pb_utils.Tensor(name, np.array([value.encode()], dtype=np.object_))


class TritonPythonModel:
    def initialize(self, args):
        self.count = 0

    def execute(self, requests):
        for request in requests:
            asked = {{tensor.name(): tensor.as_numpy()[0] for tensor in request.inputs()}}
            pieces = {pieces!r} if asked["stream"] else ("".join({pieces!r}),)
            self.count += 1
            place = os.path.join({waiting_room!r}, f"{{os.getpid()}}-{{self.count}}")
            given = (request.get_response_sender(), pieces, asked["text_input"].decode(), place)
            threading.Thread(target=self.answer, args=given).start()

    def answer(self, sender, pieces, text, place):
        time.sleep({answer_s})
        for number, piece in enumerate(pieces):
            if f"wait before {{number}}" in text:
                open(place, "w").close()
                while os.path.exists(place):
                    time.sleep(0.01)
            is_last = number == len(pieces) - 1
            tensors = [strings("text_output", piece), strings("finish_reason", "stop" if is_last else "null")]
            tensors.append(pb_utils.Tensor("num_output_tokens", np.array([1], dtype=np.uint32)))
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
            sender.send(pb_utils.InferenceResponse(tensors), flags=flags)
"""

_EMBED_CONFIG = f"""
backend: "python"
max_batch_size: 32
dynamic_batching {{ }}
input [ {{ name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "embedding" data_type: TYPE_FP32 dims: [ {EMBEDDING_DIM} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
"""

_EMBED_MODEL = f"""
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep({ANSWER_S})
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "text_input")) for request in requests]

    def answer(self, texts):
        vectors = [[len(text)] * {EMBEDDING_DIM} for (text,) in texts.as_numpy()]
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", np.array(vectors, dtype=np.float32))])
"""


def write_chat(repository: Path, waiting_room: Path) -> None:
    waiting_room.mkdir()
    model = _CHAT_MODEL.format(pieces=PIECES, waiting_room=str(waiting_room), answer_s=ANSWER_S)
    _write(repository / "chat", _CHAT_CONFIG, model)


def write_embed(repository: Path) -> None:
    """Every number of a vector is the length of its text."""
    _write(repository / "embed", _EMBED_CONFIG, _EMBED_MODEL)


def _write(entry: Path, config: str, model: str) -> None:
    (entry / "1").mkdir(parents=True)
    (entry / "config.pbtxt").write_text(config)
    (entry / "1" / "model.py").write_text(model)
    compile_entry(entry)
