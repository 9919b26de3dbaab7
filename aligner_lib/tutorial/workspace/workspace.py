"""What the notebooks share: where things lie, what an earlier notebook left, and jobs started with the profile's settings.

    lab = Workspace(out="runs/tutorial", profile="laptop")
    job = lab.submit("sft", **{"model.optim.lr": 5e-5})
    lab.run("sft")      # its run folder

A notebook runs alone, too: what an earlier one should have left is made up here, and said. No torch is imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path

from aligner_lib.config.compose import compose, keys, profile_section
from aligner_lib.config.functions import source_of
from aligner_lib.config.kind import JobKind
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.schema import named_groups
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs.command_line import job_commands
from aligner_lib.models import fetch
from aligner_lib.models.hash import text_hash
from aligner_lib.run_folder.reader import RunFolder, flatten
from aligner_lib.tutorial.hunt.faults import fault_of
from aligner_lib.tutorial.workspace import learning_progress, recorded_runs
from aligner_lib.tutorial.workspace.recorded_runs import RecordedJob
from aligner_lib.tutorial.workspace.results import without_nan
from cluster.record import read_json, write_json
from cluster.rendezvous import free_port
from cluster.resources import Resources
from cluster.schedulers import nearest, scheduler_of

LORA = {
    "peft_scheme": "lora",
    "lora_tuning.target_modules": ["all"],
    "lora_tuning.adapter_dim": 16,
    "lora_tuning.alpha": 32,
}
LORA_RATE = 10  # times the learning rate of all weights
LORA_RATE_OF_LAST_LAYERS = 3  # times that of the last layers alone, which is higher to begin with
REWARD = "reward"  # a function that judges, and the environment that it becomes
# that it judges answers to
PROMPTS = {"train": "hh/train_prompts.jsonl", "validation": "hh/test_prompts.jsonl"}
CRITIC_AND_ACTOR = {"critic": Resources(), "actor": Resources()}  # one process each
BEGIN_ANEW = {"exp_manager.resume_if_exists": False}


@dataclass
class Workspace:
    """One walk through the tutorial. out: everything it makes lies below; profile: smoke, laptop, gpu or slurm."""

    out: str | Path
    profile: str = "laptop"
    dataset: str = "sample"  # sample (the profile's), hub (Dolly and HH), auto (the hub, else a sample), dolly, hh, or a file
    where: str = "local"
    """The scheduler that cluster.submit takes; auto: the first that answers (Slurm, or your own), else this machine."""
    lora: bool = False  # its runs train adapters in place of all weights
    start: str = (
        "fresh"  # recorded: a bundle's runs in place of training, where it has them; docs/workshop.md
    )
    notes: list[str] = field(default_factory=list)

    def __post_init__(self):
        self.out = Path(self.out).expanduser().absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        if self.start not in ("fresh", "recorded"):
            raise ValueError(f"start={self.start!r}: there are fresh and recorded")
        learning_progress.note_workspace(self.out)
        if self.dataset == "sample":
            self.dataset = profile_section(self.profile, "tutorial").get("dataset", "sample")
        if self.where == "auto":
            self.where = nearest().name

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

    def conversations(self) -> dict[str, object]:
        """Settings of a job with rollouts: the preference data's prompts as an environment, which the reward model judges.

        Where a prompt asks for a form that a program can check, the program's word stands beside the reward, `obeys`.
        """
        files = {
            split: f"{name}_prompts.jsonl" for split, name in (("train", "train"), ("validation", "test"))
        }
        prompts = {split: str(self.preference_data() / name) for split, name in files.items()}
        return {
            "model.environments.conversations.use": "reward_model",
            "model.environments.conversations.args.prompts": prompts,
        }

    # -- runs -----------------------------------------------------------------------------------------------------

    def run(self, name: str) -> RunFolder:
        """The run folder of this name; it need not be there yet."""
        return RunFolder(self.out / "runs" / name)

    def policy(self) -> Path:
        """The SFT policy; without notebook 03, the recorded one, or the downloaded model in its place."""
        if self._is_trained("sft") or self._place_recorded("sft"):
            return self.run("sft").path
        self._made_up(
            f"there is no SFT run in {self.out}: the downloaded {self.model_name} takes its place (notebook 03 trains an SFT policy)"
        )
        return self.model()

    def reward_model(self) -> Path:
        """The reward model; without notebook 04, one trained here and now with the same settings."""
        if not self._is_trained("rm") and not self._place_recorded("rm"):
            self._made_up(
                f"there is no reward model in {self.out}: a reward model is trained now, as in notebook 04"
            )
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

    def commands(
        self, kind: str, name: str | None = None, allocation=None, fault: str | None = None, **settings
    ) -> dict[str, list[str]]:
        """Each component's command line, with what the profile does not know: models, data and the run folder, where
        functions among the settings are written to."""
        run = self.run(name or _name(kind, fault))
        if fault is not None:
            settings = {**fault_of(fault, kind).functions, **settings}
        texts = _texts(settings, kind_of(kind))
        own = self._inputs_of(kind_of(kind), settings) | self._adapters_of(kind)
        if callable(settings.get(REWARD)):
            prompts = {split: str(self._formatted(file)) for split, file in PROMPTS.items()}
            own[f"model.environments.{REWARD}.args.prompts"] = prompts
        # an evaluation begins anew in any case, and has no such setting
        anew = _anew(run, texts) if BEGIN_ANEW.keys() <= set(keys(kind)) else {}
        inputs = own | _without_functions(settings) | anew | _written(texts, run.path)
        return job_commands(kind, run.path, inputs, allocation, self.profile)

    def submit(
        self, kind: str, name: str | None = None, resources=None, fault: str | None = None, **settings
    ):
        """Start a job in a process of its own and return its handle (cluster.Job). settings: key=value overrides.

        A function among them, as in loss=my_loss, trains in place of the library's of the same signature
        (docs/your-code.md), and reward=my_reward, or that of an environment's `use`, judges; its text lies in the run folder.
        fault: one of tutorial.faults, to be found again.

        resources: what cluster.submit takes; a hetjob's (`ppo_1_1`) make PPO two jobs. None: one process on a cluster,
        and on this machine as many as the settings say. A job of this run that still goes on is followed as it is,
        and that is said: a cell can be run again after a restart of the kernel. With start="recorded" nothing starts where
        a bundle has brought this very run.
        """
        from cluster import Job, RunBusy, submit

        allocation, run = self._allocation(resources), self.run(name or _name(kind, fault))
        if self.start == "recorded" and fault is None and (job := self._recorded_job(kind, run, settings)):
            return job
        if recorded_runs.is_recorded(run):
            recorded_runs.make_way(run.path)
        try:
            commands = self.commands(kind, run.name, allocation, fault, **settings)
            return submit(commands, run.path, self.where, allocation)
        except RunBusy:
            print(
                f"{run.name} is still running with its original settings. Stop the run before you start a new one"
            )
            return Job.attach(run.path)

    def branch(self, run: str, at: int, name: str | None = None, **settings):
        """Start a job that goes on from a step of another run with other settings; its handle (cluster.Job).

        run: the parent's name; at: the last step that both share; name: of the new run, else made from the changes, as in
        `ppo-at-6-lr-0.0001`. Prompts and random numbers are the parent's, so what differs from there on comes from the
        changed settings. Where the parent kept no checkpoint of that step, the job first computes the steps since the last
        one before it again. A function among the settings trains, as in `submit`.
        """
        from aligner_lib.jobs.branch import branch_command
        from cluster import submit

        parent = self.run(run)
        changes = [f"{key.rpartition('.')[2]}-{_named(value)}" for key, value in settings.items()]
        child = self.run(name or "-".join([run, "at", str(at), *changes]))
        texts = _texts(settings, kind_of(parent.kind)) if parent.kind else {}
        own = _without_functions(settings) | _written(texts, child.path)
        return submit({"main": branch_command(parent, at, child.path, own)}, child.path, self.where, None)

    def submit_sweep(self, kind: str, key: str, values, resources=None, **settings):
        """One array job over a few values of one setting (cluster.Sweep): a run for each, as `sft-lr/lr-0.001`."""
        from cluster import submit_sweep

        allocation = self._allocation(resources)
        folder, last = f"{kind}-{key.rpartition('.')[2]}", key.rpartition(".")[2]
        members = {}
        for value in values:
            member = f"{last}-{value}"
            commands = self.commands(kind, f"{folder}/{member}", allocation, **settings, **{key: value})
            members[member] = commands["main"]
        return submit_sweep(members, self.run(folder).path, self.where, allocation)

    def submit_ppo(self, critic_placement: str = "in-process", name: str = "ppo", **settings):
        """PPO as one job ("in-process") or with critic and reward model beside the actor ("remote"): critic_of(name)."""
        if critic_placement == "in-process":
            return self.submit("ppo", name, **settings)
        if critic_placement != "remote":
            raise ValueError(f"critic_placement={critic_placement!r}: choose in-process or remote")
        if scheduler_of(self.where).on_this_machine:  # another server may have the default port
            settings = {"critic.trainer.ppo.port": free_port()} | settings
        return self.submit("ppo", name, CRITIC_AND_ACTOR, **settings)

    def critic_of(self, name: str = "ppo") -> RunFolder:
        """The run folder of the critic's job, where PPO runs as two jobs."""
        return RunFolder(self.run(name).path / "critic")

    def compare_objectives(self, rollouts, objectives, step: int | None = None, ratio: float = 1.0):
        """One rollout, every objective: the weight that each token's gradient gets, side by side.

        rollouts: a run of PPO or GRPO, by its name here or as a RunFolder; see tutorial.objectives.compare_objectives.
        """
        from aligner_lib.tutorial.displays.objectives import compare_objectives

        run = self.run(rollouts) if isinstance(rollouts, str) else rollouts
        return compare_objectives(run, objectives, step, ratio)

    def record(self, number: str, figures: dict) -> None:
        """Write what a notebook measured to results/<number>.json, which the tutorial's summary collects. NaN becomes null."""
        folder = self.out / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps(without_nan(figures), indent=1) + "\n")
        learning_progress.record_finished_runs()

    def _inputs_of(self, kind: JobKind, given: Mapping[str, object]) -> dict[str, object]:
        """What the profile does not know: the files and the models that a job of this kind starts from.

        given: settings; no model is made up in place of one that is among them.
        """
        models = {"model": self.model, "policy": self.policy, "reward_model": self.reward_model}
        data = {key: self._formatted(file) for key, file in kind.data.items()}
        return data | {key: models[stage]() for key, stage in kind.models.items() if key not in given}

    def _adapters_of(self, kind: str) -> dict[str, object]:
        """With `lora`: adapters for each model that a job of this kind trains, and a learning rate that suits them."""
        if not self.lora or kind_of(kind).run != JobKind.run:
            return {}
        usual, own = compose(kind, profile=self.profile), {}
        for key in keys(kind):
            if key.endswith(f"model.peft.{next(iter(LORA))}"):
                model = key.partition("model.peft.")[0] + "model"
                own |= {f"{model}.peft.{name}": value for name, value in LORA.items()}
                settings = attrgetter(model)(usual)
                times = LORA_RATE_OF_LAST_LAYERS if settings.get("num_layers_unfrozen") else LORA_RATE
                own[f"{model}.optim.lr"] = float(f"{times * settings.optim.lr:g}")
        return own

    def _formatted(self, file: str | list[str]) -> Path | list[Path]:
        """A formatted data file, such as `sft/train.jsonl`; made where it isn't there yet."""
        if isinstance(file, list):
            return [self._formatted(path) for path in file]
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
        self._wait_for(run)
        if run.latest_checkpoint() is None:
            return False
        profile = run.info.get("profile")
        if profile not in (None, self.profile):
            raise UserError(
                f"{run.path} is a run of the profile {profile}, but this workspace has the profile {self.profile}: choose "
                f"another folder (out=…), or remove {self.out}"
            )
        return True

    def _wait_for(self, run: RunFolder) -> None:
        """Until a job of this run that still goes on has ended: what begins with its model would take an older one, or none."""
        from cluster import Job, JobNotFound, State

        with suppress(JobNotFound):
            job = Job.attach(run.path)
            if job.state in (State.PENDING, State.RUNNING):
                print(f"{run.name} is still training. This cell needs its model and waits")
                job.wait()

    def _allocation(self, resources):
        """Resources by component; None leaves the number of processes to the settings."""
        from cluster.resources import own_components

        if resources is None and scheduler_of(self.where).on_this_machine:
            return None
        return own_components(resources)

    def _recorded_job(self, kind: str, run: RunFolder, settings: dict) -> RecordedJob | None:
        """The handle of a recorded run that has these settings, put in the run's place; None, and why, where none has."""
        if run.status == "running" and not recorded_runs.is_recorded(run):
            return None  # what goes on is followed
        recording = recorded_runs.recorded(self.profile, run.name)
        if recording is None:
            where = recorded_runs.recorded_root(self.profile)
            print(
                f"start=recorded: {where} has no run {run.name} (`./lab setup --bundle FILE` installs recorded runs), so the run is trained now"
            )
            return None
        texts, had = _texts(settings, kind_of(kind)), recording.info["hashes"]
        if own := [key for key, text in texts.items() if had.get(key) != text_hash(text)]:
            print(
                f"start=recorded: your own code trains {run.name} ({', '.join(own)}), so the run is trained now"
            )
            return None
        inputs = (
            self._inputs_of(kind_of(kind), settings) | self._adapters_of(kind) | _without_functions(settings)
        )
        if differs := recorded_runs.difference(recording, kind, self.profile, inputs):
            print(
                f"start=recorded: the recorded run {run.name} differs ({differs}), so the run is trained now"
            )
            return None
        print(recorded_runs.describe(recording))
        return RecordedJob(recorded_runs.place(recording, run.path))

    def _place_recorded(self, name: str) -> bool:
        """Put a recorded run in the place of one that its notebook would have left; False where there is none."""
        recording = recorded_runs.recorded(self.profile, name) if self.start == "recorded" else None
        if recording is None:
            return False
        recorded_runs.place(recording, self.run(name).path)
        self._made_up(recorded_runs.describe(recording))
        return True

    def _trained(self, kind: str, notebook: str, name: str) -> Path:
        """The run folder of a kind, trained now where its notebook was not run."""
        if not self._is_trained(kind) and not self._place_recorded(kind):
            self._made_up(
                f"there is no {name} run in {self.out}: a {name} run is trained now, as in notebook {notebook}"
            )
            self.submit(kind).wait()
        return self.run(kind).path

    def _made_up(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            print(f"note: {note}")


def _named(value: object) -> str:
    """A setting's value, or a function's name, as a part of a run's name."""
    return re.sub(r"[^\w.]+", "-", getattr(value, "__name__", str(value))).strip("-")


def _name(kind: str, fault: str | None) -> str:
    """A run's name where none is given: one with a fault does not go on where another is."""
    return kind if fault is None else f"{kind}-{fault}"


def _without_functions(settings: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in settings.items() if not callable(value)}


def _texts(settings: Mapping[str, object], kind: JobKind) -> dict[str, str]:
    """The functions of cells among the settings as texts of files, by the settings that take these. Raises ConfigError for
    one that can't run there."""
    keys = {name: f"functions.{name}" for name in kind.functions}
    if "model.environments" in dict(named_groups(kind.schema)):
        keys[REWARD] = f"model.environments.{REWARD}.use"
        keys |= {key: key for key in settings if re.fullmatch(r"model\.environments\.\w+\.use", key)}
    texts = {}
    for name, function in settings.items():
        if not callable(function):
            continue
        if name not in keys:
            raise ConfigError(
                f"{name}={getattr(function, '__name__', function)}: {kind.name} has no function of that name to replace; "
                f"it has {', '.join(keys) or 'none'}"
            )
        texts[keys[name]] = source_of(function, name, kind.functions.get(name))
    return texts


def _anew(run: RunFolder, texts: Mapping[str, str]) -> dict[str, bool]:
    """Settings of a run that was made with other functions of cells: it begins anew, and that is said. Raises RunBusy where it
    still goes on."""
    from cluster.submission import refuse_if_busy

    config, hashes = flatten(run.info.get("config") or {}), run.info.get("hashes") or {}
    cells = str(run.path / "functions")
    had = {key: value for key, value in hashes.items() if str(config.get(key, "")).startswith(cells)}
    now = {key: text_hash(text) for key, text in texts.items()}
    differ = [key for key in had | now if had.get(key) != now.get(key)]
    if not run.info or not differ:
        return {}
    refuse_if_busy(run.path)
    print(
        f"{run.name} was trained with other code ({', '.join(differ)}): training begins anew, and the old files are set aside"
    )
    return BEGIN_ANEW


def _written(texts: Mapping[str, str], run: Path) -> dict[str, Path]:
    """Write texts of functions into the run folder; their settings. Raises RunBusy where a run that still goes on has others."""
    from cluster.submission import refuse_if_busy

    files = {}
    for key, text in texts.items():
        files[key] = path = run / "functions" / f"{key.removesuffix('.use').rpartition('.')[2]}.py"
        if not path.exists() or path.read_text() != text:
            refuse_if_busy(run)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return files
