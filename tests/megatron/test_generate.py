"""Generation: when a response ends, that batches don't matter, and that draws follow the distribution."""

from dataclasses import replace
from unittest.mock import Mock, patch

import pytest
import tiny
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

from aligner_lib.megatron import generate as generation
from aligner_lib.megatron.generate import ContinuousBatch, Sampling, _has_ended, draw, generate, generating

pytestmark = pytest.mark.megatron
STOP = 0


# ---- when a response ends: a model whose next token is told by the last one -----------------------------------------


class Scripted(torch.nn.Module):
    """After token t comes successors[t]; where that is the stop token and can't be drawn, token 1 is next best."""

    def __init__(self, successors: dict[int, int]):
        super().__init__()
        self.successors = successors
        self.table = torch.nn.Parameter(torch.zeros(10, 10))
        self.table.data[:, 1] = 0.5
        for token, successor in successors.items():
            self.table.data[token, successor] = 1.0

    def forward(self, tokens, cache):
        return torch.nn.functional.one_hot(tokens, 10).float().transpose(0, 1)

    def logits(self, hidden):
        return hidden @ self.table


COUNTING = Scripted({2: 3, 3: 4, 4: 5, 5: STOP, 1: 6, 6: STOP})


def respond(prompts, model=COUNTING, rows=None, stop_ids=(STOP,), **sampling) -> list[tuple[list[int], bool]]:
    how = Sampling(**{"max_length": 8, "greedy": True} | sampling)
    seeds = list(range(len(prompts)))
    responses = generate(model, prompts, seeds, how, stop_ids=stop_ids, rows=rows, decode=letters)
    return [(response.tokens, response.finished) for response in responses]


def letters(ids: list[int]) -> str:
    return "".join("ABCDEFGHIJ"[i] for i in ids)


@pytest.mark.parametrize(
    ("prompts", "sampling", "expected"),
    [
        ([[9, 2], [4]], {}, [([3, 4, 5, STOP], True), ([5, STOP], True)]),
        ([[2], [4]], {"max_length": 2}, [([3, 4], False), ([5, STOP], True)]),
        ([[2]], {"max_length": 1}, [([3], False)]),
        # the stop token can't come too early: 1 comes in its place
        ([[5]], {"min_length": 1}, [([STOP], True)]),
        ([[5]], {"min_length": 3}, [([1, 6, STOP], True)]),
        ([[6]], {"min_length": 2}, [([1, 6, STOP], True)]),
        # 4 is a stop token, too
        ([[2], [5]], {"stop_ids": [STOP, 4]}, [([3, 4], True), ([STOP], True)]),
        ([[3], [5]], {"stop_ids": [STOP, 4], "min_length": 2}, [([1, 6, STOP], True)] * 2),
        # end strings, which in a prompt end nothing
        ([[2]], {"end_strings": ("E",)}, [([3, 4], True)]),
        ([[2]], {"end_strings": ("xyz", "DEF")}, [([3, 4, 5], True)]),
        ([[2], [5]], {"end_strings": ("Q",)}, [([3, 4, 5, STOP], True), ([STOP], True)]),
        ([[3, 4]], {"end_strings": ("DEF",)}, [([5, STOP], True)]),
    ],
)
def test_when_a_response_ends(one_process, prompts, sampling, expected):
    assert respond(prompts, **sampling) == expected


