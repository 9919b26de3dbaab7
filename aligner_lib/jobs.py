"""A job from its config: data, models and trainer put together, and run in this process.

`run_job("sft", config)` is what `aligner sft`, the notebooks' jobs and every cluster launch come to.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from omegaconf import DictConfig, ListConfig, OmegaConf

from aligner_lib.architecture import Architecture
from aligner_lib.config import notices
from aligner_lib.datasets import Dropped, load_pairs, load_prompts, load_sft
from aligner_lib.errors import UserError
from aligner_lib.models import model_hash, resolve
from aligner_lib.reward_scale import RewardScale
from aligner_lib.run_writer import RunWriter
from aligner_lib.runs import RunFolder
from aligner_lib.tokenizer import Tokenizer


def run_job(kind: str, config: DictConfig, profile: str | None = None) -> RunFolder:
    """Run a job (`sft`, `rm`, `ppo` or `evaluate`) to its end in this process, which is one rank of the layout.

    The run folder is exp_manager.explicit_log_dir. Raises UserError for what the user can put right.
    """
    if not config.exp_manager.explicit_log_dir:
        raise UserError("there is no run folder: set exp_manager.explicit_log_dir=… (or --run DIR)")
    build = {"sft": _build_sft, "rm": _build_reward_model, "ppo": _build_ppo, "evaluate": _build_evaluation}[kind]
    _join_processes(config)
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import NonFiniteError
    from aligner_lib.trainers.loop import run_loop

    first = parallel.is_first_rank()
    say = _say if first else lambda _: None
    for notice in notices(config):
        say(notice)
    make_trainer, max_steps, loop, hashes = build(config, say)
    folder = RunFolder(config.exp_manager.explicit_log_dir)
    run = None
    if first:
        plain = OmegaConf.to_container(config) | {"profile": profile}
        run = RunWriter(folder.path, kind=kind, config=plain, seed=config.model.seed, hashes=hashes, max_steps=max_steps)
    with run or _nothing():
        try:
            settings = _loop_settings(config.exp_manager, loop, max_steps)
            latest = folder.latest_checkpoint() if settings.resume else None
            if run is not None:
                run.start(int(latest.name.removeprefix("step_")) if latest else 0, tensorboard=_wants_tensorboard(config))
            status = run_loop(make_trainer(run), settings, run)
        except NonFiniteError as error:
            raise UserError(
                f"{error}: the run ends here, and its last checkpoint is whole. Lower model.optim.lr "
                f"(now {config.model.optim.lr}) or trainer.{kind}.gradient_clip_val, and look at the samples of this step"
            ) from error
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise UserError(
                f"the disk of {folder.path} is full: free some space and start the same command again, "
                "it goes on from the last checkpoint"
            ) from error
    say(f"{status}: {folder.path}")
    return folder


# ---- the three jobs -------------------------------------------------------------------------------------------------


def _build_sft(config: DictConfig, say):
    from aligner_lib.trainers.rate import Rate
    from aligner_lib.trainers.sft import SFTTrainer

    model, data = config.model, config.model.data
    start = resolve(_required(model.restore_from_path, "model.restore_from_path"))
    tokenizer = Tokenizer(start)
    longest = data.train_ds.max_seq_length or model.encoder_seq_length
    train = _told(say, "training", load_sft(_files(data.train_ds.file_path, "model.data.train_ds.file_path"), tokenizer, longest))
    validation = _told(
        say,
        "validation",
        load_sft(_files(data.validation_ds.file_path, "model.data.validation_ds.file_path"), tokenizer, longest),
    )
    batch_size = data.train_ds.global_batch_size
    max_steps = _max_steps(config.trainer.sft, len(train), batch_size)
    validation = _limited(validation, config.trainer.sft, data.validation_ds.global_batch_size)

    def make(run):
        return SFTTrainer(
            engine=_trainable(Architecture.load(start), config, config.trainer.sft.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=validation,
            rate=Rate(model.optim, max_steps),
            global_batch_size=batch_size,
            micro_batch_size=data.train_ds.micro_batch_size,
            seed=model.seed,
            shuffle=data.train_ds.shuffle,
            answer_only_loss=model.answer_only_loss,
        )

    return make, max_steps, config.trainer.sft, _hashes(start, data.train_ds.file_path, data.validation_ds.file_path)


def _build_reward_model(config: DictConfig, say):
    from aligner_lib.trainers.rate import Rate
    from aligner_lib.trainers.reward_model import RewardModelTrainer

    model, prefix = config.model, config.model.data.data_prefix
    start = resolve(_required(config.pretrained_checkpoint.restore_from_path, "pretrained_checkpoint.restore_from_path"))
    tokenizer = Tokenizer(start)
    load = lambda split: load_pairs(_files(prefix.get(split), f"model.data.data_prefix.{split}"), tokenizer, model.encoder_seq_length)  # noqa: E731
    train, validation = (_told(say, split, load(split)) for split in ("train", "validation"))
    max_steps = _max_steps(config.trainer.rm, len(train), model.global_batch_size)
    standardization = model.reward_standardization
    fixed = standardization["enable"] and standardization["mean"] is not None
    scale = RewardScale(standardization["mean"], standardization["std"]) if fixed else RewardScale()

    def make(run):
        return RewardModelTrainer(
            engine=_trainable(_scalar(start), config, config.trainer.rm.gradient_clip_val, start),
            tokenizer=tokenizer,
            train=train,
            validation=_limited(validation, config.trainer.rm, model.global_batch_size),
            rate=Rate(model.optim, max_steps),
            global_batch_size=model.global_batch_size,
            micro_batch_size=model.micro_batch_size,
            seed=model.seed,
            scale=scale,
            measure_scale=standardization["enable"] and not fixed,
        )

    return make, max_steps, config.trainer.rm, _hashes(start, *prefix.values())


def _build_ppo(config: DictConfig, say):
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.policy import Policy
    from aligner_lib.trainers.ppo import PPOSettings, PPOTrainer
    from aligner_lib.trainers.rate import Rate

    model, ppo, loop, prefix = config.model, config.model.ppo, config.trainer.ppo, config.model.data.data_prefix
    start = resolve(_required(config.pretrained_checkpoint.restore_from_path, "pretrained_checkpoint.restore_from_path"))
    tokenizer = Tokenizer(start)
    response = ppo.length_params.max_length or model.encoder_seq_length // 2
    load = lambda split: load_prompts(  # noqa: E731
        _files(prefix.get(split), f"model.data.data_prefix.{split}"), tokenizer, model.encoder_seq_length - response
    )
    train, validation = (_told(say, split, load(split)) for split in ("train", "validation"))
    max_steps = _max_steps(loop, len(train), ppo.num_rollout_samples)
    updates = max_steps * (ppo.num_rollout_samples // model.global_batch_size)
    sampling = _sampling(Sampling, ppo, response)
    if sampling.temperature != 1.0 or sampling.top_k or sampling.top_p != 1.0:
        say(
            "sampling differs from the policy's own distribution: log-probabilities take the temperature into account, "
            "top_k and top_p they don't"
        )

    def make(run):
        engine = _trainable(Architecture.load(start), config, loop.gradient_clip_val, start)
        forward = ppo.logprob_forward_micro_batch_size or model.micro_batch_size
        return PPOTrainer(
            policy=Policy(engine, tokenizer, sampling, forward_micro_batch_size=forward),
            critic=_in_process_critic(config.critic),
            train_prompts=train,
            val_prompts=_limited(validation, loop, ppo.val_rollout_micro_batch_size or ppo.rollout_micro_batch_size),
            rate=Rate(model.optim, updates),
            critic_rate=Rate(config.critic.model.optim, updates),
            settings=PPOSettings(
                num_rollout_samples=ppo.num_rollout_samples,
                global_batch_size=model.global_batch_size,
                micro_batch_size=model.micro_batch_size,
                rollout_micro_batch_size=ppo.rollout_micro_batch_size,
                val_rollout_micro_batch_size=ppo.val_rollout_micro_batch_size or ppo.rollout_micro_batch_size,
                num_val_samples=ppo.num_val_samples or len(validation),
                initial_policy_kl_penalty=loop.initial_policy_kl_penalty,
                use_absolute_kl=loop.use_absolute_kl,
                discount_factor=loop.discount_factor,
                gae_lambda=loop.gae_lambda,
                normalize_advantages=loop.normalize_advantages,
                ratio_eps=ppo.ratio_eps,
                entropy_bonus=ppo.entropy_bonus,
                critic_warmup_steps=loop.critic_warmup_steps,
                max_init_policy_kl=loop.max_init_policy_kl,
                seed=model.seed,
            ),
            run=run,
        )

    hashes = _hashes(start, *prefix.values())
    hashes["reward_model"] = model_hash(_reward_model_folder(config.critic))
    return make, max_steps, loop, hashes


def _build_evaluation(config: DictConfig, say):
    """PPO's config with `policy.restore_from_path`: the reference is pretrained_checkpoint, as in PPO."""
    from aligner_lib.megatron.generate import Sampling
    from aligner_lib.policy import Policy
    from aligner_lib.trainers.evaluate import Evaluation

    model, ppo = config.model, config.model.ppo
    reference = resolve(_required(config.pretrained_checkpoint.restore_from_path, "pretrained_checkpoint.restore_from_path"))
    start = resolve(_required(config.policy.restore_from_path, "policy.restore_from_path"))
    tokenizer = Tokenizer(reference)
    response = ppo.length_params.max_length or model.encoder_seq_length // 2
    files = _files(model.data.data_prefix.get("validation"), "model.data.data_prefix.validation")
    prompts = _told(say, "validation", load_prompts(files, tokenizer, model.encoder_seq_length - response))

    def make(run):
        engine = _engine(Architecture.load(reference), config, reference)
        forward = ppo.logprob_forward_micro_batch_size or model.micro_batch_size
        policy = Policy(engine, tokenizer, _sampling(Sampling, ppo, response), forward_micro_batch_size=forward)
        engine.load(start)  # after Policy has taken its copy of the reference
        return Evaluation(
            policy=policy,
            critic=_in_process_critic(config.critic, trains=False),
            prompts=prompts[: ppo.num_val_samples],
            rollout_micro_batch_size=ppo.val_rollout_micro_batch_size or ppo.rollout_micro_batch_size,
            seed=model.seed,
            run=run,
        )

    hashes = _hashes(start, *files) | {"reward_model": model_hash(_reward_model_folder(config.critic))}
    return make, 0, config.trainer.ppo, hashes


