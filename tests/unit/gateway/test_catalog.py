"""What the gateway knows of its models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, processors

from contracts.stack import ServedModel
from gateway.catalog import LONG_TEXT_CHARS, Catalog, load_catalog
from gateway.config import ConfigError
from gateway.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound
from gateway.testing import TINY_CONTEXT_TOKENS, write_tiny_model


def catalog_of(folder: Path, max_context_tokens: int = 0, template: str | None = "T") -> Catalog:
    path = str(write_tiny_model(folder / "model", template))
    limit = max_context_tokens
    return load_catalog(
        [
            ServedModel(name="chat", kind="generate", weights="w", path=path, max_context_tokens=limit),
            ServedModel(name="embed", kind="embed", weights="w", path=path, max_context_tokens=limit),
        ]
    )


async def test_tokens_are_counted_as_the_engine_does(tmp_path: Path) -> None:
    """Special tokens in the text count as one; long texts are counted in a thread, alike."""
    model = catalog_of(tmp_path).find("chat")
    assert await model.count_tokens(["abc", "é", "<|im_end|>", ""]) == [3, 2, 1, 0]
    assert await model.count_tokens(["a" * (LONG_TEXT_CHARS + 1)]) == [LONG_TEXT_CHARS + 1]


async def test_a_sentence_models_own_truncation_is_off(tmp_path: Path) -> None:
    """MiniLM's tokenizer cuts at 128 tokens: then no text would ever be too long."""
    folder = write_tiny_model(tmp_path / "model")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["truncation"] = {"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    served = ServedModel(name="embed", kind="embed", weights="w", path=str(folder))
    assert await load_catalog([served]).find("embed").count_tokens(["abcdef"]) == [6]


def test_the_room_is_what_the_context_leaves(tmp_path: Path) -> None:
    """At least one token must fit after the prompt."""
    model = catalog_of(tmp_path).find("chat")
    assert model.room_for(1, "prompt") == TINY_CONTEXT_TOKENS - 1
    assert model.room_for(TINY_CONTEXT_TOKENS - 1, "prompt") == 1


def test_a_prompt_over_the_context_is_refused_with_both_numbers(tmp_path: Path) -> None:
    """And with OpenAI's code for it."""
    model = catalog_of(tmp_path).find("chat")
    with pytest.raises(ContextLengthExceeded, match=r"256 tokens.* 255 fit the context of 256") as caught:
        model.room_for(TINY_CONTEXT_TOKENS, "messages")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")


def test_a_prompt_without_tokens_is_refused(tmp_path: Path) -> None:
    """The engine would have nothing to start from."""
    with pytest.raises(InvalidRequest, match="0 tokens"):
        catalog_of(tmp_path).find("chat").room_for(0, "prompt")


def test_a_text_over_the_context_of_an_embedding_is_refused_by_index(tmp_path: Path) -> None:
    """A text that just fits is taken."""
    model = catalog_of(tmp_path).find("embed")
    model.check_embeds([1, TINY_CONTEXT_TOKENS])
    with pytest.raises(ContextLengthExceeded, match=r"input\[1\] has 257 tokens.* 256"):
        model.check_embeds([1, TINY_CONTEXT_TOKENS + 1])


def test_a_served_model_may_have_a_smaller_context_than_its_own(tmp_path: Path) -> None:
    """Never a larger one: positions beyond the model's own have no meaning."""
    assert catalog_of(tmp_path, 100).find("chat").max_context_tokens == 100
    assert catalog_of(tmp_path, 9999).find("chat").max_context_tokens == TINY_CONTEXT_TOKENS


@pytest.mark.parametrize("name", ["gpt-4", "", "../x", "a/b", "模型", "x" * 100_000])
def test_an_unknown_model_is_404_with_the_known_names(tmp_path: Path, name: str) -> None:
    """Path-like and endless names too (triton-practice D18)."""
    with pytest.raises(ModelNotFound, match="served: chat, embed") as caught:
        catalog_of(tmp_path).find(name)
    assert len(caught.value.message) < 200


def test_a_model_of_another_kind_is_400(tmp_path: Path) -> None:
    """Both ways, with the models that can."""
    catalog = catalog_of(tmp_path)
    with pytest.raises(InvalidRequest, match="'chat' can't embed; models that can: embed"):
        catalog.find_kind("chat", "embed")
    with pytest.raises(InvalidRequest, match="'embed' can't generate; models that can: chat"):
        catalog.find_kind("embed", "generate")


def test_a_model_without_a_template_can_not_chat(tmp_path: Path) -> None:
    """But it can complete."""
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        catalog_of(tmp_path, template=None).find("chat").render([])


def test_a_folder_without_a_tokenizer_is_a_configuration_error(tmp_path: Path) -> None:
    """It names the model and the file."""
    served = ServedModel(name="chat", kind="generate", weights="w", path=str(tmp_path))
    with pytest.raises(ConfigError, match=r"'chat'.*tokenizer\.json"):
        load_catalog([served])


async def test_a_beginning_that_the_template_writes_is_counted_once(tmp_path: Path) -> None:
    """A tokenizer that adds one by itself, as Llama's: the worker runs the prompt with one."""
    folder = write_tiny_model(tmp_path / "model")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", tokenizer.token_to_id("<|im_start|>"))]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    served = ServedModel(name="chat", kind="generate", weights="w", path=str(folder))
    model = load_catalog([served]).find("chat")
    assert await model.count_tokens(["ab", "<|im_start|>ab", "<|im_start|><|im_start|>ab"]) == [3, 3, 4]
