"""TRL: a script and its settings for SFTTrainer, RewardTrainer, DPOTrainer, KTOTrainer or GRPOTrainer.

The scripts are in trl_scripts/, and config.yaml has the arguments of TRL's config classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aligner_lib.config.peft import is_lora
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate.graduation import SIDES, Graduation, divisor, lacking_values
from aligner_lib.jobs.graduate.texts import Texts
from aligner_lib.kinds.grpo.settings import objective_of, rollouts_of_a_step
from aligner_lib.kinds.inputs import steps_of
from aligner_lib.kinds.policy_gradient.settings import (
    generates_with_vllm,
    judged_by_programs,
    response_length,
)
from aligner_lib.models.peft_folder import lora_config

NAME, TITLE = "trl", "TRL"
COMMAND = """\
# in Aligner Lab's environment, after `pip install -e '.[bench]'` in Aligner Lab's folder
python train.py                  # continues; --begin start repeats the run"""

LOSSES = {"dpo": "sigmoid", "ipo": "ipo", "robust": "robust"}
NORMALIZERS = {"responses": "grpo", "tokens": "dapo", "constant": "dr_grpo"}
CORRECTIONS = {"truncated": "token_truncate", "masked": "token_mask"}
SCALES = {"group_std": "group", "batch_std": "batch", "none": "none"}
# the values of each switch of the objective that GRPOTrainer computes
VALUES = {
    "baseline": ("group_mean",),
    "scale": SCALES,
    "aggregation": ("sum_then_normalize",),
    "ratio": ("token", "sequence"),
    "clipping": ("pessimistic", "stop_gradient"),
    "normalizer": NORMALIZERS,
    "kl": ("k3", "none"),
}
# Megatron's linear layers → those of transformers
LAYERS = {
    "linear_qkv": ("q_proj", "k_proj", "v_proj"),
    "linear_proj": ("o_proj",),
    "linear_fc1": ("gate_proj", "up_proj"),
    "linear_fc2": ("down_proj",),
}


# ---- kinds ----------------------------------------------------------------------------------------------------------


def sft(run: Graduation) -> None:
    """Write supervised fine-tuning: rows of token ids and labels."""
    train, validation = run.config.model.data.train_ds, run.config.model.data.validation_ds
    loaded = run.load_sft()
    answers = run.setting("model.answer_only_loss")
    rows = {
        split: [_labelled_row(run, sample, answers) for sample in samples]
        for split, samples in loaded.items()
    }
    run.write_rows(rows, "a text, its token ids, and labels, which are -100 outside the loss")
    run.ignore("model.data.validation_ds.global_batch_size")
    batch = train.global_batch_size
    steps = steps_of(run.config.trainer.sft, len(rows["train"]), batch)
    _compare_epochs(run, steps * batch, len(rows["train"]))
    _arguments(run, batch, train.micro_batch_size, "model.data.train_ds", steps)
    _evaluation(run, validation.micro_batch_size, "model.data.validation_ds.micro_batch_size")
    run.put("trainer.max_length", None, "model.encoder_seq_length")
    _finish(run, {"train.py": "sft.py"})


def rm(run: Graduation) -> None:
    """Write reward-model training: rows of token ids of both texts."""
    rows = {
        split: [
            {
                **{side: run.tokenizer.decode(getattr(pair, side), special_tokens=True) for side in SIDES},
                **{f"{side}_ids": getattr(pair, side) for side in SIDES},
            }
            for pair in pairs
        ]
        for split, pairs in run.load_pairs("load_pairs").items()
    }
    run.write_rows(rows, "the texts of a pair and their token ids")
    _pair_arguments(run, len(rows["train"]))
    is_new = not run.has_start or run.start.architecture.head == "lm"
    run.put("head.is_new", is_new)
    run.put("head.init_std", run.config.model.init_method_std, "model.init_method_std")
    run.put("head.seed", run.config.model.seed, "model.seed")
    run.put("head.reward_std", run.trained.scale.std, "model.reward_standardization")
    if not is_new:
        run.put("head.start_std", run.start.scale.std)
    run.differences.append(
        "TRL reports rewards without mean and standard deviation. The scale of the exported rewards is in model/README.md; "
        "measure the scale of a newly trained model on data/validation.jsonl."
    )
    if run.config.model.center_rewards_coefficient:
        run.differences.append(
            "TRL's center_rewards_coefficient penalises the sum of both rewards at the last token. "
            "model.center_rewards_coefficient penalises the rewards at all tokens, so it was not carried over."
        )
    _finish(run, {"train.py": "reward.py"})


