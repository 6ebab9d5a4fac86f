"""Models with no instance: what they were is written down, so that they can come back, after a restart too.

Zero instances is a model that Triton has unloaded: it has no in-place way below one. The weights stay resident and
the spares stay warm in our node, so the way back is about as long as any scale-out.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from contracts.stack import write_whole
from scaler.errors import UpdateTimeout
from scaler.triton_client import IndexEntry

POLL_S = 0.02


class Triton(Protocol):
    """What is needed of Triton to unload a model; `TritonClient` is one."""

    async def index(self) -> list[IndexEntry]: ...
    async def unload(self, model: str) -> None: ...


@dataclass(frozen=True)
class RestingConfigs:
    """RUN_DIR/resting/MODEL.json: the config that a model had when it was last unloaded by us."""

    folder: Path

    def remember(self, config: ModelConfig) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = json_format.MessageToJson(config, preserving_proto_field_name=True)
        write_whole(self._path(config.name), text.encode())

    def recall(self, model: str) -> ModelConfig | None:
        """None: we never unloaded it; its repository's own config is the one to load then."""
        try:
            text = self._path(model).read_text()
        except FileNotFoundError:
            return None
        config: ModelConfig = json_format.Parse(text, ModelConfig())
        return config

    def forget(self, model: str) -> None:
        """It serves again: its config is Triton's to tell."""
        self._path(model).unlink(missing_ok=True)

    def _path(self, model: str) -> Path:
        return self.folder / f"{model}.json"


async def is_loaded(triton: Triton, model: str) -> bool | None:
    """None: Triton's repository has no such model."""
    states = {entry.name: entry.state for entry in await triton.index()}
    return states[model] in ("READY", "LOADING") if model in states else None


async def unload(triton: Triton, model: str, timeout_s: float) -> None:
    """Returns when it is gone; requests that Triton had taken are answered first.

    Raises UpdateTimeout when something in flight never ends: a load brings the model back all the same, beside
    what is left of it.
    """
    await triton.unload(model)
    deadline_s = time.monotonic() + timeout_s
    while (state := await _state(triton, model)) != "UNAVAILABLE":
        if time.monotonic() > deadline_s:
            raise UpdateTimeout(
                f"model {model!r} is still {state} {timeout_s:g} s after the unload: it waits for a stream that "
                "does not end (a client that cancelled at the very end); requests bring it back meanwhile"
            )
        await asyncio.sleep(POLL_S)


async def _state(triton: Triton, model: str) -> str:
    """A model that is in no repository any more counts as unloaded."""
    return next((entry.state for entry in await triton.index() if entry.name == model), "UNAVAILABLE")
