"""A PPO step waits for the critic only when it needs what the critic gives: the two jobs work at the same time."""

import os
import signal
from concurrent.futures import Future
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.config.compose import compose
from aligner_lib.datasets.samples import PromptSample
from aligner_lib.remote_critic.errors import Refusal

pytestmark = [pytest.mark.remote_critic, pytest.mark.usefixtures("here")]


class NotedFuture(Future):
    """A result that notes when it is waited for."""

    def __init__(self, events: list[str], name: str, value: object):
        super().__init__()
        self.events, self.name = events, name
        self.set_result(value)

    def result(self, timeout=None):
        self.events.append(f"wait for {self.name}")
        return super().result(timeout)


class FakeCritic:
    """Critic and reward model, which note each request."""

    def __init__(self, events: list[str]):
        self.events = events

    def _request(self, name: str, value: object) -> NotedFuture:
        self.events.append(f"request {name}")
        return NotedFuture(self.events, name, value)

    def score(self, rollouts):
        return self._request("rewards", torch.ones(rollouts.size))

    def values(self, rollouts):
        return self._request("values", torch.zeros(rollouts.tokens[:, 1:].shape))

    def train(self, experience, lr):
        return self._request("training", {"loss": 1.0, "grad_norm": 1.0})

    def collect(self, scores):
        return [score.result() for score in scores]


class FakePolicy:
    """Answers each prompt with one token, and notes what it does. It is its own engine and batch of generation."""

    computes_in_bf16, steps = False, 0
    sampling = SimpleNamespace(max_length=1, temperature=1.0)
    tokenizer = SimpleNamespace(
        pad_id=0, eos_id=2, stop_ids=[2], decode=lambda ids, **_: str(ids), tokens=list
    )

    def __init__(self, events: list[str]):
        self.events, self.engine, self.waiting = events, self, []

    def refresh_generator(self):
        pass  # it is the policy's own module

    def batch(self, rows):
        self.rows = rows
        return self

    def add(self, prompt, seed, sampling):
        from aligner_lib.megatron.generate import Response

        self.waiting.append(Response())
        return self.waiting[-1]

    def run(self, enough):
        """Answer as many prompts as there are rows."""
        self.events.append("generate")
        for response in self.waiting[: self.rows]:
            response.tokens, response.logprobs = [2], [0.0]
            response.finished = response.is_over = True
        del self.waiting[: self.rows]
        assert enough()

    def logprobs(self, rollouts):
        self.events.append("log-probabilities")
        return torch.zeros(rollouts.size, 2), torch.zeros(rollouts.size, 2)

    def reference_logprobs(self, rollouts):
        self.events.append("the reference's")
        return torch.zeros(rollouts.size, 2)

    def train_step(self, micro_batches, loss, lr):
        self.events.append("train")
        return {"loss": 1.0, "ppo_ratio": 1.0, "policy_kl": 0.0}


def trainer_of(events: list[str], **settings):
    """A PPO trainer of two rollouts of two a step, with settings of model.ppo; it notes what it does."""
    from aligner_lib.kinds.ppo.trainer import PPOTrainer
    from aligner_lib.rollouts.collect import RolloutCollector
    from aligner_lib.rollouts.tasks import FileTasks

    prompt = PromptSample([1, 1], "")
    sizes = {
        "model.ppo.num_rollout_samples": 4,
        "model.ppo.rollout_micro_batch_size": 2,
        "model.global_batch_size": 2,
        "model.micro_batch_size": 2,
        "trainer.ppo.critic_warmup_steps": 0,
    } | {f"model.ppo.{name}": value for name, value in settings.items()}
    schedule = lambda number: 0.1  # noqa: E731
    policy, critic = FakePolicy(events), FakeCritic(events)
    return PPOTrainer(
        policy=policy,
        collector=RolloutCollector(policy, critic, seed=1, longest=8, value_model=critic),
        tasks=FileTasks([prompt] * 4, [prompt] * 2, seed=1),
        objective=PRESETS["ppo"],
        lr_schedule=schedule,
        config=compose("ppo", [f"{key}={value}" for key, value in sizes.items()]),
        run=None,
        critic=critic,
        critic_lr_schedule=schedule,
    )


