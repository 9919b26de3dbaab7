"""`run_job("sft", config)`: what `aligner sft`, a notebook's job and every cluster launch come to."""

from __future__ import annotations

import logging
from contextlib import nullcontext

from omegaconf import DictConfig

from aligner_lib.config.compose import notices
from aligner_lib.errors import UserError
from aligner_lib.jobs.runtime import configure_logging, explain_errors, join_processes, open_run
from aligner_lib.run_folder.reader import RunFolder, step_of

logger = logging.getLogger(__name__)


def run_job(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Run a job (`sft`, `rm`, `ppo` or `evaluate`) to its end in this process, which is one rank of the layout.

    The run folder is exp_manager.explicit_log_dir. Raises UserError for what the user can put right.
    """
    if not config.exp_manager.explicit_log_dir:
        raise UserError("there is no run folder: set exp_manager.explicit_log_dir=… (or --run DIR)")
    configure_logging()
    join_processes(config)
    from aligner_lib.jobs.build_trainers import prepare_job
    from aligner_lib.megatron import parallel
    from aligner_lib.trainers.loop import run_loop

    first = parallel.is_first_rank()
    for notice in notices(config):
        logger.info("note: %s", notice)
    job = prepare_job(kind, config)
    settings = _loop_settings(config.exp_manager, job.loop, job.max_steps)
    folder = RunFolder(config.exp_manager.explicit_log_dir)
    with (
        open_run(kind, config, profile, job.hashes, job.max_steps) if first else nullcontext() as run,
        explain_errors(kind, config),
    ):
        if run is not None:
            latest = folder.latest_checkpoint() if settings.resume else None
            run.start(step_of(latest), tensorboard=config.exp_manager.create_tensorboard_logger)
        status = run_loop(job.make(run), settings, run)
    logger.info("%s: %s", status, folder.path)
    return folder


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