def dpo(run: Graduation) -> None:
    """Write DPO on texts of pairs, or KTO on texts with labels. Raises UserError for a loss that TRL's trainers lack."""
    loss = run.setting("model.dpo.preference_loss")
    if loss == "kto":
        return _kto(run)
    if loss not in LOSSES:
        raise UserError(
            f"model.dpo.preference_loss={loss}: TRL's DPOTrainer has no such loss; graduate has {', '.join((*LOSSES, 'kto'))}. "
            "Write the weights alone with `aligner model export`"
        )
    texts = Texts(run.tokenizer, in_turns=False)
    rows = {
        split: [texts.preference(pair) for pair in pairs]
        for split, pairs in run.load_pairs("load_preferences").items()
    }
    run.write_rows(rows, "a prompt with a chosen and a rejected response, as texts")
    run.notes += texts.note(TITLE)
    _pair_arguments(run, len(rows["train"]))
    averaged = loss == "dpo" and run.setting("model.dpo.preference_average_log_probs")
    weights = {"sigmoid_norm" if averaged else LOSSES[loss]: 1.0}
    if weight := run.setting("model.dpo.sft_loss_weight"):
        weights["sft"] = weight
        run.differences.append(
            "TRL's sft loss is the mean over the tokens of a micro batch, so a long chosen response counts more; in the run, all "
            "chosen responses count the same."
        )
    of_loss = ("preference_loss", "preference_average_log_probs", "sft_loss_weight")
    run.put("trainer.loss_type", list(weights), *(f"model.dpo.{name}" for name in of_loss))
    run.put("trainer.loss_weights", list(weights.values()), "model.dpo.sft_loss_weight")
    run.copy("trainer.beta", "model.dpo.ref_policy_kl_penalty")
    if loss == "robust":
        smoothing = run.setting("model.dpo.label_smoothing")
        run.put(
            "trainer.label_smoothing", 0.1 if smoothing is None else smoothing, "model.dpo.label_smoothing"
        )
    run.copy("trainer.precompute_ref_log_probs", "model.dpo.precompute_reference_logprobs")
    _needs_start(run)
    _finish(run, {"train.py": "dpo.py"})


def _kto(run: Graduation) -> None:
    if run.config.model.global_batch_size == 1:
        raise UserError(
            "model.global_batch_size=1: TRL's KTO pairs each prompt with another response of the batch, so a batch needs 2 or "
            "more. Write the weights alone with `aligner model export`"
        )
    texts = Texts(run.tokenizer, in_turns=False)
    rows = {
        split: [_labelled_response(texts, sample) for sample in samples]
        for split, samples in run.load_pairs("load_labelled").items()
    }
    run.write_rows(rows, "a prompt, a response and its label, as texts")
    run.notes += texts.note(TITLE)
    _pair_arguments(run, len(rows["train"]), least=2)
    run.copy("trainer.beta", "model.dpo.ref_policy_kl_penalty")
    run.copy("trainer.desirable_weight", "model.dpo.desirable_loss_weight")
    run.copy("trainer.undesirable_weight", "model.dpo.undesirable_loss_weight")
    run.differences.append(
        "TRL estimates KTO's reference point from the unrelated responses of a micro batch of at least 2, and chooses these "
        "responses itself. This project estimates the point from the global batch, so the losses differ once the policy has moved."
    )
    _needs_start(run)
    _finish(run, {"train.py": "kto.py"})


