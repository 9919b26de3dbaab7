"""Groups of GRPO: what counts as alike is the rewards that are learnt from."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.algorithms.policy_gradient import grpo_advantages, loss_mask
from aligner_lib.config.compose import compose
from aligner_lib.kinds.grpo.settings import objective_of
from aligner_lib.kinds.grpo.trainer import GRPOTrainer
from aligner_lib.kinds.policy_gradient.rollout_metrics import environment_metrics, rollout_metrics
from aligner_lib.kinds.policy_gradient.trainer import PolicyGradientTrainer
from aligner_lib.rollouts.collect import Collected, EpisodeOutcome, Judgements
from aligner_lib.rollouts.environments.base import FIGURES
from aligner_lib.rollouts.environments.pool import EnvironmentFailure
from aligner_lib.rollouts.records import Rollouts
from aligner_lib.rollouts.timers import Timers

NAN = float("nan")


def rollouts(groups: list[int], finished: list[bool]) -> Rollouts:
    """Responses of two tokens to prompts of one."""
    size = len(groups)
    return Rollouts(
        tokens=torch.ones(size, 3, dtype=torch.int64),
        lengths=torch.full((size,), 3),
        response_mask=torch.ones(size, 2, dtype=torch.bool),
        finished=torch.tensor(finished),
        group=torch.tensor(groups),
        sampler_logprobs=torch.zeros(size, 2),
    )


def trainer(draws: list[tuple[list[float], list[bool]]], *loop: str, rollouts_a_step: int = 1) -> GRPOTrainer:
    """Two prompts of two responses at each draw: `draws` has their rewards, and whether they ended."""

    class GivenRollouts(PolicyGradientTrainer):
        drawn = 0

        def _rollout(self, step, timers, position, first=0):
            rewards, finished = draws[self.drawn]
            self.drawn += 1
            made = rollouts([first, first, first + 1, first + 1], finished)
            outcomes = [EpisodeOutcome("e", reward=reward) for reward in rewards]
            return Collected(made, outcomes, lambda: Judgements.of(outcomes))

    class Drawn(GRPOTrainer, GivenRollouts):
        """GRPO's trainer, whose rollouts are given."""

    settings = ["num_prompts_per_step=2", "num_generations_per_prompt=2"]
    settings.append(f"max_rollouts_per_step={rollouts_a_step}")
    sizes = ["model.global_batch_size=4", "model.micro_batch_size=1"]
    overrides = [
        *(f"model.grpo.{setting}" for setting in settings),
        *(f"trainer.grpo.{setting}" for setting in loop),
        *sizes,
    ]
    config = compose("grpo", overrides)
    policy = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0), computes_in_bf16=False)
    functions = SimpleNamespace(loss_mask=loss_mask)
    return Drawn(policy, None, None, objective_of(config), None, config, None, functions=functions)


ENDED = [True] * 4


@pytest.mark.parametrize(
    ("rewards", "finished", "loop", "alike"),
    [
        ([3.0, 5.0, 0.0, 0.5], ENDED, [], 0.0),
        ([3.0, 5.0, 0.0, 0.5], ENDED, ["reward_clip=1"], 0.5),  # 3 and 5 are both learnt from as 1
        ([1.0, 1.0, 0.0, 0.0], [True, False, True, True], [], 1.0),
        ([1.0, 1.0, 0.0, 0.0], [True, False, True, True], ["missing_eos_penalty=1"], 0.5),
        ([1.0, 2.0, 0.0, 0.0], [True, False, True, True], ["missing_eos_penalty=1"], 1.0),
        ([0.0, 1.0, 0.0, 1.0], [False, False, True, True], ["mask_truncated_responses=True"], 0.5),
        ([1.0, NAN, 0.0, 1.0], ENDED, [], 0.5),  # one response alone has nothing to be compared with
    ],
)
def test_a_group_is_alike_when_nothing_is_learnt_from_it(rewards, finished, loop, alike, one_process):
    grouped = trainer([(rewards, finished)], *loop)
    collected = grouped.collect(1, Timers())
    figures = grouped.figures_of_groups(collected.rollouts, collected.wait_for_judgements())
    assert figures["groups_alike"] == alike


