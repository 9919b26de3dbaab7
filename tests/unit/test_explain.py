"""What is wrong with a run is read off its figures: recorded faults are named, healthy runs are not accused."""

import json
import math
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.run_folder.explain import Explanation, explain
from aligner_lib.run_folder.explain.causes import CAUSES
from aligner_lib.run_folder.explain.checks import CHECKS
from aligner_lib.tutorial.hunt.bug_hunt import HEALTHY as OF_THE_HUNT
from aligner_lib.tutorial.hunt.bug_hunt import HUNTED
from aligner_lib.tutorial.hunt.faults import FAULTS
from widgets.recordings.recording_file import PACKED
from widgets.recordings.replay import Recording

ROOT = Path(__file__).parents[2]
# Made by `python -m benchmarks.alarms --pack`: smoke runs of seeds that no range was chosen on.
RECORDED = Path(__file__).parent / "explained"
HEALTHY = [path.name.removesuffix(PACKED) for path in sorted(RECORDED.glob("healthy-*"))]
SHIPPED = ["healthy", "grpo-forms", "ppo-sums", "ppo-forms"]  # of the profile laptop


def recorded(name: str) -> Explanation:
    path = RECORDED / f"{name}{PACKED}"
    return explain(Recording(path if path.exists() else name, speed=float("inf")))


# ---- recorded runs --------------------------------------------------------------------------------------------------

FIRST_STEP = {"kl_sign": 2, "moving_reference": 2, "stale_rollouts": 2}  # the others show at the first


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_since_when(fault):
    found = recorded(f"{fault.replace('_', '-')}-2")
    assert found.cause.name == fault
    assert found.off[0].step == FIRST_STEP.get(fault, 1)
    assert found.diagnoses[0].evidence_for and not found.diagnoses[0].evidence_against
    assert f"1. {found.cause.title}" in str(found) and "Look at: " in str(found)


@pytest.mark.parametrize("name", [*HEALTHY, *SHIPPED])
def test_a_healthy_run_is_not_accused(name):
    found = recorded(name)
    assert found.off == [] and found.diagnoses == [] and found.is_healthy
    assert len(found.readings) >= 3
    assert "nothing looks wrong" in str(found) and found.readings[0].check.figure in str(found)


@pytest.mark.parametrize("name", HUNTED)
def test_the_bug_hunt_s_runs_are_solved(name):
    """They are of another seed, policy and reward model, and have no figure that was added for `explain`."""
    found = recorded(name)
    assert found.cause.name == HUNTED[name]
    assert found.off[0].step == FIRST_STEP.get(HUNTED[name], 1)


@pytest.mark.parametrize("name", OF_THE_HUNT)
def test_the_bug_hunt_s_healthy_runs_are_not_accused(name):
    found = recorded(name)
    assert found.off == [] and found.diagnoses == [] and len(found.readings) > 10


def test_healthy_runs_of_every_kind_are_recorded():
    assert len(HEALTHY) >= 5
    assert {name.split("-")[1] for name in HEALTHY} == {"sft", "rm", "dpo", "ppo", "grpo"}


def test_a_run_whose_checks_hold_tells_its_alarms():
    found = recorded("no-kl-penalty")
    assert found.off == [] and not found.is_healthy
    assert [alarm["name"] for alarm in found.alarms] == ["kl", "reward_hacking"]
    assert "step 5: Far from the reference" in str(found)


def test_every_fault_is_a_cause():
    assert set(FAULTS) <= {cause.name for cause in CAUSES}
    checks = {check.name for check in CHECKS}
    for cause in CAUSES:
        assert {name for group in cause.breaks for name in group} | set(cause.holds) <= checks, cause.name


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_the_places_that_a_cause_names_exist(cause):
    for path in re.findall(r"aligner_lib/[\w/]+\.py", cause.knob):
        assert (ROOT / path).exists()
    for name, path in re.findall(r"(\w+) in\s+(aligner_lib/[\w/]+\.py)", cause.knob):
        assert re.search(rf"(def|class) {name}\b", (ROOT / path).read_text()), f"{path} has no {name}"


