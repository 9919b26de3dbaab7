"""PPO as two jobs compared with a single process, and the round trips between the jobs.

The command line runs both layouts with a profile's settings (`laptop` for SmolLM2, else `smoke`), one after the other. The
first step does not count. A round trip is the time of a request of the size that a step sends, minus the critic's own seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from aligner_lib.config.compose import compose
from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.kinds.ppo.settings import critic_epochs
from aligner_lib.remote_critic import serialization
from aligner_lib.remote_critic.connection import Endpoint, ServerConnection
from aligner_lib.rollouts.records import CriticExperience
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.workspace.usual_resources import critic_and_actor_here
from aligner_lib.tutorial.workspace.workspace import Workspace
from benchmarks.measure import RemoteCriticBench
from benchmarks.setting import Setting
from cluster import submit
from cluster.rendezvous import free_port

CALLS = 20  # round trips of each kind
UP_S = 300.0  # time limit for a server's first answer


def measure(setting: Setting, say: Callable[[str], None] = print) -> RemoteCriticBench:
    profile = "laptop" if setting.model == "smollm2-135m" else "smoke"
    lab = Workspace(setting.folder / "remote", profile)
    precision = {f"{job}trainer.precision": setting.precision for job in ("", "critic.")}
    steps = {"trainer.ppo.max_steps": setting.steps + 1, "trainer.ppo.val_check_interval": setting.steps + 1}
    times = {}
    for critic_placement in ("in-process", "remote"):
        lab.submit_ppo(critic_placement, critic_placement, **steps, **precision).wait()
        run = lab.run(critic_placement)
        times[critic_placement] = _of_steps(run, "timers/step_time")
        say(
            f"PPO, {critic_placement}: {', '.join(f'{seconds:.2f}' for seconds in times[critic_placement])} s a step"
        )
    config = compose("ppo", profile=profile)
    trips = _round_trips(lab, config, precision)
    say(f"round trips: {CALLS} of each kind")
    return RemoteCriticBench(
        in_process=times["in-process"],
        remote_critic=times["remote"],
        waits=[
            sum(waits)
            for waits in zip(
                _of_steps(lab.run("remote"), "timers/critic_wait"),
                _of_steps(lab.run("remote"), "timers/critic_train_wait"),
            )
        ],
        round_trips=trips,
        calls=calls_of(config),
    )


def calls_of(config) -> dict[str, int]:
    """A step's calls of each endpoint."""
    rollout = config.model.ppo
    micro_batches = -(-rollout.num_rollout_samples // rollout.rollout_micro_batch_size)
    global_batches = rollout.num_rollout_samples // config.model.global_batch_size
    return {
        "values": micro_batches,
        "rewards": micro_batches,
        "train": global_batches * critic_epochs(config),
    }


def _of_steps(run: RunFolder, metric: str) -> list[float]:
    """The metric of each step, without step 0, which is a validation, and step 1, in which libraries set themselves up."""
    assert run.status == "finished", f"{run.path}: {run.status}, {run.info.get('message')}"
    return [record[metric] for record in run.metrics() if record["step"] > 1]


def _round_trips(lab: Workspace, config, precision: dict[str, str]) -> dict[str, list[float]]:
    critic = lab.critic_of("round-trips")
    settings = {"critic.trainer.ppo.port": free_port()} | precision
    commands = lab.commands("ppo", "round-trips", critic_and_actor_here(settings), **settings)
    job = submit(commands["critic"], critic.path)
    link = ServerConnection(Endpoint("critic", None, 0, str(critic.path)), "bench#1")
    try:
        _connect(link)
        request = {"kind": "begin", "actor": link.actor, "actor_run": str(lab.out / "bench")}
        link.ask("checkpoint", serialization.text(request, "request"))
        length, ppo = config.model.encoder_seq_length, config.model.ppo
        rollouts = serialization.pack_tokens(
            _tokens(ppo.rollout_micro_batch_size, length), serialization.padded_length(length)
        )
        batch = serialization.pack_experience(_experience(config.model.global_batch_size, length))
        calls = {
            "status": lambda number: link.call("status", serialization.text({}, "request")),
            "values": lambda number: link.call("values", rollouts, updates=0),
            "rewards": lambda number: link.call("rewards", rollouts),
            "train": lambda number: link.call("train", batch, number=number + 1, lr=(0.0).hex()),
        }
        return {name: [_trip(link, call, number) for number in range(CALLS)] for name, call in calls.items()}
    finally:
        link.close("measured")
        critic.request_stop()
        job.wait()


def _connect(link: ServerConnection) -> None:
    until = time.monotonic() + UP_S
    while link.lost:
        try:
            link.connect()
        except ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def _trip(link: ServerConnection, call: Callable, number: int) -> float:
    before = _busy(link)
    started = time.perf_counter()
    link.wait_for(call(number))
    seconds = time.perf_counter() - started
    return seconds - (_busy(link) - before)


def _busy(link: ServerConnection) -> float:
    """Seconds that the critic's ranks have worked so far."""
    return serialization.value_of(link.wait_for(link.call("status", serialization.text({}, "request"))))[
        "counts"
    ]["busy_s"]


def _tokens(size: int, length: int) -> TokenBatch:
    return TokenBatch(tokens=torch.full((size, length), 5), lengths=torch.full((size,), length))


def _experience(size: int, length: int) -> CriticExperience:
    numbers = torch.ones(size, length - 1)
    return CriticExperience(
        **vars(_tokens(size, length)),
        response_mask=numbers.bool(),
        values=numbers,
        returns=numbers,
    )
