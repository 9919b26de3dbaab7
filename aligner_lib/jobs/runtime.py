"""The common parts of all jobs: join the processes, open the run folder, explain errors."""

from __future__ import annotations

import errno
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config.compose import keys, notices, save
from aligner_lib.config.kinds import kind_of
from aligner_lib.config.validation import without_effect
from aligner_lib.errors import UserError
from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter

logger = logging.getLogger(__name__)
OURS = logging.getLogger("aligner_lib")  # parent of all the library's loggers
# Extra waiting time of the other ranks while a rank waits for a critic's answer. The waiting rank's error then appears first.
GRACE_MINUTES = 1.0


@contextmanager
def _first_import_of_torch() -> Iterator[None]:
    """Pause Python's garbage collector, and exempt the imported objects afterwards, which all stay until the end.

    The collector would traverse the 500,000 objects several times, for 0.3 of 2.5 s, and again in each full collection.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def join_processes(config: DictConfig) -> None:
    """Join the other ranks, with the parallel sizes of the settings. Raises UserError if the number of ranks is wrong."""
    trainer = config.trainer
    expected, present = trainer.num_nodes * trainer.devices, int(os.environ.get("WORLD_SIZE", 1))
    if present != expected:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes} × trainer.devices={trainer.devices} asks for {expected} processes, "
            f"but {present} {'is' if present == 1 else 'are'} here: start the job with `aligner`, torchrun or Slurm, "
            "without RANK and WORLD_SIZE of another launcher"
        )
    with _first_import_of_torch():
        from aligner_lib.megatron import parallel

    parallel.initialize(
        config.model.tensor_model_parallel_size,
        config.model.pipeline_model_parallel_size,
        trainer.distributed_timeout_minutes + GRACE_MINUTES,
    )


def open_run(
    kind: str, config: DictConfig, profile: str | None, hashes: dict[str, str], max_steps: int = 0
) -> RunWriter:
    """Open the writer of a job's run folder. max_steps 0: the job has no fixed number of steps."""
    from aligner_lib.megatron.precision import computed_precision

    plain = save(config)
    return RunWriter(
        config.exp_manager.explicit_log_dir,
        kind=kind,
        config=plain,
        precision=computed_precision(plain["trainer"]["precision"]),
        profile=profile,
        seed=plain["model"]["seed"],
        hashes=hashes,
        max_steps=max_steps,
        alarms=kind_of(kind).alarms,
        limits=Thresholds(**config.exp_manager.alarms),
        warnings=_warnings(),
    )


@contextmanager
def explain_errors(kind: str, config: DictConfig) -> Iterator[None]:
    """Turn a failure with a known solution into a UserError with the solution."""
    # a server has no folder yet, and may be unable to make it
    had_folder = RunFolder(config.exp_manager.explicit_log_dir).path.exists()
    try:
        yield
    except Exception as error:
        if explained := _explanation(kind, config, error, had_folder):
            raise UserError(explained) from error
        raise


def _explanation(kind: str, config: DictConfig, error: Exception, had_folder: bool) -> str | None:
    """The message for a failure with a known solution; None for other failures. had_folder: whether the run folder existed."""
    from aligner_lib.megatron.engine import NonFiniteError

    folder = RunFolder(config.exp_manager.explicit_log_dir)
    if had_folder and isinstance(error, OSError) and not folder.path.exists():
        return (
            f"the run folder {folder.path} was moved or removed while the run wrote to it: to continue a moved run, start the "
            "same command with the folder's new place"
        )
    latest = folder.latest_checkpoint()
    if isinstance(error, NonFiniteError):
        # the critic's settings have no prefix in a separate job
        part = error.settings if "critic" in config else ""
        lr = OmegaConf.select(config, f"{part}model.optim.lr")
        kept = f"its last checkpoint, {latest.name}, is intact" if latest else "it has no checkpoint yet"
        own = {} if error.settings else OmegaConf.select(config, "functions") or {}
        may_be_nan = "".join(
            f". functions.{name} ({file}) is your own: its gradient may be NaN, as of sqrt or log at 0"
            for name, file in own.items()
        )
        return (
            f"{error}: the run ends here, and {kept}. Lower {part}model.optim.lr (set to {lr}) or gradient_clip_val in "
            f"{part}trainer, and look at the samples of this step{may_be_nan}"
        )
    if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error):
        action = (
            f"continues from {latest.name}" if latest else "begins anew, because there is no checkpoint yet"
        )
        # of a copy, filename2 is the target; the attributes can also be a descriptor
        names = (getattr(error, name, None) for name in ("filename2", "filename"))
        file = Path(next((name for name in names if isinstance(name, str)), folder.path)).absolute()
        place = folder.path if file.is_relative_to(folder.path.absolute()) else file.parent
        return f"the disk of {place} is full: free some space and start the same command again; it {action}"
    return None


