"""Critics as processes of their own, and faults in them at exact moments."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path

import forks
import psutil
from settings_reads import record_reads
from smoke_jobs import UNEXPORTED, SmokeJobs, run_smoke_job

from aligner_lib.run_folder.reader import RunFolder
from cluster.rendezvous import free_port

# few steps; validations of which two data-parallel ranks have two and one micro batches
STEPS = {
    "trainer__ppo__max_steps": 5,
    "model__ppo__num_val_samples": 3,
    "model__ppo__val_rollout_micro_batch_size": 1,
}
# both halves are trained in the first step already
TWO_STEPS = STEPS | {"trainer__ppo__max_steps": 2, "trainer__ppo__critic_warmup_steps": 0}
Faults = dict[str, tuple[int, str]]  # values, rewards, train or save → (when, what happens), see _inject


@dataclass
class Critic:
    """A critic's job that is started, killed and started again in one run folder, on one port."""

    jobs: SmokeJobs
    name: str
    kind: str = "critic"
    port: int = field(default_factory=free_port)
    on_device: bool = False  # whether it computes on the simulated accelerator
    reads: Path | None = None  # where it writes which settings it read
    process: BaseProcess | None = None
    other_ranks: list[BaseProcess] = field(default_factory=list)

    @property
    def run(self) -> RunFolder:
        return self.jobs.run_folder(self.name)

    @property
    def log(self) -> str:
        return self.jobs.log(self.name).read_text()

    def settings(self, **more: object) -> list[str]:
        own = {
            "critic": {
                "pretrained_checkpoint.restore_from_path": f"'{self.jobs.reward_model}'",
                "trainer.ppo.port": self.port,
                "model.micro_batch_size": 4,
            },
            "reward_server": {
                "rm_model_file": f"'{self.jobs.reward_model}'",
                "inference.port": self.port,
                "trainer.precision": 32,
            },
        }[self.kind]
        own |= UNEXPORTED | {"exp_manager.explicit_log_dir": f"'{self.run.path}'"}
        own |= {key.replace("__", "."): value for key, value in more.items()}
        return [f"{key}={value}" for key, value in own.items()]

    def start(self, faults: Faults | None = None, ranks: int = 1, **more: object) -> Critic:
        """Begin to start it, as so many ranks of one layout; the actor waits for it. The faults happen to the last rank."""
        forks.skip_without_pytriton()
        layout = {"trainer__devices": ranks} if ranks > 1 else {}
        job = (serve, self.kind, self.settings(**layout, **more))
        job = (record_reads, *job, self.reads) if self.reads else job
        job += faults or {}, self.on_device
        if ranks == 1:
            self.process = forks.start(*job, log=self.jobs.log(self.name))
        else:
            folder = self.jobs.logs(self.name)
            self.process, *self.other_ranks = forks.start_ranks(ranks, *job, folder=folder)
        return self

    def until_it_serves(self) -> Critic:
        """Wait until the server of this start, not of an earlier one, has announced itself."""
        announcement = self.run.path / "job" / f"{SERVICES[self.kind]}.json"
        status, started = self.run.path / "status.json", psutil.Process(self.process.pid).create_time()

        def serves() -> bool:
            return announcement.exists() and status.exists() and status.stat().st_mtime > started

        forks.until(lambda: self.process.exitcode is not None or serves(), f"{self.name} to serve")
        assert self.process.exitcode is None, self.log
        return self

    def until_it_ended(self) -> Critic:
        forks.until(lambda: self.process.exitcode is not None, f"the end of {self.name}")
        return self

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def listening(self) -> set[tuple[str, int]]:
        """Where PyTriton's processes listen; torch's own process group listens, too, on loopback in the parent."""
        return {
            (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
            for child in self.children()
            for connection in child.net_connections(kind="inet")
            if connection.status == psutil.CONN_LISTEN
        }


SERVICES = {"critic": "critic", "reward_server": "reward_model"}


def serve(kind: str, settings: list[str], faults: Faults, on_device: bool = False) -> None:
    forks.skip_without_pytriton()
    from aligner_lib.config.compose import compose
    from aligner_lib.jobs.serve_critic import serve_job

    if int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1:
        for work, (at, what) in faults.items():
            _inject(work, at, FAULTS[what])
    with _simulated_accelerator() if on_device else contextlib.nullcontext():
        serve_job(kind, compose(kind, settings, profile="smoke"), "smoke")


def start_actor(jobs: SmokeJobs, run: str, critic: Critic, **more: object) -> BaseProcess:
    return forks.start(run_smoke_job, "ppo", actor_settings(jobs, run, critic, **more), log=jobs.log(run))


def run_actor(jobs: SmokeJobs, run: str, critic: Critic, ranks: int = 1, **more: object) -> None:
    """The whole run, as so many ranks."""
    settings = actor_settings(jobs, run, critic, trainer__devices=ranks, **more)
    if ranks == 1:
        forks.run(run_smoke_job, "ppo", settings, log=jobs.log(run))
    else:
        forks.run_ranks(ranks, run_smoke_job, "ppo", settings, folder=jobs.logs(run))


def actor_settings(jobs: SmokeJobs, run: str, critic: Critic, **more: object) -> list[str]:
    forks.skip_without_pytriton()
    remote = {
        "remote_critic_rm__critic__ip": "127.0.0.1",
        "remote_critic_rm__critic__port": critic.port,
        "critic__pretrained_checkpoint__restore_from_path": "null",
    }
    return jobs.settings("ppo", run, **(remote | more))


def _simulated_accelerator():
    from simulated_accelerator import simulated_accelerator  # importing it gives torch another device

    return simulated_accelerator()


# ---- faults, in the critic's process --------------------------------------------------------------------------------


def _inject(work: str, at: int, fault: Callable[[object], object]) -> None:
    """When a command of this kind was executed, before it is answered, the fault happens, once.

    at: of commands for values or rewards so many since the critic's start; of the others the one of this train step.
    """
    from aligner_lib.remote_critic import worker

    command = getattr(worker, work.capitalize())
    execute, done, faults = command.execute, iter(range(1, 1 << 30)), [fault]

    def execute_and_fail(self, worker):
        result = execute(self, worker)
        if work == "train":
            number = self.number
        elif work == "save":
            number = int(self.folder.name.rpartition("_")[2])
        else:
            number = next(done)
        return faults.pop()(result) if number == at and faults else result

    command.execute = execute_and_fail


def _kill(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop(result: object) -> object:
    os.kill(os.getpid(), signal.SIGSTOP)
    return result  # when it is let go on


def child_of(pid: int, name: str) -> psutil.Process | None:
    """A server's child process, by a part of its command line."""
    for child in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it ended while we looked
            if name in " ".join(child.cmdline()):
                return child
    return None


def _kill_tritonserver(result: object) -> object:
    child_of(os.getpid(), "bin/tritonserver").kill()
    return result


def _stop_tritonserver(result: object) -> object:
    child_of(os.getpid(), "bin/tritonserver").suspend()
    return result


def _error(_: object) -> None:
    raise KeyError("a fault in the critic's code")


FAULTS = {
    "kill": _kill,
    "stop": _stop,
    "stopped tritonserver": _stop_tritonserver,
    "tritonserver": _kill_tritonserver,
    "error": _error,
}
