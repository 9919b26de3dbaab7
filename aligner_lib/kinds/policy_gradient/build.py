"""Builders for all kinds with rollouts: inputs, prompts, the policy with its generator, and servers."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from aligner_lib.config.environments import REWARD_MODEL, EnvironmentSettings
from aligner_lib.datasets.tokenizer import Tokenizer, check_same_tokenizer
from aligner_lib.errors import UserError
from aligner_lib.kinds.inputs import (
    files_of_splits,
    for_validation,
    hash_of_adapters,
    hashes_of_splits,
    limited,
    loaders,
    log_report,
    policy_tokenizer,
    warn_about_template,
)
from aligner_lib.kinds.overlap import warn_about_overlap, warn_about_overlap_of_environments
from aligner_lib.kinds.own_files import SPLITS
from aligner_lib.kinds.policy_gradient.settings import (
    comparing_environments,
    environments_of,
    generates_with_vllm,
    loop_settings,
    response_length,
    rollout_settings,
    val_rollout_micro_batch_size,
)
from aligner_lib.megatron import parallel
from aligner_lib.megatron.engine import Engine, FrozenWeights
from aligner_lib.megatron.generate import Sampling
from aligner_lib.models import model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.environments.pool import Environments
from aligner_lib.rollouts.generators import vllm_server
from aligner_lib.rollouts.generators.vllm import VllmGenerator
from aligner_lib.rollouts.interfaces import Generator
from aligner_lib.rollouts.policy import Policy
from aligner_lib.rollouts.tasks import EnvironmentTasks, FileTasks, TaskSource
from aligner_lib.run_folder.writer import RunWriter

if TYPE_CHECKING:
    from aligner_lib.remote_critic.connection import Endpoint
    from aligner_lib.remote_critic.connections import ServerConnections

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RolloutInputs:
    """The inputs of a job that learns from its own responses, read before the job builds models."""

    tokenizer: Tokenizer
    tasks: TaskSource
    opened: ExitStack
    """Closes the job's helper processes, such as the processes of environments, when the job ends."""
    hashes: dict[str, str]


def read_inputs(config: DictConfig, start: Path, others: Mapping[str, Path | None]) -> RolloutInputs:
    """Read the inputs of PPO or GRPO.

    start: the folder of the policy, which is also the reference; others: the folders of further models by their names in
    messages, or None for a model that the job lacks. Raises UserError for inputs that don't fit together.
    """
    tokenizer = policy_tokenizer(config, start)
    hashes = hashes_of_splits(config, start, () if environments_of(config) else SPLITS)
    hashes |= hash_of_adapters(config, start) | check_others(tokenizer, others)
    comparing = comparing_environments(config)
    tasks, opened = task_source(config, tokenizer, not_validated=comparing), ExitStack()
    opened.callback(tasks.close)
    for name in comparing:
        logger.warning(
            f"model.environments.{name}.args.compare=True: the reward compares the responses to the same prompt, so its mean is "
            "1/2 for every policy: validations leave this environment out"
        )
    warn_about_sampling(sampling_settings(config))
    return RolloutInputs(tokenizer, tasks, opened, hashes)


def check_others(tokenizer: Tokenizer, others: Mapping[str, Path | None]) -> dict[str, str]:
    """Check that the other models have the policy's tokenizer, and warn about different templates. Return the models'
    hashes."""
    hashes = {}
    for name, folder in others.items():
        if folder is not None:
            check_same_tokenizer(tokenizer, Tokenizer(folder).hash, f"the {name} in {folder}")
            warn_about_template(tokenizer, folder, f"the {name}")
            hashes[name.replace(" ", "_")] = model_hash(folder)
    return hashes


def prompts_of_splits(config: DictConfig, tokenizer: Tokenizer, *splits: str) -> dict[str, list]:
    """Load the prompts of splits. Prompts without room for a response are dropped, counted and logged."""
    room, load = config.model.encoder_seq_length - response_length(config), loaders(config).load_prompts
    files = files_of_splits(config, "prompts", splits)
    return {split: log_report(split, load(files[split], tokenizer, room)) for split in splits}


def task_source(config: DictConfig, tokenizer: Tokenizer, not_validated: Collection[str] = ()) -> TaskSource:
    """The source of prompts: environments or, without environments, data files. Raises UserError for unsuitable files.

    not_validated: the names of environments that give no held-out prompts.
    """
    if used := environments_of(config):
        warn_about_overlap_of_environments(config)
        validated = {name: used[name] for name in used if name not in not_validated}
        return _environment_tasks(config, tokenizer, {"train": used, "validation": validated})
    prompts = prompts_of_splits(config, tokenizer, "train", "validation")
    train, validation = prompts["train"], prompts["validation"]
    validation = limited(validation, loop_settings(config), val_rollout_micro_batch_size(config))
    validation = for_validation(validation[: rollout_settings(config).num_val_samples], config)
    warn_about_overlap(train, validation)
    return FileTasks(train, validation, config.model.seed)


