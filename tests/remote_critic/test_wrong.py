"""What is wrong is said in one sentence that names value, place and cure; the actor prints the critic's reason once."""

import errno
import os
import socket
import sys
from unittest.mock import Mock

import forks
import pytest
from forks import until
from servers import Critic, actor_settings, serve
from smoke_jobs import run_smoke_job

from aligner_lib.config.compose import compose, notices
from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.jobs import serve_critic
from aligner_lib.kinds.ppo import build as ppo_build
from aligner_lib.remote_critic import pytriton_server
from cluster.rendezvous import free_port

pytestmark = [pytest.mark.remote_critic, pytest.mark.usefixtures("here")]


TP2 = {"model__tensor_model_parallel_size": 2}


@pytest.fixture
def refused(jobs, here):
    """refused(run, port, message, **settings): an actor of a critic at that port is refused with this message."""

    def run(name: str, port: int, message: str, **settings: object) -> None:
        with pytest.raises(UserError, match=message):
            run_smoke_job("ppo", actor_settings(jobs, name, Critic(jobs, "nobody", port=port), **settings))

    return run


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("127.0.0.1", r"is not listening \(connection refused\)"),
        ("no-such-host.invalid", r"has an unknown host name"),
    ],
)
def test_a_critic_that_is_not_there_is_waited_for_and_then_told(jobs, refused, host, reason, capfd):
    port = free_port()
    message = rf"the critic at {host}:{port} {reason}.*, and 3 s are over .*serve-critic"
    refused("absent", port, message, remote_critic_rm__timeout=3, remote_critic_rm__critic__ip=host)
    assert jobs.run_folder("absent").status == "failed"
    assert "waiting," in capfd.readouterr().err


def test_another_program_at_the_port_is_told(refused):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        message = rf"the critic at 127.0.0.1:{port} listens, but has not published its token"
        refused("other", port, message, remote_critic_rm__timeout=1)


