"""`run_job("sft", config)`: runs a job for `aligner sft`, for a notebook and for every cluster launch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.runtime import (
    choose_precision,
    configure_logging,
    explain_errors,
    join_processes,
    log_notices,
    open_run,
)
from aligner_lib.run_folder.alarms import NO_REWARD
from aligner_lib.run_folder.exporters.process import Exporters
from aligner_lib.run_folder.exporters.services import requested
from aligner_lib.run_folder.ranking import Ranking
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.writer import RunWriter

if TYPE_CHECKING:
    from aligner_lib.kinds.prepared_job import PreparedJob

logger = logging.getLogger(__name__)

EVALUATED = "evaluated"  # the message of a finished evaluation


def run_job(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Run a training job to its end. The current process is a rank of the job.

    kind: a name of `aligner_lib.config.kinds`. The run folder is exp_manager.explicit_log_dir. Raises UserError for errors that
    the user can fix.
    """
    job = prepare_job(kind, config, profile)
    from aligner_lib.trainers.loop import TrainingLoop, interrupting_signals

    settings = _loop_settings(config.exp_manager, job.loop, job.max_steps)
    check_ranking(kind, config, settings.save_best)
    with (
        interrupting_signals("loading"),  # until the loop handles the signals
        closing(job),
        opened_run(kind, config, profile, job, resume=settings.resume) as run,
    ):
        status = TrainingLoop(job.build(run), settings, run).run_to_end()
    logger.info("%s: %s", status, config.exp_manager.explicit_log_dir)
    return RunFolder(config.exp_manager.explicit_log_dir)


def run_evaluation(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Run an evaluation, as `run_job` does for training. The metrics are logged once, at step 0.

    Several policies (evaluation.policies) are evaluated one after another, each into a run folder inside the job's. A job that
    was interrupted goes on with the policies that are not evaluated yet.
    """
    job = prepare_job(kind, config, profile)
    from aligner_lib.trainers.loop import interrupting_signals

    evaluate = _evaluate_all if job.parts else _evaluate
    with interrupting_signals("evaluating"):
        evaluate(kind, config, profile, job)
    return RunFolder(config.exp_manager.explicit_log_dir)


def _evaluate_all(kind: str, config: DictConfig, profile: str | None, job: PreparedJob) -> None:
    """Evaluate several policies, until a stop is requested."""
    from aligner_lib.megatron import parallel

    goes_on = RunFolder(config.exp_manager.explicit_log_dir).status not in ("waiting", "finished")
    with closing(job), opened_run(kind, config, profile, job, resume=False) as run:
        status, evaluated = "finished", []
        for name, part in job.parts.items():
            if parallel.from_first_rank(run is not None and run.stop_requested):
                status = "stopped"
                break
            prepared = part.prepare()
            if parallel.from_first_rank(goes_on and _is_evaluated(part.config, prepared)):
                prepared.close()
            else:
                _evaluate(kind, part.config, profile, prepared)
            evaluated.append(name)
        if run is not None:
            run.finish(status, f"evaluated {', '.join(evaluated) or 'nothing'}")


def _is_evaluated(config: DictConfig, job: PreparedJob) -> bool:
    """Whether the run folder has a finished evaluation with rewards, and with the same settings, models and data."""
    from aligner_lib.config.compose import save

    run = RunFolder(config.exp_manager.explicit_log_dir)
    same = (run.info.get("config"), run.info.get("hashes")) == (save(config), _hashes(config, job))
    return run.status == "finished" and run.info["message"] == EVALUATED and same


def _hashes(config: DictConfig, job: PreparedJob) -> dict[str, str]:
    from aligner_lib.config.function_hashes import hashes_of_functions

    return job.hashes | hashes_of_functions(config)


def _evaluate(kind: str, config: DictConfig, profile: str | None, job: PreparedJob) -> None:
    with closing(job), opened_run(kind, config, profile, job, resume=False) as run:
        evaluation, started = job.build(run), time.perf_counter()
        figures = evaluation.figures() | {"timers/validation_time": time.perf_counter() - started}
        if run is not None:
            run.log(0, figures)
            nothing = figures.get("evaluation/rewards_failed") == 1
            run.finish("finished", f"{EVALUATED}, but {NO_REWARD}" if nothing else EVALUATED)
    logger.info("finished: %s", config.exp_manager.explicit_log_dir)


def prepare_job(kind: str, config: DictConfig, profile: str | None) -> PreparedJob:
    """Prepare the job and read its data. First, this process joins the other ranks."""
    if not config.exp_manager.explicit_log_dir:
        raise UserError("there is no run folder: set exp_manager.explicit_log_dir=… (or --run DIR)")
    configure_logging()
    join_processes(config)
    choose_precision(kind, config)
    log_notices(kind, config, profile)
    return load(kind_of(kind).build)(config)


@contextmanager
def opened_run(
    kind: str, config: DictConfig, profile: str | None, job: PreparedJob, resume: bool
) -> Iterator[RunWriter | None]:
    """Open the run folder's writer at the latest checkpoint. Yields None on all ranks except the first."""
    from aligner_lib.megatron import parallel

    first, hashes = parallel.is_first_rank(), _hashes(config, job)
    with (
        # closed last, because exporters also receive the run's final status
        closing(Exporters()) as exporters,
        open_run(kind, config, profile, hashes, job.max_steps) if first else nullcontext() as run,
        explain_errors(kind, config),
    ):
        if run is not None:
            latest = run.folder.latest_checkpoint() if resume else None
            begin = run.start if latest is None else run.start_loading
            begin(step_of(latest))
            names = [] if job.parts else requested(config.exp_manager)
            # exporters read their destination and the run's settings from run.json
            run.after_loading(lambda: exporters.start(run.path, names))
        yield run


def check_ranking(kind: str, config: DictConfig, ranking: Ranking | None) -> None:
    """Raise UserError, before models are loaded, if the kind declares metrics of validations, but not the metric that ranks
    checkpoints. A user's trainer may have further metrics, and a user's kind may declare none: the first validation shows them."""
    if ranking is not None and "trainer" not in (config.get("functions") or {}):
        names = [name for group in kind_of(kind).metrics for metric in group.metrics for name in metric.names]
        if of_validation := [name for name in names if name.startswith("val")]:
            ranking.check(of_validation)


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
        stop_after=exp_manager.stop_after,
        save_best=Ranking.of(exp_manager.checkpoint_callback_params),
    )
