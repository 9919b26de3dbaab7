"""Padded rows, and the cut that goes with choosing some of them."""

import torch

from aligner_lib.algorithms.ppo import response_mask
from aligner_lib.datasets.batches import concat_restore_order, pad_rows
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


def test_rows_are_padded_on_the_right_and_chosen_rows_lose_their_unused_columns():
    tokens, lengths = pad_rows([[1, 2, 3], [4]], fill=9)
    assert (tokens.tolist(), lengths.tolist()) == ([[1, 2, 3], [4, 9, 9]], [3, 1])
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
    assert batch.last_turn_lengths.tolist() == [1, 1]
    assert (batch.prompt_tokens(0), batch.response_tokens(0)) == ([1, 2], [3, 4, 7])
    assert (batch.prompt_tokens(1), batch.response_tokens(1)) == ([8], [9])
    joined = concat_restore_order([batch.rows([1]), batch.rows([0])], [[1], [0]], fill=PAD)
    for name, value in vars(batch).items():
        assert torch.equal(getattr(joined, name), value), name


def test_metrics_count_responses_prompts_and_failures():
    def metrics(rewards: list[float], **more) -> dict:
        batch = rollouts(*([([1], [2])] * len(rewards)))
        batch.group = torch.tensor([7, 7, 8][: len(rewards)])
        figures = rollout_metrics("evaluation", batch, torch.tensor(rewards), **more)
        return {name.removeprefix("evaluation/"): value for name, value in figures.items()}

    nan = float("nan")
    failed = metrics([nan, nan], more_failed=2)
    assert failed["rewards"] is None and failed["rewards_std"] is None
    assert (failed["rewards_failed"], failed["rollout_size"]) == (1, 2)
    figures = metrics([0.5, nan], more_failed=2)  # one of four: two prompts were not given
    assert (figures["rewards"], figures["rewards_failed"]) == (0.5, 0.75)
    figures = metrics([1.0, 1.0, 1.0])
    assert (figures["rollout_size"], figures["prompts"], figures["rewards_failed"]) == (3, 2, 0)


def test_consecutive_steps_without_a_reward_are_counted():
    failed = FailedRewards()
    names = ["advantages_mean", "returns_mean", "returns_std", "values_mean", "values_std"]
    unknown = {f"train_rollouts/{name}": None for name in names}
    metrics = dict.fromkeys(unknown, 0.0) | {"train_rollouts/rewards_failed": 1.0}
    assert failed.count(metrics) == unknown
    failed.count(metrics)
    assert failed.steps == 2
    assert failed.count(metrics | {"train_rollouts/rewards_failed": 0.5}) == {} and failed.steps == 0
