"""The inputs of a job, from its settings: model folders, data files and samples.

Data is read and checked before any model is built, so a mistake in a path costs only seconds.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from datetime import date
from functools import reduce
from itertools import chain
from pathlib import Path
from types import ModuleType

from omegaconf import DictConfig, ListConfig

from aligner_lib.config.peft import is_lora
from aligner_lib.config.validation import copies_of_the_model
from aligner_lib.datasets import load, load_indexed
from aligner_lib.datasets.chat_template import PLAIN, recorded_template, use_template
from aligner_lib.datasets.indexed_dataset import files_of_prefix, prefix_of
from aligner_lib.datasets.mapped_samples import MappedSamples
from aligner_lib.datasets.record_keys import Samples
from aligner_lib.datasets.samples import LoadReport
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.kinds.own_files import SPLITS, GivenFiles, files_of, hash_of_source, required, trainers_files
from aligner_lib.kinds.policy_gradient.settings import (
    environments_of,
)
from aligner_lib.models import model_hash, resolve
from aligner_lib.models.adapters import AdapterRecord
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.hash import file_hash
from aligner_lib.models.peft_folder import CONFIG as PEFT_CONFIG
from aligner_lib.models.peft_folder import TENSORS as PEFT_TENSORS
from aligner_lib.models.peft_folder import check_peft_base
from aligner_lib.run_folder.reader import RunFolder
from data.report import lengths_line

logger = logging.getLogger(__name__)


def loaders(config: DictConfig) -> ModuleType:
    """Choose the module for the format of the data files. The module has load_pairs, load_preferences, load_labelled and
    load_prompts."""
    return load_indexed if config.model.data.data_impl == "mmap" else load


def files_of_splits(
    config: DictConfig, samples: Samples, splits: tuple[str, ...] = SPLITS
) -> dict[str, list[Path]]:
    """The files of model.data.data_prefix by split, in the trainers' format (`own_files`)."""
    prefix = config.model.data.data_prefix
    given = {split: GivenFiles(f"model.data.data_prefix.{split}", prefix.get(split)) for split in splits}
    if config.model.data.data_impl == "mmap":
        return {split: files_of(value, key) for split, (key, value) in given.items()}
    return trainers_files(given, samples, config.model.data)


def packed_tokens(config: DictConfig, micro_batch_size: int, train: Sequence) -> int | None:
    """Tokens in a packed micro batch, by default micro_batch_size times the length of the longest sample; None: not packed."""
    data = config.model.data
    if not data.packed_sequence or data.packed_sequence_size:
        return data.packed_sequence_size if data.packed_sequence else None
    counts = train.token_counts if isinstance(train, MappedSamples) else (s.num_tokens for s in train)
    return micro_batch_size * max(counts)


def log_report(split: str, loaded: tuple[Sequence, LoadReport]) -> Sequence:
    """Log the number of samples and their lengths, dropped samples and truncated samples, and the ignored keys. Return the samples."""
    samples, report = loaded
    lengths = samples.lengths if isinstance(samples, MappedSamples) else map(len, samples)
    logger.info(f"{split.removesuffix('_ds')}: {len(samples)} samples; {lengths_line(lengths, 'tokens')}")
    for line in filter(None, (*report.lines(), report.ignored_keys())):
        logger.info(f"{split.removesuffix('_ds')}: {line}")
    return samples


def limited(samples: Sequence, loop: DictConfig, batch_size: int) -> Sequence:
    """Keep the samples of the first limit_val_batches batches. The limit is a number of batches or a fraction."""
    limit = loop.limit_val_batches
    if isinstance(limit, float):
        limit = math.ceil(limit * math.ceil(len(samples) / batch_size))
    return samples if limit < 0 else samples[: limit * batch_size]


def for_validation(samples: Sequence, config: DictConfig) -> Sequence:
    """Return the samples. Raises UserError if a data-parallel copy of the model would get no sample."""
    copies = copies_of_the_model(config)
    if len(samples) < copies:
        raise UserError(
            f"{len(samples)} validation samples leave some of the {copies} copies of the model without a sample: "
            "give a larger file, raise limit_val_batches or num_val_samples, or lower trainer.devices"
        )
    return samples


