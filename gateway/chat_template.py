"""Renders a model's own chat template the way transformers' `apply_chat_template` does, without importing it.

Text that looks like a special token ("<|im_end|>") inside a message goes through as it is and the tokenizer
reads it as that token: as with transformers, a message can forge turns. Who must not allow that filters first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.errors import InvalidRequest

SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateRefused(InvalidRequest):
    """The template itself says that it can't render these messages."""

    code = "invalid_messages"


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._template = _environment().from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The prompt, up to where the assistant's answer begins. Raises TemplateRefused."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except (jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as exc:
            raise TemplateRefused(f"the model's chat template refused: {exc}", "messages") from exc


def read_chat_template(model_dir: Path) -> ChatTemplate | None:
    """None: the model has no template, so it can't chat."""
    config_path = model_dir / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(config_path.read_text()) if config_path.exists() else {}
    source = _source(model_dir, config.get("chat_template"))
    if source is None:
        return None
    tokens = {key: _token_text(config[key]) for key in SPECIAL_TOKENS if config.get(key) is not None}
    return ChatTemplate(source, tokens)


def _source(model_dir: Path, configured: Any) -> str | None:
    """A file of its own wins over tokenizer_config.json, as in transformers."""
    own_file = model_dir / "chat_template.jinja"
    if own_file.exists():
        return own_file.read_text()
    if isinstance(configured, list):
        named = {entry["name"]: entry["template"] for entry in configured}
        return named.get("default")
    return configured if isinstance(configured, str) else None


def _token_text(token: Any) -> str:
    """A special token is written as text or as an object with `content`."""
    return str(token["content"] if isinstance(token, dict) else token)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    # A template comes with the model, from anywhere: the sandbox's two writable corners are closed too.
    environment.globals["dict"] = _template_dict
    environment.globals["namespace"] = _Namespace
    return environment


def _template_dict(*args: Any, **values: Any) -> dict[Any, Any]:
    """A function, so that a template gets no hold of the class."""
    return dict(*args, **values)


class _Namespace(jinja2.utils.Namespace):
    """jinja2's, without names that begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *pairs = args  # so that a template may have a value named `self`
        attributes = dict(*pairs, **values)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name that begins with an underscore, got {name!r}")


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; here it renders what it holds."""

    tags = {"generation"}  # noqa: RUF012 - jinja2's own declaration

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """jinja2's own escapes HTML; templates want plain JSON."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str, now: Callable[[], datetime] = datetime.now) -> str:
    return now().strftime(pattern)