def _in_process_critic(config: DictConfig, trains: bool = True):
    from aligner_lib.critic import InProcessCritic

    start = _reward_model_folder(config)
    return InProcessCritic(
        engine=_trainable(_scalar(start), config, config.trainer.ppo.gradient_clip_val, start)
        if trains
        else _engine(_scalar(start), config, start),
        scale=RewardScale.load(start),
        loss_clip=config.model.loss_clip_val,
        micro_batch_size=config.model.micro_batch_size,
        inference_micro_batch_size=config.trainer.ppo.inference_micro_batch_size,
    )


def _reward_model_folder(critic: DictConfig) -> Path:
    path = critic.pretrained_checkpoint.restore_from_path
    return resolve(_required(path, "critic.pretrained_checkpoint.restore_from_path (the reward model)"))


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _join_processes(config: DictConfig) -> None:
    expected = config.trainer.num_nodes * config.trainer.devices
    present = int(os.environ.get("WORLD_SIZE", 1))
    if present != expected:
        raise UserError(
            f"trainer.num_nodes={config.trainer.num_nodes} × trainer.devices={config.trainer.devices} asks for {expected} "
            f"processes and {present} {'is' if present == 1 else 'are'} here: start it with `aligner`, torchrun or Slurm"
        )
    from aligner_lib.megatron import parallel

    parallel.initialize(config.model.tensor_model_parallel_size, config.model.pipeline_model_parallel_size)


