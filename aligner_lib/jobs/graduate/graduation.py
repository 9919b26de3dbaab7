"""A run on its way to another library: its settings, models and samples, and the folder for the other library's files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf

from aligner_lib.algorithms.batching import sample_order
from aligner_lib.algorithms.objective import SWITCHES, Objective
from aligner_lib.config import peft
from aligner_lib.config.compose import load, recorded, save, settings_of
from aligner_lib.config.function_hashes import existing_file
from aligner_lib.config.functions import place_in
from aligner_lib.datasets import load as jsonl
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.kinds.inputs import files_of_splits, loaders, policy_tokenizer
from aligner_lib.kinds.own_files import GivenFiles, files_of, hash_of_source, trainers_files
from aligner_lib.kinds.policy_gradient.settings import environments_of
from aligner_lib.models.adapters import Adapter, AdapterRecord
from aligner_lib.models.export import export
from aligner_lib.models.export.trained import CRITIC, Trained
from aligner_lib.run_folder.reader import flatten
from cluster.record import write_json

if TYPE_CHECKING:
    from aligner_lib.rollouts.tasks import Task

SPLITS = ("train", "validation")
SIDES = ("chosen", "rejected")
# settings of the machine and of the run folder, which have no meaning in another library
OF_THE_MACHINE = (
    "exp_manager.",
    "trainer.num_nodes",
    "trainer.devices",
    "trainer.distributed_timeout_minutes",
)


class CarriedSetting(NamedTuple):
    """A setting of the target, and the settings of the run that determine the value."""

    key: str
    value: Any
    settings: tuple[str, ...]


@dataclass
class Graduation:
    """Reads a run, and fills a folder for another library."""

    trained: Trained
    out: Path
    """The folder that is being filled."""
    place: Path
    """The folder's final path."""
    given_reward_model: str | None = None
    """The user's choice of a reward model."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""
    differences: list[str] = field(default_factory=list)
    """Sentences on the target's behaviour where it differs from this project's."""
    carried: list[CarriedSetting] = field(default_factory=list)
    target_config: dict[str, Any] = field(default_factory=dict)
    command: str = ""
    """The command that trains."""
    checked: str = ""
    """Sentences on how the target's files were tested."""
    contents: dict[str, str] = field(default_factory=dict)
    """The files and folders in `out`, with their descriptions."""
    _read: set[str] = field(default_factory=set)

    # -- settings -------------------------------------------------------------------------------------------------

    @cached_property
    def config(self) -> DictConfig:
        """The run's settings."""
        return load(self.kind, recorded(self.trained.run.info))

    @property
    def kind(self) -> str:
        """The run's kind of job."""
        return self.trained.run.kind

    def setting(self, key: str) -> Any:
        """The value of one of the run's settings. The setting then counts as carried over. Raises KeyError for an unknown key."""
        absent = object()  # None is the value of many a setting
        value = OmegaConf.select(self.config, key, default=absent)
        if value is absent:
            raise KeyError(f"a run of aligner {self.kind} has no setting {key!r}")
        self._read.add(key)
        return value

    def ignore(self, *keys: str) -> None:
        """Count settings as carried over. A key with a dot at the end stands for its whole group."""
        self._read.update(keys)

    def put(self, key: str, value: Any, *settings: str) -> None:
        """Set a value of the target's config. key: dots separate groups; settings: the settings that determine the value.

        Raises KeyError for an unknown setting.
        """
        for setting in settings:
            self.setting(setting)
        self.carried.append(CarriedSetting(key, value, settings))
        *groups, name = key.split(".")
        place = self.target_config
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

    def copy(self, key: str, setting: str) -> None:
        """Set a value of the target's config to the value of a setting. Raises KeyError for an unknown setting."""
        self.put(key, self.setting(setting), setting)

    def left_out(self) -> dict[str, Any]:
        """The run's settings that differ from the defaults and that nothing in the target's files represents."""
        return {
            key: value
            for key, value in flatten(settings_of(self.kind, save(self.config))).items()
            if not any(
                key == read or key.startswith(read if read.endswith(".") else f"{read}.")
                for read in (*self._read, *OF_THE_MACHINE)
            )
        }

    def note_own_functions(self, target: str) -> None:
        """Name the user's own functions that trained the run, because the target does not call them. target: its TITLE."""
        self.notes += [
            f"functions.{name}: the run trained with your own {place_in(use)[0].name}; {target} computes what the library's "
            "function computes, and repeats the run only if both are equal"
            for name, use in self.own_functions.items()
        ]

    @property
    def own_functions(self) -> dict[str, str]:
        """The files of the user's own functions, by name."""
        return {name: use for name, use in self.config.functions.items() if use is not None}

    # -- models ---------------------------------------------------------------------------------------------------

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The run's tokenizer, with the run's template."""
        self.ignore("model.data.chat_template", "model.data.chat_template_date")
        return policy_tokenizer(self.config, self.trained.folder)

    def export_models(self) -> None:
        """Write the weights at the run's end into model/, and the weights at the run's start into start/."""
        self.ignore("model.restore_from_path", "pretrained_checkpoint.restore_from_path")
        self.ignore("model.peft.restore_from_path")
        self._export(
            self.trained.folder, "model", f"the weights after step {self.trained.step}, where the run ended"
        )
        if isinstance(self.start, Trained):
            self._export(self.start.folder, "start", "the weights at the run's start")
        elif self.trained.restored():
            self.notes.append(
                f"the adapters at the run's start, {self.start}, are not a checkpoint here: the run can be continued and not "
                "repeated"
            )
        else:
            self.notes.append(
                f"the model at the run's start, {self.start}, is not here any more: the run can be continued and not repeated"
            )

    @cached_property
    def start(self) -> Trained | str | None:
        """The model at the run's start, including restored adapters; only a name if the model is gone or has changed."""
        return self.trained.restored() or self.trained.origin()

    @property
    def has_start(self) -> bool:
        """Whether start/ exists."""
        return "start/" in self.contents

    @property
    def has_reward_model(self) -> bool:
        """Whether reward_model/ exists."""
        return "reward_model/" in self.contents

    @property
    def adapters(self) -> Mapping[str, Adapter]:
        """The ranks and scales of the run's adapters, by Megatron's layer names. Those of restored adapters are not in the
        settings."""
        idle = peft.without_effect(self.config.model.peft)
        self.ignore("model.peft.peft_scheme", *(f"model.peft.{name}" for name in idle))
        return AdapterRecord.load(self.trained.folder).layers

    def settings_of_adapters(self, *names: str) -> list[str]:
        """The settings that determine a property of the adapters. names: in model.peft.lora_tuning, for new adapters."""
        restored = "model.peft.restore_from_path"
        return [restored] if self.setting(restored) else [f"model.peft.lora_tuning.{name}" for name in names]

    def export_reward_model(self, *settings: str) -> None:
        """Write the run's reward model into reward_model/. settings: the settings that may name the reward model.

        Raises UserError when none names a model.
        """
        named = [self.setting(key) for key in settings]
        source = self.given_reward_model or next(filter(None, named), None)
        if source is None:
            raise UserError(
                f"{self.trained.run.path} had its reward model in another job: name the model with --reward-model FOLDER"
            )
        self._export(source, "reward_model", "the reward model")

    def export_critic(self) -> None:
        """Write PPO's critic into critic/: the checkpoint's own critic, or the reward model if the critic was in another job.

        Raises UserError when neither exists.
        """
        critic = self.trained.folder / CRITIC
        # of a critic in another job, the folder has only the note that names the critic's checkpoint
        if not (critic / "model.json").exists():
            if not self.has_reward_model:
                raise UserError(
                    f"{self.trained.run.path} had its critic in another job, and no reward model to begin a critic with: write "
                    "the weights alone with `aligner model export`"
                )
            shutil.copytree(self.out / "reward_model", self.out / CRITIC)
            self.contents["critic/"] = (
                "the reward model, as at the run's start: the run's critic was in another job"
            )
            return
        self._export(critic, "critic", f"the critic after step {self.trained.step}")

    def _export(self, source: str | Path, name: str, description: str) -> None:
        self.notes += [f"{name}/: {note}" for note in export(source, "hf", self.out / name)]
        self.contents[f"{name}/"] = description

    # -- data -----------------------------------------------------------------------------------------------------

    def load(self, given: GivenFiles, paths: list[Path], read: str, max_length: int) -> list:
        """The samples of data files. given: the setting of the files; paths: the files in the trainers' format; read: a loader
        of `datasets.load`, by name."""
        self.ignore(
            given.key, "model.data.columns", "model.data.ignore_columns", "model.data.validation_fraction"
        )
        module = loaders(self.config) if "data_impl" in self.config.model.data else jsonl
        samples, report = getattr(module, read)(paths, self.tokenizer, max_length)
        self.notes += report.lines()
        hashes = self.trained.run.info["hashes"]
        for source in files_of(given.value, given.key) if given.value else ():
            known = hashes.get(source.name) or hashes.get(str(source))
            if source.exists() and known not in (None, hash_of_source(source)):
                self.notes.append(f"{source} has changed since the run read it")
        return samples

    def in_first_epoch(self, samples: list, shuffle: bool = True) -> list:
        """The samples in the order of the run's first epoch, so that the first step has the same batch."""
        return [samples[i] for i in sample_order(len(samples), 0, self.setting("model.seed"), shuffle)]

    def load_sft(self) -> dict[str, list]:
        """The samples of supervised fine-tuning, by split; the training samples in the order of the first epoch."""
        loaded, data = {}, self.config.model.data
        given = {
            split: GivenFiles(f"model.data.{split}_ds.file_path", data[f"{split}_ds"].file_path)
            for split in SPLITS
        }
        files = trainers_files(given, "sft", data)
        for split, settings in zip(SPLITS, (data.train_ds, data.validation_ds)):
            at = f"model.data.{split}_ds"
            longest = settings.max_seq_length or self.setting("model.encoder_seq_length")
            loaded[split] = self.load(given[split], files[split], "load_sft", longest)
            self.ignore(f"{at}.max_seq_length", f"{at}.shuffle")
        return loaded | {"train": self.in_first_epoch(loaded["train"], data.train_ds.shuffle)}

    def load_pairs(self, read: str) -> dict[str, list]:
        """The samples of pairs of both splits, by split; the training samples in the order of the first epoch."""
        self.ignore("model.data.data_impl")
        longest, prefix = self.setting("model.encoder_seq_length"), self.config.model.data.data_prefix
        files = files_of_splits(self.config, "labels" if read == "load_labelled" else "pairs")
        loaded = {
            split: self.load(
                GivenFiles(f"model.data.data_prefix.{split}", prefix.get(split)), files[split], read, longest
            )
            for split in SPLITS
        }
        self.ignore("model.data.data_prefix")
        return loaded | {"train": self.in_first_epoch(loaded["train"])}

    def load_prompts(self, prompts_per_step: int) -> dict[str, list[Task]]:
        """The prompts of both splits, by split, from data files or environments: those of the run's first epoch, in its order.

        Endless environments give as many training prompts as the run's steps take. Raises UserError for an environment whose
        episodes have several turns.
        """
        # these need torch, which the graduation of a run without rollouts does not load
        from aligner_lib.kinds.policy_gradient.build import task_source
        from aligner_lib.rollouts.tasks import Task

        self.ignore("model.data.", "model.environments.", "model.encoder_seq_length", "model.seed")
        for name, settings in environments_of(self.config).items():
            if settings.rewards:
                raise UserError(
                    f"model.environments.{name}.rewards adds several weighted rewards, and the written rewards have the "
                    "environment's own reward alone: write the weights alone with `aligner model export`"
                )
        source = task_source(self.config, self.tokenizer)
        try:
            for name, turns in (
                source.environments["train"].max_turns() if source.environments else {}
            ).items():
                if turns > 1:
                    raise UserError(
                        f"model.environments.{name} has episodes of up to {turns} turns, and the written rewards judge a "
                        "single response: write the weights alone with `aligner model export`"
                    )
            count = source.size or prompts_per_step * max(self.steps(), 1)
            drawn = {"train": source.train(0, count), "validation": source.validation(None)}
        finally:
            source.close()
        prompts = {
            split: [task for task in tasks if isinstance(task, Task)] for split, tasks in drawn.items()
        }
        if failed := sum(map(len, drawn.values())) - sum(map(len, prompts.values())):
            self.notes.append(
                f"{failed} prompts could not be given by their environments, or leave no room for a response"
            )
        return prompts

    def steps(self) -> int:
        """The run's setting of its number of steps; -1: as many as its epochs have."""
        return self.setting(f"trainer.{self.kind}.max_steps")

    def copy_environments(self) -> None:
        """Copy the users' files of the run's environments, and write their settings into environments.json."""
        settings = {}
        for name, environment in environments_of(self.config).items():
            use = environment.use or name
            if ".py" in use:
                file, function = place_in(use)
                use = ":".join(filter(None, (self._copied(file), function)))
            args = OmegaConf.to_container(environment.args)
            settings[name] = {"use": use, "args": self._with_copied_files(args)}
        write_json(self.out / "environments.json", settings)
        self.contents["environments.json, environments/"] = (
            "the run's environments, whose code is in this project, and the files that they read"
        )

    def _with_copied_files(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: self._with_copied_files(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self._with_copied_files(inner) for inner in value]
        file = existing_file(value) if isinstance(value, str) else None
        return self._copied(file) if file else value

    def _copied(self, file: Path) -> str:
        """Copy a file into environments/, under a number and its name. Returns the path within `out`."""
        folder = self.out / "environments"
        folder.mkdir(exist_ok=True)
        copy = folder / f"{len(list(folder.iterdir())) + 1}_{file.name}"
        shutil.copy(file, copy)
        return f"environments/{copy.name}"

    # -- files ----------------------------------------------------------------------------------------------------

    def write_rows(self, rows: dict[str, list[dict]], description: str) -> None:
        """Write the rows of each split as JSON Lines into data/."""
        (self.out / "data").mkdir()
        for split, rows_of_split in rows.items():
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of_split)
            (self.out / "data" / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
        self._describe_data(rows, "jsonl", description)

    def write_parquet(self, rows: dict[str, list[dict]], description: str) -> None:
        """Write the rows of each split as parquet into data/."""
        import pyarrow
        import pyarrow.parquet

        (self.out / "data").mkdir()
        for split, rows_of_split in rows.items():
            pyarrow.parquet.write_table(
                pyarrow.Table.from_pylist(rows_of_split), self.out / "data" / f"{split}.parquet"
            )
        self._describe_data(rows, "parquet", description)

    def _describe_data(self, rows: dict[str, list[dict]], suffix: str, description: str) -> None:
        for split, rows_of_split in rows.items():
            self.contents[f"data/{split}.{suffix}"] = f"{len(rows_of_split)} rows: {description}"

    def write_config(self) -> None:
        """Write the target's config into config.yaml."""
        text = yaml.safe_dump(self.target_config, sort_keys=False, allow_unicode=True)
        (self.out / "config.yaml").write_text(text, encoding="utf-8")
        self.contents["config.yaml"] = "the settings, in the target's terms"

    def copy_scripts(self, scripts: dict[str, str]) -> None:
        """Copy files of trl_scripts/. scripts: maps a name in `out` to a file's name."""
        for name, file in scripts.items():
            text = (Path(__file__).parent / "trl_scripts" / file).read_text(encoding="utf-8")
            (self.out / name).write_text(text, encoding="utf-8")
            self.contents[name] = text.partition('"""')[2].partition('"""')[0].partition("\n")[0].rstrip(".")


def divisor(whole: int, most: int) -> int:
    """The largest divisor of `whole` that is at most `most`: the rows of a micro batch, when all have the same size."""
    return next(size for size in range(min(whole, most), 0, -1) if whole % size == 0)


def lacking_values(
    objective: Objective, values: Mapping[str, Collection[str]], combinations: Mapping[str, bool]
) -> list[str]:
    """The values of an objective's switches that a target lacks; with none, the combinations of values that it lacks.

    values: by switch the values that the target computes; combinations: whether the target lacks the combination.
    """
    lacking = [
        f"{switch}={value}"
        for switch in SWITCHES
        if (value := getattr(objective, switch)) not in values.get(switch, ())
    ]
    return lacking or [combination for combination, lacks in combinations.items() if lacks]
