"""Jobs on the smoke model: their settings, and running them in processes that can be killed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import forks
import pytest

from aligner_lib.run_folder.branch import begin_branch
from aligner_lib.run_folder.reader import RunFolder

# metrics that are missing on a CPU
ON_A_GPU = {"memory/peak"}
# an exporter is a process that each run would start, and wait for at its end
UNEXPORTED = {"exp_manager.create_tensorboard_logger": False}
# and the timers: wall-clock seconds; how samples are shared out between micro batches and ranks
VARYING = {"time", "train/step_time", "train/padding"}
# all checkpoints stay, so that SmokeJobs.go_on can begin at any of them
ALL_CHECKPOINTS = {"exp_manager__checkpoint_callback_params__save_top_k": 9}


# The runs of tests/jobs/conftest.py: what differs from SmokeJobs' settings. An evaluation reads the settings for which
# its two null ones stand in.
WHOLE_RUNS = {
    "sft": {},
    "dpo": {},
    "ppo": {},
    "grpo": {},
    "evaluate": {
        "model__ppo__logprob_forward_micro_batch_size": "null",
        "model__ppo__val_rollout_micro_batch_size": "null",
    },
}


@dataclass
class SmokeJobs:
    """model: the smoke model; formatted: the samples; out: run folders; reward_model: PPO's, once there is one."""

    model: Path
    formatted: Path
    out: Path
    reward_model: Path | None = None
    work: Callable = field(default_factory=lambda: run_smoke_job)
    """Runs a job: (kind, settings)."""

    def settings(self, kind: str, run: str, **more: object) -> list[str]:
        """Overrides of a short job with a checkpoint every second step, and no exporter; `more` by key, __ for dots."""
        own = getattr(self, f"_{kind}")()
        changed = {key.replace("__", "."): value for key, value in more.items()}
        values = own | UNEXPORTED | {"exp_manager.explicit_log_dir": f"'{self.out / run}'"} | changed
        return [f"{key}={value}" for key, value in values.items()]

    def run_folder(self, run: str) -> RunFolder:
        return RunFolder(self.out / run)

    def run(self, kind: str, run: str, **more: object) -> RunFolder:
        """Run a job to its end in a process of its own."""
        forks.run(self.work, kind, self.settings(kind, run, **more), log=self.log(run))
        return self.run_folder(run)

    def start(self, kind: str, run: str, **more: object):
        return forks.start(self.work, kind, self.settings(kind, run, **more), log=self.log(run))

    def go_on(self, kind: str, parent: RunFolder, step: int, run: str, **more: object) -> RunFolder:
        """Resume another run from its checkpoint of a step, which it has kept, in a folder of its own."""
        assert begin_branch(parent, self.out / run, step) == step
        return self.run(kind, run, **more)

    def run_ranks(self, kind: str, run: str, ranks: int, **more: object) -> RunFolder:
        """Run a job to its end as so many ranks of one layout."""
        settings = self.settings(kind, run, trainer__devices=ranks, **more)
        forks.run_ranks(ranks, run_smoke_job, kind, settings, folder=self.logs(run))
        return self.run_folder(run)

    def log(self, run: str) -> Path:
        return self.out / f"{run}.log"

    def logs(self, run: str) -> Path:
        """A folder for the logs of a run's ranks."""
        folder = self.out / f"{run}_logs"
        folder.mkdir(exist_ok=True)
        return folder

    def _sft(self) -> dict[str, object]:
        return {
            "model.restore_from_path": f"'{self.model}'",
            "model.data.train_ds.file_path": f"'{self.formatted / 'train.jsonl'}'",
            "model.data.validation_ds.file_path": f"'{self.formatted / 'validation.jsonl'}'",
            **_loop("sft", max_steps=16),
        }

    def _rm(self) -> dict[str, object]:
        return self._on_pairs() | _loop("rm", max_steps=16)

    def _dpo(self) -> dict[str, object]:
        return self._on_pairs() | _loop("dpo", max_steps=12)

    def _on_pairs(self) -> dict[str, object]:
        files = {split: f"['{self.formatted / f'{name}_comparisons.jsonl'}']" for split, name in SPLITS}
        return {
            "pretrained_checkpoint.restore_from_path": f"'{self.model}'",
            **{f"model.data.data_prefix.{split}": value for split, value in files.items()},
        }

    def _answered(self) -> dict[str, object]:
        """What PPO and an evaluation share: uneven micro batches, and responses of which some end and some don't."""
        files = {split: f"['{self.formatted / f'{name}_prompts.jsonl'}']" for split, name in SPLITS}
        return {
            "pretrained_checkpoint.restore_from_path": f"'{self.model}'",
            "critic.pretrained_checkpoint.restore_from_path": f"'{self.reward_model}'",
            **{f"model.data.data_prefix.{split}": value for split, value in files.items()},
            "model.micro_batch_size": 4,
            "model.ppo.rollout_micro_batch_size": 5,
            "model.ppo.num_val_samples": 4,
            "model.ppo.length_params.max_length": 12,
            "model.ppo.sampling_params.end_strings": "[l]",
        }

    def _ppo(self) -> dict[str, object]:
        return self._answered() | {
            **_loop("ppo", max_steps=8),
            "model.ppo.num_rollout_samples": 16,
            "model.global_batch_size": 8,  # two optimiser steps a rollout
            "critic.model.micro_batch_size": 4,
            "trainer.ppo.critic_warmup_steps": 1,
            "model.ppo.entropy_bonus": 0.01,
        }

    def _grpo(self) -> dict[str, object]:
        prompts = {split: str(self.formatted / f"{name}_prompts.jsonl") for split, name in SPLITS}
        return {
            "pretrained_checkpoint.restore_from_path": f"'{self.model}'",
            "model.environments.e.use": f"'{REWARD_E}'",
            "model.environments.e.processes": 1,
            **{f"model.environments.e.args.prompts.{split}": f"'{file}'" for split, file in prompts.items()},
            **_loop("grpo", max_steps=8),
            # two optimiser steps a rollout, uneven micro batches, and responses of which some end and some don't
            "model.grpo.num_prompts_per_step": 4,
            "model.grpo.num_generations_per_prompt": 4,
            "model.global_batch_size": 8,
            "model.micro_batch_size": 4,
            "model.grpo.rollout_micro_batch_size": 6,
            "model.grpo.num_val_samples": 8,
            "model.grpo.recompute_logprobs": True,
            "model.grpo.kl": "k3",
            "model.grpo.length_params.max_length": 12,
            "model.grpo.sampling_params.end_strings": "[z]",
            # twice over each rollout, until the policy has moved too far; and a KL coefficient that follows a target
            "model.grpo.rollout_epochs": 2,
            "trainer.grpo.max_policy_kl": 0.01,
            "trainer.grpo.target_kl": 0.01,
        }

    def _evaluate(self) -> dict[str, object]:
        return self._answered() | {"policy.restore_from_path": f"'{self.model}'"}


