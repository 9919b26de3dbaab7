"""Settings that several kinds of job share, with NeMo-Aligner's key names, and the helpers that declare a setting.

A setting's declaration holds its default, its bound and, for a setting that is accepted only for compatibility, a sentence that
explains why the setting has no effect. `None` means: not set, or off. The kinds declare their other settings in
`aligner_lib.kinds`. `aligner_lib.config.compose` combines defaults, a profile and overrides.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, field, fields, is_dataclass, make_dataclass
from datetime import date
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

from aligner_lib.run_folder.alarms import Thresholds

if TYPE_CHECKING:
    from omegaconf import DictConfig

# ---- the way to write a setting -------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """A condition on a value; None (not set) is always allowed."""

    holds: Callable[[Any], bool]
    words: str
    """Completes "must be …"."""
    choices: tuple = ()
    """All allowed values, if they can be listed."""


def at_least(low: float) -> Bound:
    """A number greater than or equal to `low`."""
    return Bound(lambda value: value >= low, f"at least {low}")


def above(low: float) -> Bound:
    """A number greater than `low`."""
    return Bound(lambda value: value > low, f"above {low}")


def within(low: float, high: float) -> Bound:
    """A number from `low` to `high`, both included."""
    return Bound(lambda value: low <= value <= high, f"between {low} and {high}")


def one_of(*choices: Any) -> Bound:
    """A value from a list."""
    return Bound(lambda value: value in choices, " or ".join(map(str, choices)), choices)


def _is_date(text: str) -> bool:
    try:
        return bool(date.fromisoformat(text))
    except (TypeError, ValueError):
        return False


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        # reading the port checks its range
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return False


DATE = Bound(_is_date, "a date such as 2025-01-31")
ADDRESS = Bound(_is_address, "an address such as http://node7:8000")
STEPS = Bound(lambda value: value == -1 or value >= 1, "at least 1, or -1 for all")
BATCHES = Bound(
    lambda value: (
        0 < value <= 1 if isinstance(value, float) else isinstance(value, int) and STEPS.holds(value)
    ),
    "a number of batches, -1 for all, or a share such as 0.5; 1.0 is all, and 1 is one batch",
)
PROBABILITY = Bound(lambda value: 0 < value <= 1, "above 0 and at most 1")


def setting(
    default: Any, bound: Bound | None = None, *, names: tuple[str, ...] = (), without_effect: str = ""
) -> Any:
    """Declare a dataclass field for a setting.

    names: the keys of a free-form dict. without_effect: the reason that the setting does nothing in any job, for a user who
    sets it.
    """
    metadata = {"bound": bound, "names": names, "without_effect": without_effect}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: copy.deepcopy(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@cache  # a job asks for the same few types hundreds of times
def types_of(schema: type) -> dict[str, Any]:
    """Return the types of a schema's fields by their names."""
    return get_type_hints(schema)


def settings(schema: type, prefix: str = "") -> Iterator[tuple[str, Field]]:
    """Iterate over every setting of a schema with its full name, such as `trainer.ppo.initial_policy_kl_penalty`."""
    types = types_of(schema)
    for entry in fields(schema):
        if is_dataclass(types[entry.name]):
            yield from settings(types[entry.name], f"{prefix}{entry.name}.")
        else:
            yield f"{prefix}{entry.name}", entry


