"""Changes of the number of instances as spans."""

import asyncio

import pytest

from contracts.tracing import names
from contracts.tracing.context import instance_context
from contracts.tracing.span import Link, SpanStatus
from scaler.acting.target import ScaleResult
from scaler.acting.traced_target import TracedTarget
from scaler.errors import Busy


class Spans(list):
    def send(self, spans):
        self.extend(spans)


class OneAnswer:
    """A target that says what it is told to."""

    def __init__(self, answer):
        self.answer = answer

    async def counts(self, model):
        return None

    async def scale(self, model, wanted, reason):
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


GROWN = ScaleResult("chat", 1, 3, 0.3, detail="+chat-1 +chat-2")


async def test_a_change_tells_why_what_and_links_to_the_instances_it_made():
    """1 to 3: two starts are linked."""
    spans = Spans()
    assert await TracedTarget(OneAnswer(GROWN), spans, 4711).scale("chat", 3, "chat 1→3: queue 37") is GROWN

    (span,) = spans
    assert (span.service, span.name, span.status) == (names.SCALER, "scale chat", SpanStatus.UNSET)
    assert span.attributes[names.SCALE_REASON] == "chat 1→3: queue 37"
    assert [
        span.attributes[name] for name in (names.SCALE_BEFORE, names.SCALE_WANTED, names.SCALE_AFTER)
    ] == [1, 3, 3]
    assert span.attributes[names.INSTANCES] == ["chat-1", "chat-2"]
    starts = [instance_context(4711, "chat", name) for name in ("chat-1", "chat-2")]
    assert span.links == [Link(start.trace_id, start.span_id) for start in starts]


@pytest.mark.parametrize(
    ("error", "text"), [(Busy("held"), "Busy: held"), (asyncio.CancelledError(), "taken back")]
)
async def test_a_change_that_failed_or_was_taken_back_says_so(error, text):
    """And fails as before."""
    spans = Spans()
    with pytest.raises(type(error)):
        await TracedTarget(OneAnswer(error), spans).scale("chat", 3, "why")

    assert spans[0].status is SpanStatus.ERROR
    assert text in spans[0].status_text


async def test_instances_of_a_triton_that_is_not_known_are_named_and_not_linked():
    """Pods, say."""
    spans = Spans()
    await TracedTarget(OneAnswer(GROWN), spans).scale("chat", 3, "why")

    assert spans[0].links == []
    assert spans[0].attributes[names.INSTANCES] == ["chat-1", "chat-2"]


def test_without_telemetry_the_target_is_left_as_it_is():
    """No socket is named."""
    target = OneAnswer(GROWN)

    assert TracedTarget.around(target, "", 1) is target