# ---- each check -----------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A run as `explain` reads it, made by hand."""

    records: list[dict]
    kind: str = "ppo"
    settings: dict = field(default_factory=dict)
    status: str = "finished"
    message: str = ""
    name: str = "by-hand"
    rollouts: list[dict] = field(default_factory=list)

    @property
    def info(self) -> dict:
        trainer, model, precision = {}, {"optim": {"lr": 1e-3}}, "32"
        for key, value in self.settings.items():
            if key == "precision":
                precision = value
            else:
                at, _, name = key.partition(".")
                (trainer if at == "trainer" else model)[name] = value
        config = {
            "trainer": {"precision": precision, self.kind: {"use_absolute_kl": True} | trainer},
            "model": model,
        }
        config["model"][self.kind] = {name: value for name, value in model.items() if name != "optim"}
        return {"kind": self.kind, "status": self.status, "message": self.message, "config": config}

    def metrics(self) -> list[dict]:
        return self.records

    def rollouts_reader(self):
        return SimpleNamespace(poll=lambda max_bytes: self.rollouts)

    def alarms(self) -> list[dict]:
        return []


def ppo(steps=6, **changed) -> list[dict]:
    """Figures that agree with each other: 10 responses of 20 tokens, 4 of which end; KL coefficient 0.1."""
    records = []
    for step in range(1, steps + 1):
        kl = 0.1 * (step - 1)
        record = {
            "rollouts/rewards": 0.5 + 0.1 * step,
            "rollouts/rewards_std": 0.6,
            "rollouts/rollout_size": 10.0,
            "rollouts/generation_length": 20.0,
            "rollouts/prompt_lengths": 9.0 + 0.1 * step,
            "rollouts/fraction_of_samples_properly_ended": 0.4,
            "rollouts/entropy": 2.0 - 0.01 * step,
            "rollouts/kl": kl / 2,
            "rollouts/init_policy_kl": kl,
            "rollouts/kl_coef": 0.1,
            "rollouts/rlhf_rewards": 0.5 + 0.1 * step - 0.1 * kl * 20,
            "rollouts/values_mean": 0.0,
            "rollouts/returns_last": 0.5 + 0.1 * step - 0.1 * kl,
            "rollouts/learnt_advantages_mean": 1e-8,
            "rollouts/learnt_advantages_std": 1.0,
            "rollouts/sampler_mismatch": 5e-7,
            "rollouts/sampler_mismatch_max": 1e-5,
            "optim/first_ppo_ratio": 1.0,
            "optim/clip_fraction": 0.0,
            "optim/tokens": 200,
            "optim/grad_norm": 1.5,
            "optim/lr": 1e-3,
        }
        for name, value in changed.items():
            name = name.replace("__", "/")
            record[name] = value(step, record[name]) if callable(value) else value
        records.append(
            {"step": step, "time": 0.0} | {f"train_{name}": value for name, value in record.items()}
        )
    return records


def off(run: Run) -> dict[str, int]:
    return {one.name: one.step for one in explain(run).off}


def test_figures_that_agree_are_healthy():
    found = explain(Run(ppo()))
    assert found.is_healthy and all(
        check.name
        in (
            "mean_loss",
            "first_token",
            "last_token",
            "end_follows_reward",
            "advantage_sign",
            "critic_gradient",
        )
        for check in found.unseen
    )


def after(step: int, value: float):
    return lambda now, usual: value if now >= step else usual


