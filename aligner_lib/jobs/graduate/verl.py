"""verl: parquet files and a Hydra config over its own defaults, for SFT, PPO and GRPO.

verl was not run here. The keys are those of its published configs; tests/jobs/published_keys.toml names the releases.
"""

from __future__ import annotations

from aligner_lib.config.peft import is_lora
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate.graduation import SPLITS, Graduation, divisor, lacking_values
from aligner_lib.jobs.graduate.texts import AS_IT_IS, Texts
from aligner_lib.kinds.grpo.settings import objective_of, rollouts_of_a_step
from aligner_lib.kinds.inputs import steps_of
from aligner_lib.kinds.policy_gradient.settings import (
    KL_HORIZON,
    comparing_environments,
    judged_by_programs,
    response_length,
)
from aligner_lib.kinds.ppo.settings import critic_epochs, has_remote_critic
from aligner_lib.models.export.hf import write_template
from aligner_lib.models.peft_folder import lora_config

NAME, TITLE = "verl", "verl"
COMMAND = """\
export GRADUATED=/path/to/this/folder
{start} --config-path=$GRADUATED --config-name=config
# repeats the run: … {model}.path=$GRADUATED/start"""
CHECKED = (
    "`config.yaml` changes verl's own config, which it names in `defaults`. Its keys are in the configs of verl 0.7.1 to "
    "0.9.1; verl itself was not run with them. Set `trainer.n_gpus_per_node`, `trainer.nnodes` and the parallelism for your "
    "machine."
)
FOLDER = "${oc.env:GRADUATED}"
ACTOR, ROLLOUT, POLICY = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "model"))
AGGREGATION = {
    "responses": "seq-mean-token-mean",
    "tokens": "token-mean",
    "constant": "seq-mean-token-sum-norm",
}
ESTIMATORS = {
    "group_mean": "grpo",
    "leave_one_out": "rloo",
    "batch_mean": "reinforce_plus_plus",
    "critic": "gae",
}
# by baseline of GRPO: the scales that verl has with the baseline
SCALES = {
    "group_mean": ("group_std", "none"),
    "leave_one_out": ("none",),
    "batch_mean": ("batch_std",),
}
UNLIMITED = 1e9
KL_LOSSES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl"}
# the values of each switch of the objective that verl computes
VALUES = {
    "baseline": SCALES,
    "scale": ("group_std", "batch_std", "none"),
    "aggregation": ("sum_then_normalize",),
    "ratio": ("token", "sequence", "none"),
    "clipping": ("pessimistic",),
    "normalizer": AGGREGATION,
    "kl": (*KL_LOSSES, "reward", "none"),
}


# ---- kinds ----------------------------------------------------------------------------------------------------------