def held_out_tasks(config: DictConfig, tokenizer: Tokenizer) -> TaskSource:
    """The source of held-out prompts: as in `task_source`, but without prompts for training."""
    if used := environments_of(config):
        return _environment_tasks(config, tokenizer, {"validation": used})
    prompts = prompts_of_splits(config, tokenizer, "validation")["validation"]
    prompts = prompts[: rollout_settings(config).num_val_samples]
    return FileTasks([], for_validation(prompts, config), config.model.seed)


def _environment_tasks(
    config: DictConfig, tokenizer: Tokenizer, of_splits: Mapping[str, Mapping[str, EnvironmentSettings]]
) -> EnvironmentTasks:
    used = environments_of(config)
    return EnvironmentTasks(
        {split: Environments(of_split, split) for split, of_split in of_splits.items()},
        {name: environment.weight for name, environment in used.items()},
        frozenset(name for name, environment in used.items() if (environment.use or name) == REWARD_MODEL),
        tokenizer,
        config.model.encoder_seq_length - response_length(config),
        config.model.seed,
        {name: dict(environment.rewards) for name, environment in used.items()},
    )


def build_policy(
    engine: Engine,
    config: DictConfig,
    tokenizer: Tokenizer,
    opened: ExitStack,
    reference: FrozenWeights | None = None,
) -> Policy:
    """Build a policy from an engine. reference: see Policy. If a server is started for the policy, `opened` closes the server."""
    return Policy(
        engine,
        tokenizer,
        sampling_settings(config),
        forward_micro_batch_size=forward_micro_batch_size(config),
        generator=_vllm(config, engine.module.architecture, tokenizer, opened)
        if generates_with_vllm(config)
        else None,
        reference=reference,
    )


def _vllm(
    config: DictConfig, architecture: Architecture, tokenizer: Tokenizer, opened: ExitStack
) -> Generator:
    """Connect a generator to the server in the settings or, by default, to a new server, which the first rank starts."""
    settings, timeout = config.model.generation.vllm_cfg, 60 * config.trainer.distributed_timeout_minutes
    if settings.url is not None:
        return VllmGenerator(settings.url, tokenizer.stop_ids, timeout)
    own: VllmGenerator | None = None
    outcome: tuple[str, str] | UserError | None = None
    if parallel.is_first_rank():
        folder = Path(config.exp_manager.explicit_log_dir) / "vllm"
        try:
            server = vllm_server.start(
                settings, architecture, tokenizer, config.model.encoder_seq_length, folder
            )
        except UserError as error:
            outcome = error
        else:
            opened.callback(server.close)
            outcome = server.url, server.api_key
            own = VllmGenerator(server.url, tokenizer.stop_ids, timeout, server.api_key, server.last_output)
    outcome = parallel.from_first_rank(outcome)
    if isinstance(outcome, UserError):
        raise outcome
    url, key = outcome
    return own or VllmGenerator(url, tokenizer.stop_ids, timeout, key)


def forward_micro_batch_size(config: DictConfig) -> int:
    """Rows in a forward pass over responses."""
    return rollout_settings(config).logprob_forward_micro_batch_size or config.model.micro_batch_size


def sampling_settings(config: DictConfig) -> Sampling:
    """The sampling distribution and the length of responses."""
    params, lengths = rollout_settings(config).sampling_params, rollout_settings(config).length_params
    return Sampling(
        max_length=response_length(config),
        min_length=lengths.min_length,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        greedy=params.use_greedy,
        end_strings=tuple(params.end_strings),
    )


def warn_about_sampling(sampling: Sampling) -> None:
    """Warn about settings that make the sampler's distribution differ from the log-probabilities in the updates."""
    if sampling.temperature != 1.0:
        logger.warning(
            f"temperature is {sampling.temperature}: the compared log-probabilities are scaled by the temperature, too"
        )
    if sampling.min_length > 1:
        logger.warning(
            f"min_length={sampling.min_length}: stop tokens are barred from the first tokens, which the compared "
            "log-probabilities ignore; prefer min_length=1 in training"
        )
    if sampling.greedy:
        logger.warning(
            "use_greedy=True: every response is the likeliest, but the compared log-probabilities assume sampling; "
            "advantages then carry little information, so train with use_greedy=False"
        )
    elif sampling.top_k or sampling.top_p != 1.0:
        logger.warning(
            f"top_k={sampling.top_k}, top_p={sampling.top_p}: responses come from a cut distribution, which the "
            "compared log-probabilities ignore; prefer top_k=0, top_p=1 in training"
        )


def server_connections(
    config: DictConfig,
    servers: Mapping[Endpoint, set[str]],
    tokenizer: Tokenizer,
    timeout: float,
    writer: RunWriter | None,
) -> ServerConnections:
    """Connect the run to its servers: see ServerConnections."""
    from aligner_lib.remote_critic.connections import ServerConnections
    from aligner_lib.remote_critic.pytriton_client import check_installed

    check_installed()
    return ServerConnections(
        servers,
        tokenizer,
        run=str(Path(config.exp_manager.explicit_log_dir).resolve()),
        timeout_s=timeout,
        answer_s=60 * config.trainer.distributed_timeout_minutes,
        longest_sample=config.model.encoder_seq_length,
        writer=writer,
    )
