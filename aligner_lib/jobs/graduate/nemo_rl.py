"""NeMo-RL: a YAML file over its example configs, for SFT, reward model, DPO and GRPO.

NeMo-RL was not run here. The keys are those of its published configs; tests/jobs/published_keys.toml names the commits.
"""

from __future__ import annotations

from aligner_lib.config.peft import is_lora
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate.graduation import SIDES, SPLITS, Graduation, divisor, lacking_values
from aligner_lib.jobs.graduate.texts import AS_IT_IS, Texts
from aligner_lib.kinds.grpo.settings import objective_of, rollouts_of_a_step
from aligner_lib.kinds.inputs import steps_of
from aligner_lib.kinds.policy_gradient.settings import (
    generates_with_vllm,
    judged_by_programs,
    response_length,
)
from aligner_lib.models.peft_folder import lora_config

NAME, TITLE = "nemo-rl", "NeMo-RL"
COMMAND = """\
export GRADUATED=/path/to/this/folder
cd RL                                    # a clone of github.com/NVIDIA-NeMo/RL
cp $GRADUATED/config.yaml examples/configs/graduated.yaml
uv run examples/run_{script}.py --config examples/configs/graduated.yaml
# repeats the run: … policy.model_name=$GRADUATED/start policy.tokenizer.name=$GRADUATED/model"""
CHECKED = (
    "`config.yaml` changes NeMo-RL's example config of the same kind, which it names in `defaults`. Its keys were compared with "
    "NeMo-RL's published configs; NeMo-RL itself was not run with them. Set `cluster.gpus_per_node`, `cluster.num_nodes` and "
    "the parallelism for your machine."
)
FOLDER = "${oc.env:GRADUATED}"
# the values of each switch of the objective that NeMo-RL's GRPO computes
VALUES = {
    "baseline": ("group_mean", "leave_one_out"),
    "scale": ("group_std", "none"),
    "aggregation": ("sum_then_normalize",),
    "ratio": ("token", "sequence"),
    "clipping": ("pessimistic",),
    "normalizer": ("responses", "tokens"),
    "kl": ("k1", "k2", "k3", "none"),
}


# ---- kinds ----------------------------------------------------------------------------------------------------------


def sft(run: Graduation) -> None:
    """Write supervised fine-tuning: conversations whose assistant turns are the learned parts."""
    loaded = run.load_sft()
    if not run.setting("model.answer_only_loss"):
        raise UserError(
            "model.answer_only_loss=False: NeMo-RL's SFT has its loss on the assistant's turns alone; choose --to trl"
        )
    texts = Texts(run.tokenizer, in_turns=True)
    run.write_rows(
        {
            split: [{"messages": texts.turns(sample)} for sample in samples]
            for split, samples in loaded.items()
        },
        "turns, whose texts contain the run's template",
    )
    train, validation = run.config.model.data.train_ds, run.config.model.data.validation_ds
    steps = _loop(run, len(loaded["train"]), train.global_batch_size)
    _policy(run, train.global_batch_size, train.micro_batch_size, "model.data.train_ds", steps)
    run.put(
        "sft.val_global_batch_size",
        validation.global_batch_size,
        "model.data.validation_ds.global_batch_size",
    )
    run.put(
        "sft.val_micro_batch_size", validation.micro_batch_size, "model.data.validation_ds.micro_batch_size"
    )
    for split in SPLITS:
        _dataset(run, split, {"dataset_name": "openai_format", "chat_key": "messages"})
    for name in ("add_bos", "add_eos", "add_generation_prompt"):
        run.put(f"data.{name}", False)
    run.put("data.default.processor", "sft_processor")
    _finish(run, "sft", texts)


def rm(run: Graduation) -> None:
    """Write reward-model training."""
    _pairs(run, "rm")
    run.put("policy.reward_model_cfg.enabled", True)
    run.put("policy.reward_model_cfg.reward_model_type", "bradley_terry")
    run.differences.append(
        "NeMo-RL continues from the exported head, whose rewards are divided by their standard deviation, so its first loss "
        f"is that of smaller rewards (the run's standard deviation is {run.trained.scale.std:.6g})."
    )
    _finish(run, "rm")


def dpo(run: Graduation) -> None:
    """Write DPO. Raises UserError for another loss than dpo."""
    loss = run.setting("model.dpo.preference_loss")
    if loss != "dpo":
        raise UserError(f"model.dpo.preference_loss={loss}: NeMo-RL has only dpo; choose --to trl")
    _pairs(run, "dpo")
    run.copy("dpo.reference_policy_kl_penalty", "model.dpo.ref_policy_kl_penalty")
    run.copy("dpo.preference_average_log_probs", "model.dpo.preference_average_log_probs")
    run.put("dpo.preference_loss_weight", 1)
    run.copy("dpo.sft_loss_weight", "model.dpo.sft_loss_weight")
    run.put("dpo.sft_average_log_probs", True, "model.dpo.sft_loss_weight")
    run.differences.append(REFERENCE)
    _finish(run, "dpo")


