"""Padded rows, and the cut that goes with choosing some of them."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.algorithms.ppo import response_mask
from aligner_lib.datasets.batches import TokenBatch, concat_restore_order, pad_rows
from aligner_lib.kinds.policy_gradient.environment_failures import FailedRewards
from aligner_lib.kinds.policy_gradient.rollout_metrics import rollout_metrics
from aligner_lib.rollouts.records import Experience, Rollouts

PAD = 0


def rollouts(*rows: tuple[list[int], list[int]]) -> Rollouts:
    tokens, lengths = pad_rows([prompt + response for prompt, response in rows], PAD)
    prompt_lengths = torch.tensor([len(prompt) for prompt, _ in rows])
    return Rollouts(
        tokens,
        lengths,
        response_mask=response_mask(prompt_lengths, lengths, tokens.shape[1] - 1),
        finished=torch.ones(len(rows), dtype=torch.bool),
        group=torch.arange(len(rows)),
        sampler_logprobs=torch.zeros(len(rows), tokens.shape[1] - 1),
    )


def test_rows_are_padded_on_the_right():
    tokens, lengths = pad_rows([[1, 2, 3], [4]], fill=9)
    assert tokens.tolist() == [[1, 2, 3], [4, 9, 9]]
    assert lengths.tolist() == [3, 1]


def test_chosen_rows_lose_columns_that_none_of_them_uses():
    batch = rollouts(([1], [2, 3, 4]), ([5, 6], [7]), ([8], [9]))
    table = torch.arange(9.0).reshape(3, 3)  # predictions are one column fewer than tokens
    experience = Experience(
        **vars(batch),
        **dict.fromkeys(("logprobs", "advantages", "sampler_weights"), table),
        reference_logprobs=table + 0.5,
        loss_mask=batch.response_mask,
    )
    chosen = experience.rows([2, 1])
    assert chosen.tokens.tolist() == [[8, 9, PAD], [5, 6, 7]]
    assert chosen.lengths.tolist() == [2, 3]
    assert chosen.advantages.tolist() == [[6, 7], [3, 4]]
    assert chosen.response_mask.tolist() == [[True, False], [False, True]]
    assert chosen.group.tolist() == [2, 1]
    assert isinstance(chosen, Experience)
    assert chosen.kl.tolist() == [[-0.5, 0], [0, -0.5]]


def test_a_response_of_two_turns_is_what_its_mask_says():
    # prompt 1 2, the policy's 3 4, a tool's 5 6, the policy's 7; and beside it a prompt 8 with the response 9
    batch = Rollouts(
        tokens=torch.tensor([[1, 2, 3, 4, 5, 6, 7], [8, 9, PAD, PAD, PAD, PAD, PAD]]),
        lengths=torch.tensor([7, 2]),
        response_mask=torch.tensor([[0, 1, 1, 0, 0, 1], [1, 0, 0, 0, 0, 0]]).bool(),
        finished=torch.tensor([True, True]),
        group=torch.tensor([4, 4]),
        sampler_logprobs=torch.tensor([[0, -1, -2, 0, 0, -3], [-4, 0, 0, 0, 0, 0]]).float(),
    )
    assert batch.prompt_lengths.tolist() == [2, 1]
    assert batch.generation_lengths.tolist() == [3, 1]
    assert (batch.prompt_tokens(0), batch.response_tokens(0)) == ([1, 2], [3, 4, 7])
    assert (batch.prompt_tokens(1), batch.response_tokens(1)) == ([8], [9])
    joined = concat_restore_order([batch.rows([1]), batch.rows([0])], [[1], [0]], fill=PAD)
    for name, value in vars(batch).items():
        assert torch.equal(getattr(joined, name), value), name


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=6), min_size=1, max_size=6), st.data())
def test_rows_keep_their_tokens(rows, data):
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=6))
    batch = TokenBatch(*pad_rows(rows, PAD)).rows(index)
    assert batch.tokens.shape[1] == max(len(rows[i]) for i in index)
    kept = [row[:length].tolist() for row, length in zip(batch.tokens, batch.lengths)]
    assert kept == [rows[i] for i in index]


def test_rewards_that_no_response_has_are_null_in_training_validation_and_evaluation():
    two, nan = rollouts(([1], [2]), ([1], [3])), float("nan")
    for group in ("train_rollouts", "val_rollouts", "evaluation"):
        figures = rollout_metrics(group, two, torch.tensor([nan, nan]), not_given=2)
        assert figures[f"{group}/rewards"] is None and figures[f"{group}/rewards_std"] is None
        assert figures[f"{group}/rewards_failed"] == 1 and figures[f"{group}/rollout_size"] == 2


def test_responses_and_their_different_prompts_are_counted():
    three = rollouts(([1], [2]), ([1], [3]), ([4], [5]))
    three.group = torch.tensor([7, 7, 8])
    figures = rollout_metrics("train_rollouts", three, torch.zeros(3))
    assert (figures["train_rollouts/rollout_size"], figures["train_rollouts/prompts"]) == (3, 2)


def test_the_share_of_failures_counts_prompts_that_were_not_given():
    two = rollouts(([1], [2]), ([1], [3]))
    figures = rollout_metrics("val_rollouts", two, torch.tensor([0.5, float("nan")]), not_given=2)
    assert (figures["val_rollouts/rewards"], figures["val_rollouts/rewards_failed"]) == (0.5, 0.75)
    assert rollout_metrics("val_rollouts", two, torch.ones(2))["val_rollouts/rewards_failed"] == 0


def test_steps_without_a_reward_are_counted_in_a_row():
    failed = FailedRewards()
    metrics = {"train_rollouts/rewards_failed": 1.0, "train_rollouts/advantages_mean": 0.0}
    assert failed.count(metrics) == {"train_rollouts/advantages_mean": None}
    failed.count(metrics)
    assert failed.steps == 2
    assert failed.count(metrics | {"train_rollouts/rewards_failed": 0.5}) == {} and failed.steps == 0
