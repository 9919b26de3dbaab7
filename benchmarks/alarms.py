"""`python -m benchmarks.alarms`: how often alarms and `aligner explain` are right, measured on runs whose faults are known.

The benchmark makes about sixty short runs with the smoke profile: healthy runs of every kind with several seeds and settings, runs
that a setting breaks, and PPO runs with each fault of the bug hunt (`lab.submit("ppo", fault=…)`). Complete runs are reused, so a
second call judges the same runs by today's rules. Duration: a quarter of an hour on one core.

    --out runs/alarms     the folder of the runs; of each run only the figures are kept
    --json FILE           the result, run by run
    --pack FOLDER         each run's figures, a few KB, as a recording (tests/unit/explained has some of them)
"""

from __future__ import annotations

import gzip
import json
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import alarms_of
from aligner_lib.run_folder.alarms import Thresholds, Watch, metrics_read
from aligner_lib.run_folder.explain import explain
from aligner_lib.run_folder.reader import RunFolder, without_paths
from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.comparison.statistics import Estimate, share
from aligner_lib.tutorial.hunt.faults import FAULTS
from benchmarks.kept import described_run
from benchmarks.options import documented_parser
from cluster import JobFailed
from widgets.recordings.recording_file import KEPT, PACKED

STEPS = 24  # of PPO and GRPO
CHOSEN_ON = 1  # the seed of the runs that set the ranges of explain/checks.py; the other seeds are held out
HELD_OUT = (2, 3)
HEALTHY_SEEDS = range(1, 7)
RESPONSES_KEPT = 4  # of each step


@dataclass(frozen=True)
class Trial:
    """A run. fault: a planted fault; breaks: the alarms that a setting should set off; neither: a healthy run."""

    name: str
    kind: str
    seed: int
    settings: dict[str, object] = field(default_factory=dict)
    fault: str | None = None
    breaks: tuple[str, ...] = ()

    @property
    def is_healthy(self) -> bool:
        return self.fault is None and not self.breaks


@dataclass(frozen=True)
class RunVerdict:
    """The result of the alarms and of `explain` for a run."""

    trial: Trial
    status: str
    steps: int
    better: bool | None
    """Whether the held-out figure was better at the end than at the start. None: the run has fewer than two values."""
    alarms: dict[str, int]
    """Each alarm's name, and the step at which the alarm first sounded."""
    watched: tuple[str, ...]
    """The alarms of the run's kind."""
    cause: str | None
    """The first cause in `explain`'s answer."""
    off: dict[str, int]
    """The checks of `explain` that are out of range, and the step at which each check left its range."""


# ---- the runs -------------------------------------------------------------------------------------------------------