def test_a_scheduler_s_warning_while_servers_are_reached_reaches_the_run():
    from aligner_lib.remote_critic.client import RemoteRewardModel
    from aligner_lib.trainers.loop import stop_signals

    servers = SimpleNamespace(reach=lambda *_: os.kill(os.getpid(), signal.SIGUSR2) or {"updates": 0})
    with stop_signals() as warned:
        assert RemoteRewardModel.reach(SimpleNamespace(servers=servers, writer=None)) == {"updates": 0}
    assert warned.is_set()


def test_a_scheduler_s_warning_ends_a_run_that_waits_for_its_critic():
    """By the control file: test_faults.py."""
    from aligner_lib.remote_critic.client import RemoteRewardModel
    from aligner_lib.trainers.loop import stop_signals

    def reach(work, stop):
        os.kill(os.getpid(), signal.SIGTERM)
        return None if stop() else {"updates": 0}

    ends = []
    critic = SimpleNamespace(where=SimpleNamespace(service="critic"))
    writer = SimpleNamespace(stop_requested=False, finish=lambda *end: ends.append(end))
    waiting = SimpleNamespace(servers=SimpleNamespace(reach=reach, first=critic), writer=writer)
    # stop_signals: pytest itself outlives the signal
    with stop_signals(), pytest.raises(SystemExit) as end_of_job:
        RemoteRewardModel.reach(waiting)
    assert end_of_job.value.code == 0
    assert ends == [("stopped", "stopped on request while it waited for the critic")]


def test_scores_are_waited_for_after_the_last_rollout_and_training_after_the_actor_s():
    events: list[str] = []
    trainer_of(events).step(1)
    assert events == [
        *("generate", "request values") * 2,
        *("request rewards",) * 2,
        *("log-probabilities", "the reference's"),
        *("wait for values",) * 2,
        *("wait for rewards",) * 2,
        *("request training",) * 2,
        *("train",) * 2,
        *("wait for training",) * 2,
    ]


def test_a_diverged_critic_in_another_job_is_named_as_the_cause_of_the_actor_s_loss(monkeypatch):
    from aligner_lib.megatron.engine import NonFiniteError

    monkeypatch.setattr(FakePolicy, "train_step", Mock(side_effect=NonFiniteError("the loss is nan")))
    with pytest.raises(NonFiniteError, match="the loss is nan"):
        trainer_of([]).step(1)
    learning = Future()
    learning.set_exception(Refusal("the critic at here:1: in the critic, the loss is nan"))
    monkeypatch.setattr(FakeCritic, "train", lambda *_: learning)
    with pytest.raises(Refusal, match="in the critic, the loss is nan"):
        trainer_of([]).step(1)


@pytest.mark.parametrize(
    "epochs, of_critic, of_actor",
    [
        ({"rollout_epochs": 2}, 4, 4),
        ({"critic_rollout_epochs": 3}, 6, 2),
        ({"rollout_epochs": 2, "critic_rollout_epochs": 1}, 2, 4),
    ],
)
def test_the_critic_learns_from_a_rollout_as_often_as_it_is_told(epochs, of_critic, of_actor):
    events: list[str] = []
    trainer = trainer_of(events, **epochs)
    numbers: list[int] = []
    trainer.critic_lr_schedule = lambda number: numbers.append(number) or 0.1
    trainer.step(1)
    trainer.step(2)
    assert events.count("request training") == 2 * of_critic and events.count("train") == 2 * of_actor
    assert numbers == [*range(1, 2 * of_critic + 1)], "one rate an update, over the whole run"
    whole = trainer.global_batches
    trainer.global_batches = lambda experience: whole(experience)[:1]  # failures cost the step a batch
    trainer.step(3)
    assert numbers[2 * of_critic] == 2 * of_critic + 1, "the schedule goes on as planned"
    numbers.clear()
    trainer.step(4)
    assert numbers[0] == 3 * of_critic + 1
