"""A response's text while its tokens come: what was given stays, and is all that there is before a stop string."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.response_text import ResponseText, StopString

WORDS = st.text(st.sampled_from("ab \n北😀é"), max_size=20)


@pytest.fixture(scope="module")
def tokenizer(smoke):
    return Tokenizer(smoke)


def streamed(tokenizer: Tokenizer, text: str, stop: list[str]) -> tuple[list[str], ResponseText]:
    """The parts that came, up to the stop string."""
    growing, parts = ResponseText(tokenizer, stop), []
    for token in tokenizer.encode(text):
        parts.append(growing.add(token))
        if growing.stopped:
            return parts, growing
    return [*parts, growing.end()], growing


@given(WORDS, st.lists(st.text(st.sampled_from("ab \n北"), min_size=1, max_size=3), max_size=3))
def test_the_text_ends_before_the_first_stop_string(tokenizer, text, stop):
    # of two stop strings within each other the shorter one may be complete first, and ends the text there
    assume(not any(short != long and short in long for short in stop for long in stop))
    places = [text.index(string) for string in stop if string in text]
    parts, growing = streamed(tokenizer, text, stop)
    assert "".join(parts) == text[: min(places, default=len(text))] == growing.text
    assert growing.stopped == bool(places)


def test_characters_of_several_tokens_come_whole_and_possible_stop_strings_wait(tokenizer):
    parts, _ = streamed(tokenizer, "a 😀 b", [])
    assert "😀" in "".join(parts) and not any("\ufffd" in part for part in parts)
    growing = ResponseText(tokenizer, ["\n\nUser:"])
    assert "".join(growing.add(token) for token in tokenizer.encode("Yes.\n\n")) == "Yes."
    assert growing.add(tokenizer.encode("A")[0]) == "\n\nA"


def test_the_end_gives_incomplete_characters_and_strips_a_space_on_request(tokenizer):
    growing = ResponseText(tokenizer)
    assert growing.add(tokenizer.encode("😀")[0]) == "" and growing.end() == "\ufffd"
    growing = ResponseText(tokenizer, strip=True)
    parts = [growing.add(token) for token in tokenizer.encode("  Yes. No.")] + [growing.end()]
    assert "".join(parts) == "Yes. No."


@pytest.mark.parametrize(("text", "piece"), [("aab", "aaab"), ("ababc", "abababc"), ("aaab", "aabaaaab")])
def test_a_stop_string_may_begin_inside_a_broken_beginning_of_it(text, piece):
    assert StopString(text).read(f"{piece} and more") == len(piece)


@given(st.lists(WORDS), st.text(st.sampled_from("ab北"), min_size=1, max_size=4))
def test_what_may_begin_a_stop_string_is_the_longest_end_that_does(pieces, text):
    stop, read = StopString(text), ""
    for piece in pieces:
        if text in read + piece:
            whole = read + piece
            assert read + piece[: stop.read(piece)] == whole[: whole.index(text) + len(text)]
            return
        assert stop.read(piece) is None
        read += piece
        assert stop.matched == max(n for n in range(len(text)) if n == 0 or read.endswith(text[:n]))
