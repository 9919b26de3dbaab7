"""The cost of a PPO step beyond its passes: the trainer's step and the same passes without the trainer, in turn.

A bare pass calls the same model directly, without engine, schedule, distributed optimizer, metrics and records. The learning
rates are 0, so that every round generates the same responses from the same weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from aligner_lib.algorithms.batching import length_grouped
from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.config.compose import compose
from aligner_lib.datasets.samples import PromptSample
from aligner_lib.kinds.ppo.trainer import PPOTrainer
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.logprobs import selected_logprobs
from aligner_lib.megatron.model import Numerics, build_model
from aligner_lib.rollouts.collect import RolloutCollector
from aligner_lib.rollouts.critic import Critic
from aligner_lib.rollouts.policy import Policy, to_rollouts
from aligner_lib.rollouts.records import Rollouts
from aligner_lib.rollouts.seeds import response_seed
from aligner_lib.rollouts.tasks import FileTasks
from benchmarks.contest import CLOCKS, Contestant, SideProcess
from benchmarks.measure import StepCost
from benchmarks.ours import make_engine
from benchmarks.setting import Setting

RESPONSE = 64  # tokens, at most
STOP_PROBABILITY = 1 / 24  # of the stop token at each position of a random model's response


def measure(setting: Setting, say: Callable[[str], None] = print) -> StepCost:
    """Measure the step and its passes in turn, in a separate process. The first round warms up."""
    with SideProcess(Contestant("ppo", "", _take_turns), setting) as process:
        process.round()
        rounds = []
        for number in range(1, setting.repeats + 1):
            step, passes = process.round()
            rounds.append((step, passes))
            say(
                f"ppo, round {number} of {setting.repeats}: step {step:.2f} s, bare passes {sum(passes.values()):.2f} s"
            )
    return StepCost([step for step, _ in rounds], [passes for _, passes in rounds])


def _take_turns(setting: Setting, connection) -> None:
    """For each round, send the seconds of the step and of each pass."""
    trainer = _trainer(setting)
    passes = BarePasses(setting, trainer)
    clock = CLOCKS[setting.clock]
    connection.send("ready")
    while connection.recv() != "stop":
        started = clock()
        trainer.step(1)
        step = clock() - started
        connection.send((step, passes.run()))


def _trainer(setting: Setting) -> PPOTrainer:
    architecture, optim = setting.architecture(), setting.optimizer()
    engine = make_engine(setting, architecture, optim)
    if setting.model == "6m":
        make_stops_likely(engine.module, setting.tokenizer().eos_id)
    critic = Critic(
        engine=make_engine(setting, replace(architecture, head="scalar"), optim),
        loss_clip=0.2,
        micro_batch_size=setting.micro_batch,
        inference_micro_batch_size=setting.micro_batch,
    )
    prompts = [PromptSample(s.tokens[: s.answer_start], "") for s in setting.answers(setting.global_batch)]
    sizes = {
        "model.global_batch_size": setting.global_batch,
        "model.micro_batch_size": setting.micro_batch,
        "model.seed": setting.seed,
        "model.ppo.num_rollout_samples": setting.global_batch,
        "model.ppo.rollout_micro_batch_size": setting.global_batch,
        "critic.model.micro_batch_size": setting.micro_batch,
    }
    policy = Policy(
        engine,
        setting.tokenizer(),
        Sampling(max_length=RESPONSE),
        forward_micro_batch_size=setting.micro_batch,
    )
    return PPOTrainer(
        policy=policy,
        collector=RolloutCollector(
            policy, critic.reward_model(), setting.seed, setting.max_length + RESPONSE, critic
        ),
        tasks=FileTasks(prompts, [], setting.seed),
        objective=PRESETS["ppo"],
        critic=critic,
        lr_schedule=lambda step: 0.0,
        critic_lr_schedule=lambda step: 0.0,
        config=compose("ppo", [f"{key}={value}" for key, value in sizes.items()]),
        run=None,
    )


@torch.no_grad()
def make_stops_likely(module, stop_id: int) -> None:
    """Make a random model end its responses: the stop token has the probability STOP_PROBABILITY, and all other tokens are equally
    likely.

    The first dimension of the residual stream is a constant 1: the embedding sets the dimension, and no layer writes to it. The
    final norm passes only the first dimension, and scales it to about √H. Only the stop token's logit reads the dimension.
    """
    vocabulary, hidden_size = module.output_layer.weight.shape
    module.embedding.word_embeddings.weight[:, 0] = 1.0
    for layer in module.decoder.layers:
        layer.self_attention.linear_proj.weight[0] = 0.0
        layer.mlp.linear_fc2.weight[0] = 0.0
    module.decoder.final_layernorm.weight.zero_()[0] = 1.0
    module.output_layer.weight[:, 0] = 0.0
    module.output_layer.weight[stop_id, 0] = math.log(
        STOP_PROBABILITY / (1 - STOP_PROBABILITY) * vocabulary
    ) / math.sqrt(hidden_size)


class BarePasses:
    """The passes of the trainer's first step on plain modules with torch's AdamW, in micro batches of the same rows."""

    def __init__(self, setting: Setting, trainer: PPOTrainer):
        self.setting = setting
        self.clock = CLOCKS[setting.clock]
        self.sampling, self.tokenizer = trainer.policy.sampling, trainer.policy.tokenizer
        numerics = Numerics(bf16=setting.precision == "bf16")
        self.actor = _plain_copy(trainer.policy.engine.module, numerics)
        self.critic = _plain_copy(trainer.critic.engine.module, numerics)
        optim = setting.optimizer() | {"lr": 0.0}
        self.actor_optimizer = torch.optim.AdamW(self.actor.parameters(), **optim, fused=True)
        self.critic_optimizer = torch.optim.AdamW(self.critic.parameters(), **optim, fused=True)
        self.prompts = [task.tokens for task in trainer.tasks.train(0, setting.global_batch)]
        self.seeds = [response_seed(setting.seed, 1, number) for number in range(len(self.prompts))]

    def run(self) -> dict[str, float]:
        """Seconds by pass."""
        seconds: dict[str, float] = {}

        def timed(name: str, work: Callable[[], object]) -> object:
            started = self.clock()
            result = work()
            seconds[name] = self.clock() - started
            return result

        rollouts = timed("generate", self._generate)
        batches = self._micro_batches(rollouts)
        timed("policy forward", lambda: self._score(self.actor, batches))
        timed("reference forward", lambda: self._score(self.actor, batches))
        timed("critic forward", lambda: self._value(batches))
        timed("reward forward", lambda: self._value(batches))
        timed("actor forward-backward and step", lambda: self._train_actor(batches))
        timed("critic forward-backward and step", lambda: self._train_critic(batches))
        return seconds

    def _generate(self) -> Rollouts:
        responses = generate(
            self.actor,
            self.prompts,
            self.seeds,
            self.sampling,
            stop_ids=self.tokenizer.stop_ids,
        )
        rollouts = to_rollouts(self.prompts, responses, range(len(responses)), self.tokenizer.pad_id)
        return rollouts

    def _micro_batches(self, rollouts: Rollouts) -> list[Rollouts]:
        groups = length_grouped(rollouts.lengths.tolist(), self.setting.micro_batch)
        return [rollouts.rows(group) for group in groups]

    @torch.no_grad()
    def _score(self, model, batches: list[Rollouts]) -> None:
        for batch in batches:
            selected_logprobs(model, batch.tokens, model(batch.tokens, batch.lengths), batch.response_mask)

    @torch.no_grad()
    def _value(self, batches: list[Rollouts]) -> None:
        for batch in batches:
            self.critic.values(self.critic(batch.tokens, batch.lengths))

    def _train_actor(self, batches: list[Rollouts]) -> None:
        for batch in batches:
            logprobs, _ = selected_logprobs(
                self.actor, batch.tokens, self.actor(batch.tokens, batch.lengths), batch.response_mask
            )
            (-logprobs.sum()).backward()
        self.actor_optimizer.step()
        self.actor_optimizer.zero_grad()

    def _train_critic(self, batches: list[Rollouts]) -> None:
        for batch in batches:
            values = self.critic.values(self.critic(batch.tokens, batch.lengths)[:-1]).t()
            (values[batch.response_mask] ** 2).sum().backward()
        self.critic_optimizer.step()
        self.critic_optimizer.zero_grad()


def _plain_copy(module, numerics: Numerics):
    """The same model and weights without the engine's wrappers."""
    copy = build_model(module.architecture, numerics)
    with torch.no_grad():
        for ours, theirs in zip(copy.parameters(), module.parameters(), strict=True):
            ours.copy_(theirs)
    return copy
