"""A conversation with the gateway, against a transport that answers as it is told."""

import json

import httpx
import pytest

from tidegate.chat import Answer, ChatClient, ChatError, ChatOptions, Conversation, printable
from tidegate.commands.chat import summary


class Gateway:
    """Answers each request with the next body; keeps what was asked."""

    def __init__(self, *bodies, status=200):
        self.bodies = list(bodies)
        self.status = status
        self.asked = []

    def __call__(self, request):
        self.asked.append((json.loads(request.content), request.headers))
        body = self.bodies.pop(0)
        return httpx.Response(self.status, content=body if isinstance(body, bytes) else iter(body))


class Clock:
    """Half a second goes by at every look."""

    now = 0.0

    def __call__(self):
        self.now += 0.5
        return self.now


def sse(*events):
    return "".join(
        f"data: {event if isinstance(event, str) else json.dumps(event)}\n\n" for event in events
    ).encode()


def delta(text, reason=None):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def answer_of(*texts, num_tokens=3):
    usage = {"choices": [], "usage": {"completion_tokens": num_tokens}}
    return sse(*(delta(text) for text in texts), delta(None, "stop"), usage, "[DONE]")


def client_of(gateway, **options):
    return ChatClient("http://gateway", transport=httpx.MockTransport(gateway), clock=Clock(), **options)


def ask(client, conversation, prompt="hi", options=ChatOptions()):  # noqa: B008  # frozen
    answer = client.start_answer()
    return list(client.ask(conversation, prompt, options, answer)), answer


def test_an_answer_comes_in_pieces_and_joins_the_conversation():
    """The next request carries what was said."""
    gateway = Gateway(answer_of("Par", "is"), answer_of("Rome"))
    client, conversation = client_of(gateway), Conversation("Be brief.")

    pieces, answer = ask(client, conversation, "France?")
    ask(client, conversation, "Italy?")

    assert pieces == ["Par", "is"]
    assert (answer.text, answer.finish_reason, answer.num_tokens) == ("Paris", "stop", 3)
    assert gateway.asked[1][0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "France?"},
        {"role": "assistant", "content": "Paris"},
        {"role": "user", "content": "Italy?"},
    ]


def test_only_what_was_chosen_is_sent():
    """The rest is the gateway's to decide."""
    gateway = Gateway(answer_of("a"), answer_of("a"))
    client = client_of(gateway, api_key="secret")

    ask(client, Conversation())
    ask(client, Conversation(), options=ChatOptions("other", temperature=0.0, max_tokens=5))

    assert gateway.asked[0][0].keys() == {"model", "messages", "stream", "stream_options"}
    second, headers = gateway.asked[1]
    assert (second["model"], second["temperature"], second["max_tokens"]) == ("other", 0.0, 5)
    assert headers["authorization"] == "Bearer secret"


def test_times_and_rate_leave_out_the_wait_for_the_first_token():
    """The clock: start 0.5, first text 1.0, end 1.5; three tokens, two of them after the first."""
    _, answer = ask(client_of(Gateway(answer_of("a", "b"))), Conversation())

    assert answer.ttft_ms == 500
    assert answer.tokens_per_s == 4.0
    assert summary(answer) == "3 tokens · 4.0 tokens/s · first after 500 ms"


def test_an_answer_that_is_stopped_stays_in_the_conversation():
    """Ctrl-C: what was read was said."""
    client, conversation = client_of(Gateway(answer_of("one", "two", "three"))), Conversation()
    answer = client.start_answer()
    pieces = client.ask(conversation, "count", ChatOptions(), answer)
    assert next(pieces) == "one"

    pieces.close()

    assert conversation.turns[1] == {"role": "assistant", "content": "one"}
    assert summary(answer).endswith("stopped")


def test_a_refusal_is_told_in_the_gateways_words_and_forgotten():
    """Or every later turn would fail the same way."""
    body = json.dumps({"error": {"message": "model 'x' is not served here"}}).encode()
    conversation = Conversation()

    with pytest.raises(ChatError, match=r"model 'x' is not served here \(HTTP 404\)"):
        ask(client_of(Gateway(body, status=404)), conversation)
    assert conversation.turns == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(sse(delta("a"), {"error": {"message": "worker died"}}), "worker died", id="error event"),
        pytest.param(sse(delta("a")), "closed the stream before it was finished", id="cut"),
        pytest.param(sse("not json"), "no JSON", id="not json"),
        pytest.param(sse("[1]"), "no object", id="a list"),
        pytest.param(b"", "closed the stream", id="nothing"),
    ],
)
def test_a_stream_that_goes_wrong_fails_and_is_forgotten(body, said):
    """Half an answer must not look like a whole one."""
    conversation = Conversation()

    with pytest.raises(ChatError, match=said):
        ask(client_of(Gateway(body)), conversation)
    assert conversation.turns == []


def test_a_body_that_is_no_openai_error_is_still_told():
    """A proxy's page."""
    with pytest.raises(ChatError, match=r"Bad Gateway \(HTTP 502\)"):
        ask(client_of(Gateway(b"Bad Gateway", status=502)), Conversation())


def test_no_gateway_is_said_with_its_address():
    """And what to start."""

    def refuse(request):
        raise httpx.ConnectError("refused")

    with pytest.raises(ChatError, match=r"no gateway on http://gateway; is `tidegate up` running"):
        ask(client_of(refuse), Conversation())


def test_comments_and_other_fields_of_the_stream_are_passed_over():
    """Keep-alives are comments."""
    body = b": ping\n\nevent: x\n" + answer_of("a")

    assert ask(client_of(Gateway(body)), Conversation())[0] == ["a"]


def test_escape_sequences_in_an_answer_do_not_reach_the_terminal():
    """A model can be talked into saying them."""
    assert printable("a\x1b[2Jb\x07\x9bc\x7f\r\n\td é 你 🌊") == "a�[2Jb��c��\n\td é 你 🌊"


def test_the_summary_leaves_out_what_is_not_known():
    """An answer that was stopped has no token count."""
    assert summary(Answer(0.0)) == ""
    assert (
        summary(Answer(0.0, 0.25, 1.0, "a", "length", 1))
        == "1 tokens · first after 250 ms · cut at the token limit"
    )
