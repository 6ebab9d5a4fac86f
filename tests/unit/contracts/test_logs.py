"""One line an event, in three forms."""

import json
import logging
import sys

import pytest

from contracts.logs import fields, formatter_of, logfmt


def record(message: str = "model %s came", *args, extra=None, exc_info=None, level=logging.INFO):
    made = logging.LogRecord("gateway", level, "f.py", 1, message, args or None, exc_info)
    vars(made).update(extra or {})
    return made


def test_json_has_the_text_the_fields_and_the_ids():
    """What is None is left out."""
    made = record("model %s came", "chat", extra=fields(request_id="r-1", trace_id=None))
    line = json.loads(formatter_of("json", "tidegate-gateway", "").format(made))

    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "info",
        "service": "tidegate-gateway",
        "logger": "gateway",
        "event": "model chat came",
        "request_id": "r-1",
    }


def test_an_event_with_a_name_of_its_own_needs_no_text():
    """The access log's line is JSON as text, and must not stand in JSON a second time."""
    made = record("{...}", extra=fields(event="call", status=200))

    assert json.loads(formatter_of("json", "s", "").format(made))["event"] == "call"


@pytest.mark.parametrize("form", ["json", "logfmt"])
def test_a_traceback_and_a_text_with_newlines_stay_on_one_line(form):
    """Line by line is how logs are read."""
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = record("broke\nbadly", exc_info=sys.exc_info(), level=logging.ERROR)

    line = formatter_of(form, "s", "").format(made)
    assert "\n" not in line
    assert "two\\nlines" in line


def test_logfmt_quotes_only_what_it_must():
    """Blanks, quotes, equal signs, nothing at all."""
    values = {"a": 1, "b": "x y", "c": 'say "hi"', "d": "k=v", "e": "", "f": True, "g": "plain"}

    assert logfmt(values) == 'a=1 b="x y" c="say \\"hi\\"" d="k=v" e="" f=true g=plain'


def test_an_unknown_form_is_text():
    """A log must not fail for a slip in an environment variable."""
    assert formatter_of("yaml", "s", "%(message)s").format(record("as it was")) == "as it was"