@pytest.mark.parametrize(
    ("changed", "where", "cause"),
    [
        ({"optim__lr": 2e-3}, {"learning_rate": 1}, "learning_rate"),
        ({"optim__grad_norm": after(3, 0.0)}, {"gradient": 3}, "nothing_learns"),
        ({"optim__first_ppo_ratio": 0.95, "optim__clip_fraction": 0.05}, {"first_ratio": 1}, "mask_shift"),
        ({"optim__first_ppo_ratio": 1.7, "optim__clip_fraction": 0.8}, {"first_ratio": 1}, "temperature"),
        (
            {"rollouts__sampler_mismatch": after(2, 0.2), "rollouts__sampler_mismatch_max": after(2, 3.0)},
            {"sampler_later": 2},
            "stale_rollouts",
        ),
        ({"rollouts__init_policy_kl": 0.0, "rollouts__kl": 0.0}, {"reference_rests": 2}, "moving_reference"),
        (
            {"rollouts__init_policy_kl": after(1, 0.4), "rollouts__kl_coef": 0.0},
            {"reference_first": 1},
            "wrong_start",
        ),
        (
            {"rollouts__rlhf_rewards": lambda step, value: 1.0 + 0.4 * step},
            {"kl_penalty": 2, "kl_penalty_sign": 2},
            "kl_sign",
        ),
        ({"rollouts__kl": lambda step, value: -value}, {"kl_positive": 2}, "kl_sign"),
        ({"optim__loss": -0.5, "optim__updates": 1}, {"mean_loss": 1}, "padding"),
        ({"optim__tokens": 190}, {"tokens_learnt": 1}, "stop_token"),  # one of each of 10 responses
        ({"optim__tokens": 196}, {"tokens_learnt": 1}, "stop_token"),  # one of each of 4 that end
        ({"optim__tokens": 199}, {"tokens_learnt": 1}, "tokens_left_out"),
        ({"rollouts__learnt_advantages_std": 1.2}, {"advantages_scaled": 1}, "padding"),
        ({"rollouts__learnt_advantages_mean": 0.1}, {"advantages_centred": 1}, "padding"),
        ({"rollouts__returns_last": 0.0}, {"reward_at_the_end": 1}, "reward_token"),
        ({"rollouts__rewards_std": 6.0}, {"reward_scale": 1}, "reward_scale"),
        ({"rollouts__rewards_std": 0.06}, {"reward_scale": 1}, "reward_scale"),
        (
            {
                "rollouts__kl": after(2, 2.0),
                "rollouts__init_policy_kl": after(2, 2.5),
                "rollouts__kl_coef": 0.0,
            },
            {"first_move": 2},
            "learning_rate",
        ),
        (
            {
                name: after(1, 1.25)
                for name in ("rollouts__rewards", "rollouts__prompt_lengths", "rollouts__entropy")
            }
            | {"rollouts__rlhf_rewards": 1.25, "rollouts__returns_last": 1.25, "rollouts__kl_coef": 0.0},
            {"repeated": 2},
            "stale_rollouts",
        ),
    ],
)
def test_each_check_breaks_on_its_own_figure(changed, where, cause):
    found = explain(Run(ppo(**changed)))
    assert {one.name: one.step for one in found.off} == where
    assert found.cause.name == cause


@pytest.mark.parametrize(
    "setting",
    [
        {"model.sampling_params": {"top_k": 5}},
        {"model.sampling_params": {"top_p": 0.9}},
        {"model.sampling_params": {"use_greedy": True}},
        {"model.length_params": {"min_length": 4}},
    ],
)
def test_a_cut_sampler_whose_logprobs_are_learnt_from_is_the_cause(setting):
    figures = {
        "optim__first_ppo_ratio": 0.03,
        "optim__clip_fraction": 0.9,
        "rollouts__init_policy_kl": 3.49,
        "rollouts__kl_coef": 0.0,
    }
    records = ppo(**figures)
    for record in records:
        del record["train_rollouts/sampler_mismatch_max"]  # which only log-probabilities computed again have
    found = explain(Run(records, settings=setting | {"model.recompute_logprobs": False}))
    assert {"first_ratio", "reference_first"} <= {one.name for one in found.off}
    assert found.cause.name == "sampler_cut"
    for recompute in (True, None):
        healthy = explain(Run(ppo(), settings=setting | {"model.recompute_logprobs": recompute}))
        assert healthy.is_healthy and healthy.cause is None


