"""Builds an evaluation from its settings: prompts and models."""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from aligner_lib.kinds.build_models import build_engine, build_reward_model
from aligner_lib.kinds.evaluate.evaluation import Evaluation
from aligner_lib.kinds.inputs import (
    hashes_of_splits,
    model_folder,
    policy_tokenizer,
)
from aligner_lib.kinds.policy_gradient.build import build_policy, check_others, held_out_tasks
from aligner_lib.kinds.policy_gradient.settings import (
    environments_of,
    judged_by_programs,
    val_rollout_micro_batch_size,
)
from aligner_lib.kinds.prepared_job import JobPart, PreparedJob
from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.collect import RolloutCollector
from aligner_lib.rollouts.interfaces import RewardSource

REFERENCE = "pretrained_checkpoint.restore_from_path"
REWARD_MODEL = "critic.pretrained_checkpoint.restore_from_path"


def prepare(config: DictConfig) -> PreparedJob:
    """Prepare an evaluation of policy.restore_from_path, or of each policy in evaluation.policies. The reference is
    pretrained_checkpoint, as in PPO."""
    models = SharedModels(config)
    if not config.evaluation.policies:
        return _prepare(config, models)
    folders = {
        name: model_folder(config, f"evaluation.policies.{name}", "lm") for name in config.evaluation.policies
    }
    hashes = {f"policies.{name}": model_hash(folder) for name, folder in folders.items()}
    if models.reward_folder:
        hashes["reward_model"] = model_hash(models.reward_folder)
    configs = {name: _config_of_policy(config, name) for name in folders}
    parts = {name: JobPart(part, partial(_prepare, part, models)) for name, part in configs.items()}
    return PreparedJob(None, 0, None, hashes, parts=parts)


class SharedModels:
    """The models that all policies of a job share, read for the first policy."""

    def __init__(self, config: DictConfig):
        self.config = config
        self.reference_folder = model_folder(config, REFERENCE, "lm")
        self.reward_folder = (
            None if judged_by_programs(config) else model_folder(config, REWARD_MODEL, "scalar")
        )

    @cached_property
    def engine_and_reference(self) -> tuple[Engine, FrozenWeights]:
        """The engine for the policies' weights, and a copy of the reference's weights."""
        folder = self.reference_folder
        engine = build_engine(Architecture.load(folder), self.config, folder)
        return engine, FrozenWeights(engine.module)

    @cached_property
    def reward_model(self) -> RewardSource | None:
        """None if programs judge all responses."""
        critic = self.config.critic
        return self.reward_folder and build_reward_model(
            critic, self.reward_folder, critic.trainer.ppo.inference_micro_batch_size
        )


def _config_of_policy(config: DictConfig, name: str) -> DictConfig:
    """The settings of an evaluation of this policy alone, in a run folder inside the job's."""
    run = str(Path(config.exp_manager.explicit_log_dir) / name)
    own = {
        "policy": {"restore_from_path": config.evaluation.policies[name]},
        "exp_manager": {"explicit_log_dir": run},
    }
    of_policy = OmegaConf.merge(config, own)
    of_policy.evaluation.policies = {}
    return of_policy


def _prepare(config: DictConfig, models: SharedModels) -> PreparedJob:
    rollout, start = config.model.ppo, model_folder(config, "policy.restore_from_path", "lm")
    tokenizer = policy_tokenizer(config, start)
    others = {"reference": models.reference_folder, "reward model": models.reward_folder}
    other_hashes = check_others(tokenizer, others)
    tasks, opened = held_out_tasks(config, tokenizer), ExitStack()
    opened.callback(tasks.close)

    def build(run):
        engine, reference = models.engine_and_reference
        policy = build_policy(engine, config, tokenizer, opened, reference)
        engine.load(start)
        return Evaluation(
            collector=RolloutCollector(
                policy, models.reward_model, config.model.seed, config.model.encoder_seq_length
            ),
            tasks=tasks,
            num_prompts=rollout.num_val_samples,
            generations_per_prompt=config.evaluation.num_generations_per_prompt,
            rollout_micro_batch_size=val_rollout_micro_batch_size(config),
            greedy=rollout.val_use_greedy,
            run=run,
        )

    hashes = hashes_of_splits(config, start, () if environments_of(config) else ("validation",))
    return PreparedJob(build, 0, None, hashes | other_hashes, opened.close)
