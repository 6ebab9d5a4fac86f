"""Constrained decoding: which tokens may come next so that the output follows its guide.

llguidance does the work (MIT, one wheel of 3 MB without dependencies). Measured on SmolLM2's 49,152 tokens against
the others: xgrammar's masks are faster (2 against 19 us, both nothing beside a forward pass), but it requires
transformers, an FFI runtime and `triton`, 286 MB that no CPU uses; outlines-core takes 0.5 s to compile a small
schema; lm-format-enforcer takes 0.5 to 6 ms a token. llguidance starts no threads, so a fork may inherit it, and
has limits on everything that a request could make it do.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import llguidance
import numpy as np
import tokenizers
import torch
from torch import Tensor

from contracts.guide import Guide
from python_backend.worker.errors import RequestRefused

log = logging.getLogger(__name__)

MAX_CACHED_GUIDES = 16
MAX_REASON_CHARS = 200
COMPILE_TIMEOUT_S = 2.0
COMPILE_STACK_BYTES = 256 * 1024 * 1024
"""A chain of 2,000 definitions, each in terms of the next, overflows the usual 8 MiB, and that ends the worker. The
longest chain that fits a guide needs 64 MiB; what is not touched costs nothing."""

# Step limits as times: 100,000 units of lexer fuel take 7 ms, 20,000 items 1 ms.
_LIMITS = llguidance.LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=20_000,
    max_grammar_size=100_000,
    verbose_errors=False,
)
# Small models fall into endless blanks where JSON allows them; 16 are enough for an indented answer.
_JSON_WHITESPACE = r"[\x20\x0A\x0D\x09]{1,16}"
_REGEX_META = set(r"\.+*?()|[]{}^$#&-~/")


class Matcher:
    """One output on its way through its guide."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> Tensor:
        """Bool [vocabulary]: what may come next; the end of sequence only where the output may end.
        Raises RequestRefused when the guide has become too complex here."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        self._check()
        return torch.from_numpy(np.unpackbits(bits, bitorder="little")).bool()

    def accept(self, token: int) -> bool:
        """The token was chosen; True: the output is complete. Raises RequestRefused."""
        self._matcher.consume_token(token)
        self._check()
        return self._matcher.is_stopped()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestRefused(
                "INVALID_ARGUMENT", f"the guide can't be followed: {_one_line(self._matcher.get_error())}"
            )


class GrammarVocabulary:
    """The tokenizer as the library wants it: 30 MiB, 0.3 s. Made before the fork, so that workers share it."""

    def __init__(
        self, tokenizer: tokenizers.Tokenizer, vocabulary_size: int, eos_token_ids: Iterable[int]
    ) -> None:
        size = max(vocabulary_size, tokenizer.get_vocab_size())
        self.tokenizer = llguidance.LLTokenizer(
            tokenizer.to_str(), n_vocab=size, eos_token=sorted(eos_token_ids) or None
        )


def read_vocabulary(
    tokenizer: tokenizers.Tokenizer, vocabulary_size: int, eos_token_ids: Iterable[int]
) -> GrammarVocabulary | None:
    """None for a tokenizer that the library can't read: such a model serves all but guided requests."""
    try:
        return GrammarVocabulary(tokenizer, vocabulary_size, eos_token_ids)
    except ValueError as exc:
        log.warning("no guided decoding, llguidance can't read the tokenizer: %s", _one_line(str(exc)))
        return None


class Grammars:
    """Guides compiled on demand, the newest kept."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._tokenizer = vocabulary.tokenizer
        self._compiled: OrderedDict[Guide, llguidance.LLMatcher] = OrderedDict()

    def matcher(self, guide: Guide) -> Matcher:
        """A matcher at the start of the guide. Raises RequestRefused with the library's reason."""
        compiled = self._compiled.pop(guide, None) or self._compile(guide)
        self._compiled[guide] = compiled
        if len(self._compiled) > MAX_CACHED_GUIDES:
            self._compiled.popitem(last=False)
        return Matcher(compiled.deep_copy())

    def _compile(self, guide: Guide) -> llguidance.LLMatcher:
        try:
            compiled = _with_deep_stack(lambda: self._build(guide), COMPILE_TIMEOUT_S)
            reason = compiled.get_error()
        except (ValueError, TimeoutError) as exc:
            reason = str(exc)
        if reason:
            raise RequestRefused(
                "INVALID_ARGUMENT", f"guided_{guide.kind} can't be compiled: {_one_line(reason)}"
            )
        return compiled

    def _build(self, guide: Guide) -> llguidance.LLMatcher:
        return llguidance.LLMatcher(self._tokenizer, _grammar(guide), log_level=0, limits=_LIMITS)


def _grammar(guide: Guide) -> str:
    """In the library's own notation."""
    match guide.kind:
        case "json":
            return llguidance.LLMatcher.grammar_from_json_schema(
                guide.text,
                overrides={"whitespace_pattern": _JSON_WHITESPACE, "lenient": guide.is_lenient},
            )
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(guide.text)
        case "choice":
            return llguidance.LLMatcher.grammar_from_regex("|".join(map(_literal, json.loads(guide.text))))
        case "grammar":
            return llguidance.LLMatcher.grammar_from_lark(guide.text)


def _literal(text: str) -> str:
    """A regular expression that matches this text alone."""
    return "".join(f"\\{char}" if char in _REGEX_META else char for char in text)


def _with_deep_stack(build: Callable[[], llguidance.LLMatcher], timeout_s: float) -> llguidance.LLMatcher:
    """Run in a thread with a large stack. Raises ValueError for all that goes wrong in it, and TimeoutError:
    then the thread is left alone, the library's limits end it."""
    done: Future[llguidance.LLMatcher] = Future()

    def run() -> None:
        try:
            done.set_result(build())
        except BaseException as exc:  # a panic in the library's Rust is no Exception
            done.set_exception(ValueError(str(exc)))

    stack_bytes = threading.stack_size(COMPILE_STACK_BYTES)
    try:
        threading.Thread(target=run, name="compile-guide", daemon=True).start()
    finally:
        threading.stack_size(stack_bytes)
    try:
        return done.result(timeout_s)
    except TimeoutError:
        raise TimeoutError(f"it took more than {timeout_s:g} s; make it simpler") from None


def _one_line(reason: str) -> str:
    line = " ".join(reason.replace("<non-verbose/>", "").split())
    return line if len(line) <= MAX_REASON_CHARS else line[: MAX_REASON_CHARS - 3] + "..."
