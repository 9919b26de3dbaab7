"""What the notebooks share: where things lie, what an earlier notebook left, and jobs started with the profile's settings.

    lab = Workspace(out="runs/tutorial", profile="laptop")
    job = lab.submit("sft", **{"model.optim.lr": 5e-5})
    lab.run("sft")      # its run folder

A notebook runs alone, too: what an earlier one should have left is made up here, and said. No torch is imported.
"""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from aligner_lib.config.compose import compose, keys, profile_section
from aligner_lib.config.kind import JobKind
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.command_line import job_commands
from aligner_lib.models import fetch
from aligner_lib.run_folder.reader import RunFolder
from cluster.record import read_json, write_json
from cluster.rendezvous import free_port
from cluster.resources import Resources

LORA = {
    "peft_scheme": "lora",
    "lora_tuning.target_modules": ["all"],
    "lora_tuning.adapter_dim": 16,
    "lora_tuning.alpha": 32,
}
LORA_RATE = 10  # times the learning rate of all weights
CRITIC_AND_ACTOR = {"critic": Resources(), "actor": Resources()}  # one process each


@dataclass
class Workspace:
    """One walk through the tutorial. out: everything it makes lies below; profile: smoke, laptop, gpu or slurm."""

    out: str | Path
    profile: str = "laptop"
    dataset: str = "sample"  # sample, auto (the hub where it can be reached), dolly, hh, or a file
    where: str = "local"  # cluster.submit's place; auto: Slurm where it answers, else this machine
    lora: bool = False  # its runs train adapters in place of all weights
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.out = Path(self.out).expanduser().absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        if self.where == "auto":
            from cluster.checks import reachable

            self.where = "slurm" if reachable() else "local"

    # -- models and data ------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The profile's model, as `aligner model fetch` takes it."""
        return profile_section(self.profile, "tutorial").get("model", "smollm2-135m")

    def model(self) -> Path:
        """The downloaded model's folder."""
        return fetch(self.model_name)

    def sft_data(self) -> Path:
        """The folder with train.jsonl and validation.jsonl, formatted from Dolly (or its sample) where it isn't yet."""
        folder = self.out / "data" / "sft"
        if not self._is_formatted(folder, "validation.jsonl"):
            from data import format_dolly, resolve

            source = resolve(self.dataset, "dolly")
            print(source.note)
            print(format_dolly(source.paths, folder))
            self._note_source(folder)
        return folder

    def preference_data(self) -> Path:
        """The folder with {train,test}_{comparisons,prompts}.jsonl, formatted from HH (or its sample)."""
        folder = self.out / "data" / "hh"
        if not self._is_formatted(folder, "test_prompts.jsonl"):
            from data import format_hh, resolve

            for split in ("train", "test"):
                source = resolve(self.dataset, "hh", split=split)
                print(source.note)
                print(format_hh(source.paths, folder, split))
            self._note_source(folder)
        return folder

    # -- runs -----------------------------------------------------------------------------------------------------

    def run(self, name: str) -> RunFolder:
        """The run folder of this name; it need not be there yet."""
        return RunFolder(self.out / "runs" / name)

    def policy(self) -> Path:
        """The SFT policy; without notebook 03, the downloaded model in its place."""
        if self._is_trained("sft"):
            return self.run("sft").path
        self._made_up(
            f"there is no SFT run in {self.out}: {self.model_name} as downloaded takes its place (notebook 03 trains one)"
        )
        return self.model()

    def reward_model(self) -> Path:
        """The reward model; without notebook 04, one trained here and now with the same settings."""
        if not self._is_trained("rm"):
            self._made_up(f"there is no reward model in {self.out}: one is trained now, as notebook 04 does")
            self.submit("rm").wait()
        return self.run("rm").path

    def ppo_policy(self) -> Path:
        """PPO's policy; without notebook 05, one trained here and now with the same settings."""
        return self._trained("ppo", "05", "PPO")

    def dpo_policy(self) -> Path:
        """DPO's policy; without notebook 06, one trained here and now with the same settings."""
        return self._trained("dpo", "06", "DPO")

    def grpo_policy(self) -> Path:
        """GRPO's policy; without notebook 07, one trained here and now on the environment `sums`."""
        return self._trained("grpo", "07", "GRPO")

    def reward_file(self, reward: Callable) -> Path:
        """Write a function of a notebook's cell to a file, which model.environments.NAME.use takes; returns its path.

        The function has to stand by itself: what it uses of other cells is not in the file.
        """
        path = self.out / "rewards" / f"{reward.__name__}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(inspect.getsource(reward)))
        return path

    def commands(self, kind: str, name: str | None = None, wanted=None, **settings) -> dict[str, list[str]]:
        """Each component's command line, with what the profile does not know: models, data and the run folder."""
        inputs = self._inputs_of(kind_of(kind)) | self._adapters_of(kind) | settings
        return job_commands(kind, self.run(name or kind).path, inputs, wanted, self.profile)

    def submit(self, kind: str, name: str | None = None, resources=None, **settings):
        """Start a job in a process of its own and return its handle (cluster.Job). settings: key=value overrides.

        resources: what cluster.submit takes; a hetjob's (`ppo_1_1`) make PPO two jobs. None: one process on Slurm,
        and on this machine as many as the settings say. A job of this run that still goes on is followed as it is,
        and that is said: a cell can be run again after a restart of the kernel.
        """
        from cluster import Job, RunBusy, submit

        wanted, run = self._wanted(resources), self.run(name or kind)
        commands = self.commands(kind, name, wanted, **settings)
        try:
            return submit(commands, run.path, self.where, wanted)
        except RunBusy:
            print(
                f"{run.name} still goes on, with the settings that it was started with: stop it first to start anew"
            )
            return Job.attach(run.path)

    def submit_sweep(self, kind: str, key: str, values, resources=None, **settings):
        """One array job over a few values of one setting (cluster.Sweep): a run for each, as `sft-lr/lr-0.001`."""
        from cluster import submit_sweep

        wanted = self._wanted(resources)
        folder, last = f"{kind}-{key.rpartition('.')[2]}", key.rpartition(".")[2]
        members = {}
        for value in values:
            member = f"{last}-{value}"
            commands = self.commands(kind, f"{folder}/{member}", wanted, **settings, **{key: value})
            members[member] = commands["main"]
        return submit_sweep(members, self.run(folder).path, self.where, wanted)

    def submit_ppo(self, critic_placement: str = "in-process", name: str = "ppo", **settings):
        """PPO as one job ("in-process") or with critic and reward model beside the actor ("remote"): critic_of(name)."""
        if critic_placement == "in-process":
            return self.submit("ppo", name, **settings)
        if critic_placement != "remote":
            raise ValueError(f"critic_placement={critic_placement!r}: there are in-process and remote")
        if self.where == "local":  # another server may have the default one
            settings = {"critic.trainer.ppo.port": free_port()} | settings
        return self.submit("ppo", name, CRITIC_AND_ACTOR, **settings)

    def critic_of(self, name: str = "ppo") -> RunFolder:
        """The run folder of the critic's job, where PPO runs as two jobs."""
        return RunFolder(self.run(name).path / "critic")

    def compare_objectives(self, rollouts, objectives, step: int | None = None, ratio: float = 1.0):
        """One rollout, every objective: the weight that each token's gradient gets, side by side.

        rollouts: a run of PPO or GRPO, by its name here or as a RunFolder; see tutorial.objectives.compare_objectives.
        """
        from aligner_lib.tutorial.objectives import compare_objectives

        run = self.run(rollouts) if isinstance(rollouts, str) else rollouts
        return compare_objectives(run, objectives, step, ratio)

    def record(self, number: str, figures: dict) -> None:
        """Write what a notebook measured to results/<number>.json, which the tutorial's summary collects."""
        folder = self.out / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps(figures, indent=1) + "\n")

    def _inputs_of(self, kind: JobKind) -> dict[str, object]:
        """What the profile does not know: the files and the models that a job of this kind starts from."""
        models = {"model": self.model, "policy": self.policy, "reward_model": self.reward_model}
        data = {key: self._formatted(file) for key, file in kind.data.items()}
        return data | {key: models[stage]() for key, stage in kind.models.items()}

    def _adapters_of(self, kind: str) -> dict[str, object]:
        """With `lora`: adapters for each model that a job of this kind trains, and a learning rate that suits them."""
        if not self.lora or kind_of(kind).run != JobKind.run:
            return {}
        usual, found = compose(kind, profile=self.profile), {}
        for key in keys(kind):
            if key.endswith(f"model.peft.{next(iter(LORA))}"):
                model = key.partition("model.peft.")[0] + "model"
                found |= {f"{model}.peft.{name}": value for name, value in LORA.items()}
                rate = attrgetter(f"{model}.optim.lr")(usual)
                found[f"{model}.optim.lr"] = float(f"{LORA_RATE * rate:g}")
        return found

    def _formatted(self, file: str | list[str]) -> Path | list[Path]:
        """A formatted data file, such as `sft/train.jsonl`; made where it isn't there yet."""
        if isinstance(file, list):
            return [self._formatted(one) for one in file]
        folder, _, name = file.partition("/")
        return {"sft": self.sft_data, "hh": self.preference_data}[folder]() / name

    def _is_formatted(self, folder: Path, last: str) -> bool:
        """Whether this data set lies there whole: the folder may have been filled from another one."""
        return (folder / last).exists() and read_json(folder / "source.json") == {"dataset": self.dataset}

    def _note_source(self, folder: Path) -> None:
        write_json(folder / "source.json", {"dataset": self.dataset})

    def _is_trained(self, name: str) -> bool:
        """Whether the run has left a model. Raises UserError when it is another profile's: its model is another one."""
        run = self.run(name)
        if run.latest_checkpoint() is None:
            return False
        profile = run.info.get("profile")
        if profile not in (None, self.profile):
            raise UserError(
                f"{run.path} is a run of the profile {profile}, and this is {self.profile}: give this one a folder of its "
                f"own (out=…), or remove {self.out}"
            )
        return True

    def _wanted(self, resources):
        """Resources by component; None leaves the number of processes to the settings."""
        from cluster.resources import own_components

        return None if resources is None and self.where == "local" else own_components(resources)

    def _trained(self, kind: str, notebook: str, name: str) -> Path:
        """The run folder of a kind, trained now where its notebook was not run."""
        if not self._is_trained(kind):
            self._made_up(
                f"there is no {name} run in {self.out}: one is trained now, as notebook {notebook} does"
            )
            self.submit(kind).wait()
        return self.run(kind).path

    def _made_up(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            print(f"note: {note}")
