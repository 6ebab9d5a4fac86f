"""The gateway's template rendering against transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from gateway.chat_template import ChatTemplate, TemplateRefused, read_chat_template

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Everything that templates of other models use: blocks on their own lines, globals, filters, loop controls.
RICH = """{{- bos_token }}
{%- if messages[0].role == 'system' %}
    {%- set system = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{ strftime_now('%Y') }} {{ system | tojson }}
{%- set ns = namespace(count=0) %}
{%- if tools is not none %}tools{% endif %}
{% for message in messages %}
    {% if message.role == 'skip' %}
        {% continue %}
    {% endif %}
    {% set ns.count = ns.count + 1 %}
    {% if message.role == 'assistant' %}
        {% generation %}
{{ message.content }}{{ eos_token }}
        {% endgeneration %}
    {% else %}
[{{ ns.count }}|{{ dict(role=message.role)['role'] | upper }}] {{ message['content'] }}
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
>>
{% endif %}"""
CONVERSATIONS: list[list[dict[str, str]]] = [
    [{"role": "user", "content": "What is the capital of France?"}],
    [{"role": "system", "content": '  Be <b>short</b> & "kind" é  '}, {"role": "user", "content": "hi"}],
    [{"role": "system", "content": "only system"}],
    [
        {"role": "user", "content": "one\n\ntwo "},
        {"role": "assistant", "content": "👩‍👩‍👧 你好"},
        {"role": "user", "content": "{{ 7 * 7 }} <|im_end|>"},
    ],
]


TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def theirs(source: str, messages: list[dict[str, str]]) -> str:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=source, **TOKENS
    )
    text: Any = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return str(text)


@pytest.mark.parametrize("source", [SMOLLM2, RICH], ids=["smollm2", "rich"])
@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_a_conversation_renders_as_in_transformers(source: str, messages: list[dict[str, str]]) -> None:
    """Character by character."""
    ours = ChatTemplate(source, TOKENS).render(messages)
    assert ours == theirs(source, messages)


def test_a_template_in_a_message_is_only_text() -> None:
    """What a user writes is never run."""
    assert "{{ 7 * 7 }}" in ChatTemplate(SMOLLM2, {}).render(CONVERSATIONS[3])


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[7].content.foo }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 1 + 'a' }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ namespace(__class__=1) }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_clear_error(source: str) -> None:
    """400 in the template's own words; the sandbox holds."""
    with pytest.raises(TemplateRefused, match="chat template refused") as caught:
        ChatTemplate(source, {}).render(CONVERSATIONS[0])
    assert caught.value.param == "messages"


def write_config(folder: Path, **values: Any) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def test_the_template_is_found_where_models_keep_it(tmp_path: Path) -> None:
    """In tokenizer_config.json, by name in a list there, or in a file of its own, which wins."""
    assert read_chat_template(tmp_path) is None
    write_config(tmp_path, **TOKENS)
    assert read_chat_template(tmp_path) is None
    write_config(tmp_path, chat_template="A{{ eos_token }}{{ bos_token }}", eos_token={"content": "</s>"})
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "A</s>"
    named = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
    write_config(tmp_path, chat_template=named)
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "D"
    (tmp_path / "chat_template.jinja").write_text("F")
    template = read_chat_template(tmp_path)
    assert template is not None
    assert template.render([]) == "F"
