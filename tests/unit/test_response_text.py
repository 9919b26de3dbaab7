"""A response's text while its tokens come: what was given stays, and is all that there is before a stop string."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.response_text import ResponseText

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
def test_it_is_the_text_before_the_first_stop_string(tokenizer, text, stop):
    # of one within another the shorter may be whole first, and ends the text there
    assume(not any(one != other and one in other for one in stop for other in stop))
    places = [text.index(one) for one in stop if one in text]
    parts, growing = said(tokenizer, text, stop)
    assert "".join(parts) == text[: min(places, default=len(text))] == growing.text
    assert growing.stopped == bool(places)


def test_a_character_of_several_tokens_comes_whole(tokenizer):
    parts, _ = said(tokenizer, "a 😀 b", [])
    assert "😀" in "".join(parts)
    assert not any("\ufffd" in part for part in parts)


def test_what_may_begin_a_stop_string_waits_until_it_does_not(tokenizer):
    growing = ResponseText(tokenizer, ["\n\nUser:"])
    given_ = [growing.add(token) for token in tokenizer.encode("Yes.\n\n")]
    assert "".join(given_) == "Yes."
    assert growing.add(tokenizer.encode("A")[0]) == "\n\nA"


def test_tokens_that_make_no_character_are_given_at_the_end(tokenizer):
    (first, *_) = tokenizer.encode("😀")
    growing = ResponseText(tokenizer)
    assert growing.add(first) == ""
    assert growing.end() == "\ufffd"


def test_the_space_before_an_answer_is_left_out_where_that_is_asked(tokenizer):
    growing = ResponseText(tokenizer, strip=True)
    parts = [growing.add(token) for token in tokenizer.encode("  Yes. No.")] + [growing.end()]
    assert "".join(parts) == "Yes. No."
