"""Tokens -> text as it may be sent: never half a character, never a byte of a stop string. Pure."""

from __future__ import annotations

from typing import Protocol

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class Decoder(Protocol):
    """The one method needed of `tokenizers.Tokenizer`."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str: ...


class IncrementalDecoder:
    """Decodes a growing list of tokens piece by piece; the pieces add up to the text of the whole.

    Two offsets as in Hugging Face's TGI: text is decoded from `_prefix` (some tokens back, because a token's
    text can depend on its neighbours), and what lies before `_read` has been given out.
    """

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._ids: list[int] = []
        self._prefix = 0
        self._read = 0

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is still incomplete."""
        self._ids.append(token)
        sent = self._decoder.decode(self._ids[self._prefix : self._read])
        text = self._decoder.decode(self._ids[self._prefix :])
        if len(text) <= len(sent) or text.endswith(REPLACEMENT):
            return ""
        self._prefix, self._read = self._read, len(self._ids)
        return text[len(sent) :]


class TokenTexts:
    """The text of single tokens, as they read in the middle of a text; remembered."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._texts: dict[int, str] = {}

    def of(self, token: int) -> str:
        """Half a character reads as U+FFFD."""
        text = self._texts.get(token)
        if text is None:
            # The first token of a text can lose its leading space; the second one doesn't.
            alone = self._decoder.decode([token], skip_special_tokens=False)
            twice = self._decoder.decode([token, token], skip_special_tokens=False)
            text = twice[len(alone) :] if twice.startswith(alone) else alone
            self._texts[token] = text or alone
        return self._texts[token]


class StopFilter:
    """Holds text back while it could be the beginning of a stop string."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """(text that may be sent now, whether a stop string was reached)."""
        self._held += text
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            sendable, self._held = self._held[: min(found)], ""
            return sendable, True
        keep = max((self._overlap(stop) for stop in self._stops), default=0)
        cut = len(self._held) - keep
        sendable, self._held = self._held[:cut], self._held[cut:]
        return sendable, False

    def flush(self) -> str:
        """The end came without a stop string: what was held back is due."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, stop: str) -> int:
        """Length of the longest end of the held text that begins `stop`."""
        longest = min(len(stop) - 1, len(self._held))
        return next((n for n in range(longest, 0, -1) if stop.startswith(self._held[-n:])), 0)