def test_an_end_string_may_take_a_token_for_each_of_its_bytes():
    sampling = Sampling(max_length=99, end_strings=("用户：",))
    tokens = list("好的。用户：".encode())

    def decode(ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")

    endings = [_has_ended(tokens[: i + 1], sampling, decode=decode) for i in range(len(tokens))]
    assert endings == [False] * (len(tokens) - 1) + [True]


def test_an_end_string_may_end_within_a_token():
    pieces, sampling = ["yes", "</answer", ">.\n"], Sampling(max_length=99, end_strings=("</answer>",))

    def decode(ids: list[int]) -> str:
        return "".join(pieces[i] for i in ids)

    endings = [_has_ended([*range(count)], sampling, decode) for count in (1, 2, 3)]
    assert endings == [False, False, True]


@pytest.mark.parametrize("rows", [2, None])
def test_so_many_rows_are_computed_together_and_order_and_number_of_prompts_are_kept(one_process, rows):
    prompts = [[4], [9, 9, 2], [5], [7, 3], [6], [2], [1]]
    seen = []

    class Noted(Scripted):
        def forward(self, tokens, cache):
            seen.append(tokens.shape[0])
            return super().forward(tokens, cache)

    alone = [respond([prompt])[0] for prompt in prompts]
    assert respond(prompts, model=Noted(COUNTING.successors), rows=rows) == alone
    assert max(seen) == (rows or len(prompts))


def test_a_waiting_prompt_takes_the_row_of_one_that_ended(one_process):
    """Responses of 4, 1 and 2 tokens in two rows: the third begins as soon as the second is over."""
    tokens_at_each_step = []
    batch = ContinuousBatch(COUNTING, 2, stop_ids=[STOP])
    long, short, waiting = (batch.add(prompt, 0, Sampling(8, greedy=True)) for prompt in ([2], [5], [4]))
    while batch:
        batch.step()
        tokens_at_each_step.append([len(response.tokens) for response in (long, short, waiting)])
    assert tokens_at_each_step == [[1, 1, 0], [1, 1, 1], [2, 1, 2], [3, 1, 2], [4, 1, 2]]


def test_an_empty_prompt_and_sampling_that_makes_no_sense_are_refused(one_process):
    with pytest.raises(AssertionError, match="empty prompt"):
        respond([[2], []])
    for name, value in (("temperature", 0), ("top_p", 0), ("top_p", 1.1), ("max_length", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value}"):
            Sampling(**{"max_length": 4, name: value})


# ---- a real model: batches, prompts and the cache don't change what is said -----------------------------------------

PROMPTS = [[5, 6, 7], [8], list(range(20, 40)), [15, 16], [17, 18, 19, 20, 21], [44], [45, 46]]
UNSAID = 1  # as the stop token it ends nothing here
GREEDY = Sampling(max_length=10, greedy=True)
DRAWN = Sampling(max_length=10, temperature=1.2, top_k=30, top_p=0.95)


@pytest.fixture(scope="module")
def model(starts):
    return tiny.new_engine("untied", starts / "untied").module


def answers(model, prompts, numbers, sampling, stop_id=UNSAID) -> list[tuple[list[int], bool]]:
    seeds = [100 + number for number in numbers]
    responses = generate(model, prompts, seeds, sampling, stop_ids=[stop_id])
    return [(response.tokens, response.finished) for response in responses]


def test_a_ragged_batch_says_what_each_prompt_alone_says_also_when_rows_finish(model):
    """Any token may be the stop token: each choice lets rows leave at other times."""
    alone = [answers(model, [prompt], [number], DRAWN)[0] for number, prompt in enumerate(PROMPTS)]
    assert len({tuple(tokens) for tokens, _ in alone}) == len(PROMPTS)
    numbers, left = range(len(PROMPTS)), 0
    assert answers(model, PROMPTS, numbers, DRAWN) == alone
    for stop in alone[0][0][::3]:
        ours = answers(model, PROMPTS, numbers, DRAWN, stop_id=stop)
        for (tokens, _), (now, ended) in zip(alone, ours, strict=True):
            cut = tokens.index(stop) + 1 if stop in tokens else len(tokens)
            assert (now, ended) == (tokens[:cut], stop in tokens)
            left += ended and cut < len(tokens)
    assert left >= 5


LENGTHS = [3, 10, 1, 6, 2, 8, 5]  # very different ones, so that rows are taken at all times
REQUESTS = list(zip(PROMPTS * 2, LENGTHS + LENGTHS[::-1]))


@pytest.fixture(scope="module")
def alone(model) -> list[list[int]]:
    """What each request says alone, greedily and drawn in turn."""
    tokens = []
    for number, (prompt, length) in enumerate(REQUESTS):
        how = replace((GREEDY, DRAWN)[number % 2], max_length=length)
        tokens.append(generate(model, [prompt], [number], how, stop_ids=[UNSAID])[0].tokens)
    return tokens


@settings(max_examples=6)
@given(data=st.data())
def test_requests_may_come_and_go_at_any_time(model, alone, data):
    """Whatever other requests come or are cancelled meanwhile, a response is the one that its request gets alone."""
    arrivals = data.draw(st.lists(st.integers(0, 6), min_size=len(REQUESTS), max_size=len(REQUESTS)))
    cancelled = data.draw(st.dictionaries(st.integers(0, len(REQUESTS) - 1), st.integers(0, 8), max_size=3))
    shares = data.draw(st.lists(st.sampled_from("abc"), min_size=len(REQUESTS), max_size=len(REQUESTS)))
    batch = ContinuousBatch(model, data.draw(st.integers(1, 5)), stop_ids=[UNSAID])
    responses, step = {}, 0
    with patch.object(generation, "ROOM", 3), generating(model):  # so that columns run out, too
        while batch or len(responses) < len(REQUESTS):
            for number, (prompt, length) in enumerate(REQUESTS):
                if number not in responses and arrivals[number] <= step:
                    how = replace((GREEDY, DRAWN)[number % 2], max_length=length)
                    responses[number] = batch.add(prompt, number, how, shares[number])
                if number in responses and cancelled.get(number) == step:
                    batch.cancel(responses[number])
            if batch:
                batch.step()
            step += 1
    for number, response in responses.items():
        assert response.is_over
        end = len(response.tokens) if number in cancelled else None
        assert response.tokens == alone[number][:end]


def traced(step):
    """A CUDA graph's stand-in: torch's operations on the same tensors, with every number that Python computed frozen."""
    graph = make_fx(step)()
    kept = step()

    def repeat():
        kept.copy_(graph())

    return repeat, kept


def test_a_captured_step_gives_the_same_responses(model, alone):
    """Rows come, go and take over other rows, and columns run out: a capture serves until the cache is arranged anew."""
    captured = Mock(side_effect=traced)
    with (
        patch.object(generation, "capture_for", lambda _: captured),
        patch.object(generation, "WORTH_CAPTURING", 2),
        patch.object(generation, "ROOM", 6),
    ):
        batch = ContinuousBatch(model, 3, stop_ids=[UNSAID])
        responses = [
            batch.add(prompt, number, replace((GREEDY, DRAWN)[number % 2], max_length=length))
            for number, (prompt, length) in enumerate(REQUESTS[:8])
        ]
        batch.run()
    assert [response.tokens for response in responses] == alone[:8]
    assert 3 <= captured.call_count <= len(responses)


def test_a_short_response_does_not_wait_for_another_share_s_long_ones(model):
    """Eight responses of 20 tokens hold all rows; four tokens that another share wants are there five steps later."""
    batch, long_ones = ContinuousBatch(model, 4, stop_ids=[UNSAID]), replace(DRAWN, max_length=20)
    many = [batch.add([5, 6, 7], seed, long_ones, "many") for seed in range(8)]
    with generating(model):
        for _ in range(6):
            batch.step()
        short = batch.add([9, 4], 1, replace(DRAWN, max_length=4), "one")
        for _ in range(5):
            batch.step()
        assert short.is_over and len(short.tokens) == 4
        batch.run()
    for seed, response in enumerate(many):  # the one that lost its row has gone on where it was
        (expected,) = generate(model, [[5, 6, 7]], [seed], long_ones, stop_ids=[UNSAID])
        assert response.tokens == expected.tokens


def test_a_batch_that_nobody_waits_for_holds_no_rows(model):
    batch = ContinuousBatch(model, 4, stop_ids=[UNSAID])
    for _ in range(2):
        for prompt in PROMPTS:
            batch.add(prompt, 0, GREEDY)
        batch.run()
        assert batch._cache.max_batch_size == 0 and not batch._computed
    responses = [batch.add([5, 6], seed, GREEDY) for seed in range(6)]
    with generating(model):
        batch.step()
        for response in responses:
            batch.cancel(response)
    assert batch._cache.max_batch_size == 0 and not batch._computed and not batch


@pytest.mark.parametrize(("rows", "decoded"), [(2, 2), (None, 8)])
def test_a_group_s_prompt_is_computed_once_also_where_the_group_is_larger_than_the_rows(model, rows, decoded):
    prompts = [[5, 6, 7, 8]] * 5 + [[9, 4]] * 3
    seen = []
    handle = model.embedding.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(tuple((args or [kwargs["input_ids"]])[0].shape)), with_kwargs=True
    )
    together = generate(model, prompts, list(range(8)), DRAWN, stop_ids=[UNSAID], rows=rows)
    handle.remove()
    computed = sorted(shape for shape in seen if shape[1] > 1)
    assert computed == ([(1, 2), (1, 4)] if rows else [(2, 4)])
    assert max(shape[0] for shape in seen if shape[1] == 1) == decoded
    for seed, prompt in enumerate(prompts):
        (alone,) = generate(model, [prompt], [seed], DRAWN, stop_ids=[UNSAID])
        assert together[seed].tokens == alone.tokens
        assert together[seed].logprobs == pytest.approx(alone.logprobs, abs=1e-5)
    assert len({tuple(response.tokens) for response in together}) > 4


def test_what_observes_a_batch_sees_the_logits_that_its_tokens_were_drawn_from(model):
    seen: dict[int, list[tuple[int, float]]] = {}

    def observe(responses, logits, tokens):
        for response, row, token in zip(responses, logits.log_softmax(-1), tokens.tolist()):
            seen.setdefault(id(response), []).append((token, row[token].item()))

    batch = ContinuousBatch(model, 2, stop_ids=[UNSAID], observe=observe)
    responses = [batch.add(prompt, 0, Sampling(max_length=5)) for prompt in PROMPTS[:3]]
    batch.run()
    for response in responses:
        tokens, logprobs = zip(*seen[id(response)][: len(response.tokens)])
        assert list(tokens) == response.tokens
        assert list(logprobs) == pytest.approx(response.logprobs, abs=1e-5)


def test_a_response_depends_on_its_seed_and_generation_leaves_the_model_as_it_was(model):
    for mode in (True, False):
        model.train(mode)
        first, again, other = (answers(model, [[5]], [number], DRAWN)[0] for number in (1, 1, 2))
        assert first == again != other
        assert model.training == mode


# ---- draws follow the distribution ----------------------------------------------------------------------------------

PROBABILITIES = torch.tensor([0.05, 0.4, 0.0, 0.15, 0.3, 0.1])
DRAWS = 20_000


def frequencies(seed: int = 0, **sampling) -> torch.Tensor:
    uniforms = torch.rand(DRAWS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    logits = PROBABILITIES.log().expand(DRAWS, -1)
    return draw(logits, uniforms, Sampling(max_length=1, **sampling))[0].bincount(minlength=6) / DRAWS


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({}, PROBABILITIES),
        ({"temperature": 0.5}, PROBABILITIES**2),
        ({"temperature": 2.0}, PROBABILITIES**0.5),
        ({"top_k": 2}, torch.tensor([0, 0.4, 0, 0, 0.3, 0])),
        ({"top_k": 99}, PROBABILITIES),
        ({"top_p": 0.5}, torch.tensor([0, 0.4, 0, 0, 0.3, 0])),  # 0.4 is not enough: the next one comes along
        ({"top_p": 0.3}, torch.tensor([0, 1.0, 0, 0, 0, 0])),
        ({"top_p": 1e-50}, torch.tensor([0, 1.0, 0, 0, 0, 0])),  # which is 0 in float32
        ({"top_k": 3, "top_p": 0.8}, torch.tensor([0, 0.4, 0, 0, 0.3, 0])),  # of 0.85: 0.47, 0.35, 0.18
        ({"greedy": True}, torch.tensor([0, 1.0, 0, 0, 0, 0])),
    ],
)
def test_draws_follow_the_distribution(sampling, expected):
    expected = expected / expected.sum()
    seen = frequencies(**sampling)
    possible = expected > 0
    assert seen[~possible].sum() == 0
    chi_square = DRAWS * ((seen - expected)[possible] ** 2 / expected[possible]).sum().item()
    assert chi_square < 18.5  # five degrees of freedom exceed it once in 400 times; the seed is fixed
    uniforms = torch.arange(9).double() / 9
    ids, logprobs = draw(PROBABILITIES.log().expand(9, -1), uniforms, Sampling(max_length=1, **sampling))
    torch.testing.assert_close(logprobs.exp(), expected[ids])  # what it was drawn with


def test_the_ends_of_the_unit_interval_are_tokens_with_probability():
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).expand(2, -1)
    ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
    assert draw(logits, ends, Sampling(max_length=1))[0].tolist() == [1, 2]