def grpo(run: Graduation) -> None:
    """Write GRPO with the reward model as its environment.

    Raises UserError for an objective that NeMo-RL lacks, and for rewards of programs.
    """
    if judged_by_programs(run.config):
        raise UserError(
            "the run's environments judge by programs, and NeMo-RL runs such programs only as classes of its own: choose --to "
            "trl or --to verl, which call the environments here"
        )
    objective, rollout = objective_of(run.config), run.config.model.grpo
    _check_objective(run, objective)
    texts = Texts(run.tokenizer, in_turns=True)
    prompts = run.load_prompts(rollout.num_prompts_per_step)
    rows = {
        split: [{"input": texts.prompt(task.tokens), "output": ""} for task in tasks]
        for split, tasks in prompts.items()
    }
    run.write_rows(rows, "a prompt as a text, with the run's template")
    run.export_reward_model("reward_model.rm_model_file")
    run.ignore("remote_rm.", "model.grpo.objective")
    responses = rollout.num_prompts_per_step * rollout.num_generations_per_prompt
    draws = rollouts_of_a_step(run.config)
    steps = _loop(run, len(prompts["train"]), rollout.num_prompts_per_step * draws)
    batch, micro_batch = run.config.model.global_batch_size, run.config.model.micro_batch_size
    updates = responses // batch * rollout.rollout_epochs
    _policy(run, batch, micro_batch, "model", steps, updates)
    if updates > 1:
        run.differences.append(
            f"NeMo-RL changes the learning rate once per step; the run changes the rate with each of a step's {updates} "
            "optimizer steps."
        )
    for name in ("num_prompts_per_step", "num_generations_per_prompt"):
        run.copy(f"grpo.{name}", f"model.grpo.{name}")
    run.put("grpo.normalize_rewards", objective.scale == "group_std", "model.grpo.scale")
    run.put("grpo.use_leave_one_out_baseline", objective.baseline == "leave_one_out", "model.grpo.baseline")
    run.copy("grpo.overlong_filtering", "trainer.grpo.mask_truncated_responses")
    run.put("grpo.use_dynamic_sampling", draws > 1, "model.grpo.max_rollouts_per_step")
    if draws > 1:
        # NeMo-RL ends with an error after as many draws, and the run goes on with the groups that differ
        run.put("grpo.dynamic_sampling_max_gen_batches", 1000)
        run.differences.append(
            f"NeMo-RL draws until enough groups differ; the run draws at most {draws} times in a step."
        )
    _reward_shaping(run)
    _loss(run, objective)
    _generation(run)
    for split in SPLITS:
        _dataset(
            run, split, {"dataset_name": "ResponseDataset", "input_key": "input", "output_key": "output"}
        )
    run.put("data.default.prompt_file", None)
    run.put("data.default.processor", "math_hf_data_processor")
    run.put("data.default.env_name", "reward_model")
    run.put("env.reward_model.enabled", True)
    run.put("env.reward_model.model_name", f"{FOLDER}/reward_model")
    run.put("env.reward_model.tokenizer.name", f"{FOLDER}/reward_model")
    run.put("env.reward_model.max_model_len", run.config.model.encoder_seq_length, "model.encoder_seq_length")
    run.differences.append(REFERENCE)
    run.differences.append(
        "NeMo-RL scores with the plain classifier of reward_model/, so every reward is lower by the constant in its "
        "config.json (`reward_constant`). Advantages within a group do not change."
    )
    if rollout.rollout_epochs > 1:
        run.differences.append(
            f"NeMo-RL passes once over a step's rollout, and the run {rollout.rollout_epochs} times."
        )
    _finish(run, "grpo", texts)


KINDS = {"sft": sft, "rm": rm, "dpo": dpo, "grpo": grpo}
DEFAULTS = {"sft": "sft.yaml", "rm": "rm.yaml", "dpo": "dpo.yaml", "grpo": "grpo_rm_1B.yaml"}
REFERENCE = "NeMo-RL's reference is the model at the beginning of its training; the run's is start/."
PAIR_KEYS = {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}


# ---- parts of the config --------------------------------------------------------------------------------------------