class _FirstRank(logging.Filter):
    """Keeps only the first rank's records, because all ranks log the same messages."""

    def filter(self, record: logging.LogRecord) -> bool:
        return os.environ.get("RANK", "0") == "0"


class _StandardError(logging.StreamHandler):
    """Writes to the current sys.stderr, which tests and notebooks replace."""

    def __init__(self):
        logging.Handler.__init__(self)

    @property
    def stream(self):
        return sys.stderr


class _Warnings(logging.Handler):
    """Collects a job's warnings for run.json."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _warnings() -> list[str]:
    """The growing list of the job's warnings."""
    return next((handler.lines for handler in OURS.handlers if isinstance(handler, _Warnings)), [])


def choose_precision(kind: str, config: DictConfig) -> None:
    """Replace trainer.precision=auto by the precision of the models' computations, and log the choice.

    All ranks use the first rank's choice. A resumed run keeps its initial precision. The processes must have joined before.
    """
    chosen = [key for key in _precision_keys(kind, config) if OmegaConf.select(config, key) == "auto"]
    if not chosen:
        return
    from aligner_lib.megatron import parallel

    value, why = parallel.from_first_rank(_choice(config) if parallel.is_first_rank() else None)
    for key in chosen:
        OmegaConf.update(config, key, value)
    logger.info("%s: %s", ", ".join(f"{key}=auto" for key in chosen), why)


def _choice(config: DictConfig) -> tuple[str, str]:
    """The precision, and the reason in a sentence."""
    from aligner_lib.megatron.precision import computed_precision, has_bf16_units, probe

    names = {"bf16": "bf16", "32": "float32"}
    run = RunFolder(config.exp_manager.explicit_log_dir)
    begun = run.info.get("precision") if _goes_on(run, config) else None
    if begun is not None and computed_precision(begun) == begun:
        return begun, f"the models compute in {names[begun]}, in which this run began"
    value = computed_precision("auto")
    if begun is not None:
        logger.warning(
            "this run began in bf16, but continues in float32, because this machine has no units for bf16: its figures will "
            "differ from an uninterrupted run's"
        )
    if not has_bf16_units():
        return (
            value,
            "the models compute in float32, since neither a GPU nor a CPU with units for bf16 is here",
        )
    from aligner_lib.megatron import cpu

    if cpu.HAS_CUDA:
        return value, f"the models compute in {names[value]}, as there is a GPU for it"
    times = " and ".join(f"{1000 * seconds:.1f} ms in {names[key]}" for key, seconds in probe().items())
    return value, f"the models compute in {names[value]}: a matrix product and an attention take {times} here"


def _goes_on(run: RunFolder, config: DictConfig) -> bool:
    """Whether a job goes on with a run: from a checkpoint, or for a job without checkpoints with an attempt that was cut short."""
    resumes = OmegaConf.select(config, "exp_manager.resume_if_exists")
    if resumes is None:
        return run.status not in ("waiting", "finished")
    return resumes and run.latest_checkpoint() is not None


def log_notices(kind: str, config: DictConfig, profile: str | None) -> None:
    """Log notes on settings without effect in the job or on the device."""
    for notice in [*notices(kind, config, profile), *_device_notices(kind, config)]:
        logger.info("note: %s", notice)


def _device_notices(kind: str, config: DictConfig) -> list[str]:
    """Return a notice on unsupported precisions in the settings, including defaults; empty if all are supported."""
    from aligner_lib.megatron.precision import computed_precision

    differing = [
        f"{key}={value}"
        for key in _precision_keys(kind, config)
        if computed_precision(value := OmegaConf.select(config, key)) != value
    ]
    if not differing:
        return []
    return [
        f"{', '.join(differing)}: this machine has neither a GPU nor a CPU with units for bf16 (AMX, AVX512-BF16), so the "
        "models compute in float32, as with 32. The field precision of run.json has the precision that the models compute in."
    ]


def _precision_keys(kind: str, config: DictConfig) -> list[str]:
    """The precision settings with an effect in the job."""
    idle = without_effect(kind_of(kind), config)
    return [key for key in keys(kind) if key.endswith("trainer.precision") and key not in idle]


def configure_logging() -> None:
    """Send the library's log to the job's log, from the first rank only, and start to collect warnings."""
    handler = _StandardError()
    handler.addFilter(_FirstRank())
    handler.setFormatter(logging.Formatter("%(message)s"))
    for of_another_job in [
        handler for handler in OURS.handlers if isinstance(handler, _StandardError | _Warnings)
    ]:
        OURS.removeHandler(of_another_job)
    OURS.addHandler(handler)
    OURS.addHandler(_Warnings())
    OURS.setLevel(logging.INFO)
    OURS.propagate = False  # PyTriton adds a handler to the root logger