def _trainable(architecture: Architecture, config: DictConfig, clip: float, start: Path):
    optim = config.model.optim
    settings = {"lr": optim.lr, "weight_decay": optim.weight_decay, "betas": list(optim.betas), "eps": optim.eps}
    return _engine(architecture, config, start, optim=settings, clip=clip)


def _engine(architecture: Architecture, config: DictConfig, start: Path, **training):
    """An engine with the weights of `start`; without `training` it only computes."""
    from aligner_lib.megatron.cpu import HAS_CUDA
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    model = config.model
    numerics = Numerics(
        bf16=HAS_CUDA and str(config.trainer.precision).startswith("bf16"),
        recompute_granularity=model.activations_checkpoint_granularity,
        recompute_method=model.activations_checkpoint_method,
        recompute_num_layers=model.activations_checkpoint_num_layers,
    )
    engine = Engine(architecture, numerics, **training)
    engine.load(start)
    return engine


def _scalar(start: Path) -> Architecture:
    from dataclasses import replace

    return replace(Architecture.load(start), head="scalar")


def _sampling(make, ppo: DictConfig, max_length: int):
    s = ppo.sampling_params
    return make(
        max_length=max_length,
        min_length=ppo.length_params.min_length,
        temperature=s.temperature,
        top_k=s.top_k,
        top_p=s.top_p,
        greedy=s.use_greedy,
        end_strings=tuple(s.end_strings),
    )


