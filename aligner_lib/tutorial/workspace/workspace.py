"""The workspace that all notebooks share: folders of models, data and runs, and jobs with the profile's settings.

    lab = Workspace(out="runs/tutorial", profile="laptop")
    job = lab.submit("sft", **{"model.optim.lr": 5e-5})
    lab.run("sft")      # the run folder

Each notebook also runs alone. If the result of an earlier notebook is missing, the workspace prints a note and creates a
replacement. Needs no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path

from aligner_lib.config.compose import compose, keys, profile_section
from aligner_lib.config.kind import JobKind
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.branch import branch_command, parents_settings
from aligner_lib.jobs.command_line import job_commands
from aligner_lib.models import fetch
from aligner_lib.remote_critic.pytriton_client import check_installed
from aligner_lib.run_folder.branch import is_branch
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.tutorial.hunt.faults import fault_of
from aligner_lib.tutorial.workspace import earlier_runs, learning_progress, own_functions, recorded_runs
from aligner_lib.tutorial.workspace.earlier_runs import RequestedRun
from aligner_lib.tutorial.workspace.formatted_data import FormattedData
from aligner_lib.tutorial.workspace.own_functions import REWARD
from aligner_lib.tutorial.workspace.parameters import require_one_of
from aligner_lib.tutorial.workspace.recorded_runs import RecordedJob
from aligner_lib.tutorial.workspace.repeated_cells import (
    begins_anew,
    make_way_for_branch,
    running_job,
    running_sweep,
)
from aligner_lib.tutorial.workspace.results import without_nan
from aligner_lib.tutorial.workspace.usual_resources import (
    critic_and_actor,
    critic_and_actor_here,
    one_task,
    task_for_each_process,
)
from cluster.resources import Resources, own_components
from cluster.schedulers import is_printed, nearest, scheduler_of
from cluster.states import State
from cluster.submission import RunBusy

LORA = {
    "peft_scheme": "lora",
    "lora_tuning.target_modules": ["all"],
    "lora_tuning.adapter_dim": 16,
    "lora_tuning.alpha": 32,
}
LORA_RATE = 10  # factor on the learning rate of a run that trains all weights
LORA_RATE_OF_LAST_LAYERS = 3  # the same for a run of the last layers alone, which has a higher learning rate
# the prompts of that environment
PROMPTS = {"train": "hh/train_prompts.jsonl", "validation": "hh/test_prompts.jsonl"}
BEGIN_ANEW = {"exp_manager.resume_if_exists": False}
# the number of the notebook that trains the run of a name
NOTEBOOKS = {"sft": "03", "rm": "04", "ppo": "05", "dpo": "06", "grpo": "07"}


@dataclass
class Workspace:
    """A folder with the models, data and runs of a pass through the tutorial."""

    out: str | Path
    """The folder for all output."""
    profile: str = "laptop"
    """smoke, laptop, gpu or slurm."""
    dataset: str = "sample"
    """sample (the profile's), hub (Dolly and HH), auto (the hub, or else a sample), dolly, hh, or a file."""
    where: str = "local"
    """The scheduler for cluster.submit. auto: the first scheduler that answers (Slurm, or your own), or else this machine."""
    lora: bool = False
    """Train LoRA adapters instead of all weights."""
    start: str = "fresh"
    """fresh: train. recorded: use a bundle's recorded runs instead of training, if available (docs/workshop.md)."""
    site: Mapping[str, object] = field(default_factory=dict)
    """The cluster's own values for the resources of every job: account, partition, … The values of a job's own resources win
    (docs/cluster.md)."""
    solved: bool = False
    """Whether a solved notebook opens the workspace. Its exercises, runs and results do not count for the learner."""
    notes: list[str] = field(default_factory=list)
    """Notes about replacements for missing results of earlier notebooks."""

    def __post_init__(self):
        if not isinstance(self.out, str | Path) or not str(self.out):
            raise ValueError(f'out={self.out!r}: name the folder for all output, such as out="runs/tutorial"')
        if not isinstance(self.lora, bool):  # every text is true, also "false"
            raise ValueError(f"lora={self.lora!r}: write True or False")
        require_one_of("start", self.start, "fresh", "recorded")
        self.out = Path(self.out).expanduser().absolute()
        self.out.mkdir(parents=True, exist_ok=True)
        learning_progress.note_workspace(self.out, self.solved)
        if self.dataset == "sample":
            self.dataset = profile_section(self.profile, "tutorial").get("dataset", "sample")
        if self.where == "auto":
            self.where = nearest().name

    @property
    def only_prints(self) -> bool:
        """Whether jobs are only printed: `where` is print or print:NAME."""
        return is_printed(self.where)

    @property
    def _takes_recorded(self) -> bool:
        """Whether a recorded run may be installed in place of training."""
        return self.start == "recorded" and not self.only_prints

    # -- models and data ------------------------------------------------------------------------------------------

    @property
    def model_name(self) -> str:
        """The name of the profile's model, as for `aligner model fetch`."""
        return profile_section(self.profile, "tutorial").get("model", "smollm2-135m")

    def model(self) -> Path:
        """The folder of the downloaded model. Downloads the model if necessary."""
        return fetch(self.model_name)

    @property
    def _data(self) -> FormattedData:
        return FormattedData(self.out / "data", self.dataset)

    def sft_data(self) -> Path:
        """The folder with train.jsonl and validation.jsonl. Formats Dolly (or a sample) if the files are missing."""
        return self._data.sft()

    def preference_data(self) -> Path:
        """The folder with {train,test}_{comparisons,prompts}.jsonl. Formats HH (or a sample) if the files are missing."""
        return self._data.preferences()

    def conversations(self) -> dict[str, object]:
        """Settings of a job with rollouts: an environment with the preference data's prompts and the reward model as judge.

        If a prompt asks for a form that a program can check, the program's verdict is the metric `obeys` beside the reward.
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
        """The run folder of the given name. The folder may not exist yet."""
        return RunFolder(self.out / "runs" / name)

    def policy(self) -> Path:
        """The SFT policy. If notebook 03 was not run: a recorded SFT policy, or else the downloaded model."""
        if self._is_trained("sft") or self._place_recorded("sft"):
            return self.run("sft").path
        self._made_up(
            f"there is no SFT run in {self.out}: the downloaded {self.model_name} takes its place (notebook 03 trains an SFT policy)"
        )
        return self.model()

    def reward_model(self) -> Path:
        """The reward model. If notebook 04 was not run: a recorded model, or else a model trained now as in notebook 04."""
        if not self._has_run("rm"):
            self._made_up(
                f"there is no reward model in {self.out}: a reward model is trained now, as in notebook 04"
            )
            self.submit("rm").wait()
        return self.run("rm").path

    def ppo_policy(self) -> Path:
        """PPO's policy. If notebook 05 was not run: a recorded policy, or else a policy trained now with the same settings."""
        return self._trained("ppo")

    def dpo_policy(self) -> Path:
        """DPO's policy. If notebook 06 was not run: a recorded policy, or else a policy trained now with the same settings."""
        return self._trained("dpo")

    def grpo_policy(self) -> Path:
        """GRPO's policy. If notebook 07 was not run: a recorded policy, or else a policy trained now on `sums`."""
        return self._trained("grpo")

    def commands(
        self, kind: str, name: str | None = None, allocation=None, fault: str | None = None, **settings
    ) -> dict[str, list[str]]:
        """The command line of each component, completed by models, data and the run folder.

        Functions among the settings are written as files into the run folder. See `submit` and `own_functions.write`.
        """
        run = self.run(name or _name(kind, fault))
        if run.kind not in ("", kind):
            raise UserError(
                f"{run.path} is a run of kind {run.kind}: choose another name for a run of kind {kind}"
            )
        requested = self._requested(kind, run, allocation, fault, settings)
        # an evaluation always starts from the beginning, and has no setting for resuming
        resumes = BEGIN_ANEW.keys() <= set(keys(kind))
        if resumes and begins_anew(run, requested, self.only_prints):
            requested = self._requested(kind, run, allocation, fault, settings | BEGIN_ANEW)
        return requested.commands

    def submit(
        self, kind: str, name: str | None = None, resources=None, fault: str | None = None, **settings
    ):
        """Start a job in a separate process and return its handle (cluster.Job). settings: key=value overrides.

        A setting can be your own function. loss=my_loss replaces the library function `loss` of the same signature
        (docs/your-code.md). reward=my_reward, or a function for an environment's `use`, computes the rewards. The text of the
        function is stored in the run folder. fault: a name in hunt.faults.FAULTS; the run has this fault.

        resources: as for cluster.submit. The resources of a heterogeneous job (`ppo_1_1`) split PPO into two jobs. None: the
        number of processes in the settings and, on a cluster with the profile gpu or slurm, a GPU for each process.
        If a job of this run is still running, `submit` prints a message and returns the handle of the running job. You can
        therefore run a cell again after a restart of the kernel. With start="recorded", no job starts if the bundle contains a
        run with the same settings, models and data. Raises RunBusy if the running job has other settings or functions, and UserError
        for two jobs on this machine if PyTriton is missing.
        """
        from cluster import submit

        allocation = self._allocation(resources, partial(task_for_each_process, kind, settings, self.profile))
        name = name or _name(kind, fault)
        run = self.run(name)
        for part in ("", *settings.get("evaluation.policies", ())):
            self._record_start(f"{name}/{part}".rstrip("/"))
        if self._takes_recorded and fault is None and (job := self._recorded_job(kind, run, settings)):
            return job
        if not self.only_prints and scheduler_of(self.where).on_this_machine and len(allocation or ()) > 1:
            check_installed()
        if recorded_runs.is_recorded(run) and not self.only_prints:
            recorded_runs.make_way(run.path)
        try:
            commands = self.commands(kind, name, allocation, fault, **settings)
            return submit(commands, run.path, self.where, allocation)
        except RunBusy as busy:
            return running_job(run, busy, kind, self._requested(kind, run, allocation, fault, settings), {})

    def branch(self, run: str | RunFolder, at: int, name: str | None = None, resources=None, **settings):
        """Start a job that continues another run from a given step with changed settings. Returns the handle (cluster.Job).

        run: the parent, by name or as a RunFolder. at: the last common step. name: of the new run; None: a name made from the
        changes, such as `ppo-at-6-lr-0.0001`. The new run has the parent's prompts and random numbers, so every difference comes
        from the changed settings. If the parent has no checkpoint of step `at`, the job starts from the last earlier checkpoint and
        recomputes the steps up to `at`. A setting can be your own function, as in `submit`. A finished branch of the same name
        with other settings is set aside, and a running branch is returned. Raises RunBusy if the running branch has other settings.

        resources: of one task, which starts the number of processes in the settings; None: such a task, with GPUs as for
        `submit`. Raises ValueError for resources of several tasks, and for settings with several nodes.
        """
        from cluster import submit

        parent = self.run(run) if isinstance(run, str) else run
        allocation = self._allocation(resources, partial(one_task, parent, settings, self.profile))
        if (tasks := sum(share.ranks for share in (allocation or {}).values())) > 1:
            raise ValueError(
                f"resources={resources!r} ask for {tasks} tasks, but a branch is one task, which starts the processes of "
                f"{parent.name}: set nodes=1 and tasks_per_node=1, and gpus_per_node to the number of GPUs"
            )
        trainer = (parent.info.get("config") or {}).get("trainer") or {}
        if (nodes := settings.get("trainer.num_nodes", trainer.get("num_nodes", 1))) > 1:
            raise ValueError(
                f"trainer.num_nodes={nodes}: a branch is one task on one node. Give the branch trainer.num_nodes=1, and "
                "trainer.devices as the number of processes on the node"
            )
        if recorded_runs.is_recorded(parent):
            raise UserError(
                f"{parent.name} is a recorded run, whose checkpoints hold no optimizer, so it can't be continued: train it here "
                'with Workspace(start="fresh")'
            )
        changes = [f"{key.rpartition('.')[2]}-{_named(value)}" for key, value in settings.items()]
        name = name or "-".join([self._name_of(parent), "at", str(at), *changes])
        child = self.run(name)
        texts = own_functions.texts_of(settings, kind_of(parent.kind)) if parent.kind else {}
        self._record_start(name)
        python = next((share.python for share in (allocation or {}).values()), "")
        files = own_functions.write(texts, child.path, self.only_prints)
        own = own_functions.without_functions(settings) | files
        words = branch_command(parent, at, child.path, own, python)
        try:
            if not self.only_prints and is_branch(child, parent, at):
                make_way_for_branch(child, parent, texts, own)
            return submit({"main": words}, child.path, self.where, allocation)
        except RunBusy as busy:
            requested = RequestedRun({"main": words}, parent.info.get("profile"), texts, is_branch=True)
            return running_job(child, busy, parent.kind, requested, parents_settings(parent))

    def submit_sweep(self, kind: str, key: str, values, resources=None, parallel: int = 0, **settings):
        """Start an array job (cluster.Sweep) with a run for each value of a setting, such as `sft-lr/lr-0.001`.

        parallel: runs at a time; 0: as many as the cluster has room for. If the sweep is still running, `submit_sweep` prints a
        message and returns the running sweep. Raises ValueError for a value that is there twice, and as cluster.submit_sweep does.
        """
        from cluster import submit_sweep

        allocation = self._allocation(resources, partial(task_for_each_process, kind, settings, self.profile))
        folder, last = f"{kind}-{key.rpartition('.')[2]}", key.rpartition(".")[2]
        members = {}
        try:
            for value in values:
                if (member := f"{last}-{value}") in members:
                    raise ValueError(
                        f"{key}={value} occurs twice in the values {list(values)}: a run folder has one run, so remove one of the two"
                    )
                run = f"{folder}/{member}"
                members[member] = self.commands(kind, run, allocation, **settings, **{key: value})
                self._record_start(f"{folder}/{member}")
            return submit_sweep(members, self.run(folder).path, self.where, allocation, parallel=parallel)
        except RunBusy as busy:
            return running_sweep(self.run(folder), busy)

    def submit_ppo(self, critic_placement: str = "in-process", name: str = "ppo", **settings):
        """Start PPO as a single job ("in-process"), or with critic and reward model in a second job ("remote")."""
        if critic_placement == "in-process":
            return self.submit("ppo", name, **settings)
        require_one_of("critic_placement", critic_placement, "in-process", "remote")
        if scheduler_of(self.where).on_this_machine:
            return self.submit("ppo", name, critic_and_actor_here(settings), **settings)
        return self.submit("ppo", name, critic_and_actor(settings, self.profile), **settings)

    def critic_of(self, name: str = "ppo") -> RunFolder:
        """The run folder of the critic's job, if PPO runs as two jobs."""
        return RunFolder(self.run(name).path / "critic")

    def compare_objectives(self, rollouts, objectives, step: int | None = None, ratio: float = 1.0):
        """Compare the gradient weights that several objectives give to each token of a rollout.

        rollouts: a run of PPO or GRPO, by name or as a RunFolder. See displays.objectives.compare_objectives.
        """
        from aligner_lib.tutorial.displays.objectives import compare_objectives

        run = self.run(rollouts) if isinstance(rollouts, str) else rollouts
        return compare_objectives(run, objectives, step, ratio)

    def record(self, number: str, figures: dict) -> None:
        """Write a notebook's results to results/<number>.json, for the tutorial's summary. NaN becomes null.

        figures: by the name of a run, or of another subject. Figures of an unfinished run are not written: the last validation of a
        run that was stopped may be the validation before the training.
        """
        for name in figures:
            # notebook 02 has figures of `rm` before its training
            trained = name in NOTEBOOKS and NOTEBOOKS[name] <= number
            if trained and (stands := _unfinished(self.run(name))):
                print(
                    f"{name} is unfinished ({stands}), so nothing is recorded: finish the run in notebook {NOTEBOOKS[name]}, and "
                    "then run this notebook again from its first cell"
                )
                return
        folder = self.out / "results"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.json").write_text(json.dumps(without_nan(figures), indent=1) + "\n")
        # another workspace may have been opened since
        learning_progress.note_workspace(self.out, self.solved)
        learning_progress.record_results(number)
        learning_progress.record_finished_runs()

    def _name_of(self, run: RunFolder) -> str:
        """The name by which `run` finds a run folder; the folder's name for a folder elsewhere."""
        runs = self.out / "runs"
        return run.path.relative_to(runs).as_posix() if run.path.is_relative_to(runs) else run.name

    def _record_start(self, name: str) -> None:
        if not self.only_prints:
            learning_progress.record_start(name)

    def _requested(
        self, kind: str, run: RunFolder, allocation, fault: str | None, settings: Mapping[str, object]
    ) -> RequestedRun:
        """The run that `submit` requests with these arguments, whose functions are written into the run folder."""
        if fault is not None:
            settings = {**fault_of(fault, kind).functions, **settings}
        texts = own_functions.texts_of(settings, kind_of(kind))
        # before a missing run is trained for the job's inputs
        own_functions.check_files(settings, kind_of(kind))
        inputs = self._inputs_of(kind, settings) | own_functions.write(texts, run.path, self.only_prints)
        commands = job_commands(kind, run.path, inputs, allocation, self.profile)
        return RequestedRun(commands, self.profile, texts)

    def _inputs_of(self, name: str, given: Mapping[str, object]) -> dict[str, object]:
        """The caller's settings of a kind of job without functions, completed by data files, initial models and adapters.

        given: the caller's settings. A model among them is not replaced.
        """
        kind = kind_of(name)
        models = {"model": self.model, "policy": self.policy, "reward_model": self.reward_model}
        data = {key: self._data.path(file) for key, file in _data_of(kind, given).items()}
        if callable(given.get(REWARD)) and f"model.environments.{REWARD}.args.prompts" not in given:
            prompts = {split: str(self._data.path(file)) for split, file in PROMPTS.items()}
            data[f"model.environments.{REWARD}.args.prompts"] = prompts
        initial = {key: models[stage]() for key, stage in kind.models.items() if key not in given}
        return data | initial | self._adapters_of(name) | own_functions.without_functions(given)

    def _adapters_of(self, kind: str) -> dict[str, object]:
        """With `lora`: settings of LoRA adapters, with a suitable learning rate, for each trained model of a kind of job."""
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

    def _is_trained(self, name: str) -> bool:
        """Whether the run has a checkpoint, which may be of an unfinished run: the workspace then prints a note.

        Raises UserError for a run of another profile, which has another model.
        """
        run = self.run(name)
        if not self.only_prints:
            self._wait_for(run)
        if run.latest_checkpoint() is None:
            return False
        profile = run.info.get("profile")
        if profile not in (None, self.profile):
            raise UserError(
                f"{run.path} is a run of the profile {profile}, but the workspace has the profile {self.profile}: "
                f"choose another folder (out=…), or remove {self.out}"
            )
        if stands := _unfinished(run):
            self._made_up(
                f"{name} is unfinished ({stands}), so its checkpoint of step {step_of(run.latest_checkpoint())} takes its place: "
                f"run notebook {NOTEBOOKS[name]} again to finish the run"
            )
        return True

    def _has_run(self, kind: str) -> bool:
        """Whether a kind of job needs no training now: its run is trained or recorded, or jobs are only printed."""
        return self._is_trained(kind) or self.only_prints or self._place_recorded(kind)

    def _wait_for(self, run: RunFolder) -> None:
        """Wait until a running job of the run has ended. Otherwise the next job would start from an old checkpoint."""
        from cluster import Job, JobNotFound

        with suppress(JobNotFound):
            job = Job.attach(run.path)
            if job.state in (State.PENDING, State.RUNNING):
                print(f"{run.name} is still training. This cell needs its model and waits")
                job.wait()

    def _allocation(self, resources, usual: Callable[[], Resources]):
        """Resources by component, on a cluster with the site's values; None if the settings determine the number of processes.

        usual: returns the resources on a cluster if `resources` is None.
        """
        if scheduler_of(self.where).on_this_machine:
            return None if resources is None else own_components(resources)
        return own_components(usual() if resources is None else resources, self.site)

    def _recorded_job(self, kind: str, run: RunFolder, settings: dict) -> RecordedJob | None:
        """Install the recorded run with the same settings, and return its handle.

        Without such a recording, prints the reason and returns None.
        """
        if run.status == "running" and not recorded_runs.is_recorded(run):
            return None  # `submit` then returns the handle of the running job
        recording = recorded_runs.recorded(self.profile, name := self._name_of(run))
        if recording is None:
            where = recorded_runs.recorded_root(self.profile)
            print(
                f"start=recorded: {where} has no run {name} (`./lab setup --bundle FILE` installs recorded runs), so the run is trained now"
            )
            return None
        texts = own_functions.texts_of(settings, kind_of(kind))
        inputs = self._inputs_of(kind, settings)
        if differs := earlier_runs.difference(recording, kind, self.profile, inputs, texts):
            print(
                f"start=recorded: the recorded run {run.name} differs ({differs}), so the run is trained now"
            )
            return None
        print(recorded_runs.describe(recording))
        return RecordedJob(recorded_runs.place(recording, run.path))

    def _place_recorded(self, name: str) -> bool:
        """Install a recorded run in place of a missing run of an earlier notebook, which has the name of its kind.

        Returns False without a recording, or if the recording has other data or adapters than this workspace.
        """
        recording = recorded_runs.recorded(self.profile, name) if self._takes_recorded else None
        if recording is None:
            return False
        data = {key: self._data.path(file) for key, file in kind_of(name).data.items()}
        inputs = data | self._adapters_of(name)
        if differs := earlier_runs.difference_in_origin(recording, name, self.profile, inputs):
            self._made_up(f"the recorded run {name} is not used, because it differs ({differs})")
            return False
        recorded_runs.place(recording, self.run(name).path)
        self._made_up(recorded_runs.describe(recording))
        return True

    def _trained(self, kind: str) -> Path:
        """The run folder of a kind of job. If its notebook was not run, installs a recorded run or trains a new run."""
        if not self._has_run(kind):
            name = kind.upper()
            self._made_up(
                f"there is no {name} run in {self.out}: a {name} run is trained now, as in notebook {NOTEBOOKS[kind]}"
            )
            self.submit(kind).wait()
        return self.run(kind).path

    def _made_up(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            print(f"note: {note}")


def _data_of(kind: JobKind, given: Mapping[str, object]) -> dict[str, str | list[str]]:
    """The formatted files for the data settings that the caller leaves open.

    Own training data leave out the workspace's validation data, which belong to another task: the job holds out a part. With
    environments, a job reads no data files.
    """
    named = any(value for key, value in given.items() if key.startswith("model.environments"))
    if named or callable(given.get(REWARD)):
        return {}
    prefix = "model.data.data_prefix"
    own = given.keys() | {f"{prefix}.{split}" for split in given.get(prefix) or ()}
    if any(key in own and ".train" in key for key in kind.data):
        return {}
    return {key: file for key, file in kind.data.items() if key not in own}


def _named(value: object) -> str:
    """The value of a setting, or the name of a function, as a part of a run's name."""
    return re.sub(r"[^\w.]+", "-", getattr(value, "__name__", str(value))).strip("-")


def _unfinished(run: RunFolder) -> str:
    """Where an unfinished run stands, such as `stopped after step 3 of 12`; "" for a finished run, and without a run."""
    info = run.info
    if not info or run.status == "finished":
        return ""
    step, last = (info.get("heartbeat") or {}).get("step", 0), info.get("max_steps")
    return f"{run.status} after step {step}" + (f" of {last}" if last else "")


def _name(kind: str, fault: str | None) -> str:
    """The default name of a run. A run with a fault has a separate name, so that the job does not resume another run."""
    return kind if fault is None else f"{kind}-{fault}"
