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


def said(tokenizer: Tokenizer, text: str, stop: list[str]) -> tuple[list[str], ResponseText]:
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
    parts, growing = said(tokenizer, text, stop)
    assert "".join(parts) == text[: min(places, default=len(text))] == growing.text
    assert growing.stopped == bool(places)


def test_characters_of_several_tokens_come_whole_and_possible_stop_strings_wait(tokenizer):
    parts, _ = said(tokenizer, "a 😀 b", [])
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


class CountedText(str):
    """A text that counts how often its characters are looked at."""

    looked_at = 0

    def __getitem__(self, place):
        self.looked_at += 1
        return super().__getitem__(place)


def test_a_stop_string_costs_a_few_looks_for_each_character():
    """Of a text that almost matches everywhere; a search that begins anew at each place looks 1000 times at each."""
    stop = StopString(CountedText("a" * 999 + "b"))
    assert stop.read(("a" * 998 + "c") * 20) is None
    assert stop.text.looked_at <= 4 * 999 * 20
    assert stop.read("a" * 5000 + "b" + "a") == 5001


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
