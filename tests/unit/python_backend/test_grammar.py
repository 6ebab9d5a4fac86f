"""Guides, on a tokenizer of one token per byte."""

import contextlib
import itertools
import json
import threading

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from contracts.guide import ANY_OBJECT, MAX_GUIDE_BYTES, Guide
from python_backend.worker.errors import RequestRefused
from python_backend.worker.grammar import MAX_CACHED_GUIDES, Grammars, GrammarVocabulary, read_vocabulary

END = 256
PADDED_SIZE = 320
"""Models' outputs are often wider than their tokenizers."""


def byte_tokenizer() -> tokenizers.Tokenizer:
    """Ids 0..255: one byte each, in the order of the alphabet; 256: the end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = tokenizers.Tokenizer(models.BPE({char: at for at, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer


TOKENIZER = byte_tokenizer()
VOCABULARY = GrammarVocabulary(TOKENIZER, PADDED_SIZE, {END})


@pytest.fixture
def grammars() -> Grammars:
    return Grammars(VOCABULARY)


def verdict(grammars: Grammars, guide: Guide, text: str) -> str:
    """ "complete": the guide ends with this text; "may end": it may; "open": it may not yet; or what is refused."""
    matcher, is_complete = grammars.matcher(guide), False
    for token in TOKENIZER.encode(text).ids:
        if is_complete or not matcher.allowed()[token]:
            return f"refused at {TOKENIZER.decode([token])!r}"
        is_complete = matcher.accept(token)
    if is_complete:
        return "complete"
    return "may end" if matcher.allowed()[END] else "open"


ODD_CHOICE = '\x01 /"\\{[(*+?^$|)]}\n#&-~ 🙂'
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("guide", "text", "expected"),
    [
        (Guide("json", json.dumps(PERSON)), '{"name": "é🙂", "age": 3}', "complete"),
        (Guide("json", json.dumps(PERSON)), '{\n  "name": "", "age": 30', "open"),
        (Guide("json", json.dumps(PERSON)), '{"name": "long"', "refused at 'g'"),
        (Guide("json", json.dumps(PERSON)), '{"age": 3', "refused at 'a'"),
        (Guide("json", ANY_OBJECT), '{"a": [1, {"b": null}], "c": "é\\n"}', "complete"),
        (Guide("json", ANY_OBJECT), "[1]", "refused at '['"),
        (Guide("json", "{}"), "12", "may end"),
        (Guide("json", '{"type": "array"}'), "[" + " " * 17, "refused at ' '"),
        (Guide("regex", "[0-9]{3}"), "123", "complete"),
        (Guide("regex", "[0-9]{3}-?"), "123", "may end"),
        (Guide("regex", "a|b"), "c", "refused at 'c'"),
        (Guide("choice", '["yes", "yes, sir"]'), "yes", "may end"),
        (Guide("choice", '["yes", "yes, sir"]'), "yes, sir", "complete"),
        (Guide("choice", '["a.b", "x"]'), "axb", "refused at 'x'"),
        (Guide("choice", json.dumps([ODD_CHOICE])), ODD_CHOICE, "complete"),
        (Guide("grammar", 'start: "a" start "b" | "c"'), "aacbb", "complete"),
        (Guide("grammar", 'start: "a" start "b" | "c"'), "aacb", "open"),
    ],
)  # fmt: skip
def test_an_output_follows_its_guide_to_the_end(grammars, guide, text, expected):
    """Half a character is a token of its own here, so borders of tokens never matter."""
    assert verdict(grammars, guide, text) == expected


@pytest.mark.parametrize(
    ("guide", "reason"),
    [
        (Guide("json", '{"type": "objct"}'), "guided_json can't be compiled: Invalid type: objct"),
        (Guide("json", '{"$ref": "https://example.com/x"}'), "not present in a registry"),
        (Guide("json", '{"type": "string", "format": "phone"}'), "Unknown format: phone"),
        (Guide("regex", "("), "unclosed group"),
        (Guide("grammar", "start: ("), "Expected"),
        (Guide("grammar", ""), "guided_grammar can't be compiled"),
    ],
)
def test_a_guide_that_cannot_be_compiled_is_refused_with_the_reason_in_one_line(grammars, guide, reason):
    """As INVALID_ARGUMENT, cut."""
    with pytest.raises(RequestRefused) as refused:
        grammars.matcher(guide)
    assert refused.value.code == "INVALID_ARGUMENT"
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_a_lenient_schema_leaves_out_what_cannot_be_enforced(grammars):
    """An unknown format becomes any string."""
    guide = Guide("json", '{"type": "string", "format": "phone"}', is_lenient=True)
    assert verdict(grammars, guide, '"x"') == "complete"


def deep_json_schema() -> str:
    names = [f"{at:03x}" for at in range(900)]
    chain = {name: {"items": {"$ref": f"#/d/{after}"}} for name, after in itertools.pairwise(names)}
    return json.dumps({"$ref": "#/d/000", "d": {**chain, names[-1]: {}}}, separators=(",", ":"))


def long_rule_chain() -> str:
    letters = "abcdefghijklmnopqrstuvwxyz"
    names = [a + b + c for a in letters for b in letters for c in letters][:4000]
    rules = [f"{name}:{after}" for name, after in itertools.pairwise(names)]
    return "\n".join(["start: aaa", *rules, f'{names[-1]}:"x"'])


@pytest.mark.parametrize(
    "guide",
    [
        Guide("json", deep_json_schema()),
        Guide("grammar", long_rule_chain()),
        Guide("regex", "(" * 16_000 + "a" + ")" * 16_000),
        Guide("regex", "((a{1,1000}){1,1000}){1,1000}"),
        Guide("regex", "(.*a.{500}){50}"),
        Guide("grammar", "start: " + "(" * 16_000 + '"a"' + ")" * 16_000),
        Guide("grammar", 'start: s\ns: s s s | "a" | '),
        Guide("json", '{"items":' * 3000 + "{}" + "}" * 3000),
        Guide(
            "json", '{"allOf":[{"type":"integer","multipleOf":99991},{"type":"integer","multipleOf":7919}]}'
        ),
        Guide(
            "json", json.dumps({"properties": {f"k{at}": {"pattern": "^[a-z]{1,50}$"} for at in range(800)}})
        ),
    ],
    ids=range(10),
)
def test_no_guide_kills_or_hangs_the_worker(grammars, guide):
    """Deep chains, nested repeats, ambiguity: refused, or followed for forty tokens or until it is too complex."""
    assert len(guide.text) <= MAX_GUIDE_BYTES
    with contextlib.suppress(RequestRefused):
        matcher = grammars.matcher(guide)
        for _ in range(40):
            if matcher.accept(int(matcher.allowed().int().argmax())):
                break


def test_a_compilation_that_takes_too_long_is_refused(grammars, monkeypatch):
    """The request gets its answer; others go on."""
    release = threading.Event()
    monkeypatch.setattr("python_backend.worker.grammar.COMPILE_TIMEOUT_S", 0.01)
    monkeypatch.setattr(grammars, "_build", lambda guide: release.wait())
    with pytest.raises(RequestRefused, match=r"guided_regex .* took more than 0\.01 s"):
        grammars.matcher(Guide("regex", "a"))
    release.set()


def test_a_compiled_guide_is_kept_and_the_oldest_goes(grammars, monkeypatch):
    """Two outputs of one guide don't share their place in it."""
    builds: list[Guide] = []
    build = grammars._build
    monkeypatch.setattr(grammars, "_build", lambda guide: builds.append(guide) or build(guide))
    first = Guide("regex", "ab")
    assert [verdict(grammars, first, "ab"), verdict(grammars, first, "a")] == ["complete", "open"]
    assert builds == [first]
    for at in range(MAX_CACHED_GUIDES):
        grammars.matcher(Guide("regex", str(at)))
    grammars.matcher(first)
    assert builds.count(first) == 2


def test_the_stack_size_of_other_threads_is_left_alone(grammars):
    """Python's setting is the process's."""
    usual = threading.stack_size(0)
    grammars.matcher(Guide("regex", "a"))
    assert (usual, threading.stack_size()) == (0, 0)


def test_a_tokenizer_that_the_library_cannot_read_costs_guided_decoding_alone():
    """A word-level one has no bytes."""
    words = tokenizers.Tokenizer(models.WordLevel({"a": 0}))
    assert read_vocabulary(words, 1, {0}) is None
