"""Tokens to text: no half characters, no byte of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.worker.detokenizer import IncrementalDecoder, StopFilter


class BytesDecoder:
    """A tokenizer whose tokens are bytes."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return bytes(ids).decode("utf-8", errors="replace")


def stream(pieces: list[str], stops: list[str]) -> tuple[list[str], bool]:
    """What is sent for each piece, and whether a stop string ended it; the rest is flushed at the end."""
    stop_filter = StopFilter(tuple(stops))
    sent = []
    for piece in pieces:
        text, stopped = stop_filter.push(piece)
        sent.append(text)
        if stopped:
            return sent, True
    sent.append(stop_filter.flush())
    return sent, False


@given(st.text(max_size=40))
def test_the_pieces_of_a_text_add_up_to_it_and_none_holds_half_a_character(text):
    """One byte per token is the hardest cut there is."""
    decoder = IncrementalDecoder(BytesDecoder())
    pieces = [decoder.push(byte) for byte in text.encode()]

    assert "".join(pieces) == text
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)


def test_a_joined_emoji_is_sent_whole_parts_only():
    """A family emoji is three code points and two joiners: none is ever cut inside."""
    decoder = IncrementalDecoder(BytesDecoder())
    family = "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{ZERO WIDTH JOINER}\N{GIRL}"

    assert "".join(decoder.push(byte) for byte in family.encode()) == family


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        pytest.param(["a", "b"], ["ab"], "", id="cut between two tokens"),
        pytest.param(["x", "\n", "\n", "y"], ["\n\n"], "x", id="cut between two newlines"),
        pytest.param(["\n\n\n"], ["\n\n"], "", id="inside one token"),
        pytest.param(["<", "/", "s"], ["</s"], "", id="three tokens"),
        pytest.param(["</", "sx"], ["</s"], "", id="rest of the token is dropped"),
        pytest.param(["hello ab", "c"], ["ab"], "hello ", id="text before it is sent"),
        pytest.param(["aab"], ["ab", "aab"], "", id="the earliest of several"),
    ],
)
def test_no_byte_of_a_stop_string_or_after_it_is_sent(pieces, stops, text):
    """The stop strings of shared/cases/stop.json, cut by token borders."""
    sent, stopped = stream(pieces, stops)

    assert stopped
    assert "".join(sent) == text


@pytest.mark.parametrize(
    ("pieces", "stops"),
    [
        pytest.param(["a", "c"], ["ab"], id="the second half never comes"),
        pytest.param(["x", "\n"], ["\n\n"], id="the text ends inside"),
        pytest.param(["a", "a", "c"], ["aab"], id="overlapping beginnings"),
    ],
)
def test_a_beginning_that_is_no_stop_string_is_sent_late_not_lost(pieces, stops):
    """What was held back comes with the text that decided it, or at the end."""
    sent, stopped = stream(pieces, stops)

    assert not stopped
    assert "".join(sent) == "".join(pieces)


@given(
    st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=8),
    st.text("ab", min_size=1, max_size=4),
)
def test_however_a_text_is_cut_the_stop_filter_sends_the_same(pieces, stop):
    """The same text in one piece gives the reference."""
    text = "".join(pieces)
    expected = text.split(stop)[0]

    sent, _ = stream(pieces, [stop])
    assert "".join(sent) == expected