def test_a_port_that_is_taken_is_told(jobs, monkeypatch):
    monkeypatch.setattr("aligner_lib.remote_critic.pytriton_server.PORT_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        critic = Critic(jobs, "taken", port=taken.getsockname()[1])
        message = rf"port {critic.port} of 127.0.0.1 can't be used \(Address already in use\)"
        with pytest.raises(UserError, match=message):
            serve("critic", critic.settings(), {})
    assert not critic.run.path.exists()


def test_an_address_of_another_machine_is_told(jobs):
    """And one of every network is refused."""
    critic = Critic(jobs, "foreign")
    messages = {"192.0.2.1": rf"port {critic.port} of 192.0.2.1 can't be used"}
    messages |= dict.fromkeys(("0.0.0.0", "::", "0"), "would open the server to every network")
    for address, message in messages.items():
        with pytest.raises(UserError, match=message):
            serve("critic", critic.settings(trainer__ppo__address=f"'{address}'"), {})


def test_a_failed_critic_s_run_names_the_cure(jobs, monkeypatch):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(serve_critic, "_listen", full)
    critic = Critic(jobs, "full_disk")
    with pytest.raises(UserError, match=r"the disk of .* is full: free some space"):
        serve("critic", critic.settings(), {})
    assert critic.run.status == "failed" and "free some space" in critic.run.info["message"]


def test_a_server_whose_address_cannot_be_published_is_stopped(tmp_path, monkeypatch):
    request_queue = Mock(about={"gives": ()}, checkpoints=None)
    monkeypatch.setattr(serve_critic, "PyTritonServer", server := Mock())
    monkeypatch.setattr(serve_critic.discovery, "publish", Mock(side_effect=PermissionError))
    with pytest.raises(PermissionError):
        serve_critic._listen("critic", request_queue, "127.0.0.1", 5567, Mock(path=tmp_path))
    server.return_value.stop.assert_called_once_with()


@pytest.mark.parametrize(
    "signals, status", [((True, True), "stopped"), ((False, True), "stopped"), ((False, False), "failed")]
)
def test_a_cancelled_critic_whose_server_ended_first_is_stopped(tmp_path, monkeypatch, signals, status):
    """A server that died without a signal to the critic is a failure."""
    monkeypatch.setattr(serve_critic, "SIGNAL_S", 0.0)
    run, request_queue = Mock(path=tmp_path, stop_requested=False), Mock(updates=2, status=dict)
    server = Mock(problem=lambda: "a process of PyTriton's server ended (pid 7)")
    end = serve_critic._watch(run, request_queue, server, Mock(side_effect=signals))()
    assert end.status == status


def test_programs_that_judge_need_no_server_of_a_reward_model(monkeypatch):
    given = ["remote_critic_rm.critic.ip=127.0.0.1", "model.ppo.combine_rm_and_critic_server=False"]
    config = compose("ppo", [*given, "model.environments.sums.weight=1"], profile="smoke")
    words = "model.ppo.combine_rm_and_critic_server=False: the environments' programs judge"
    assert any(notice.startswith(words) for notice in notices("ppo", config, "smoke"))
    monkeypatch.setattr(ppo_build, "server_connections", connect := Mock(side_effect=UserError("connected")))
    with pytest.raises(UserError, match="connected"):
        ppo_build._reward_source_and_critic(config, None, None, None)
    assert [*connect.call_args.args[1].values()] == [{"values"}]
    with pytest.raises(ConfigError, match=r"set remote_critic_rm\.reward_model\.ip"):
        compose("ppo", given, profile="smoke")


def test_a_run_without_checkpoints_is_refused():
    settings = ["remote_critic_rm.critic.ip=127.0.0.1", "exp_manager.create_checkpoint_callback=False"]
    with pytest.raises(
        ConfigError, match=r"create_checkpoint_callback=False: .* set create_checkpoint_callback=True"
    ):
        compose("ppo", settings, profile="smoke")
    compose("ppo", settings[1:], profile="smoke")


@pytest.mark.parametrize(
    ("kind", "key"),
    [("critic", "pretrained_checkpoint.restore_from_path"), ("reward_server", "rm_model_file")],
)
def test_a_server_says_which_tokenizer_its_model_has_and_a_language_model_is_not_served(jobs, kind, key):
    critic = Critic(jobs, f"headless_{kind}", kind)
    about = load(kind_of(kind).build)(compose(kind, critic.settings(), profile="smoke")).about
    assert about["tokenizer"] == Tokenizer(jobs.model).hash
    assert about["model"].startswith(str(jobs.reward_model))
    with pytest.raises(UserError, match=rf"^{key}=.* is a language model \(.*\), without a reward head"):
        serve(kind, critic.settings(**{key: f"'{jobs.model}'"}), {})
    assert not critic.run.path.exists()


def test_numpy_2_is_told(monkeypatch):
    monkeypatch.setattr(pytriton_server.np, "__version__", "2.1.0")
    with pytest.raises(UserError, match=r"numpy 2\.1\.0 is installed.*'numpy>=1\.26,<2'"):
        pytriton_server.check_numpy()


def command_that_asks_an_ended_critic(words: list[str]) -> None:
    """`aligner …`, as its user sees it: without the traceback that the tests' processes add. Values after a train step are
    requested from the critic only when it is gone."""
    from aligner_lib.cli.main import main
    from aligner_lib.remote_critic.client import RemoteCritic

    request_values = RemoteCritic.values

    def values(self, rollouts):
        if self.updates:
            until(lambda: self.critic.lost, "the critic's end")
        return request_values(self, rollouts)

    RemoteCritic.values = values
    sys.argv = ["aligner", *words]
    try:
        main()
    except SystemExit as end:
        sys.stderr.flush()
        os._exit(end.code)


def test_a_fault_in_the_critic_ends_the_actor_with_its_reason(jobs):
    """The first rank finds the second one's fault between two requests, and no request's answer tells it."""
    critic = Critic(jobs, "late_critic").start({"train": (1, "error")}, ranks=2, **TP2)
    settings = actor_settings(jobs, "late", critic, trainer__ppo__max_steps=3)
    actor = forks.start(
        command_that_asks_an_ended_critic, ["ppo", "--profile", "smoke", *settings], log=jobs.log("late")
    )
    actor.join(forks.BOUND_S)
    run, log = jobs.run_folder("late"), jobs.log("late").read_text()
    assert (actor.exitcode, run.status) == (2, "failed"), log
    reason = 'on its rank 1: it failed in train with KeyError: "a fault in the critic\'s code"'
    assert f"the critic at 127.0.0.1:{critic.port}: {reason}" in run.info["message"], log
    assert log.count(reason) == 1, log
    assert "PyTritonClient" not in log
    critic.until_it_ended()
    log_of_rank = (jobs.logs(critic.name) / "rank1.log").read_text()
    assert "Traceback" in log_of_rank and "a fault in the critic's code" in log_of_rank
    assert not (critic.run.path / "pytriton").exists()