def grpo(run: Graduation) -> None:
    """Write GRPO on texts of prompts, with the run's rewards. Raises UserError for an objective that TRL's GRPOTrainer lacks."""
    objective, rollout = objective_of(run.config), run.config.model.grpo
    loss = _loss_of(run, objective)
    responses = rollout.num_prompts_per_step * rollout.num_generations_per_prompt
    texts = Texts(run.tokenizer, in_turns=False)
    prompts = run.load_prompts(rollout.num_prompts_per_step)
    rows = {
        split: [
            {
                "prompt": texts.prompt(task.tokens),
                "environment": "" if task.by_model else task.environment,
                "seed": task.seed,
                "split": split,
            }
            for task in tasks
        ]
        for split, tasks in prompts.items()
    }
    run.write_rows(
        rows, "a prompt as a text, and the environment's name and seed, from which its reward follows"
    )
    run.notes += texts.note(TITLE)
    scripts = {"train.py": "grpo.py", "rewards.py": "rewards.py"}
    if any(task.environment for task in prompts["train"]):
        run.copy_environments()
        scripts["environment_rewards.py"] = "environment_rewards.py"
    if not judged_by_programs(run.config):
        run.export_reward_model("reward_model.rm_model_file")
        run.ignore("remote_rm.")

    batch = run.config.model.global_batch_size
    updates = responses // batch * rollout.rollout_epochs
    prompts_per_step = rollout.num_prompts_per_step * rollouts_of_a_step(run.config)
    steps = steps_of(run.config.trainer.grpo, len(prompts["train"]), prompts_per_step)
    _compare_epochs(run, steps * rollout.num_prompts_per_step, len(prompts["train"]))
    _arguments(run, batch, run.config.model.micro_batch_size, "model", steps * updates)
    run.put("trainer.steps_per_generation", responses // run.target_config["trainer"]["per_device_train_batch_size"],
            "model.grpo.num_prompts_per_step", "model.global_batch_size")  # fmt: skip
    _evaluation(run, rollout.num_generations_per_prompt, "model.grpo.num_generations_per_prompt")
    run.put("trainer.num_generations_eval", 1)
    for name in ("save_steps", "eval_steps"):
        run.target_config["trainer"][name] *= updates
    run.copy("trainer.num_generations", "model.grpo.num_generations_per_prompt")
    run.copy("trainer.num_iterations", "model.grpo.rollout_epochs")
    run.put(
        "trainer.max_completion_length", response_length(run.config), "model.grpo.length_params.max_length"
    )
    _objective(run, objective, loss)
    run.copy("trainer.mask_truncated_completions", "trainer.grpo.mask_truncated_responses")
    run.put("trainer.shuffle_dataset", False)
    _sampling(run)
    shaping = ("reward_clip", "missing_eos_penalty", "overlong_buffer", "overlong_penalty")
    for name in shaping:
        run.copy(f"rewards.{name}", f"trainer.grpo.{name}")
    run.put("rewards.max_length", response_length(run.config))
    if run.target_config["trainer"]["beta"]:
        _needs_start(run)
    if rollouts_of_a_step(run.config) > 1:
        run.differences.append(
            "TRL has no dynamic sampling: groups with equal rewards stay in the batch, with advantages of 0."
        )
    if objective.normalizer == "tokens" and updates > 1:
        run.differences.append(
            "With several updates in a step, TRL divides the sum of the token losses by the mean number of tokens of the "
            "updates; this project divides by the number of tokens of the update."
        )
    run.differences.append(
        f"A step of the run has {updates} optimizer steps; TRL counts optimizer steps, and max_steps counts them, too."
    )
    _finish(run, scripts)


KINDS = {"sft": sft, "rm": rm, "dpo": dpo, "grpo": grpo}


# ---- rows -----------------------------------------------------------------------------------------------------------


def _labelled_row(run: Graduation, sample, answers_only: bool) -> dict[str, Any]:
    learnt = sample.learnt if answers_only else [True] * len(sample)
    return {
        "text": run.tokenizer.decode(sample.tokens, special_tokens=True),
        "input_ids": sample.tokens,
        "labels": [token if counts else -100 for token, counts in zip(sample.tokens, learnt)],
    }


def _labelled_response(texts: Texts, sample) -> dict[str, Any]:
    prompt, response = texts.labelled(sample)
    return {"prompt": prompt, "completion": response, "label": sample.desirable}


# ---- arguments ------------------------------------------------------------------------------------------------------


