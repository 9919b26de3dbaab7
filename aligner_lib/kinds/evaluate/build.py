"""Builds an evaluation from its settings: prompts and models."""

from __future__ import annotations

from contextlib import ExitStack

from omegaconf import DictConfig

from aligner_lib.kinds.build_models import build_engine, build_reward_model
from aligner_lib.kinds.evaluate.evaluation import Evaluation
from aligner_lib.kinds.inputs import (
    hashes_of,
    model_folder,
    policy_tokenizer,
)
from aligner_lib.kinds.policy_gradient.build import build_policy, check_others, held_out_tasks
from aligner_lib.kinds.policy_gradient.settings import (
    environments_of,
    judged_by_programs,
    val_rollout_micro_batch_size,
)
from aligner_lib.kinds.prepared_job import PreparedJob
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.collect import RolloutCollector

REWARD_MODEL = "critic.pretrained_checkpoint.restore_from_path"


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare an evaluation of policy.restore_from_path. The reference is pretrained_checkpoint, as in PPO."""
    rollout = config.model.ppo
    reference = model_folder(config, "pretrained_checkpoint.restore_from_path", "lm")
    rewards = None if judged_by_programs(config) else model_folder(config, REWARD_MODEL, "scalar")
    start = model_folder(config, "policy.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)
    other_hashes = check_others(tokenizer, {"reference": reference, "reward model": rewards})
    tasks, opened = held_out_tasks(config, tokenizer), ExitStack()
    opened.callback(tasks.close)

    def build(run):
        policy = build_policy(
            build_engine(Architecture.load(reference), config, reference), config, tokenizer, opened
        )
        policy.engine.load(start)  # only now, because the policy first copies the reference
        reward_source = rewards and build_reward_model(
            config.critic, rewards, config.critic.trainer.ppo.inference_micro_batch_size
        )
        return Evaluation(
            roll_out=RolloutCollector(
                policy, reward_source, config.model.seed, config.model.encoder_seq_length
            ),
            tasks=tasks,
            num_prompts=rollout.num_val_samples,
            generations_per_prompt=config.evaluation.num_generations_per_prompt,
            rollout_micro_batch_size=val_rollout_micro_batch_size(config),
            greedy=rollout.val_use_greedy,
            run=run,
        )

    files = [] if environments_of(config) else config.model.data.data_prefix.get("validation")
    hashes = hashes_of(start, files, mmap=config.model.data.data_impl == "mmap")
    return PreparedJob(build, 0, None, hashes | other_hashes, opened.close)
