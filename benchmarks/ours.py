"""Aligner Lab's sides. Each function runs in its own process."""

from __future__ import annotations

from benchmarks.contest import Rounds
from benchmarks.setting import Setting


def sft(setting: Setting, connection) -> None:
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    engine = make_engine(setting, setting.architecture(), setting.optimizer())
    trainer = SFTTrainer(engine, train=setting.answers(setting.samples_a_round), **_batches(setting))
    _train(trainer, setting, Rounds(setting, connection))


def reward_model(setting: Setting, connection) -> None:
    from dataclasses import replace

    import torch

    from aligner_lib.kinds.rm.trainer import RewardModelTrainer

    engine = make_engine(setting, replace(setting.architecture(), head="scalar"), setting.optimizer())
    with torch.no_grad():
        engine.module.value_head.weight.copy_(scalar_head(setting))
    trainer = RewardModelTrainer(engine, train=setting.pairs(setting.samples_a_round), **_batches(setting))
    _train(trainer, setting, Rounds(setting, connection))


def dpo(setting: Setting, connection) -> None:
    from aligner_lib.config.compose import compose
    from aligner_lib.kinds.dpo.trainer import DPOTrainer
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.rollouts.policy import Policy

    config = compose("dpo", [f"model.dpo.ref_policy_kl_penalty={setting.dpo_beta}"])
    engine = make_engine(setting, setting.architecture(), setting.optimizer())
    pairs = setting.pairs(setting.samples_a_round)
    policy = Policy(
        engine,
        setting.tokenizer(),
        Sampling(max_length=setting.new_tokens),
        forward_micro_batch_size=2 * setting.micro_batch,
    )
    trainer = DPOTrainer(engine, train=pairs, settings=config.model.dpo, policy=policy, **_batches(setting))
    _train(trainer, setting, Rounds(setting, connection))


def grpo(setting: Setting, connection, lengths: range) -> None:
    """`aligner grpo` on prompts of these lengths: generates responses, then learns from `learnt_responses`."""
    from aligner_lib.algorithms.objective import PRESETS
    from aligner_lib.kinds.grpo.trainer import GRPOTrainer
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.rollouts.collect import RolloutCollector
    from aligner_lib.rollouts.tasks import FileTasks
    from benchmarks.given_responses import GivenResponses, GivenRewards

    engine = make_engine(setting, setting.architecture(), setting.optimizer())
    rounds = Rounds(setting, connection)
    policy = GivenResponses(
        engine,
        setting.tokenizer(),
        Sampling(max_length=setting.new_tokens, min_length=setting.new_tokens),
        forward_micro_batch_size=setting.group_size,
        responses=setting.learnt_responses(),
        rounds=rounds,
    )
    trainer = GRPOTrainer(
        policy=policy,
        collector=RolloutCollector(
            policy, GivenRewards(), setting.seed, setting.max_length + setting.new_tokens
        ),
        tasks=FileTasks(setting.grpo_prompts(lengths), [], setting.seed),
        objective=PRESETS["grpo"],
        lr_schedule=lambda step: setting.grpo_lr,
        config=_grpo_config(setting),
        run=None,
    )
    step = 0
    while True:
        rounds.begin()
        read, drawn, metrics = policy.read, policy.drawn, []
        for _ in range(setting.steps):
            step += 1
            metrics.append(trainer.step(step))
        losses, grad_norms = (
            tuple(m[f"train_optim/{name}"] for m in metrics) for name in ("loss", "grad_norm")
        )
        drawn = policy.drawn - drawn
        rounds.end(policy.read - read + drawn, losses, grad_norms, generated=drawn)


def _grpo_config(setting: Setting):
    from aligner_lib.config.compose import compose

    sizes = {
        "model.seed": setting.seed,
        "model.global_batch_size": setting.group_size,
        "model.micro_batch_size": setting.group_size,
        "model.grpo.num_prompts_per_step": 1,
        "model.grpo.num_generations_per_prompt": setting.group_size,
        "model.grpo.rollout_micro_batch_size": setting.group_size,
        "model.grpo.length_params.max_length": setting.new_tokens,
        "trainer.grpo.initial_policy_kl_penalty": setting.grpo_beta,
    }
    return compose("grpo", [f"{key}={value}" for key, value in sizes.items()])


def _batches(setting: Setting) -> dict:
    """The common arguments of the trainers on samples."""
    return {
        "tokenizer": setting.tokenizer(),
        "validation": [],
        "lr_schedule": lambda step: setting.lr,
        "global_batch_size": setting.global_batch,
        "micro_batch_size": setting.micro_batch,
        "validation_micro_batch_size": setting.micro_batch,
        "seed": setting.seed,
    }


def _train(trainer, setting: Setting, rounds: Rounds) -> None:
    step = 0
    while True:
        rounds.begin()
        metrics = []
        for _ in range(setting.steps):
            step += 1
            metrics.append(trainer.step(step))
        losses, grad_norms = (tuple(m[f"train/{name}"] for m in metrics) for name in ("loss", "grad_norm"))
        rounds.end(sum(m["train/tokens"] for m in metrics), losses, grad_norms)


def generation(setting: Setting, connection) -> None:
    from itertools import chain

    from aligner_lib.algorithms.batching import length_grouped
    from aligner_lib.megatron.generate import ContinuousBatch, Sampling

    samples = setting.answers(setting.prompts)
    prompts = [sample.tokens[: sample.answer_start] for sample in samples]
    lengths = [len(sample) - sample.answer_start for sample in samples]
    stop_ids = setting.tokenizer().stop_ids
    engine = make_engine(setting, setting.architecture())
    rounds = Rounds(setting, connection)
    number = 0
    while True:
        rounds.begin()
        batch, responses = ContinuousBatch(engine.module, setting.generation_batch, stop_ids=stop_ids), {}
        # the longest prompts first, as in a rollout
        for i in chain(*length_grouped([len(prompt) for prompt in prompts], setting.generation_batch)):
            seed = setting.seed + number * len(prompts) + i
            responses[i] = batch.add(prompts[i], seed, Sampling(max_length=lengths[i], min_length=lengths[i]))
        batch.run()
        tokens = sum(len(response.tokens) for response in responses.values())
        rounds.end(tokens, generated=tokens)
        assert [len(responses[i].tokens) for i in range(len(prompts))] == lengths, (
            "a response has not the length it was forced to"
        )
        number += 1


def make_engine(setting: Setting, architecture, optim: dict | None = None):
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    parallel.initialize()
    engine = Engine(architecture, Numerics(bf16=setting.precision == "bf16"), optim=optim, clip=setting.clip)
    engine.load(setting.model_folder, new_head=architecture.head == "scalar")
    return engine


def scalar_head(setting: Setting):
    """A reward head with nonzero weights, so that the first loss shows whether two sides agree: float32 [1, H]."""
    import torch

    generator = torch.Generator().manual_seed(setting.seed)
    return 0.02 * torch.randn(1, setting.architecture().hidden_size, generator=generator)
