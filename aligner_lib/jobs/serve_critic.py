"""`aligner serve-critic` and `aligner serve-rm`: run a server from its settings until the server ends."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
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
from aligner_lib.remote_critic import discovery, pytriton_cleanup, serialization
from aligner_lib.remote_critic.errors import NotReady
from aligner_lib.remote_critic.pytriton_client import check_installed
from aligner_lib.remote_critic.pytriton_server import (
    EndpointHandler,
    PyTritonServer,
    check_numpy,
    check_port,
)
from aligner_lib.remote_critic.session import ActorSession, ServiceEnd
from aligner_lib.run_folder.exporters.process import Exporters
from aligner_lib.run_folder.exporters.services import requested
from aligner_lib.run_folder.reader import RunFolder, step_of
from aligner_lib.run_folder.writer import RunWriter
from cluster.record import write_json
from cluster.rendezvous import free_port

if TYPE_CHECKING:
    from aligner_lib.kinds.serving import Serving

logger = logging.getLogger(__name__)

# A scheduler signals a job's processes one after another, so tritonserver may end before this process receives its signal.
SIGNAL_S = 0.5


def serve_job(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Serve (`critic` or `reward_server`) until the actor has finished. This process is a rank; the first rank listens."""
    settings = config.inference if "inference" in config else config.trainer.ppo
    host = discovery.listening_address(settings.address)
    configure_logging()
    check_installed()
    check_numpy()
    folder = RunFolder(config.exp_manager.explicit_log_dir)
    if int(os.environ.get("RANK", 0)) == 0 and folder.status != "running":
        pytriton_cleanup.clear(folder.path)
        check_port(host, settings.port)  # raises an error before anything is loaded
    join_processes(config)
    from aligner_lib.megatron import parallel
    from aligner_lib.remote_critic.command_loop import clear_notes, serve
    from aligner_lib.remote_critic.request_queue import RequestQueue
    from aligner_lib.trainers.loop import interrupting_signals, stop_signals

    choose_precision(kind, config)
    log_notices(kind, config, profile)
    job_folder = folder.path / "job"
    prepared, ended = load(kind_of(kind).build)(config), None
    with ExitStack() as stack:
        stack.enter_context(interrupting_signals("loading"))
        stack.enter_context(explain_errors(kind, config))
        latest = parallel.from_first_rank(folder.latest_checkpoint() if prepared.is_trained else None)
        if not parallel.is_first_rank():
            worker = _worker(prepared, latest)
            with stop_signals():  # the first rank decides when the service ends
                serve(worker, None, None, job_folder)
            return folder
        exporters = stack.enter_context(closing(Exporters()))
        run = stack.enter_context(open_run(kind, config, profile, prepared.hashes))
        # within the run, whose message then has the solution
        stack.enter_context(explain_errors(kind, config))
        begin = run.start if latest is None else run.start_loading
        begin(step_of(latest))
        worker = _worker(prepared, latest)
        if latest is not None:
            run.rewind(step_of(latest))
        # only now has run.json this attempt's settings
        exporters.start(run.path, requested(config.exp_manager))
        about = prepared.about | {"run": str(folder.path.absolute())}
        session = ActorSession(settings.actor_timeout)
        request_queue = RequestQueue(
            _checkpoints(prepared, run, config), session, prepared.vocab_size, about, parallel.dp_size()
        )
        # Handle signals until the server's processes have ended. A scheduler sends SIGTERM twice. If the second signal ended
        # this process during the cleanup, tritonserver's stubs would wait forever.
        signalled = stack.enter_context(stop_signals())
        port = settings.port or free_port(host)
        listening = _listen(prepared.service, request_queue, host, port, folder)
        stack.callback(listening.stop)
        # before the port is free for a successor, which publishes its own address
        stack.callback(discovery.withdraw, run.path, prepared.service, host, port)
        stack.callback(request_queue.close, NotReady("it has ended"))
        clear_notes(job_folder)
        session.open()
        logger.info(f"{kind} serves at {host}:{port}, {folder.path}")
        ended = serve(
            worker, request_queue, _watch(run, request_queue, listening, signalled.is_set), job_folder
        )
        write_json(run.path / "status.json", request_queue.status() | {"doing": ended.status})
        run.finish(ended.status, ended.message)
    logger.info(f"{ended.status}: {ended.message}")
    if ended.status == "failed":
        raise UserError(ended.message)
    return folder


def _worker(prepared: Serving, latest: Path | None):
    worker = prepared.make()
    if latest is not None:
        worker.critic.load(latest)
    return worker


def _checkpoints(prepared: Serving, run: RunWriter, config: DictConfig):
    from aligner_lib.remote_critic.checkpoints import CriticCheckpoints

    if not prepared.is_trained:
        return None
    return CriticCheckpoints(run, keep=max(config.exp_manager.checkpoint_callback_params.save_top_k, 1))


def _listen(service: str, request_queue, host: str, port: int, folder: RunFolder) -> PyTritonServer:
    """Start the server and publish its address."""
    names = [*request_queue.about["gives"], "status", "checkpoint"]
    if request_queue.checkpoints is not None:
        names.append("train")
    endpoints = [
        EndpointHandler(name, serialization.SIGNATURES[name], getattr(request_queue, f"answer_{name}"))
        for name in names
    ]
    token = discovery.new_token(folder.path)
    listening = PyTritonServer(host, port, token, folder.path, endpoints)
    try:
        listening.start()
        discovery.publish(folder.path, service, host, port, token)
    except BaseException:
        listening.stop()
        raise
    return listening


def _watch(
    run: RunWriter, request_queue, listening, signalled: Callable[[], bool]
) -> Callable[[], ServiceEnd | None]:
    """Return a function for the time between two commands: writes the status into the run folder, and checks for an end."""
    written = 0.0

    def is_stopped() -> bool:
        return run.stop_requested or signalled()

    def is_over() -> ServiceEnd | None:
        nonlocal written
        if time.monotonic() - written > 1.0:
            written = time.monotonic()
            write_json(run.path / "status.json", request_queue.status())
        if (problem := listening.problem()) and not is_stopped():
            time.sleep(SIGNAL_S)
        if is_stopped():
            return ServiceEnd("stopped", f"stopped after {request_queue.updates} train steps, on request")
        if problem:
            return ServiceEnd("failed", f"{problem}: start the same command again, and the actor continues")
        return request_queue.session.should_exit()

    return is_over
