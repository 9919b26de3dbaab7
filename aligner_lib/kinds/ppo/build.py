"""Builds a PPO job from its settings: prompts, models and trainer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from omegaconf import DictConfig

from aligner_lib.algorithms.objective import PRESETS
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.kinds.build_models import build_critic, build_trainable_engine
from aligner_lib.kinds.functions import functions_of
from aligner_lib.kinds.inputs import model_folder, steps_of
from aligner_lib.kinds.policy_gradient.build import build_policy, read_inputs, server_connections
from aligner_lib.kinds.policy_gradient.settings import judged_by_programs
from aligner_lib.kinds.ppo.settings import critic_epochs, has_remote_critic
from aligner_lib.kinds.ppo.trainer import PPOTrainer
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.collect import RolloutCollector
from aligner_lib.rollouts.interfaces import RewardSource, ValueModel
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.trainers.lr import LRSchedule

# the critic also starts from the reward model
REWARD_MODEL = "critic.pretrained_checkpoint.restore_from_path"


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare PPO with its critic in this process or in a separate job."""
    model, loop, rollout = config.model, config.trainer.ppo, config.model.ppo
    functions = functions_of("ppo", config)
    start = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    # if programs judge all responses, no reward model is needed, and the critic may start from any model
    head = None if judged_by_programs(config) else "scalar"
    rewards = None if has_remote_critic(config) else model_folder(config, REWARD_MODEL, head)
    # a server's run records the hash of the server's reward model
    inputs = read_inputs(config, start, {"reward model": rewards})
    tokenizer = inputs.tokenizer
    prompts_of_a_step = rollout.num_rollout_samples // rollout.num_generations_per_prompt
    max_steps = steps_of(loop, inputs.tasks.size, prompts_of_a_step)
    if loop.critic_warmup_steps >= max_steps:
        raise UserError(
            f"trainer.ppo.critic_warmup_steps={loop.critic_warmup_steps} leaves none of the {max_steps} steps to the actor: "
            "lower critic_warmup_steps, or raise max_steps"
        )
    global_batches = rollout.num_rollout_samples // model.global_batch_size  # in a step
    actor_steps = (max_steps - loop.critic_warmup_steps) * global_batches * rollout.rollout_epochs
    critic_steps = max_steps * global_batches * critic_epochs(config)

    def build(run):
        clip, offload = loop.gradient_clip_val, rollout.offload_adam_states
        engine = build_trainable_engine(Architecture.load(start), config, clip, start, offload)
        reward_source, critic, critic_optim = _reward_source_and_critic(config, tokenizer, rewards, run)
        policy = build_policy(engine, config, tokenizer, inputs.opened)
        trainer = PPOTrainer(
            policy=policy,
            collector=RolloutCollector(policy, reward_source, model.seed, model.encoder_seq_length, critic),
            tasks=inputs.tasks,
            objective=replace(
                PRESETS["ppo"],
                clip_low=rollout.ratio_eps,
                clip_high=rollout.ratio_eps,
                scale="batch_std" if loop.normalize_advantages else "none",
            ),
            critic=critic,
            lr_schedule=LRSchedule(model.optim, actor_steps, functions.learning_rate),
            critic_lr_schedule=LRSchedule(critic_optim, critic_steps, functions.learning_rate),
            config=config,
            run=run,
            functions=functions,
        )
        return functions.trainer(trainer)

    return PreparedJob(build, max_steps, loop, inputs.hashes, inputs.opened.close)


def _reward_source_and_critic(
    config: DictConfig, tokenizer: Tokenizer, rewards: Path | None, run: RunWriter | None
) -> tuple[RewardSource | None, ValueModel, DictConfig]:
    """The reward source, the critic, and the settings of the critic's optimizer. Both models are in this process or in other
    jobs.

    The reward source is None if programs judge all responses.
    """
    if rewards is not None:
        critic, reward_model = build_critic(config.critic, rewards, judges=not judged_by_programs(config))
        return reward_model, critic, config.critic.model.optim
    from aligner_lib.remote_critic.client import RemoteCritic
    from aligner_lib.remote_critic.connection import Endpoint

    remote = config.remote_critic_rm
    where = dict(remote.critic)
    if where["ip"] is None and where["run"] is None:  # see has_remote_critic
        where["ip"] = "localhost"
    if judged_by_programs(config):
        servers = {Endpoint("critic", **where): {"values"}}
    elif config.model.ppo.combine_rm_and_critic_server:
        servers = {Endpoint("critic", **where): {"values", "rewards"}}
    else:
        reward_model = Endpoint("reward_model", **remote.reward_model)
        servers = {Endpoint("critic", **where): {"values"}, reward_model: {"rewards"}}
    connections = server_connections(config, servers, tokenizer, remote.timeout, run)
    critic = RemoteCritic(connections, remote.pad_to_length, run)
    return None if judged_by_programs(config) else critic, critic, critic.optim