def steps_of(loop: DictConfig, samples: int | None, batch_size: int) -> int:
    """The number of steps of a run: the fewer of max_steps and the steps in max_epochs.

    samples: in an epoch; None: an environment draws its prompts without end. Raises UserError if the run would have no end.
    """
    steps, epochs = loop.max_steps, loop.max_epochs
    if steps >= 0 and epochs is None:
        return steps
    if samples is None:
        endless = "needs a number of prompts, and an environment has none (size = None)"
        if steps < 0:
            raise UserError(f"max_epochs={epochs or 1} {endless}: set max_steps")
        logger.info(f"max_epochs={epochs} {endless}: max_steps={steps} alone ends the run")
        return steps
    of_epochs = max((epochs or 1) * samples // batch_size, 1)
    if steps < 0:
        return of_epochs
    logger.info(
        f"the run ends with the first of max_steps={steps} and max_epochs={epochs} ({of_epochs} steps)"
    )
    return min(steps, of_epochs)


def hashes_of(start: Path, *files, mmap: bool = False) -> dict[str, str]:
    """Hash the run's initial model and the user's data files. The keys are file names, or paths if two files have the same name.

    mmap: each file is a prefix of two files.
    """
    lists = (value if isinstance(value, list | ListConfig) else [value] for value in files if value)
    flat = list(dict.fromkeys(Path(file) for paths in lists for file in paths))
    if mmap:
        flat = list(chain.from_iterable(files_of_prefix(prefix_of(path)) for path in flat))
    names = ["model", "reward_model", *(file.name for file in flat)]
    keys = [file.name if names.count(file.name) == 1 else str(file) for file in flat]
    return {"model": model_hash(start)} | {key: hash_of_source(f.expanduser()) for key, f in zip(keys, flat)}


def hashes_of_splits(config: DictConfig, start: Path, splits: tuple[str, ...] = SPLITS) -> dict[str, str]:
    """Hash the run's initial model and the files of model.data.data_prefix for the splits that the job reads."""
    data = config.model.data
    given = {f"model.data.data_prefix.{split}": data.data_prefix.get(split) for split in splits}
    files = (files_of(value, key) for key, value in given.items() if value)
    return hashes_of(start, *files, mmap=data.data_impl == "mmap")


# ---- templates --------------------------------------------------------------------------------------------------------


def policy_tokenizer(config: DictConfig, start: Path) -> Tokenizer:
    """Load the tokenizer of a job's initial model, with the template for conversations.

    The template is model.data.chat_template or, by default, the template that the model was trained with. If the two differ,
    the job logs a warning. For a model without a recorded template, texts are plain. Environments are an exception, because an
    environment may provide texts or turns.
    """
    tokenizer = Tokenizer(start)
    tokenizer.date = date.fromisoformat(config.model.data.chat_template_date)
    by_environments = "environments" in config.model and bool(environments_of(config))
    name = config.model.data.chat_template or recorded_template(start) or (None if by_environments else PLAIN)
    if name is not None:
        use_template(tokenizer, name)
        config.model.data.chat_template = name  # recorded in run.json
    warn_about_template(tokenizer, start, "the model")
    return tokenizer


def warn_about_template(tokenizer: Tokenizer, folder: Path, name: str) -> None:
    """Warn if the model was trained on conversations in another template than the run's template."""
    learnt, own = recorded_template(folder), tokenizer.template
    if own and learnt and own != learnt:
        logger.warning(
            f"the run writes conversations by chat_template={own}, but {name} in {folder} was trained on "
            f"chat_template={learnt}, so conversations look unfamiliar to the model; model.data.chat_template={learnt} "
            "avoids the difference"
        )


# ---- model folders --------------------------------------------------------------------------------------------------


def model_folder(config: DictConfig, key: str, head: str | None = None, serves: bool = False) -> Path:
    """Find the model folder that a setting names.

    head: `lm` or `scalar` if the model must have this head. serves: the samples come from an actor, which compares their length
    with the model's positions. Raises UserError, which names the key, if the setting is not set, or if the model has the other
    head or too few positions, or is a checkpoint in the job's own run folder.
    """
    form = ", a run folder, a model folder, or a model's name such as smollm2-135m"
    path = required(reduce(getattr, key.split("."), config), key, "" if head == "scalar" else form)
    folder = resolve(path)
    _check_outside_of_the_run(folder, config, f"{key}={path}")
    if head is not None:
        check_head(folder, head, f"{key}={path}")
    if not serves:
        check_positions(folder, config.model.encoder_seq_length, "model.encoder_seq_length")
    return folder


def hash_of_adapters(config: DictConfig, start: Path) -> dict[str, str]:
    """The hash of the initial adapters of model.peft, by name; empty without adapters."""
    folder = adapters_folder(config, start)
    if folder is None:
        return {}
    of_peft = folder / PEFT_TENSORS
    return {"adapters": file_hash(of_peft) if of_peft.is_file() else model_hash(folder)}


def adapters_folder(config: DictConfig, start: Path) -> Path | None:
    """The folder of the initial adapters of model.peft: a checkpoint of a run, or an adapter folder of PEFT. None: new
    adapters.

    start: the model under the adapters. Raises UserError if the adapters were trained on another model, or are a checkpoint in
    the job's own run folder.
    """
    peft = config.model.peft
    if not is_lora(peft) or peft.restore_from_path is None:
        return None
    folder = Path(peft.restore_from_path).expanduser()
    if (folder / PEFT_CONFIG).is_file():
        check_peft_base(folder, start)
        return folder
    folder = resolve(folder)
    _check_outside_of_the_run(folder, config, f"model.peft.restore_from_path={peft.restore_from_path}")
    record = AdapterRecord.load(folder)
    if record is not None and record.base_hash != model_hash(start):
        raise UserError(
            f"model.peft.restore_from_path={peft.restore_from_path}: these adapters belong to the model in "
            f"{record.base}, but the run starts from {start}"
        )
    return folder


def _check_outside_of_the_run(folder: Path, config: DictConfig, named: str) -> None:
    """Raise UserError for a checkpoint in the job's own run folder, which a job without a checkpoint to resume sets aside.

    named: the setting, as in the message.
    """
    run = config.exp_manager.explicit_log_dir
    if run and folder.resolve().is_relative_to((RunFolder(run).path / "checkpoints").resolve()):
        raise UserError(
            f"{named} is a checkpoint in the job's own run folder, {run}: choose another run folder (--run)"
        )


def check_positions(folder: Path, length: int, key: str) -> None:
    """Raise UserError if samples may have more tokens (`length`, the value of `key`) than the model has positions."""
    positions = Architecture.load(folder).max_position_embeddings
    if length > positions:
        raise UserError(
            f"{key}={length} is beyond the {positions} positions of {folder}: set {key}={positions} or less"
        )


def check_head(folder: Path, head: str, named: str) -> None:
    """Raise UserError unless the model's head is `head`. named: the model's name in the message."""
    if Architecture.load(folder).head == head:
        return
    if head == "scalar":
        raise UserError(
            f"{named} is a language model ({folder}), without a reward head: give a reward model, such as "
            "the run folder of `aligner rm`"
        )
    raise UserError(
        f"{named} is a reward model or a critic ({folder}), which scores texts, but cannot write text: give a "
        "language model, such as the run folder of `aligner sft`"
    )