def test_dynamic_sampling_keeps_the_groups_that_something_is_learnt_from(one_process):
    """Of the first draw, clipping makes one group alike that was not; the penalty splits one that was alike. Failures of the
    groups that are left out are counted."""
    draws = [
        ([3.0, 5.0, 1.0, 1.0], [True, True, True, False]),  # groups 0, 1
        ([0.0, 1.0, NAN, 1.0], ENDED),  # groups 2, 3
    ]
    grouped = trainer(draws, "reward_clip=1", "missing_eos_penalty=1", rollouts_a_step=2)
    kept = grouped.collect(1, Timers())
    assert sorted(set(kept.rollouts.group.tolist())) == [1, 2]
    assert sorted({member.group for member in grouped.left_out}) == [0, 3]
    assert grouped.drawn == 2
    assert grouped.outside_of_rollout() == (1, 3)  # responses without a reward, and with one
    rewards = kept.wait_for_judgements().rewards
    figures = rollout_metrics("train_rollouts", kept.rollouts, rewards, *grouped.outside_of_rollout())
    assert figures["train_rollouts/rewards_failed"] == pytest.approx(1 / 8)
    figures = environment_metrics("train", kept, rewards, grouped.failures_outside_of_rollout())
    assert figures["train_environments/e/failed"] == 1
    grouped = trainer([([NAN] * 4, ENDED)] * 2, rollouts_a_step=2)
    assert grouped.collect(1, Timers()).rollouts.group.tolist() == [2, 2, 3, 3]
    assert grouped.outside_of_rollout() == (4, 0)


@pytest.mark.parametrize(
    ("aggregation", "loop", "alike", "signs"),
    [
        ("sum_then_normalize", [], 0.0, [1, 1, -1, -1]),
        ("normalize_then_sum", [], 0.0, [1, -1, 1, -1]),
        # the third response is cut off: the penalty is a third reward, with the penalty as its weight
        ("normalize_then_sum", ["missing_eos_penalty=10"], 0.0, [1, 1, -1, 1]),
    ],
)
def test_several_rewards_are_compared_as_the_switch_says(aggregation, loop, alike, signs, one_process):
    """Of four responses, `words` has a tenth of the spread of `right` in the sum, and twice its weight when both are normalised."""
    grouped = trainer([], *loop)
    grouped.objective = replace(PRESETS["grpo"], aggregation=aggregation)
    grouped.functions.advantages = grpo_advantages
    weights = {"right": 1.0, "words": 2.0}
    responses = [
        {"right": 1, "words": 0.05},
        {"right": 1, "words": 0},
        {"right": 0, "words": 0.05},
        {"right": 0, "words": 0},
    ]
    judgements = Judgements.of(
        [EpisodeOutcome("e", True, metrics=m, reward_weights=weights) for m in responses]
    )
    assert judgements.rewards.tolist() == pytest.approx([1.1, 1, 0.1, 0])
    made, zeros = rollouts([0] * 4, [True, True, False, True]), torch.zeros(4, 2)
    experience, figures = grouped.experience(made, judgements, zeros, zeros)
    assert experience.advantages[:, 0].sign().tolist() == signs
    assert figures["train_rollouts/groups_alike"] == alike


def test_an_episode_that_was_cut_off_has_rewards_of_zero_and_no_other_metrics(one_process):
    """As in the reward: of two episodes, the one that was cut off gives 0. Metrics that are no rewards know nothing of it."""
    metrics = ({"right": 1.0, "guesses": 3.0}, {})
    outcomes = [EpisodeOutcome("game", True, metrics=m, reward_weights={"right": 2.0}) for m in metrics]
    collected = Collected(rollouts([0, 1], [True, False]), outcomes, lambda: Judgements.of(outcomes))
    figures = environment_metrics("val", collected, collected.wait_for_judgements().rewards, [])
    expected = dict(zip(FIGURES, (1.0, 2, 0, 1.0))) | {"rewards/right": 0.5, "guesses": 3.0}
    assert figures == {f"val_environments/game/{name}": value for name, value in expected.items()}


def test_a_validation_without_prompts_has_no_metrics(one_process):
    grouped = trainer([])
    grouped.tasks = SimpleNamespace(validation=lambda count: [])
    assert grouped.validate(1) == {}


@pytest.mark.parametrize(("aggregation", "alike"), [("sum_then_normalize", 1.0), ("normalize_then_sum", 0.0)])
def test_rewards_with_equal_sums_are_alike_only_in_the_sum(aggregation, alike, one_process):
    grouped = trainer([])
    grouped.objective = replace(PRESETS["grpo"], aggregation=aggregation)
    metrics = [{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}]
    outcomes = [EpisodeOutcome("e", True, metrics=m, reward_weights={"a": 1, "b": 1}) for m in metrics]
    made = rollouts([0, 0], [True, True])
    assert grouped.figures_of_groups(made, Judgements.of(outcomes))["groups_alike"] == alike


