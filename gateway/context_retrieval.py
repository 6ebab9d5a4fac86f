"""How much each older turn has to do with the newest one, by the embeddings of a served model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gateway.catalog import GatewayModel
from gateway.context_cache import Cache, hash_of
from gateway.context_calls import Behalf, ContextCalls
from gateway.context_turns import Turn, as_text, cut_middle

MAX_CACHED = 16_384
"""At 384 numbers each, 25 MB."""
MAX_TURNS = 512
"""The newest of the older turns, that are looked at."""
_CUT_PART = 0.9
_MAX_CUTS = 8

Vector = npt.NDArray[np.float32]


class Retriever:
    """One for the gateway. A turn is embedded once."""

    def __init__(self, calls: ContextCalls) -> None:
        self._calls = calls
        self._known: Cache[Vector] = Cache(MAX_CACHED)

    async def scores(
        self, behalf: Behalf, model_name: str, older: Sequence[Turn], newest: Turn
    ) -> tuple[list[float], int]:
        """A score per older turn, higher is nearer, and the tokens that this took. Raises as an embedding does."""
        model = self._calls.embed_model(model_name)
        looked_at = older[-MAX_TURNS:]
        asked = "\n".join(message["content"] for message in newest if message["role"] == "user")
        texts = [*map(as_text, looked_at), asked or as_text(newest)]
        keys = [hash_of(behalf.call.principal.tenant, model.name, text) for text in texts]
        found = {key: vector for key in keys if (vector := self._known.get(key)) is not None}
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
        num_used = 0
        if missing:
            fitting, num_used = await _fitting(model, list(missing.values()))
            vectors = await self._calls.embed(behalf, model, fitting, num_used)
            for key, raw in zip(missing, vectors, strict=True):
                found[key] = _unit(raw)
                self._known.put(key, found[key])
        *turns, newest_key = keys
        wanted = found[newest_key]
        scores = [float(found[key] @ wanted) for key in turns]
        return [-np.inf] * (len(older) - len(looked_at)) + scores, num_used


def _unit(raw: bytes) -> Vector:
    vector = np.frombuffer(raw, "<f4").astype(np.float32)
    length = float(np.linalg.norm(vector))
    return np.nan_to_num(vector / length) if length > 0 else vector


async def _fitting(model: GatewayModel, texts: list[str]) -> tuple[list[str], int]:
    """The texts, cut in their middle to what the model reads, and their tokens together."""
    counts = await model.count_tokens(texts)
    for _ in range(_MAX_CUTS):
        too_long = [at for at, count in enumerate(counts) if count > model.max_context_tokens]
        if not too_long:
            break
        for at in too_long:
            num_chars = int(len(texts[at]) * model.max_context_tokens / counts[at] * _CUT_PART)
            texts[at] = cut_middle(texts[at], num_chars)
        counts = await model.count_tokens(texts)
    return texts, sum(counts)