def _arguments(run: Graduation, batch: int, micro_batch: int, batches: str, steps: int) -> None:
    """The arguments of transformers' trainer. batches: the group of the settings with the batch sizes; steps: optimizer steps."""
    rows, loop = divisor(batch, micro_batch), f"trainer.{run.kind}"
    run.put("trainer.output_dir", "out")
    run.put("trainer.per_device_train_batch_size", rows, f"{batches}.micro_batch_size")
    run.put("trainer.gradient_accumulation_steps", batch // rows, f"{batches}.global_batch_size")
    # in place of max_epochs, because transformers ends each epoch with a partial batch and so takes more steps
    run.put("trainer.max_steps", steps, f"{loop}.max_steps", f"{loop}.max_epochs")
    run.copy("trainer.learning_rate", "model.optim.lr")
    run.copy("trainer.weight_decay", "model.optim.weight_decay")
    beta1, beta2 = run.config.model.optim.betas
    run.put("trainer.adam_beta1", beta1, "model.optim.betas")
    run.put("trainer.adam_beta2", beta2, "model.optim.betas")
    run.copy("trainer.adam_epsilon", "model.optim.eps")
    _schedule(run)
    run.copy("trainer.max_grad_norm", f"{loop}.gradient_clip_val")
    run.put("trainer.bf16", run.config.trainer.precision != "32", "trainer.precision")
    recomputes = run.config.model.activations_checkpoint_granularity == "full"
    run.put("trainer.gradient_checkpointing", recomputes, "model.activations_checkpoint_granularity")
    run.copy("trainer.seed", "model.seed")
    run.put("trainer.train_sampling_strategy", "sequential")
    run.put("trainer.logging_steps", 1)
    run.copy("trainer.save_steps", f"{loop}.save_interval")
    run.put("trainer.report_to", "none")
    if is_lora(run.config.model.peft):
        _adapters(run)


def _pair_arguments(run: Graduation, samples: int, least: int = 1) -> None:
    """The arguments of a trainer of pairs. samples: the number of training samples; least: the fewest rows of a micro batch."""
    batch, micro_batch = run.config.model.global_batch_size, run.config.model.micro_batch_size
    steps = steps_of(run.config.trainer[run.kind], samples, batch)
    _compare_epochs(run, steps * batch, samples)
    fewest = next(size for size in range(least, batch + 1) if batch % size == 0)
    _arguments(run, batch, max(micro_batch, fewest), "model", steps)
    _evaluation(run, micro_batch, "model.micro_batch_size")
    run.put("trainer.max_length", None, "model.encoder_seq_length")


def _compare_epochs(run: Graduation, drawn: int, samples: int) -> None:
    """Tell how TRL's later epochs differ. drawn: the samples that the run trains on, with repetitions; samples: in an epoch."""
    if drawn > samples:
        run.differences.append(
            "TRL takes the rows of every epoch in the order of data/train.jsonl, and no batch continues into the next epoch. The "
            "run's batches do, and a run that shuffles its data has a new order in each epoch."
        )


def _schedule(run: Graduation) -> None:
    optim = run.config.model.optim
    sched = optim.sched
    names = tuple(f"model.optim.sched.{name}" for name in ("name", "min_lr", "warmup_steps"))
    if sched.name == "constant":
        kind = "constant_with_warmup" if sched.warmup_steps else "constant"
    else:
        kind = "cosine_with_min_lr" if sched.min_lr else "cosine"
    run.put("trainer.lr_scheduler_type", kind, *names)
    run.put("trainer.warmup_steps", sched.warmup_steps, names[2])
    if kind == "cosine_with_min_lr":
        run.put("trainer.lr_scheduler_kwargs", {"min_lr": min(sched.min_lr, optim.lr)}, names[1])
    if sched.warmup_steps:
        run.differences.append(
            f"TRL's warm-up starts at a learning rate of 0. Of its {sched.warmup_steps} steps, the first changes no weight."
        )


def _evaluation(run: Graduation, rows: int, setting: str) -> None:
    run.put("trainer.eval_strategy", "steps")
    run.copy("trainer.eval_steps", f"trainer.{run.kind}.val_check_interval")
    run.put("trainer.per_device_eval_batch_size", rows, setting)


def _adapters(run: Graduation) -> None:
    adapters = {name: adapter for layer, adapter in run.adapters.items() for name in LAYERS[layer]}
    settings = {
        "r": ("adapter_dim",),
        "lora_alpha": ("alpha", "use_rslora"),
        "target_modules": ("target_modules",),
    }
    for name, value in lora_config(adapters).items():
        if value:  # an empty pattern says nothing
            run.put(f"lora.{name}", value, *run.settings_of_adapters(*settings.get(name, ())))
    run.copy("lora.lora_dropout", "model.peft.lora_tuning.adapter_dropout")
    run.put("lora.task_type", "SEQ_CLS" if run.trained.architecture.head == "scalar" else "CAUSAL_LM")
    run.differences.append(
        "The run's adapters are merged into model/, and TRL trains new adapters on top. Queries, keys and values have "
        "adapters of their own in peft; here they share an A. train.py draws every A anew from the run's distribution, so the "
        "gradients differ from the first step on."
    )


def _sampling(run: Graduation) -> None:
    params, lengths = run.config.model.grpo.sampling_params, run.config.model.grpo.length_params
    for name in ("temperature", "top_p", "top_k"):
        run.copy(f"trainer.{name}", f"model.grpo.sampling_params.{name}")
    by_vllm, others = generates_with_vllm(run.config), {}
    if params.use_greedy:
        others |= {"temperature": 0.0} if by_vllm else {"do_sample": False}
    if lengths.min_length > 1:
        others["min_tokens" if by_vllm else "min_new_tokens"] = lengths.min_length
    run.ignore("model.grpo.sampling_params.use_greedy", "model.grpo.length_params.min_length")
    if others:
        run.put("trainer.generation_kwargs", others)
    if by_vllm:
        run.put("trainer.use_vllm", True, "model.generation.backend")
        for name in ("tensor_parallel_size", "gpu_memory_utilization"):
            run.copy(f"trainer.vllm_{name}", f"model.generation.vllm_cfg.{name}")
        at, setting = "trainer.vllm_importance_sampling", "model.grpo.sampler_correction"
        correction = run.setting(setting)
        run.put(f"{at}_correction", correction != "none", setting)
        if correction != "none":
            run.put(f"{at}_mode", CORRECTIONS[correction], setting)
            run.copy(f"{at}_clip_max", f"{setting}_cap")


def _objective(run: Graduation, objective, loss: str) -> None:
    """The switches of the objective. loss: TRL's loss_type."""
    run.ignore("model.grpo.objective", "model.grpo.baseline", "model.grpo.clipping", "model.grpo.clip_low")
    run.put("trainer.loss_type", loss, "model.grpo.objective", "model.grpo.normalizer")
    run.put("trainer.scale_rewards", SCALES[objective.scale], "model.grpo.scale")
    run.put("trainer.importance_sampling_level", objective.ratio, "model.grpo.ratio")
    run.put("trainer.epsilon", objective.clip_low, "model.grpo.clip_low")
    high = 1 + objective.clip_high if loss == "cispo" else objective.clip_high
    run.put("trainer.epsilon_high", high, "model.grpo.clip_high")
    run.put(
        "trainer.beta",
        run.config.trainer.grpo.initial_policy_kl_penalty if objective.kl_in_loss else 0.0,
        "model.grpo.kl",
        "trainer.grpo.initial_policy_kl_penalty",
    )
    run.put("trainer.use_bias_correction_kl", False)


def _loss_of(run: Graduation, objective) -> str:
    """TRL's loss_type for an objective. Raises UserError for an objective that TRL's GRPOTrainer lacks."""
    stops_gradient = objective.clipping == "stop_gradient"
    if run.config.trainer.grpo.initial_policy_kl_penalty == 0:
        objective = replace(objective, kl="none")
    combinations = {
        f"clipping={objective.clipping} with normalizer={objective.normalizer}": stops_gradient
        and objective.normalizer != "tokens",
        f"ratio=sequence with normalizer={objective.normalizer}": objective.ratio == "sequence"
        and objective.normalizer != "responses",
    }
    if lacking := lacking_values(objective, VALUES, combinations):
        raise UserError(
            f"model.grpo.objective={run.config.model.grpo.objective} has {', '.join(lacking)}, which TRL's GRPOTrainer lacks: "
            "choose --to verl, or write the weights alone with `aligner model export`"
        )
    return "cispo" if stops_gradient else NORMALIZERS[objective.normalizer]


# ---- the folder -----------------------------------------------------------------------------------------------------


def _needs_start(run: Graduation) -> None:
    """Tell which model is the reference. Raises UserError if the reference is gone."""
    if is_lora(run.config.model.peft):
        run.differences.append(
            "TRL's reference is the model without the new adapters: with --begin end model/, where the run ended, and with "
            "--begin start start/, as in the run."
        )
    elif not run.has_start:
        raise UserError(
            f"the model at the run's start, {run.trained.start}, has changed or is not there any more, and TRL needs the model as "
            "the reference: put the model back, or write the weights alone with `aligner model export`"
        )
    else:
        run.differences.append("The reference is start/ with both values of --begin, as in the run.")


def _finish(run: Graduation, scripts: dict[str, str]) -> None:
    run.command, run.checked = COMMAND, _checked(run)
    run.write_config()
    run.copy_scripts(scripts | {"graduated.py": "graduated.py"})


def _checked(run: Graduation) -> str:
    version = "The scripts were written for TRL 1.16."
    if run.own_functions:
        return version
    same = "the loss" if is_lora(run.config.model.peft) else "the loss and the gradient norm"
    return f"{version} In this project's tests, the first step of each script has {same} of the run's own first step."