def sft(run: Graduation) -> None:
    """Write supervised fine-tuning: conversations whose assistant turns are the learned parts."""
    loaded = run.load_sft()
    if not run.setting("model.answer_only_loss"):
        raise UserError(
            "model.answer_only_loss=False: verl's SFT has its loss on the assistant's turns alone; choose --to trl"
        )
    texts = Texts(run.tokenizer, in_turns=True)
    run.write_parquet(
        {
            split: [{"messages": texts.turns(sample)} for sample in samples]
            for split, samples in loaded.items()
        },
        "turns, whose texts contain the run's template",
    )
    run.notes += texts.note(TITLE)
    train, loop = run.config.model.data.train_ds, run.config.trainer.sft
    batch, at = train.global_batch_size, "model.data.train_ds"
    steps = steps_of(loop, len(loaded["train"]), batch)
    _files(run)
    run.put("data.messages_key", "messages")
    run.put("data.train_batch_size", batch, f"{at}.global_batch_size")
    run.put("data.micro_batch_size_per_gpu", divisor(batch, train.micro_batch_size), f"{at}.micro_batch_size")
    run.put("data.use_dynamic_bsz", False)
    run.copy("data.max_length", "model.encoder_seq_length")
    run.put("data.ignore_input_ids_mismatch", True)
    run.ignore("model.data.validation_ds.micro_batch_size", "model.data.validation_ds.global_batch_size")
    _model(run, "model", "model")
    _optimizer(run, "optim", "model.optim", 1)
    _limit(run, "optim.clip_grad", "trainer.sft.gradient_clip_val")
    _trainer(run, "sft", steps, -(-steps * batch // len(loaded["train"])))
    run.copy("trainer.seed", "model.seed")
    _finish(
        run,
        "sft_trainer_engine",
        "torchrun --standalone --nproc_per_node=1 -m verl.trainer.sft_trainer",
        "model",
    )


def ppo(run: Graduation) -> None:
    """Write PPO with a critic, and with the run's environments or its reward model."""
    rollout, loop = run.config.model.ppo, run.config.trainer.ppo
    samples = rollout.num_rollout_samples // rollout.num_generations_per_prompt
    _policy_gradient(run, samples, rollout.num_generations_per_prompt)
    run.ignore("model.ppo.num_rollout_samples", "model.ppo.combine_rm_and_critic_server", "remote_critic_rm.")
    run.ignore("critic.pretrained_checkpoint.restore_from_path")
    if not judged_by_programs(run.config):
        run.export_reward_model("critic.pretrained_checkpoint.restore_from_path")
        _reward_model(run)
    run.export_critic()
    run.put("algorithm.adv_estimator", "gae")
    run.copy("algorithm.gamma", "trainer.ppo.discount_factor")
    run.copy("algorithm.lam", "trainer.ppo.gae_lambda")
    run.put(f"{ACTOR}.clip_ratio_low", rollout.ratio_eps, "model.ppo.ratio_eps")
    run.put(f"{ACTOR}.clip_ratio_high", rollout.ratio_eps, "model.ppo.ratio_eps")
    run.put(f"{ACTOR}.loss_agg_mode", "token-mean")
    _kl_in_reward(run, "ppo", rollout.num_rollout_samples)
    run.copy("trainer.critic_warmup", "trainer.ppo.critic_warmup_steps")
    run.put("critic.model.path", f"{FOLDER}/critic")
    run.put("critic.model.tokenizer_path", f"{FOLDER}/model")
    epochs = critic_epochs(run.config)
    run.put("critic.ppo_epochs", epochs, "model.ppo.critic_rollout_epochs", "model.ppo.rollout_epochs")
    batch, apart = run.config.model.global_batch_size, has_remote_critic(run.config)
    micro_batch = "model.micro_batch_size" if apart else "critic.model.micro_batch_size"
    rows = divisor(batch, run.setting(micro_batch))
    run.put("critic.ppo_micro_batch_size_per_gpu", rows, micro_batch)  # verl needs a value
    if apart:
        run.ignore("critic.")
        run.differences.append(
            "The run's critic was in another job, whose settings are in that job's run.json: here verl's defaults determine the "
            "critic's optimizer and clipping."
        )
    else:
        _optimizer(run, "critic.optim", "critic.model.optim", rollout.num_rollout_samples // batch * epochs)
        _limit(run, "critic.grad_clip", "critic.trainer.ppo.gradient_clip_val")
        _limit(run, "critic.cliprange_value", "critic.model.loss_clip_val")
    if not loop.normalize_advantages:
        run.differences.append("verl always normalises the advantages of gae.")
    run.differences.append(
        "verl reads critic/ and reward_model/ without their Python file: values and a reward model's rewards are lower by the "
        "constant of their config.json (`reward_constant`)."
    )
    _finish(run, "ppo_trainer", "python3 -m verl.trainer.main_ppo", POLICY)


def grpo(run: Graduation) -> None:
    """Write GRPO, RLOO or REINFORCE++, with the run's environments or its reward model.

    Raises UserError for an objective that verl lacks.
    """
    objective, rollout = objective_of(run.config), run.config.model.grpo
    _check_objective(run, objective)
    draws = rollouts_of_a_step(run.config)
    _policy_gradient(run, rollout.num_prompts_per_step, rollout.num_generations_per_prompt, draws)
    run.ignore("model.grpo.num_prompts_per_step", "model.grpo.objective", "model.grpo.clipping")
    if not judged_by_programs(run.config):
        run.export_reward_model("reward_model.rm_model_file")
        run.ignore("remote_rm.")
        _reward_model(run)
    run.put(
        "algorithm.adv_estimator",
        ESTIMATORS[objective.baseline],
        "model.grpo.objective",
        "model.grpo.baseline",
    )
    run.put("algorithm.norm_adv_by_std_in_grpo", objective.scale == "group_std", "model.grpo.scale")
    run.put(
        f"{ACTOR}.policy_loss.loss_mode",
        "gspo" if objective.ratio == "sequence" else "vanilla",
        "model.grpo.ratio",
    )
    run.put(f"{ACTOR}.clip_ratio_low", objective.clip_low, "model.grpo.clip_low")
    run.put(f"{ACTOR}.clip_ratio_high", objective.clip_high, "model.grpo.clip_high")
    run.put(f"{ACTOR}.loss_agg_mode", AGGREGATION[objective.normalizer], "model.grpo.normalizer")
    if objective.kl == "reward":
        _kl_in_reward(run, "grpo", rollout.num_prompts_per_step * rollout.num_generations_per_prompt)
    run.put(f"{ACTOR}.use_kl_loss", objective.kl_in_loss, "model.grpo.kl")
    if objective.kl_in_loss:
        run.copy(f"{ACTOR}.kl_loss_coef", "trainer.grpo.initial_policy_kl_penalty")
        run.put(f"{ACTOR}.kl_loss_type", KL_LOSSES[objective.kl], "model.grpo.kl")
    if objective.normalizer == "constant":
        # verl's own divisor is the length of the longest response
        longest = "model.grpo.length_params.max_length"
        run.put(f"{ACTOR}.loss_scale_factor", response_length(run.config), "model.grpo.normalizer", longest)
    if objective.ratio == "none":
        run.differences.append(
            "verl's loss has a clipped ratio; the ratio is 1 in the first update of a step, whose gradient is the run's."
        )
    if draws > 1:
        run.differences.append("verl's trainer has no dynamic sampling; its recipe `dapo` has.")
    _finish(run, "ppo_trainer", "python3 -m verl.trainer.main_ppo", POLICY)


KINDS = {"sft": sft, "ppo": ppo, "grpo": grpo}


# ---- parts of the config --------------------------------------------------------------------------------------------


def _policy_gradient(run: Graduation, prompts_per_step: int, group: int, draws: int = 1) -> None:
    """Prompts, policy, rollouts and updates. draws: the most rollouts in a step. Raises UserError for judges that verl can't
    have."""
    kind, model = run.kind, run.config.model
    at, rollout, loop = f"model.{kind}", model[kind], run.config.trainer[kind]
    for name in comparing_environments(run.config):
        raise UserError(
            f"model.environments.{name}.args.compare=true compares the responses to a prompt, and verl judges each response "
            "by itself: choose --to trl, or write the weights alone with `aligner model export`"
        )
    texts, prompts = Texts(run.tokenizer, in_turns=True), run.load_prompts(prompts_per_step)
    if len({task.by_model for task in prompts["train"]}) > 1:
        raise UserError(
            "model.environments: programs judge some prompts and the reward model judges others, and verl asks no program beside "
            "a reward model: choose another target, or write the weights alone with `aligner model export`"
        )
    rows = {split: [_prompt_row(texts, split, task) for task in tasks] for split, tasks in prompts.items()}
    run.write_parquet(rows, "a prompt as a turn whose text contains the run's template, and its judge")
    run.notes += texts.note(TITLE)
    if any(not task.by_model for task in prompts["train"]):
        run.copy_environments()
        run.copy_scripts({"environment_rewards.py": "environment_rewards.py"})
        run.put("reward.custom_reward_function.path", f"{FOLDER}/environment_rewards.py")
        run.put("reward.custom_reward_function.name", "compute_score")
    steps = steps_of(loop, len(prompts["train"]), prompts_per_step * draws)
    longest = response_length(run.config)
    _files(run)
    run.put("data.prompt_key", "prompt")
    run.put("data.max_prompt_length", model.encoder_seq_length - longest, "model.encoder_seq_length")
    run.put("data.max_response_length", longest, f"{at}.length_params.max_length")
    run.put("data.train_batch_size", prompts_per_step, *PROMPTS[kind])
    run.put("data.shuffle", False)
    _model(run, POLICY, "model")
    batch = model.global_batch_size
    run.put(f"{ACTOR}.ppo_mini_batch_size", batch // group, "model.global_batch_size")
    run.put(
        f"{ACTOR}.ppo_micro_batch_size_per_gpu",
        divisor(batch, model.micro_batch_size),
        "model.micro_batch_size",
    )
    run.copy(f"{ACTOR}.ppo_epochs", f"{at}.rollout_epochs")
    run.copy(f"{ACTOR}.entropy_coeff", f"{at}.entropy_bonus")
    _limit(run, f"{ACTOR}.grad_clip", f"trainer.{kind}.gradient_clip_val")
    # the ratio above which verl clips the loss of a negative advantage; the run has no such limit
    run.put(f"{ACTOR}.clip_ratio_c", UNLIMITED)
    updates = prompts_per_step * group // batch * rollout.rollout_epochs
    _optimizer(run, f"{ACTOR}.optim", "model.optim", updates)
    rows_scored = rollout.logprob_forward_micro_batch_size or model.micro_batch_size
    for part in (ROLLOUT, "actor_rollout_ref.ref"):
        run.put(
            f"{part}.log_prob_micro_batch_size_per_gpu", rows_scored, f"{at}.logprob_forward_micro_batch_size"
        )
    _sampling(run, at, rollout, group)
    _trainer(run, kind, steps, -(-steps * prompts_per_step // len(prompts["train"])))
    run.differences.append(
        "verl's reference is the model at the beginning of its training; the run's is start/."
    )
    if any(not task.by_model for task in prompts["train"]):
        run.differences.append(
            "verl can't leave out a response without a verdict: the response gets the reward 0."
        )


PROMPTS = {"ppo": ("model.ppo.num_rollout_samples",), "grpo": ("model.grpo.num_prompts_per_step",)}


def _prompt_row(texts: Texts, split: str, task) -> dict:
    judge = "reward_model" if task.by_model else task.environment
    return {
        "data_source": judge,
        "prompt": [{"role": "user", "content": texts.prompt(task.tokens)}],
        "reward_model": {"style": "model" if task.by_model else "rule", "ground_truth": ""},
        "extra_info": {"split": split, "seed": task.seed},
    }


def _files(run: Graduation) -> None:
    for name, split in zip(("train_files", "val_files"), SPLITS):
        run.put(f"data.{name}", f"{FOLDER}/data/{split}.parquet")


def _model(run: Graduation, at: str, settings: str) -> None:
    run.put(f"{at}.path", f"{FOLDER}/model")
    run.put(f"{at}.custom_chat_template", AS_IT_IS)
    recomputes = run.config.model.activations_checkpoint_granularity == "full"
    run.put(
        f"{at}.enable_gradient_checkpointing", recomputes, f"{settings}.activations_checkpoint_granularity"
    )
    if is_lora(run.config.model.peft):
        adapters = lora_config(run.adapters)
        run.put(f"{at}.lora_rank", adapters["r"], *run.settings_of_adapters("adapter_dim"))
        run.put(f"{at}.lora_alpha", adapters["lora_alpha"], *run.settings_of_adapters("alpha", "use_rslora"))
        run.put(f"{at}.target_modules", "all-linear")
        run.differences.append(
            "The run's adapters are merged into model/, and verl trains new adapters of all linear layers on top."
        )


def _optimizer(run: Graduation, at: str, settings: str, updates: int) -> None:
    """updates: optimizer steps in a step of the run."""
    optim = run.config.critic.model.optim if settings.startswith("critic.") else run.config.model.optim
    sched = optim.sched
    run.put(f"{at}.lr", optim.lr, f"{settings}.lr")
    run.put(f"{at}.weight_decay", optim.weight_decay, f"{settings}.weight_decay")
    run.put(f"{at}.betas", optim.betas, f"{settings}.betas")
    # verl changes the rate once per step
    run.put(f"{at}.lr_warmup_steps", -(-sched.warmup_steps // updates), f"{settings}.sched.warmup_steps")
    style = "constant" if sched.name == "constant" else "cosine"
    run.put(f"{at}.warmup_style", style, f"{settings}.sched.name")
    run.put(f"{at}.min_lr_ratio", min(sched.min_lr / optim.lr, 1.0), f"{settings}.sched.min_lr")


def _limit(run: Graduation, key: str, setting: str) -> None:
    """Copy a limit. The run has none at 0, and verl would limit gradients or values to 0."""
    limit = run.setting(setting)
    run.put(key, limit if limit > 0 else UNLIMITED, setting)


def _sampling(run: Graduation, at: str, rollout, group: int) -> None:
    params = rollout.sampling_params
    run.put(f"{ROLLOUT}.name", "vllm", "model.generation.backend")
    run.put(f"{ROLLOUT}.n", group, f"{at}.num_generations_per_prompt")
    run.copy(f"{ROLLOUT}.temperature", f"{at}.sampling_params.temperature")
    run.copy(f"{ROLLOUT}.top_p", f"{at}.sampling_params.top_p")
    run.put(f"{ROLLOUT}.top_k", params.top_k or -1, f"{at}.sampling_params.top_k")
    run.put(f"{ROLLOUT}.do_sample", not params.use_greedy, f"{at}.sampling_params.use_greedy")
    samples = not (rollout.val_use_greedy or params.use_greedy)
    run.put(f"{ROLLOUT}.val_kwargs.do_sample", samples, f"{at}.val_use_greedy")
    if samples:  # verl's own temperature for validation is 0
        for name in ("temperature", "top_p"):
            run.copy(f"{ROLLOUT}.val_kwargs.{name}", f"{at}.sampling_params.{name}")
        run.put(f"{ROLLOUT}.val_kwargs.top_k", params.top_k or -1, f"{at}.sampling_params.top_k")
    for name in ("tensor_parallel_size", "gpu_memory_utilization", "enforce_eager"):
        theirs = "tensor_model_parallel_size" if name == "tensor_parallel_size" else name
        run.copy(f"{ROLLOUT}.{theirs}", f"model.generation.vllm_cfg.{name}")


def _kl_in_reward(run: Graduation, kind: str, responses: int) -> None:
    """responses: the responses of a step."""
    loop, at = run.config.trainer[kind], f"trainer.{kind}"
    run.put(
        "algorithm.use_kl_in_reward", loop.initial_policy_kl_penalty > 0, f"{at}.initial_policy_kl_penalty"
    )
    run.put("algorithm.kl_penalty", "abs" if loop.use_absolute_kl else "kl", f"{at}.use_absolute_kl")
    run.put("algorithm.kl_ctrl.kl_coef", loop.initial_policy_kl_penalty, f"{at}.initial_policy_kl_penalty")
    run.put("algorithm.kl_ctrl.type", "fixed" if loop.target_kl is None else "adaptive", f"{at}.target_kl")
    if loop.target_kl is not None:
        run.copy("algorithm.kl_ctrl.target_kl", f"{at}.target_kl")
        run.put("algorithm.kl_ctrl.horizon", KL_HORIZON * responses)  # verl counts responses


def _reward_model(run: Graduation) -> None:
    at = "reward.reward_model"
    run.put(f"{at}.enable", True)
    run.put(f"{at}.model_path", f"{FOLDER}/reward_model")
    run.put(f"{at}.rollout.name", "vllm")
    run.copy(f"{at}.rollout.tensor_model_parallel_size", "model.generation.vllm_cfg.tensor_parallel_size")
    # verl removes the stop token, and applies the reward model's template to texts that contain the run's template
    write_template(run.out / "reward_model", AS_IT_IS + "{{ eos_token }}")
    run.differences.append(
        "The chat template of reward_model/ joins texts and ends with the stop token, where verl reads the reward, also of a "
        "response without a stop token. The run reads such a response's reward at its last token."
    )


def _check_objective(run: Graduation, objective) -> None:
    baseline, per_token = f"baseline={objective.baseline}", objective.baseline == "batch_mean"
    combinations = {
        f"{baseline} with scale={objective.scale}": objective.scale not in SCALES.get(objective.baseline, ()),
        f"{baseline} with kl={objective.kl}": per_token and objective.kl != "reward",
        f"ratio={objective.ratio} with normalizer={objective.normalizer}": objective.ratio == "sequence"
        and objective.normalizer != "responses",
    }
    if lacking := lacking_values(objective, VALUES, combinations):
        raise UserError(
            f"model.grpo.objective={run.config.model.grpo.objective} has {', '.join(lacking)}, which verl lacks: choose another "
            "target, or write the weights alone with `aligner model export`"
        )


def _trainer(run: Graduation, kind: str, steps: int, epochs: int) -> None:
    run.put("trainer.total_training_steps", steps, f"trainer.{kind}.max_steps")
    run.put("trainer.total_epochs", epochs, f"trainer.{kind}.max_epochs")
    run.copy("trainer.save_freq", f"trainer.{kind}.save_interval")
    run.copy("trainer.test_freq", f"trainer.{kind}.val_check_interval")
    run.put("trainer.project_name", "graduated")
    run.put("trainer.experiment_name", run.trained.run.name)
    run.put("trainer.logger", ["console"])
    run.differences.append(
        "verl changes the learning rate once per step, and the decay ends with verl's last step. The run changes the rate with "
        "each optimizer step, and model.optim.sched.max_steps may end the run's decay at another step."
    )


def _finish(run: Graduation, defaults: str, start: str, model: str) -> None:
    run.target_config = {
        "hydra": {"searchpath": ["pkg://verl.trainer.config"]},
        "defaults": [defaults, "_self_"],
        **run.target_config,
    }
    run.command, run.checked = COMMAND.format(start=start, model=model), CHECKED
    run.write_config()