def _loop_settings(exp_manager: DictConfig, loop: DictConfig, max_steps: int):
    from aligner_lib.trainers.loop import LoopSettings

    return LoopSettings(
        max_steps=max_steps,
        val_check_interval=loop.val_check_interval,
        save_interval=loop.save_interval,
        keep_checkpoints=max(exp_manager.checkpoint_callback_params.save_top_k, 1),
        save_checkpoints=exp_manager.create_checkpoint_callback,
        resume=exp_manager.resume_if_exists,
        must_resume=exp_manager.resume_if_exists and not exp_manager.resume_ignore_no_checkpoint,
    )


def _wants_tensorboard(config: DictConfig) -> bool:
    return config.exp_manager.create_tensorboard_logger


def _max_steps(loop: DictConfig, samples: int, batch_size: int) -> int:
    by_epochs = max(loop.max_epochs * samples // batch_size, 1)
    return by_epochs if loop.max_steps < 0 else loop.max_steps


def _limited(samples: list, loop: DictConfig, batch_size: int) -> list:
    return samples if loop.limit_val_batches < 0 else samples[: loop.limit_val_batches * batch_size]


def _told(say, split: str, loaded: tuple[list, Dropped]) -> list:
    samples, dropped = loaded
    say(f"{len(samples)} {split} samples")
    for line in dropped.lines():
        say(line)
    return samples


def _files(value, key: str) -> list[Path]:
    value = _required(value, key)
    files = list(value) if isinstance(value, list | ListConfig) else [value]
    return [Path(file).expanduser() for file in files]


def _required(value, key: str):
    if not value:
        raise UserError(f"{key} is not set: give it as {key.split(' ')[0]}=…")
    return value


def _hashes(start: Path, *files) -> dict[str, str]:
    from aligner_lib.models.hash import file_hash

    flat: Iterable[str] = [f for value in files for f in (value if isinstance(value, list | ListConfig) else [value])]
    return {"model": model_hash(start)} | {Path(f).name: file_hash(Path(f).expanduser()) for f in flat}


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _nothing():
    from contextlib import nullcontext

    return nullcontext()
