"""`aligner profile`: records a job's step with torch's profiler, and compares the step with the bare passes through its
models."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig
from torch.profiler import ProfilerActivity, profile

from aligner_lib.errors import UserError
from aligner_lib.jobs.run import opened_run, prepare_job
from aligner_lib.megatron.spans import Pass, Span, recording
from aligner_lib.rollouts.timers import Timers
from aligner_lib.run_folder.exporters.services import SERVICES
from aligner_lib.trainers.loop import TrainerProtocol

STEP = "step_time"
"""The name of the step's span. The span's seconds are the metric timers/step_time."""
REST = "rest"
"""The name of the row with the remaining seconds of a stage, outside its inner stages."""
REPETITIONS = 3  # of a bare pass; the median is reported
OPERATORS = 10  # number of operators in the table, by self time


@dataclass(frozen=True)
class Stage:
    """A row of the table: a span of the step, or the rest of a span."""

    name: str
    depth: int
    """0 for the step, 1 for its stages."""
    seconds: float
    tokens: int
    """Tokens in the stage's passes through models; 0: the stage has no such pass."""
    bare_seconds: float | None
    """Seconds of the stage's passes alone; None: the stage has no pass through a model."""


@dataclass(frozen=True)
class Operator:
    """An operator of torch in the recorded step."""

    name: str
    calls: int
    seconds: float
    """Self time: excludes the operators called by this operator."""
    share: float
    """The fraction of the self time of all operators."""


@dataclass(frozen=True)
class StepProfile:
    """The content of `aligner profile`'s output."""

    step: int
    device: str
    """The device on which the operators' time is measured: `cpu` or `cuda`."""
    threads: int
    stages: list[Stage]
    """The step, followed by its stages. Inner stages come after their stage, in the order of their beginnings."""
    operators: list[Operator]
    unrecorded_seconds: float
    """Seconds of the previous step, which ran without the profiler."""


def profile_step(
    kind: str, config: DictConfig, profile_name: str | None, warm_up: int, out: Path
) -> StepProfile:
    """Run a job's first steps in this process, and record step number warm_up + 1, the last of them.

    The trace is written to `out`. The run folder is temporary unless the settings name a run folder. Raises UserError for
    errors that the user can fix.
    """
    with _run_folder(config) as folder:
        config.exp_manager.explicit_log_dir = str(folder)
        for name in SERVICES:  # services should not receive a profile's metrics
            config.exp_manager[f"create_{name}_logger"] = False
        job = prepare_job(kind, config, profile_name)
        with closing(job), opened_run(kind, config, profile_name, job, resume=False) as run:
            trainer = job.build(run)
            unrecorded = 0.0
            for step in range(1, warm_up + 1):
                unrecorded, metrics = _timed_step(trainer, step)
                run.log(step, metrics)
            with profile(activities=_activities()):
                torch.zeros(1) + 1  # so that the profiler's start is not part of the recording
            with recording() as root, profile(activities=_activities()) as recorded:
                _, metrics = _timed_step(trainer, warm_up + 1)
            run.log(warm_up + 1, metrics)
            recorded.export_chrome_trace(str(out))
            stages = list(_rows(root.inner[STEP]))
            run.finish("finished", f"profiled step {warm_up + 1}")
    return StepProfile(
        step=warm_up + 1,
        device="cuda" if torch.cuda.is_available() else "cpu",
        threads=torch.get_num_threads(),
        stages=stages,
        operators=_operators(recorded),
        unrecorded_seconds=unrecorded,
    )


@contextmanager
def _run_folder(config: DictConfig) -> Iterator[Path]:
    """The run folder in the settings, or a temporary folder that is removed at the end."""
    named = config.exp_manager.explicit_log_dir
    if named is None:
        with tempfile.TemporaryDirectory(prefix="aligner-profile-") as folder:
            yield Path(folder)
        return
    if (Path(named) / "run.json").exists():
        raise UserError(
            f"{named} already holds a run, but a profile begins anew: name another folder with --run, or leave --run "
            "out"
        )
    yield Path(named)


def _activities() -> list[ProfilerActivity]:
    gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return [ProfilerActivity.CPU, *gpu]


def _timed_step(trainer: TrainerProtocol, step: int) -> tuple[float, dict[str, float]]:
    """Run a step. Return its seconds, and its metrics including the seconds."""
    timers = Timers()
    with timers(STEP):
        metrics = trainer.step(step)
    [seconds] = timers.seconds.values()
    return seconds, metrics | timers.seconds


def _rows(root: Span) -> Iterator[Stage]:
    """A span's row, followed by the rows of its inner spans."""
    bare = {id(each): _bare_seconds(each) for each in root.all_passes()}

    def below(span: Span, depth: int) -> Iterator[Stage]:
        passes = span.all_passes()
        yield Stage(
            name=span.name,
            depth=depth,
            seconds=span.seconds,
            tokens=sum(each.tokens for each in passes),
            bare_seconds=sum(bare[id(each)] for each in passes) if passes else None,
        )
        for inner in span.inner.values():
            yield from below(inner, depth + 1)
        if span.inner:
            left = span.seconds - sum(inner.seconds for inner in span.inner.values())
            yield Stage(REST, depth + 1, left, tokens=0, bare_seconds=None)

    return below(root, 0)


def _bare_seconds(done: Pass) -> float:
    """The median of a pass's seconds when the pass runs alone. The profiler records the pass, too, because recording takes
    time."""
    measured = []
    for _ in range(REPETITIONS):
        with profile(activities=_activities()):
            started = time.perf_counter()
            done.repeat()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            measured.append(time.perf_counter() - started)
    return statistics.median(measured)


def _operators(recorded: profile) -> list[Operator]:
    """The operators with the most self time: on the GPU if there is a GPU, else on the CPU."""
    on_gpu = torch.cuda.is_available()
    averages = [average for average in recorded.key_averages() if not average.is_user_annotation]

    def self_time(average) -> float:
        return (average.self_device_time_total if on_gpu else average.self_cpu_time_total) / 1e6

    total = sum(map(self_time, averages))
    most = sorted(averages, key=self_time, reverse=True)[:OPERATORS]
    return [
        Operator(average.key, average.count, self_time(average), self_time(average) / total)
        for average in most
    ]
