"""`run_job("sft", config)`: what `aligner sft`, a notebook's job and every cluster launch come to."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext

from omegaconf import DictConfig, OmegaConf

from aligner_lib.config.compose import notices, save
from aligner_lib.errors import UserError
from aligner_lib.run_folder.alarms import Thresholds
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.writer import RunWriter


def run_job(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Run a job (`sft`, `rm`, `ppo` or `evaluate`) to its end in this process, which is one rank of the layout.

    The run folder is exp_manager.explicit_log_dir. Raises UserError for what the user can put right.
    """
    if not config.exp_manager.explicit_log_dir:
        raise UserError("there is no run folder: set exp_manager.explicit_log_dir=… (or --run DIR)")
    join_processes(config)
    from aligner_lib.assemble import assemble
    from aligner_lib.megatron import parallel
    from aligner_lib.trainers.loop import run_loop

    first = parallel.is_first_rank()
    say = say_on_first()
    for notice in notices(config):
        say(f"note: {notice}")
    job = assemble(kind, config, say)
    settings = _loop_settings(config.exp_manager, job.loop, job.max_steps)
    folder = RunFolder(config.exp_manager.explicit_log_dir)
    with (
        open_run(kind, config, profile, job.hashes, job.max_steps) if first else nullcontext() as run,
        Explained(kind, config),
    ):
        if run is not None:
            latest = folder.latest_checkpoint() if settings.resume else None
            run.start(step_of(latest), tensorboard=config.exp_manager.create_tensorboard_logger)
        status = run_loop(job.make(run), settings, run)
    say(f"{status}: {folder.path}")
    return folder


def join_processes(config: DictConfig) -> None:
    trainer = config.trainer
    expected, present = trainer.num_nodes * trainer.devices, int(os.environ.get("WORLD_SIZE", 1))
    if present != expected:
        raise UserError(
            f"trainer.num_nodes={trainer.num_nodes} × trainer.devices={trainer.devices} asks for {expected} processes, "
            f"and {present} {'is' if present == 1 else 'are'} here: start the job with `aligner`, torchrun or Slurm"
        )
    from aligner_lib.megatron import parallel

    parallel.initialize(config.model.tensor_model_parallel_size, config.model.pipeline_model_parallel_size)


def open_run(
    kind: str, config: DictConfig, profile: str | None, hashes: dict[str, str], max_steps: int = 0
) -> RunWriter:
    """The writer of a job's run folder; max_steps 0: as long as it is wanted."""
    return RunWriter(
        config.exp_manager.explicit_log_dir,
        kind=kind,
        config=save(config),
        profile=profile,
        seed=config.model.seed,
        hashes=hashes,
        max_steps=max_steps,
        limits=Thresholds(**config.exp_manager.alarms),
    )


def _loop_settings(exp_manager: DictConfig, loop: DictConfig, max_steps: int):
    from aligner_lib.trainers.loop import LoopSettings

    return LoopSettings(
        max_steps=max_steps,
        val_check_interval=loop.val_check_interval,
        save_interval=loop.save_interval,
        keep_checkpoints=max(exp_manager.checkpoint_callback_params.save_top_k, 1),
        save_checkpoints=exp_manager.create_checkpoint_callback,
        resume=exp_manager.resume_if_exists,
        must_resume=exp_manager.resume_if_exists and not exp_manager.resume_ignore_no_checkpoint,
    )


class Explained:
    """A context that turns failures which a user can mend into sentences that say how."""

    def __init__(self, kind: str, config: DictConfig):
        self.kind, self.config = kind, config

    def __enter__(self):
        return self

    def __exit__(self, _, error, __) -> None:
        from aligner_lib.megatron.engine import NonFiniteError

        folder = RunFolder(self.config.exp_manager.explicit_log_dir)
        latest = folder.latest_checkpoint()
        if isinstance(error, NonFiniteError):
            part = error.settings if self.kind == "ppo" else ""  # in a job of its own the critic is no part
            lr = OmegaConf.select(self.config, f"{part}model.optim.lr")
            kept = f"its last checkpoint, {latest.name}, is whole" if latest else "it has no checkpoint yet"
            raise UserError(
                f"{error}: the run ends here, and {kept}. Lower {part}model.optim.lr (set to {lr}) or gradient_clip_val in "
                f"{part}trainer, and look at the samples of this step"
            ) from error
        if (isinstance(error, OSError) and error.errno == errno.ENOSPC) or "No space left" in str(error):
            goes_on = (
                f"goes on from {latest.name}" if latest else "begins anew, for there is no checkpoint yet"
            )
            raise UserError(
                f"the disk of {folder.path} is full: free some space and start the same command again, it {goes_on}"
            ) from error


def say_on_first() -> Callable[[str], None]:
    """Prints a line to the job's log, on the first rank only."""
    from aligner_lib.megatron import parallel

    first = parallel.is_first_rank()
    return lambda line: print(line, file=sys.stderr, flush=True) if first else None