@pytest.mark.parametrize(
    ("settings", "changed"),
    [
        (
            {},
            {"optim__loss": -0.5, "optim__updates": 2},
        ),  # a mean over part of the tokens, at ratios that differ
        ({"model.entropy_bonus": 0.1}, {"optim__loss": -0.5, "optim__updates": 1}),
        ({"trainer.mask_truncated_responses": True}, {"optim__tokens": 80}),
        ({"trainer.max_policy_kl": 0.01}, {"optim__tokens": 100}),
        ({"model.rollout_epochs": 2}, {"optim__tokens": 400}),
        ({"model.sampling_params": {"top_k": 50}}, {"rollouts__sampler_mismatch": 0.3}),
        ({"precision": "bf16"}, {"rollouts__sampler_mismatch": 0.01, "optim__first_ppo_ratio": 1.01}),
        ({"trainer.normalize_advantages": False}, {"rollouts__learnt_advantages_std": 0.3}),
        (
            {"trainer.missing_eos_penalty": 0.5},
            {
                "rollouts__returns_last": lambda step, value: value - 0.3,
                "rollouts__rlhf_rewards": lambda step, value: value - 0.3,
            },
        ),
        ({}, {"optim__lr": after(4, 5e-3)}),  # a person raised it while the run went
        ({}, {"rollouts__rewards_std": 9.0, "rollouts__judged_by_program": 1.0}),
    ],
)
def test_what_a_setting_asks_for_is_no_fault(settings, changed):
    records = ppo(**{name: value for name, value in changed.items() if "judged" not in name})
    for record in records:
        record |= {"train_rollouts/judged_by_program": float("rollouts__judged_by_program" in changed)}
    assert off(Run(records, settings=settings)) == {}


def responses(first=None, last=None) -> list[dict]:
    """Eight responses a step; their last token's advantage is the reward less 1, but for what is given."""
    rewards = [0.3, -0.4, 1.2, 0.8, 0.1, 1.9, -0.6, 0.5]
    return [
        {
            "step": step,
            "split": "train",
            "reward": reward,
            "token_advantage": [
                0.2 if first is None else first,
                -0.1,
                reward - 1.0 if last is None else last(place),
            ],
        }
        for step in range(1, 7)
        for place, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize(
    ("rollouts", "where", "cause"),
    [
        (responses(), {}, None),
        (responses(last=lambda place: 0.0), {"last_token": 1}, "stop_token"),
        (responses(first=0.0), {"first_token": 1}, "mask_shift"),
        (responses(last=lambda place: 0.1 + 0.2 * (-1) ** place), {"end_follows_reward": 1}, "reward_token"),
        (responses(last=lambda place: 0.3)[:16], {}, None),  # too few to say
    ],
)
def test_advantages_of_a_response_s_ends_tell(rollouts, where, cause):
    older = [
        {name: value for name, value in record.items() if not name.endswith(("/tokens", "/returns_last"))}
        for record in ppo()
    ]
    found = explain(Run(older, rollouts=rollouts))
    assert {one.name: one.step for one in found.off} == where
    assert (found.cause.name if found.cause else None) == cause


def test_a_critic_that_warms_up_is_no_reference_that_moves():
    records = ppo(**{"rollouts__kl": 0.0, "rollouts__init_policy_kl": 0.0})
    for record in records[:5]:
        del record["train_optim/lr"]
    assert off(Run(records)) == {}


def test_bf16_hides_no_mask_that_is_off():
    changed = {"optim__first_ppo_ratio": 0.95, "optim__clip_fraction": 0.05}
    assert off(Run(ppo(**changed), settings={"precision": "bf16"})) == {"first_ratio": 1}


@pytest.mark.parametrize(("loss", "where"), [(math.log(2), {}), (0.9, {"first_loss": 1}), (float("nan"), {})])
def test_a_reward_model_begins_at_ln_2(loss, where):
    start = {"step": 0, "validation/rewards_all_std": 0.0, "train/rewards_chosen_mean": 0.0}
    records = [start] + [
        {"step": step, "train/loss": loss if step == 1 else 0.6, "train/consumed_samples": 8 * step}
        for step in (1, 2, 3)
    ]
    assert off(Run(records, kind="rm")) == where


@pytest.mark.parametrize(
    ("losses", "where"),
    [
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5, 2.4, 2.3, 2.2, 2.1, 2.0, 1.9], {}),
        ([2.0, 2.1, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 5.6, 5.4], {"loss_falls": 11}),
        ([2.0, 1.0, 3.0, 2.5, 2.0, 1.5, 3.0, 1.5, 2.0, 3.5, 1.6, 2.4], {}),  # noise
    ],
)
def test_a_loss_that_rises_is_told(losses, where):
    records = [
        {"step": step, "train/loss": loss, "train/consumed_samples": step} for step, loss in enumerate(losses)
    ]
    assert off(Run(records, kind="sft")) == where