def _pairs(run: Graduation, group: str) -> None:
    texts = Texts(run.tokenizer, in_turns=True)
    pairs = run.load_pairs("load_preferences")
    run.write_rows(
        {
            split: [texts.preference(pair) for pair in pairs_of_split]
            for split, pairs_of_split in pairs.items()
        },
        f"a prompt with a {SIDES[0]} and a {SIDES[1]} response, as texts with the run's template",
    )
    model = run.config.model
    steps = _loop(run, len(pairs["train"]), model.global_batch_size)
    _policy(run, model.global_batch_size, model.micro_batch_size, "model", steps)
    run.put(f"{group}.val_global_batch_size", model.global_batch_size, "model.global_batch_size")
    run.put(f"{group}.val_micro_batch_size", model.micro_batch_size, "model.micro_batch_size")
    for split in SPLITS:
        _dataset(run, split, {"dataset_name": "BinaryPreferenceDataset", **PAIR_KEYS})
    run.notes += texts.note(TITLE)


def _loop(run: Graduation, samples: int, batch: int) -> int:
    """Steps, validation, checkpoints and the seed. samples: training samples; batch: the most samples of a step. Returns the
    steps."""
    settings, group, at = run.config.trainer[run.kind], run.kind, f"trainer.{run.kind}"
    steps = steps_of(settings, samples, batch)
    run.put(f"{group}.max_num_epochs", -(-steps * batch // samples), f"{at}.max_epochs", f"{at}.max_steps")
    run.put(f"{group}.max_num_steps", steps, f"{at}.max_steps")
    run.copy(f"{group}.val_period", f"{at}.val_check_interval")
    run.copy(f"{group}.seed", "model.seed")
    run.put("checkpointing.checkpoint_dir", f"results/{run.trained.run.name}")
    run.copy("checkpointing.save_period", f"{at}.save_interval")
    run.put("data.shuffle", False)
    return steps


def _policy(
    run: Graduation, batch: int, micro_batch: int, batches: str, steps: int, updates: int = 1
) -> None:
    """Model, batches and optimizer. batches: the group of the settings with the batch sizes; updates: the optimizer steps in
    each of the run's steps."""
    model, optim = run.config.model, run.config.model.optim
    run.put("policy.model_name", f"{FOLDER}/model")
    run.put("policy.tokenizer.name", f"{FOLDER}/model")
    run.put("policy.tokenizer.chat_template", AS_IT_IS)
    run.put("policy.train_global_batch_size", batch, f"{batches}.global_batch_size")
    run.put("policy.train_micro_batch_size", divisor(batch, micro_batch), f"{batches}.micro_batch_size")
    run.copy("policy.max_total_sequence_length", "model.encoder_seq_length")
    run.put(
        "policy.precision",
        "float32" if run.setting("trainer.precision") == "32" else "bfloat16",
        "trainer.precision",
    )
    recomputes = model.activations_checkpoint_granularity == "full"
    run.put(
        "policy.dtensor_cfg.activation_checkpointing", recomputes, "model.activations_checkpoint_granularity"
    )
    clip = f"trainer.{run.kind}.gradient_clip_val"
    run.put("policy.max_grad_norm", run.setting(clip) or None, clip)  # 0: no clipping
    run.put("policy.optimizer.name", "torch.optim.AdamW", "model.optim.name")
    for name in ("lr", "weight_decay", "betas", "eps"):
        run.copy(f"policy.optimizer.kwargs.{name}", f"model.optim.{name}")
    _schedule(run, optim, steps, updates)
    if is_lora(model.peft):
        _adapters(run)


def _schedule(run: Graduation, optim, steps: int, updates: int) -> None:
    """The schedule as torch's schedulers, one after another. NeMo-RL changes the rate once per step."""
    sched = optim.sched
    warmup, constant = -(-sched.warmup_steps // updates), -(-sched.constant_steps // updates)
    total = max(-(-sched.max_steps // updates) if sched.max_steps else steps, warmup + 1)
    parts, milestones = [], []
    if warmup:
        rise = {"start_factor": 1 / (warmup + 1), "end_factor": 1.0, "total_iters": warmup}
        parts.append({"name": "torch.optim.lr_scheduler.LinearLR", "kwargs": rise})
        milestones.append(warmup)
    if sched.name == "constant":
        parts.append(
            {"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": total}}
        )
    else:
        least = min(sched.min_lr, optim.lr)
        fall = {"T_max": max(total - warmup - constant, 1), "eta_min": least}
        parts.append({"name": "torch.optim.lr_scheduler.CosineAnnealingLR", "kwargs": fall})
        # after T_max, torch's cosine would rise again
        milestones.append(warmup + fall["T_max"])
        rest = {"factor": least / optim.lr, "total_iters": 10**9}
        parts.append({"name": "torch.optim.lr_scheduler.ConstantLR", "kwargs": rest})
    parts.append({"milestones": milestones})  # NeMo-RL needs the entry, even an empty one
    run.put("policy.scheduler", parts, *(f"model.optim.sched.{name}" for name in sched))


def _adapters(run: Graduation) -> None:
    adapters, at = lora_config(run.adapters), "policy.dtensor_cfg.lora_cfg"
    run.put(f"{at}.enabled", True, "model.peft.peft_scheme")
    run.put(f"{at}.dim", adapters["r"], *run.settings_of_adapters("adapter_dim"))
    run.put(f"{at}.alpha", adapters["lora_alpha"], *run.settings_of_adapters("alpha", "use_rslora"))
    run.copy(f"{at}.dropout", "model.peft.lora_tuning.adapter_dropout")
    run.put(f"{at}.match_all_linear", True)
    run.differences.append(
        "The run's adapters are merged into model/, and NeMo-RL trains new adapters of all linear layers on top."
    )


def _dataset(run: Graduation, split: str, names: dict[str, str]) -> None:
    for name, value in names.items():
        run.put(f"data.{split}.{name}", value)
    run.put(f"data.{split}.data_path", f"{FOLDER}/data/{split}.jsonl")


def _check_objective(run: Graduation, objective) -> None:
    combinations = {
        f"ratio={objective.ratio} with normalizer={objective.normalizer}": objective.ratio == "sequence"
        and objective.normalizer != "responses",
    }
    if lacking := lacking_values(objective, VALUES, combinations):
        raise UserError(
            f"model.grpo.objective={run.config.model.grpo.objective} has {', '.join(lacking)}, which NeMo-RL's GRPO lacks: "
            "choose --to verl or --to trl"
        )


def _loss(run: Graduation, objective) -> None:
    penalty = run.config.trainer.grpo.initial_policy_kl_penalty if objective.kl_in_loss else 0.0
    run.put(
        "loss_fn.reference_policy_kl_penalty",
        penalty,
        "trainer.grpo.initial_policy_kl_penalty",
        "model.grpo.kl",
    )
    if objective.kl_in_loss:
        run.put("loss_fn.reference_policy_kl_type", objective.kl, "model.grpo.kl")
    run.put("loss_fn.ratio_clip_min", objective.clip_low, "model.grpo.clip_low")
    run.put("loss_fn.ratio_clip_max", objective.clip_high, "model.grpo.clip_high")
    run.put("loss_fn.token_level_loss", objective.normalizer == "tokens", "model.grpo.normalizer")
    run.put("loss_fn.sequence_level_importance_ratios", objective.ratio == "sequence", "model.grpo.ratio")


def _reward_shaping(run: Graduation) -> None:
    buffer, at = run.config.trainer.grpo.overlong_buffer, "grpo.reward_shaping"
    run.put(f"{at}.enabled", buffer is not None, "trainer.grpo.overlong_buffer")
    if buffer is not None:
        run.put(f"{at}.overlong_buffer_length", buffer, "trainer.grpo.overlong_buffer")
        run.copy(f"{at}.overlong_buffer_penalty", "trainer.grpo.overlong_penalty")
        run.put(
            f"{at}.max_response_length", response_length(run.config), "model.grpo.length_params.max_length"
        )


def _generation(run: Graduation) -> None:
    params, at = run.config.model.grpo.sampling_params, "model.grpo.sampling_params"
    run.put("policy.generation.backend", "vllm", "model.generation.backend")
    run.put(
        "policy.generation.max_new_tokens", response_length(run.config), "model.grpo.length_params.max_length"
    )
    run.copy("policy.generation.temperature", f"{at}.temperature")
    run.copy("policy.generation.top_p", f"{at}.top_p")
    run.put("policy.generation.top_k", params.top_k or None, f"{at}.top_k")
    run.put("policy.generation.stop_token_ids", list(run.tokenizer.stop_ids))
    run.put("policy.generation.stop_strings", list(params.end_strings) or None, f"{at}.end_strings")
    if generates_with_vllm(run.config):
        for name in ("tensor_parallel_size", "gpu_memory_utilization", "enforce_eager"):
            run.copy(f"policy.generation.vllm_cfg.{name}", f"model.generation.vllm_cfg.{name}")


def _finish(run: Graduation, kind: str, texts: Texts | None = None) -> None:
    run.notes += texts.note(TITLE) if texts else []
    run.target_config = {"defaults": DEFAULTS[kind], **run.target_config}
    run.command, run.checked = COMMAND.replace("{script}", kind), CHECKED
    run.write_config()