def named_groups(schema: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Iterate over every field that holds user-named groups of settings, `dict[str, Group]`, with the groups' schema."""
    for name, kind in types_of(schema).items():
        if is_dataclass(kind):
            yield from named_groups(kind, f"{prefix}{name}.")
        elif get_origin(kind) is dict and is_dataclass(get_args(kind)[1]):
            yield f"{prefix}{name}", get_args(kind)[1]


# ---- shared by all kinds --------------------------------------------------------------------------------------------


@dataclass
class Sched:
    """model.optim.sched: the learning rate over optimizer steps."""

    name: str = setting("CosineAnnealing", one_of("CosineAnnealing", "constant"))
    """The course of the learning rate after the warm-up: a cosine down to min_lr, or constant."""
    warmup_steps: int = setting(10, at_least(0))
    """Optimizer steps of linear warm-up from 0."""
    constant_steps: int = setting(0, at_least(0))
    """Optimizer steps at min_lr after the decay."""
    min_lr: float = setting(0.0, at_least(0))
    """The learning rate at the end of the decay. If min_lr is above lr, the rate stays at lr."""
    max_steps: int | None = setting(None, at_least(1))
    """Length of the decay; None: the run's own length."""


_BETAS = Bound(
    lambda pair: len(pair) == 2 and all(0 <= b < 1 for b in pair), "two numbers in [0, 1), as in [0.9, 0.98]"
)


@dataclass
class Optim:
    """model.optim: AdamW."""

    name: str = setting("distributed_fused_adam", one_of("distributed_fused_adam"))
    """Megatron's distributed AdamW, the only optimizer."""
    lr: float = setting(9e-6, above(0))
    """Peak learning rate."""
    weight_decay: float = setting(0.1, at_least(0))
    """Decoupled; not applied to norms and biases."""
    betas: list[float] = setting([0.9, 0.98], _BETAS)
    """The decay rates of Adam's two moments."""
    eps: float = setting(1e-8, above(0))
    """Added to Adam's denominator."""
    sched: Sched = field(default_factory=Sched)


_MCORE = Bound(
    lambda value: value is True,
    "True: every model here is Megatron Core's; `aligner model import` converts others",
)


_CONSTANT = Bound(
    lambda value: False, "null: all batches have the same size; set model.global_batch_size to it"
)


@dataclass
class ForwardPass:
    """How a model computes a forward pass."""

    sequence_parallel: bool | None = None
    """Tensor-parallel ranks split the tokens among them between matrix products; null: on with CUDA and Transformer Engine."""
    share_prefix: bool = True
    """Compute the common prefix of a micro batch's rows only once; the results are exact."""
    cuda_graphs: bool = False
    """On a GPU, generation repeats a recorded step, without Python between its operations. Not measured yet."""


@dataclass
class ForwardModel(ForwardPass):
    """model: the settings of every job that computes with a model, trained or frozen."""

    seed: int = setting(1234, at_least(0))
    """Seed for data order, sampling and new weights."""
    micro_batch_size: int = setting(1, at_least(1))
    """Samples in one forward-backward pass."""
    encoder_seq_length: int = setting(4096, at_least(2))
    """The greatest length of a sample in tokens. Longer samples are dropped (SFT: the input's longest paragraph is shortened),
    counted and reported."""
    tensor_model_parallel_size: int = setting(1, at_least(1))
    """The number of processes that share each matrix."""
    pipeline_model_parallel_size: int = setting(1, at_least(1))
    """The number of stages, processes that each hold a part of the layers."""


@dataclass
class Model(ForwardModel):
    """model: the settings of every job that trains a model."""

    global_batch_size: int = setting(64, at_least(1))
    """Samples in one optimizer step."""
    rampup_batch_size: Any = setting(None, _CONSTANT)
    """A name of NeMo-Aligner's. All batches have the same size here."""
    megatron_amp_O2: bool = setting(
        False,
        without_effect="trainer.precision decides: with bf16, parameters are bf16 and have float32 copies in the optimiser.",
    )
    mcore_gpt: bool = setting(True, _MCORE)
    """A name of NeMo-Aligner's. Every model here is Megatron Core's."""
    activations_checkpoint_granularity: str | None = setting(None, one_of("selective", "full"))
    """The kind of activation recomputation; null: none."""
    activations_checkpoint_method: str | None = setting(None, one_of("uniform", "block"))
    """Used with granularity full."""
    activations_checkpoint_num_layers: int | None = setting(None, at_least(1))
    """Layers in a recomputed chunk."""
    optim: Optim = field(default_factory=Optim)


@dataclass
class WandbKwargs:
    """The names of a run at Weights & Biases."""

    project: str | None = None
    """null: aligner-lab."""
    name: str | None = None
    """null: the run folder's name."""


@dataclass
class MLFlowKwargs:
    """The place of a run in MLflow."""

    experiment_name: str | None = None
    """null: aligner-lab."""
    tracking_uri: str | None = None
    """null: MLFLOW_TRACKING_URI, else mlruns/ beside the run folder."""


@dataclass
class TrackioKwargs:
    """The names of a run at trackio."""

    project: str | None = None
    """null: aligner-lab."""
    name: str | None = None
    """null: the run folder's name."""


@dataclass
class CheckpointCallbackParams:
    """Which checkpoints to keep."""

    monitor: str | None = None
    """NeMo-Aligner's name of save_best. validation_loss and val_loss mean validation/loss, val_rewards and val_global_rewards mean
    val_rollouts/rewards."""
    save_best: str | None = None
    """A validation metric, such as val_rollouts/good. The checkpoint of the best validation is also saved and kept."""
    mode: str | None = setting(None, one_of(None, "min", "max"))
    """Whether the smallest or the largest value of save_best is best; null: the smallest of a loss, the largest of any other
    metric."""
    save_top_k: int = setting(1, at_least(1))
    """The number of newest checkpoints to keep."""
    save_nemo_on_train_end: bool = setting(
        False,
        without_effect="no .nemo file is written at the end: `aligner model export RUN --to nemo` writes one.",
    )
    always_save_nemo: bool = setting(
        False,
        without_effect="checkpoints are folders in checkpoints/: `aligner model export RUN --to nemo` writes a .nemo file.",
    )


# The thresholds of `aligner_lib.run_folder.alarms` as settings. The heartbeat's threshold is left out: only monitors use it.
Alarms = make_dataclass(
    "Alarms",
    [
        (limit.name, float, setting(limit.default, at_least(0)))
        for limit in fields(Thresholds)
        if limit.name != "heartbeat_seconds"
    ],
    namespace={"described_in": Thresholds},  # the class with the fields' docstrings
)


@dataclass
class RunRecords:
    """exp_manager of every job: the run folder, its exporters and its alarms."""

    explicit_log_dir: str | None = None
    """The run folder."""

    # Each exporter is a separate process that follows the run folder.
    create_tensorboard_logger: bool = True
    """Write TensorBoard logs into <run>/tensorboard."""
    create_wandb_logger: bool = False
    """Send metrics and rollouts to Weights & Biases."""
    wandb_logger_kwargs: WandbKwargs = field(default_factory=WandbKwargs)
    create_mlflow_logger: bool = False
    """Send metrics and rollouts to MLflow."""
    mlflow_logger_kwargs: MLFlowKwargs = field(default_factory=MLFlowKwargs)
    create_trackio_logger: bool = False
    """Send metrics and rollouts to trackio."""
    trackio_logger_kwargs: TrackioKwargs = field(default_factory=TrackioKwargs)
    alarms: Alarms = field(default_factory=Alarms)
    """The thresholds of the run's own alarms (alarms.jsonl)."""


@dataclass
class ExpManager(RunRecords):
    """exp_manager of a job that writes checkpoints."""

    create_checkpoint_callback: bool = True
    """False: no checkpoint is written."""
    checkpoint_callback_params: CheckpointCallbackParams = field(default_factory=CheckpointCallbackParams)
    resume_if_exists: bool = True
    """Continue from the run folder's latest checkpoint; False: start again, and move all earlier files into a folder old-N."""
    resume_ignore_no_checkpoint: bool = True
    """False: a run folder without a checkpoint is an error."""
    stop_after: int | None = setting(None, at_least(1))
    """The run stops after this step and writes a checkpoint, from which it can continue later; null: run to the end."""


@dataclass
class Loop:
    """The settings that trainer.sft, trainer.rm, trainer.dpo and trainer.ppo share. A step is an optimizer step (PPO: a rollout
    and the training on its responses)."""

    max_epochs: int | None = setting(None, at_least(1))
    """The most passes over the training data; null: as many as max_steps takes, and with max_steps=-1 one."""
    max_steps: int = setting(-1, STEPS)
    """The most steps; -1: the number of steps in max_epochs."""
    val_check_interval: int = setting(10, at_least(1))
    """Steps between validations."""
    save_interval: int = setting(10, at_least(1))
    """Steps between checkpoints; the run also writes a checkpoint at the end."""
    limit_val_batches: Any = setting(-1, BATCHES)
    """Global batches (PPO: rollout micro batches) in a validation, or a fraction of all batches; -1 and 1.0: all."""
    gradient_clip_val: float = setting(1.0, at_least(0))
    """The gradient's norm is clipped to this value; 0: no clipping."""


@dataclass
class Precision:
    """The numeric precision of a model's computations."""

    precision: str = setting("bf16", one_of("bf16", "32", "auto"))
    """On a machine without hardware support for bf16, bf16 becomes 32, and the job logs the change. auto: the faster of the
    two."""


@dataclass
class Trainer(Precision):
    """trainer: processes and precision."""

    num_nodes: int = setting(1, at_least(1))
    """Machines of the job."""
    devices: int = setting(1, at_least(1))
    """Processes on a node: the number of GPUs or, on a CPU, the number of ranks."""
    distributed_timeout_minutes: float = setting(60.0, above(0))
    """Minutes that a rank waits for other ranks, and an actor for its critic's answer, before the job fails with a timeout."""


@dataclass
class PretrainedCheckpoint:
    """The model to start from."""

    restore_from_path: str | None = None
    """A model name, model folder, checkpoint or run folder."""


NO_LOADERS = "no loader processes are started; tokens are prepared once, before the first step."
NO_TEST_SPLIT = {
    "model.data.data_prefix.test": "no job reads it; `aligner evaluate` takes its prompts from data_prefix.validation."
}
NO_GENERATION = {"model.cuda_graphs": "the job generates no responses."}


@dataclass
class Templated:
    """The template of conversations, for all data that a job reads."""

    chat_template: str | None = setting(None, one_of("plain", "tokenizer"))
    """plain: `User: …`, `Assistant: …`, as in the files; tokenizer: the tokenizer's chat template; null: the template that the
    model was trained with. If the model has no record of its template, null means plain, and tokenizer for conversations of
    environments."""
    chat_template_date: str = setting("2025-01-01", DATE)
    """The date for chat templates that write a date into every prompt. The date is fixed, so that runs can be repeated."""


_SHARE = Bound(lambda value: 0 < value < 1, "between 0 and 1")


@dataclass
class OwnColumns:
    """Data files in another known form than the trainers', which a job converts before it reads them."""

    columns: dict[str, str] = setting({})
    """The meaning of a file's columns, as in {question: prompt, best: chosen, worst: rejected}."""
    ignore_columns: list[str] = setting([])
    """Columns to leave out on purpose."""
    validation_fraction: float = setting(0.05, _SHARE)
    """The share of the prompts that is held out when there is no validation file."""


CONVERSION = tuple(entry.name for entry in fields(OwnColumns))


def conversion_without_effect(config: DictConfig) -> dict[str, str]:
    """The settings of `OwnColumns` without effect, with the reasons."""
    data = config.model.data
    if data.get("data_impl") == "mmap":
        names, reason = CONVERSION, "token files have no columns."
    elif data.validation_ds.file_path if "validation_ds" in data else data.data_prefix.get("validation"):
        names, reason = ("validation_fraction",), "the validation files are given."
    else:
        return {}
    return {f"model.data.{name}": reason for name in names}


@dataclass
class Data(OwnColumns, Templated):
    """model.data of jobs that read files by split."""

    data_impl: str = setting("jsonl", one_of("jsonl", "mmap"))
    """jsonl: text files; mmap: token files made by `aligner data mmap`."""
    data_prefix: dict[str, Any] = setting({}, names=("train", "validation", "test"))
    """{train: [files], validation: [files], test: [files]}; also folders, and files in other known forms, which are converted
    first. With mmap, a file is the shared prefix of a .bin and an .idx file."""
    num_workers: int = setting(0, at_least(0), without_effect=NO_LOADERS)


LIMITED_BY_TOKENS = (
    "with packed_sequence=True a micro batch has as many samples as packed_sequence_size allows."
)


@dataclass
class Packed:
    """Micro batches limited by tokens instead of samples; the optimizer step stays the same."""

    packed_sequence: bool = False
    """Fill a micro batch up to packed_sequence_size tokens, whatever the number of samples."""
    packed_sequence_size: int | None = setting(None, at_least(1))
    """Tokens in a micro batch; null: micro_batch_size times the length of the longest sample."""


def packing_without_effect(config: DictConfig, micro_batch_size: str) -> dict[str, str]:
    """The settings without effect when micro batches are limited by samples, or by tokens.

    micro_batch_size: the name of the setting for training.
    """
    data = config.model.data
    if not data.packed_sequence:
        return {
            "model.data.packed_sequence_size": "without packed_sequence=True a micro batch has micro_batch_size samples."
        }
    return {micro_batch_size: LIMITED_BY_TOKENS} if data.packed_sequence_size else {}
