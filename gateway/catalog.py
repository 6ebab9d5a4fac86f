"""The served models as the gateway knows them: name, context limit, tokenizer, chat template.

Tokens are counted here so that a prompt that can't fit is refused before it costs anything; the engine counts
again, with the same tokenizer and its special tokens, and has the last word.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from contracts.prompts import without_double_start
from contracts.stack import ModelKind, ServedModel
from gateway.chat_template import ChatTemplate, read_chat_template
from gateway.config import ConfigError
from gateway.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, shown

LONG_TEXT_CHARS = 8192
"""Longer texts are tokenised in a thread (8192 characters take 5 ms): other streams must not wait for them."""
_LONG_TEXTS = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")


class BatchTokenizer(Protocol):
    """What is needed of `tokenizers.Tokenizer`. Its encode_batch_fast lets other threads run, encode doesn't."""

    def encode_batch_fast(self, input: Any) -> Sequence[Any]: ...


class GatewayModel:
    """One served model."""

    def __init__(
        self,
        name: str,
        kind: ModelKind,
        tokenizer: BatchTokenizer,
        max_context_tokens: int,
        template: ChatTemplate | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.max_context_tokens = max_context_tokens
        self._tokenizer = tokenizer
        (empty,) = tokenizer.encode_batch_fast([""])
        self._start_ids: Sequence[int] = empty.ids
        self._template = template

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Messages -> prompt. Raises InvalidRequest."""
        if self._template is None:
            raise InvalidRequest(f"model {self.name!r} has no chat template; use /v1/completions", "model")
        return self._template.render(messages)

    async def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """As the engine will count them."""
        if sum(map(len, texts)) <= LONG_TEXT_CHARS:
            return self._count(texts)
        return await asyncio.get_running_loop().run_in_executor(_LONG_TEXTS, self._count, texts)

    def _count(self, texts: Sequence[str]) -> list[int]:
        encodings = self._tokenizer.encode_batch_fast(texts)
        return [len(without_double_start(encoding.ids, self._start_ids)) for encoding in encodings]

    def room_for(self, num_prompt_tokens: int, param: str) -> int:
        """Tokens that may be generated after such a prompt. Raises InvalidRequest."""
        limit = self.max_context_tokens
        if num_prompt_tokens == 0:
            raise InvalidRequest(f"{param} is empty: 0 tokens", param)
        if num_prompt_tokens >= limit:
            raise ContextLengthExceeded(
                f"the prompt has {num_prompt_tokens} tokens; with one token to generate, {limit - 1} fit the "
                f"context of {limit} tokens of model {self.name!r}; shorten it",
                param,
            )
        return limit - num_prompt_tokens

    def check_embeds(self, num_tokens: Sequence[int]) -> None:
        """Raises ContextLengthExceeded when a text is longer than the model reads."""
        limit = self.max_context_tokens
        for index, count in enumerate(num_tokens):
            if count > limit:
                raise ContextLengthExceeded(
                    f"input[{index}] has {count} tokens, the context of model {self.name!r} is {limit} tokens; "
                    "split it",
                    f"input[{index}]",
                )


class Catalog:
    """All served models by name."""

    def __init__(self, models: Iterable[GatewayModel]) -> None:
        self._models = {model.name: model for model in models}

    @property
    def names(self) -> list[str]:
        return list(self._models)

    def get(self, name: str) -> GatewayModel | None:
        """None: it has no tokenizer here."""
        return self._models.get(name)

    def find(self, name: str) -> GatewayModel:
        """Raises ModelNotFound."""
        try:
            return self._models[name]
        except KeyError:
            known = ", ".join(self._models) or "none"
            raise ModelNotFound(f"model {shown(name)} is not served here; served: {known}", "model") from None

    def find_kind(self, name: str, kind: ModelKind) -> GatewayModel:
        """Raises ModelNotFound, and InvalidRequest for a model of another kind."""
        model = self.find(name)
        if model.kind != kind:
            fitting = ", ".join(other.name for other in self._models.values() if other.kind == kind) or "none"
            raise InvalidRequest(f"model {name!r} can't {kind}; models that can: {fitting}", "model")
        return model


NO_MODELS = Catalog(())


def load_catalog(served: Iterable[ServedModel]) -> Catalog:
    """Reads tokenizers and templates from the models' folders. Raises ConfigError."""
    return Catalog([_load(model) for model in served])


def _load(served: ServedModel) -> GatewayModel:
    folder = Path(served.path)
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as exc:  # the tokenizers library raises plain Exception
        raise ConfigError(f"model {served.name!r}: can't read {folder / 'tokenizer.json'}: {exc}") from exc
    # Sentence models cut their input at 128 tokens by default; here a text counts whole or is refused.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return GatewayModel(
        served.name,
        served.kind,
        tokenizer,
        _max_context_tokens(served, folder),
        read_chat_template(folder) if served.kind == "generate" else None,
    )


def _max_context_tokens(served: ServedModel, folder: Path) -> int:
    """The model's own limit, or a smaller wanted one: the worker's rule."""
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    own = int(config.get("max_position_embeddings", 2048))
    return min(own, served.max_context_tokens) if served.max_context_tokens else own