def trials(lab: Workspace) -> Iterator[Trial]:
    """All trials. The name of a healthy trial begins with `healthy`."""
    loop = {"trainer.ppo.max_steps": STEPS, "trainer.ppo.val_check_interval": STEPS // 2}
    groups = {"trainer.grpo.max_steps": STEPS, "trainer.grpo.val_check_interval": STEPS // 2}
    variants = {
        "two-updates": {"model.global_batch_size": 16},
        "two-epochs": {"model.ppo.rollout_epochs": 2},
        "held": {"trainer.ppo.initial_policy_kl_penalty": 0.05},
        "eos-penalty": {"trainer.ppo.missing_eos_penalty": 0.5},
    }
    for seed in HEALTHY_SEEDS:
        yield _trial("healthy-ppo", "ppo", seed, loop)
        if seed <= 2:
            for name, settings in variants.items():
                yield _trial(f"healthy-ppo-{name}", "ppo", seed, loop | settings)
        if seed <= 3:
            yield _trial("healthy-grpo-short", "grpo", seed, groups | judged_by(lab, reward_short))
            yield _trial("healthy-grpo-model", "grpo", seed, groups | judged_by(lab))
            for kind in ("sft", "rm", "dpo"):
                yield _trial(f"healthy-{kind}", kind, seed, {})
    yield from _broken(lab, loop, groups)
    for seed in (*HELD_OUT, CHOSEN_ON):
        for fault in FAULTS:
            yield _trial(fault.replace("_", "-"), "ppo", seed, loop, fault=fault)


def _broken(lab: Workspace, loop: dict, groups: dict) -> Iterator[Trial]:
    """Runs with a harmful setting, each with the alarms that should sound."""
    unleashed = {"trainer.ppo.initial_policy_kl_penalty": 0.0, "model.optim.lr": 3e-3}
    cut = {"model.ppo.length_params.max_length": 6}
    eager = {"model.global_batch_size": 4, "model.micro_batch_size": 4, "model.optim.lr": 5e-3}
    yield _trial("no-leash", "ppo", 2, loop | unleashed, breaks=("kl", "reward_hacking", "entropy"))
    yield _trial("cut-short", "ppo", 2, loop | cut, breaks=("endless",))
    yield _trial("long-steps", "ppo", 2, loop | eager, breaks=("clip_fraction", "kl", "entropy"))
    yield _trial("no-reward", "grpo", 2, groups | judged_by(lab, reward_none), breaks=("groups_alike",))
    eagerly = {"sft": {}, "rm": {"trainer.rm.max_steps": 120, "model.optim.lr": 2e-3}}
    for kind, more in eagerly.items():
        yield _trial(f"by-heart-{kind}", kind, 2, _few_samples(lab, kind) | more, breaks=("overfitting",))


def _trial(name: str, kind: str, seed: int, settings: dict, **more) -> Trial:
    return Trial(f"{name}-{seed}", kind, seed, settings | {"model.seed": seed}, **more)


def reward_short(prompt: str, response: str) -> float:
    """A higher reward for fewer words. The smoke model learns short responses in a few steps."""
    return 1.0 / (1 + len(response.split()))


def reward_none(prompt: str, response: str) -> float:
    """A reward of 0 for every response."""
    return 0.0


def judged_by(lab: Workspace, reward: Callable | None = None) -> dict[str, object]:
    """Settings for GRPO, starting from the SFT policy, on the prompts of the preference data. reward: None: the reward model
    judges."""
    prompts = lab.preference_data()
    judge = {"model.environments.own.use": "reward_model", "reward_model.rm_model_file": lab.reward_model()}
    if reward is not None:
        judge = {"model.environments.own.use": reward}
    return judge | {
        "pretrained_checkpoint.restore_from_path": lab.policy(),
        "model.environments.own.args.prompts.train": prompts / "train_prompts.jsonl",
        "model.environments.own.args.prompts.validation": prompts / "test_prompts.jsonl",
        "model.grpo.length_params.max_length": 48,
        "model.grpo.objective": "grpo",
        "trainer.grpo.initial_policy_kl_penalty": 0.05,
    }


def _few_samples(lab: Workspace, kind: str) -> dict[str, object]:
    """Settings of a run that reads the same few samples again and again: sixteen samples of SFT, or eight pairs."""
    folder = lab.sft_data() if kind == "sft" else lab.preference_data()
    names = ("train", "validation") if kind == "sft" else ("train_comparisons", "test_comparisons")
    whole, held_out = (folder / f"{name}.jsonl" for name in names)
    part = whole.with_name(f"few_{whole.name}")
    part.write_text("".join(whole.read_text().splitlines(keepends=True)[:16]))
    loop = {f"trainer.{kind}.max_epochs": 1000, f"trainer.{kind}.val_check_interval": 10}
    if kind == "sft":
        return loop | {
            "model.data.train_ds.file_path": part,
            "model.data.validation_ds.file_path": held_out,
        }
    return loop | {"model.data.data_prefix.train": [part], "model.data.data_prefix.validation": [held_out]}


def train_starting_points(lab: Workspace) -> None:
    """Train the policy and the reward model from which the other runs start, unless they are finished."""
    for kind in ("sft", "rm"):
        if lab.run(kind).status != "finished":
            lab.submit(kind).wait()


def carry_out(
    lab: Workspace, name: str, kind: str, settings: dict[str, object], is_healthy: bool
) -> RunFolder:
    """The run with this name, which is made anew unless it is complete. Only its figures are kept. settings: as for
    `lab.submit`. Ends the program if the run is stopped."""
    run = lab.run(name)
    if not is_complete(run, is_healthy):
        alone = {"exp_manager.create_tensorboard_logger": False, "exp_manager.resume_if_exists": False}
        job = lab.submit(kind, name, **alone, **settings)
        try:
            job.wait()
        except JobFailed:
            if not is_complete(run, is_healthy):
                raise
        if not is_complete(run, is_healthy):
            sys.exit(f"{name} is {run.status} before its end: the same command makes it anew")
        _keep_few(run)
    return run


def is_complete(run: RunFolder, is_healthy: bool) -> bool:
    """Whether a run has come to its end. A broken run may end with a failure, at max_init_policy_kl."""
    at_bound = run.status == "failed" and "max_init_policy_kl" in run.info.get("message", "")
    return run.status == "finished" or (not is_healthy and at_bound and bool(run.metrics()))


def _keep_few(run: RunFolder) -> None:
    """Delete a run's checkpoints, and reduce its rollouts to the first responses of each step, with their rewards and the
    advantages of the first and the last token."""
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
    seen: Counter[int] = Counter()
    kept = []
    for record in run.rollouts():
        if record["split"] == "train" and seen[record["step"]] < RESPONSES_KEPT:
            seen[record["step"]] += 1
            ends = [record["token_advantage"][place] for place in (0, -1)]
            kept.append(
                {name: record[name] for name in ("step", "split", "reward", "finished")}
                | {"token_advantage": ends}
            )
    if kept:
        (run.path / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))


# ---- verdicts on the runs -------------------------------------------------------------------------------------------


def judged(trial: Trial, run: RunFolder) -> RunVerdict:
    """Judge a run by today's rules, regardless of the alarms that the run itself raised."""
    records, rules = run.metrics(), alarms_of(run.kind)
    limits = compose(run.kind, profile="smoke").exp_manager.alarms
    watch, alarms = Watch(rules, Thresholds(**limits)), {}
    for record in records:
        for alarm in watch.check(record):
            alarms.setdefault(alarm.name, alarm.step)
    explained = explain(run)
    return RunVerdict(
        trial=trial,
        status=run.status,
        steps=max((record["step"] for record in records), default=0),
        better=_better(records),
        alarms=alarms,
        watched=tuple(rule.name for rule in rules),
        cause=explained.cause.name if explained.cause else None,
        off={reading.name: reading.step for reading in explained.off},
    )


def _better(records: list[dict]) -> bool | None:
    """Whether the held-out reward has risen, or the held-out loss has fallen."""
    for metric, sign in (("val_rollouts/rewards", 1), ("validation/loss", -1)):
        values = [record[metric] for record in records if metric in record]
        if len(values) > 1:
            return sign * values[-1] > sign * values[0]
    return None


# ---- statistics of the verdicts -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AlarmFigures:
    """The statistics of an alarm, over the runs that watch for the alarm."""

    name: str
    false: int  # healthy runs in which the alarm sounded
    healthy: int  # all healthy runs
    heard: int  # broken runs in which the alarm sounded
    broken: int  # all broken runs
    due: str  # "2 of 3": of the runs with a setting that should set off the alarm, in how many the alarm sounded
    step: float | None  # median of the steps at which the alarm first sounded in broken runs
    left: float | None
    """Median share of the run that remained at the first sound: the saving of an immediate stop."""

    @property
    def false_rate(self) -> Estimate | None:
        """The share of healthy runs in which the alarm sounds, with its interval of 95 %."""
        return _share(self.false, self.healthy)


def alarm_figures(verdicts: list[RunVerdict]) -> list[AlarmFigures]:
    """Figures for each alarm that a run watched for. `any` counts the runs in which at least one alarm sounded."""
    names = dict.fromkeys(name for verdict in verdicts for name in verdict.watched)
    return [
        _of_alarm(name, [verdict for verdict in verdicts if name in verdict.watched]) for name in names
    ] + [_of_alarm("any", verdicts)]


def _of_alarm(name: str, verdicts: list[RunVerdict]) -> AlarmFigures:
    def first(verdict: RunVerdict) -> int | None:
        steps = verdict.alarms
        return min(steps.values(), default=None) if name == "any" else steps.get(name)

    healthy = [verdict for verdict in verdicts if verdict.trial.is_healthy]
    broken = [verdict for verdict in verdicts if not verdict.trial.is_healthy]
    due = [
        verdict
        for verdict in broken
        if name in verdict.trial.breaks or (name == "any" and verdict.trial.breaks)
    ]
    heard = [(verdict, step) for verdict in broken if (step := first(verdict)) is not None]
    lengths = {verdict.trial.name: _planned(verdict) for verdict in broken}
    return AlarmFigures(
        name=name,
        false=sum(first(verdict) is not None for verdict in healthy),
        healthy=len(healthy),
        heard=len(heard),
        broken=len(broken),
        due=f"{sum(first(verdict) is not None for verdict in due)} of {len(due)}" if due else "",
        step=statistics.median([step for _, step in heard]) if heard else None,
        left=statistics.median([1 - step / lengths[verdict.trial.name] for verdict, step in heard])
        if heard
        else None,
    )


def _planned(verdict: RunVerdict) -> int:
    """The planned number of steps. A broken run may have ended earlier."""
    return STEPS if verdict.trial.kind in ("ppo", "grpo") else verdict.steps


def explained(verdicts: list[RunVerdict]) -> dict[str, object]:
    """How often `explain` named the planted fault first, and how often it accused healthy runs, on held-out seeds and on the
    others."""
    figures: dict[str, object] = {}
    for name, held_out in (("held_out", True), ("chosen_on", False)):
        of_these = [verdict for verdict in verdicts if (verdict.trial.seed != CHOSEN_ON) == held_out]
        faults = [verdict for verdict in of_these if verdict.trial.fault]
        healthy = [verdict for verdict in of_these if verdict.trial.is_healthy]
        figures[name] = {
            "faults": len(faults),
            "named": sum(verdict.cause == verdict.trial.fault for verdict in faults),
            "wrong": {
                verdict.trial.name: verdict.cause
                for verdict in faults
                if verdict.cause != verdict.trial.fault
            },
            "healthy": len(healthy),
            "accused": {verdict.trial.name: list(verdict.off) for verdict in healthy if verdict.off},
        }
    return figures


def tables(verdicts: list[RunVerdict]) -> str:
    """The table of docs/decisions/alarms.md."""
    rows = [
        "| alarm | healthy runs in which it sounded | 95 % | broken runs | where it was due | first step | left of the run |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in alarm_figures(verdicts):
        low, high = (row.false_rate.low, row.false_rate.high) if row.false_rate else (0.0, 1.0)
        when = ("–", "–") if row.step is None else (f"{row.step:g}", f"{row.left:.0%}")
        cells = (
            row.name,
            f"{row.false} of {row.healthy}",
            f"{low:.0%} to {high:.0%}",
            f"{row.heard} of {row.broken}",
            row.due or "–",
            *when,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _share(count: int, of: int) -> Estimate | None:
    return share([1.0] * count + [0.0] * (of - count), range(of)) if of else None


# ---- compact recordings ---------------------------------------------------------------------------------------------


def pack(run: RunFolder, path: Path) -> None:
    """Write a recording of a run: the figures that alarms and checks read, with six digits, without texts and paths."""
    info = {key: run.info[key] for key in KEPT if key in run.info}
    config = {key: run.info["config"].get(key, {}) for key in ("trainer", "model")}
    kept = {"step", *metrics_read(alarms_of(run.kind)), *explain(run).metrics}
    metrics = [
        {"time": 0.0} | {key: _short(value) for key, value in record.items() if key in kept}
        for record in run.metrics()
    ]
    content = {
        "info": info | {"config": without_paths(config)},
        "metrics": metrics,
        "rollouts": run.rollouts(),
        "alarms": [],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0))


def _short(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.6g}")


def main() -> None:
    """See the module."""
    parser = documented_parser("alarms", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/alarms"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--pack", type=Path)
    options = parser.parse_args()
    lab, verdicts = Workspace(options.out, "smoke"), []
    train_starting_points(lab)
    for trial in trials(lab):
        fault = {"fault": trial.fault} if trial.fault else {}
        run = carry_out(lab, trial.name, trial.kind, trial.settings | fault, trial.is_healthy)
        verdicts.append(verdict := judged(trial, run))
        print(
            f"{trial.name}: {verdict.status}, {verdict.alarms or 'quiet'}, {verdict.cause or 'nothing'}",
            flush=True,
        )
        if options.pack:
            pack(run, options.pack / f"{trial.name}{PACKED}")
    result = {
        "alarms": [asdict(row) | {"false_rate": row.false_rate} for row in alarm_figures(verdicts)],
        "explain": explained(verdicts),
        "runs": [asdict(verdict) for verdict in verdicts],
    }
    if options.json:
        description = described_run("python -m benchmarks.alarms", options)
        options.json.write_text(json.dumps(description | result, indent=1, default=str) + "\n")
    print(tables(verdicts))
    print(json.dumps(result["explain"], indent=1))


if __name__ == "__main__":
    main()