def test_the_reward_model_s_score_is_one_of_several_rewards_and_a_failure_has_none():
    weights = {"reward_model": 1.0, "obeys": 0.5}
    by_model = EpisodeOutcome("e", False, NAN, metrics={"obeys": 1.0}, reward_weights=weights)
    by_model.take_score(0.25)
    failure = EnvironmentFailure("e", 0, "raised", "")
    failed = [EpisodeOutcome("e", False, NAN, failure=failure, reward_weights=own) for own in (weights, {})]
    for outcome in failed:
        outcome.take_score(0.25)
    alone, beyond_float32 = EpisodeOutcome("f", True, 3.0), EpisodeOutcome("f", True, 1e39)
    judgements = Judgements.of([by_model, *failed, alone, beyond_float32])
    assert judgements.rewards.nan_to_num(-1).tolist() == [0.75, -1, -1, 3, -1]
    assert judgements.weights.tolist() == [[1, 0.5], [1, 0.5], [1, 0], [1, 0], [1, 0]]


def test_reinforce_pp_gives_each_token_the_kl_from_it_on(one_process):
    grouped = trainer([], "initial_policy_kl_penalty=0.5")
    grouped.objective = PRESETS["reinforce_pp"]
    made = rollouts([0, 0, 1, 1], ENDED)
    judgements = Judgements.of([EpisodeOutcome("", reward=reward) for reward in (1.0, 0.0, 1.0, NAN)])
    reference = torch.zeros(4, 2)
    logprobs = torch.tensor([[2.0, 4.0], [0.0, 2.0], [0.0, 0.0], [5.0, 5.0]])
    experience, figures = grouped.experience(made, judgements, logprobs, reference)
    advantages = experience.advantages
    # two groups with equal rewards would still differ from the batch's mean
    assert "train_rollouts/groups" in figures and "train_rollouts/groups_alike" not in figures
    raw = torch.tensor([[1 - 3.0, 1 - 2.0], [-1.0, -1.0], [1.0, 1.0]])
    expected = (raw - raw.mean()) / raw.std(correction=0)
    torch.testing.assert_close(advantages[:3], expected, atol=1e-5, rtol=1e-5)
    assert not advantages[3].any()  # without a reward


@pytest.mark.parametrize("kl", ["reward", "none"])
def test_reinforce_pp_without_truncated_responses_takes_the_mean_of_the_others(kl, one_process):
    """Rewards 3, 1 and, cut off, 8: the mean is 2, and not 4, which would be above both."""
    grouped = trainer([], "mask_truncated_responses=True")
    grouped.objective, grouped.functions.advantages = replace(PRESETS["reinforce_pp"], kl=kl), grpo_advantages
    judgements = Judgements.of([EpisodeOutcome("", reward=reward) for reward in (3.0, 1.0, 8.0)])
    made, zeros = rollouts([0, 0, 1], [True, True, False]), torch.zeros(3, 2)
    experience, _ = grouped.experience(made, judgements, zeros, zeros)
    assert experience.advantages[:, 0].sign().tolist() == [1, -1, 0]


def test_a_target_of_the_kl_begins_with_the_penalty_if_the_checkpoint_has_no_coefficient(
    tmp_path, one_process
):
    grouped = trainer([], "target_kl=0.1", "initial_policy_kl_penalty=0.5")
    grouped.collector, grouped.lr_schedule = SimpleNamespace(reward_source=None), SimpleNamespace()
    grouped.policy.engine = SimpleNamespace(go_on_from=lambda folder: None)
    grouped.load(tmp_path)
    assert grouped.kl_coef == 0.5
    (tmp_path / "kl_coef.json").write_text("0.25")
    grouped.load(tmp_path)
    assert grouped.kl_coef == 0.25
    for initial, coefficient in ((0.5, 0.3), (0.4, 0.5)):  # a changed penalty begins anew
        (tmp_path / "kl_coef.json").write_text(json.dumps({"kl_coef": 0.3, "initial": initial}))
        grouped.load(tmp_path)
        assert grouped.kl_coef == coefficient


@pytest.mark.parametrize(("objective", "controls"), [("grpo", {"lr", "kl_coef"}), ("dapo", {"lr"})])
def test_an_objective_without_a_kl_has_no_coefficient_to_change(objective, controls, one_process):
    grouped = trainer([])
    grouped.objective, grouped.lr_schedule = PRESETS[objective], SimpleNamespace(optim=SimpleNamespace(lr=1))
    assert set(grouped.controls) == controls