# optimiser steps of the runs whose settings name no number of steps: the length of their learning-rate schedules
WHOLE = {"sft": 16, "rm": 16, "dpo": 12, "ppo": 14, "grpo": 32}


def first_steps(kind: str, steps: int) -> dict[str, object]:
    """Settings of a run that takes the first steps of the kind's whole run, with its learning rates."""
    settings = {f"trainer__{kind}__max_steps": steps, "model__optim__sched__max_steps": WHOLE[kind]}
    return settings | ({"critic__model__optim__sched__max_steps": 16} if kind == "ppo" else {})


def with_other_tokenizer(model: Path, folder: Path) -> Path:
    """A copy of a model folder in which two tokens of the vocabulary have changed places."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer.json"
    stored = json.loads(path.read_text())
    vocabulary = stored["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    path.write_text(json.dumps(stored))
    return folder


REWARD_E = Path(__file__).parent / "jobs" / "reward_e.py"
SPLITS = (("train", "train"), ("validation", "test"))


def _loop(kind: str, max_steps: int) -> dict[str, object]:
    at = f"trainer.{kind}"
    return {
        f"{at}.max_steps": max_steps,
        f"{at}.save_interval": 2,
        f"{at}.val_check_interval": 4,
        f"{at}.limit_val_batches": 2,
    }


def run_smoke_job(kind: str, settings: list[str]) -> None:
    from aligner_lib.config.compose import compose
    from aligner_lib.config.kind import load
    from aligner_lib.config.kinds import kind_of

    load(kind_of(kind).run)(kind, compose(kind, settings, profile="smoke"), "smoke")


def prepare_smoke_job(kind: str, settings: list[str]):
    """What the job prepares before its first step, in this process."""
    from aligner_lib.config.compose import compose
    from aligner_lib.config.kind import load
    from aligner_lib.config.kinds import kind_of

    return load(kind_of(kind).build)(compose(kind, settings, profile="smoke"))


def run_on_mapped_samples(cache: Path, kind: str, settings: list[str]) -> None:
    """A job whose data files count as large, so that their samples are mapped, in a cache of its own."""
    from aligner_lib.kinds import mapped_data

    mapped_data.LARGE_BYTES = 0
    os.environ["ALIGNER_CACHE"] = str(cache)
    run_smoke_job(kind, settings)


def run_known(kind: str, settings: list[str], kinds: str) -> None:
    """A job of a kind that $ALIGNER_KINDS makes known."""
    os.environ["ALIGNER_KINDS"] = kinds
    run_smoke_job(kind, settings)


def figures(run: RunFolder) -> list[dict]:
    """The metrics that neither time nor the layout changes."""
    return [
        {key: value for key, value in record.items() if key not in VARYING and not key.startswith("timers/")}
        for record in run.metrics()
    ]


def assert_same_run(ours: RunFolder, theirs: RunFolder, within: float = 1e-5) -> None:
    """Both finished with the same figures and the same responses."""
    assert (ours.status, theirs.status) == ("finished", "finished")
    for record, expected in zip(figures(ours), figures(theirs), strict=True):
        assert record == pytest.approx(expected, abs=within, rel=within)
    assert responses(ours) == responses(theirs)


def assert_same_first_steps(ours: RunFolder, whole: RunFolder) -> None:
    """A run of a few steps has the figures of the whole run's first steps, to the bit."""
    records = figures(ours)
    assert len(records) > 1
    for record, expected in zip(records, figures(whole)):
        assert record.items() >= expected.items()  # ours has validated after its last step, too