# ---- what is said ---------------------------------------------------------------------------------------------------


def test_a_cause_that_something_speaks_against_comes_after():
    found = explain(Run(ppo(optim__first_ppo_ratio=1.7, optim__clip_fraction=0.8)))
    assert [one.cause.name for one in found.diagnoses] == ["temperature", "mask_shift"]
    (against,) = found.diagnoses[1].evidence_against
    assert against.startswith("tokens of a response whose passes differ, at the first step is 16 at step 1")


def test_several_causes_that_fit_are_all_named():
    """Without a token's advantage nothing tells a reward at another token from returns that are none."""
    found = explain(Run(ppo(rollouts__returns_last=0.0)))
    assert [one.cause.name for one in found.likeliest] == ["reward_token", "returns"]
    assert "2 causes fit these figures" in str(found)


def test_a_cause_that_leaves_figures_unexplained_is_not_named():
    found = explain(Run(ppo(rollouts__rewards_std=6.0, optim__grad_norm=after(3, 0.0))))
    assert {one.name for one in found.off} == {"gradient", "reward_scale"}
    assert found.cause is None and found.likeliest == []
    assert "Unknown cause: no known cause explains all of these figures" in str(found)
    assert "? It does not explain: gradient norm is 0 at step 3" in str(found)


def test_a_run_that_failed_without_a_sign_has_an_unknown_cause():
    assert "Unknown cause" in str(explain(Run(ppo(), status="failed", message="the loss is nan")))


def test_a_run_that_failed_says_why():
    found = explain(Run(ppo(), status="failed", message="the loss is nan"))
    assert not found.is_healthy and str(found).startswith("by-hand failed: the loss is nan")


def test_a_run_without_figures_says_so():
    assert str(explain(Run([]))) == "by-hand has no figures yet."


def test_older_runs_tell_what_they_don_t_show():
    found = recorded("healthy")
    assert "train_optim/tokens ÷ response tokens" in {check.figure for check in found.unseen}
    assert "Not visible in this run: " in str(found)


def test_the_command_line_explains_a_run(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in ppo(optim__tokens=190))
    )
    (tmp_path / "run.json").write_text(json.dumps(Run([]).info))
    shown = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert shown.exit_code == 0 and "1. The stop token is never trained" in shown.output


def test_it_loads_neither_torch_nor_numpy():
    code = "import sys, aligner_lib.run_folder.explain; print({'torch', 'numpy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_a_reward_that_fails_is_the_cause():
    def with_failures(share: float, from_step: int) -> Run:
        records = ppo()
        for record in records:
            record["train_rollouts/rewards_failed"] = share if record["step"] >= from_step else 0.0
        return Run(records)

    found = explain(with_failures(1.0, from_step=3))
    assert {one.name: one.step for one in found.off} == {"rewards_failed": 3}
    assert found.cause.name == "rewards_failed"
    assert explain(with_failures(0.05, from_step=1)).is_healthy
