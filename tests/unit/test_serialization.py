"""What crosses between the two jobs comes out as it went in, and what must not cross is refused by the sample's name."""

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.datasets.batches import TokenBatch, concat_restore_order
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.errors import NotReady, Refusal, from_words, in_words
from aligner_lib.rollouts.records import CriticExperience

VOCAB = 50


@st.composite
def token_batches(draw) -> TokenBatch:
    lengths = draw(st.lists(st.integers(2, 40), min_size=1, max_size=6))
    tokens = torch.zeros(len(lengths), max(lengths), dtype=torch.int64)
    for row, length in enumerate(lengths):
        ids = st.lists(st.integers(0, VOCAB - 1), min_size=length, max_size=length)
        tokens[row, :length] = torch.tensor(draw(ids))
    return TokenBatch(tokens=tokens, lengths=torch.tensor(lengths))


def experience_of(batch: TokenBatch, seed: int = 0) -> CriticExperience:
    generator = torch.Generator().manual_seed(seed)
    size, width = batch.tokens.shape
    values, returns = (torch.randn(size, width - 1, generator=generator) for _ in range(2))
    mask = torch.ones(size, width - 1, dtype=torch.bool)
    return CriticExperience(**vars(batch), response_mask=mask, values=values, returns=returns)


def test_padded_lengths_are_few_hold_the_longest_and_are_at_most_half_too_long():
    lengths = [serialization.padded_length(longest) for longest in range(1, 4097)]
    assert all(n <= length <= max(16, 1.5 * n) for n, length in enumerate(lengths, 1))
    assert {*lengths[:256]} == {16, 24, 32, 48, 64, 96, 128, 192, 256}


def test_pad_to_length_is_the_length_until_something_is_longer():
    assert [serialization.padded_length(n, pad_to=100) for n in (3, 100, 101)] == [100, 100, 128]


@given(token_batches(), st.integers(0, 30))
def test_tokens_and_scores_arrive_as_they_were(batch, more):
    size, width = batch.tokens.shape
    received = serialization.unpack_tokens(serialization.pack_tokens(batch, width + more), VOCAB)
    assert torch.equal(received.tokens[:, :width], batch.tokens)
    assert torch.equal(received.lengths, batch.lengths)
    for kind, scores in (("rewards", torch.randn(size)), ("values", torch.randn(size, width - 1))):
        arrays = serialization.pack_scores(kind, scores, width + more)
        assert torch.equal(serialization.unpack_scores(kind, arrays, batch), scores)


@given(token_batches())
def test_experience_arrives_as_it_was(batch):
    sent = experience_of(batch)
    received = serialization.unpack_experience(serialization.pack_experience(sent), VOCAB)
    for name, value in vars(sent).items():
        assert torch.equal(getattr(received, name), value), name
        assert getattr(received, name).dtype == value.dtype, name


@settings(max_examples=40)
@given(token_batches(), st.randoms(use_true_random=False))
def test_rows_come_back_in_their_order(batch, random):
    order = list(range(batch.size))
    random.shuffle(order)
    cuts = sorted(random.sample(range(batch.size + 1), k=min(2, batch.size + 1)))
    groups = [g for g in (order[: cuts[0]], order[cuts[0] : cuts[-1]], order[cuts[-1] :]) if g]
    joined = concat_restore_order([batch.rows(group) for group in groups], groups)
    assert torch.equal(joined.tokens, batch.tokens)
    assert torch.equal(joined.lengths, batch.lengths)


@pytest.mark.parametrize("error", [NotReady("it has 3"), Refusal("no: nothing")])
def test_a_refusal_arrives_as_it_was(error):
    received = from_words(in_words(error))
    assert (type(received), str(received)) == (type(error), str(error))


BATCH = TokenBatch(tokens=torch.tensor([[1, 2, 3, 0], [4, 5, 6, 7]]), lengths=torch.tensor([3, 4]))
AT_1_2 = np.array([[False] * 3, [False, False, True]])
AT_1_2_OF_4 = np.pad(AT_1_2, [(0, 0), (0, 1)])
ONLY_0_TO_49 = "but the model knows only 0 to 49"


@pytest.mark.parametrize(
    ("kind", "name", "change", "words"),
    [
        ("tokens", "tokens", lambda old: np.where(AT_1_2_OF_4, -1, old), rf"token 2 of sample 1 of 2 is -1, {ONLY_0_TO_49}"),
        ("tokens", "tokens", lambda old: np.where(AT_1_2_OF_4, VOCAB, old), rf"token 2 of sample 1 of 2 is 50, {ONLY_0_TO_49}"),
        ("tokens", "lengths", lambda old: old * [[1], [0]], r"sample 1 of 2 has length 0"),
        ("tokens", "lengths", lambda old: old + [[0], [1]], r"sample 1 of 2 has length 5"),
        ("experience", "returns", lambda old: np.where(AT_1_2, np.nan, old), "returns of sample 1 of 2 at token 2 is nan"),
        ("experience", "values", lambda old: np.where(AT_1_2, np.nan, old), "values of sample 1 of 2 at token 2 is nan"),
        ("experience", "returns", lambda old: old[:, :2], r"returns has shape \[2, 2\], but tokens require \[2, 3\]"),
        ("experience", "response_mask", lambda old: old[:1], r"mask has shape \[1, 3\], but tokens require \[2, 3\]"),
    ],
)  # fmt: skip
def test_arrays_that_can_t_be_are_refused_with_the_place(kind, name, change, words):
    if kind == "tokens":
        arrays, unpack = serialization.pack_tokens(BATCH, 4), serialization.unpack_tokens
    else:
        arrays, unpack = serialization.pack_experience(experience_of(BATCH)), serialization.unpack_experience
    with pytest.raises(serialization.WireError, match=words):
        unpack(arrays | {name: change(arrays[name])}, VOCAB)


@pytest.mark.parametrize(
    ("kind", "place", "number", "words"),
    [
        ("rewards", (1, 0), math.nan, r"the reward of sample 1 of 2 \(tokens \[4, 5, 6, 7\]…\) is"),
        ("values", (0, 1), math.nan, r"the value of sample 0 of 2 .* at token 1 is"),
        ("values", (0, 1), -math.inf, r"the value of sample 0 of 2 .* at token 1 is"),
        ("values", (0, 2), math.nan, None),  # after the sample's end
    ],
)
def test_a_score_that_is_no_number_is_named(kind, place, number, words):
    scores = {"rewards": torch.zeros(2), "values": torch.zeros(2, 3)}[kind]
    arrays = serialization.pack_scores(kind, scores, 4)
    arrays[kind][place] = number
    with pytest.raises(serialization.WireError, match=words) if words else nullcontext():
        serialization.unpack_scores(kind, arrays, BATCH)


@pytest.mark.parametrize(
    ("kind", "scores", "width", "words"),
    [
        ("rewards", torch.zeros(3), 4, r"shape \[3, 1\], but 2 samples were sent"),
        ("values", torch.zeros(2, 1), 2, "values have 2 columns, but the longest sample needs 3"),
    ],
)
def test_scores_of_another_shape_are_refused(kind, scores, width, words):
    with pytest.raises(serialization.WireError, match=words):
        serialization.unpack_scores(kind, serialization.pack_scores(kind, scores, width), BATCH)