def assert_same_to_the_bit(ours: RunFolder, theirs: RunFolder) -> None:
    """Figures, rollouts, weights and optimizer states are the same."""
    assert ours.status == theirs.status == "finished"
    assert figures(ours) == figures(theirs)
    assert ours.rollouts() == theirs.rollouts()
    our_files, their_files = checkpoint_files(ours), checkpoint_files(theirs)
    assert {
        "weights/rank00000_00000.safetensors",
        "optimizer/rank00000_00000.safetensors",
    } <= our_files.keys()
    assert our_files.keys() == their_files.keys()
    assert [name for name in our_files if our_files[name] != their_files[name]] == []


def responses(run: RunFolder) -> list[tuple]:
    """Step, split, prompt, response and whether it has a reward, of each rollout in an order of their own."""
    return sorted(
        (r["step"], r["split"], r["prompt"], r["response"], r["reward"] is None) for r in run.rollouts()
    )


def checkpoint_files(run: RunFolder) -> dict[str, bytes]:
    """Weights and optimizer state of the latest checkpoint."""
    latest = run.latest_checkpoint()
    return {path.relative_to(latest).as_posix(): path.read_bytes() for path in latest.rglob("*.safetensors")}


def steps(run: RunFolder) -> list[int]:
    return [record["step"] for record in run.metrics()]


def rewards_of(folder: Path, rows: list[list[int]], pad_id: int) -> list[float]:
    """What PPO's reward model in a folder gives each row of tokens."""
    from aligner_lib.datasets.batches import TokenBatch, pad_rows
    from aligner_lib.jobs.inference import load_engine
    from aligner_lib.models.reward_scale import RewardScale
    from aligner_lib.rollouts.critic import RewardModel

    reward_model = RewardModel(load_engine(folder), RewardScale.load(folder), micro_batch_size=4)
    return reward_model.score(TokenBatch(*pad_rows(rows, pad_id))).result().tolist()
