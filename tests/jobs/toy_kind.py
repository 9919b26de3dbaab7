"""A kind of job of one's own, in one file: a number that is pulled to 1. $ALIGNER_KINDS=toy_kind makes it known."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from aligner_lib.config.kind import JobKind, MetricGroup, chart, metric
from aligner_lib.config.schema import ExpManager, Loop, Model, Trainer, at_least, setting, within
from aligner_lib.config.training import TIMERS
from aligner_lib.run_folder.alarms import Alarm, not_finite, rule


@dataclass
class ToyLoop(Loop):
    max_steps: int = setting(10, at_least(1))
    pull: float = setting(0.5, within(0, 1))  # share of the distance that a step takes away


@dataclass
class ToyTrainerGroup(Trainer):
    toy: ToyLoop = field(default_factory=ToyLoop)


@dataclass
class ToyConfig:
    trainer: ToyTrainerGroup = field(default_factory=ToyTrainerGroup)
    model: Model = field(default_factory=Model)
    exp_manager: ExpManager = field(default_factory=ExpManager)


@rule("toy/distance")
def stuck(start, now, limits):
    if now.all_beyond("toy/distance", lambda distance: distance > 0.9) is None:
        return None
    return Alarm("stuck", now.step, "Stuck", "The number does not move.", "Raise trainer.toy.pull.")


@dataclass
class ToyTrainer:
    pull: float
    value: float = 0.0

    def __post_init__(self):
        self.controls = {"pull": self.pull}

    def change(self, name, value):
        self.pull = value

    def step(self, step):
        self.value += self.pull * (1 - self.value)
        return {"toy/distance": 1 - self.value}

    def validate(self, step):
        return {}

    def save(self, folder):
        (folder / "toy.json").write_text(json.dumps(self.value))

    def load(self, folder):
        self.value = json.loads((folder / "toy.json").read_text())


def prepare(config):
    from aligner_lib.kinds.prepared_job import PreparedJob

    loop = config.trainer.toy
    return PreparedJob(lambda run: ToyTrainer(loop.pull), loop.max_steps, loop, {})


KIND = JobKind(
    name="toy",
    command="toy",
    summary="A number that is pulled to 1.",
    schema=ToyConfig,
    build="toy_kind:prepare",
    metrics=(MetricGroup("Toy", "", (metric("toy/distance", "miles", "from the number to 1"),)), TIMERS),
    charts=(chart("How far", ("distance", "toy/distance"), hint="Halves with every step."),),
    alarms=(not_finite, stuck),
    without_effect=lambda config: dict.fromkeys(
        (
            "model.",
            "trainer.precision",
            "trainer.toy.max_epochs",
            "trainer.toy.limit_val_batches",
            "trainer.toy.gradient_clip_val",
        ),
        "there is no model, only a number.",
    ),
)
