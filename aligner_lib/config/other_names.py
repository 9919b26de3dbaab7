"""Names of settings in other kinds of job, in NeMo-Reinforcer and in NeMo-Aligner, with the names that take their place."""

from __future__ import annotations

import re
from collections.abc import Collection
from fnmatch import fnmatchcase

# What a job does with a setting, and the setting's names in the kinds of job.
SAME_PURPOSE = {
    # an evaluation's pretrained_checkpoint is the reference
    "starts from the model in": (
        "policy.restore_from_path",
        "model.restore_from_path",
        "pretrained_checkpoint.restore_from_path",
    ),
    "takes its reward model from": (
        "reward_model.rm_model_file",
        "rm_model_file",
        "critic.pretrained_checkpoint.restore_from_path",
        "reward_model.restore_from_path",
        "reward_model.pretrained_checkpoint.restore_from_path",
    ),
    "reads its training data from": (
        "model.data.train_ds.file_path",
        "model.data.data_prefix.train",
        "model.data.data_prefix",
    ),
    "reads its held-out data from": (
        "model.data.validation_ds.file_path",
        "model.data.data_prefix.validation",
    ),
}

OTHER_NAMES = {
    name: f"NeMo-Reinforcer's: here it is {here}"
    for name, here in {
        "policy.model_name": "model.restore_from_path (sft) or pretrained_checkpoint.restore_from_path (rm, ppo, grpo)",
        "policy.train_global_batch_size": "model.data.train_ds.global_batch_size (sft) or model.global_batch_size (rm, ppo, grpo)",
        "sft.val_global_batch_size": "model.data.validation_ds.global_batch_size",
        "cluster.gpus_per_node": "trainer.devices",
        "cluster.num_nodes": "trainer.num_nodes",
        "checkpointing.checkpoint_dir": "exp_manager.explicit_log_dir",
        "logger.wandb_enabled": "exp_manager.create_wandb_logger",
        "logger.wandb.name": "exp_manager.wandb_logger_kwargs.name",
        "logger.num_val_samples_to_print": "model.grpo.num_val_samples (ppo: model.ppo.num_val_samples); rollouts.jsonl has every one of them",
    }.items()
}

CRITIC = "critic."  # the group of the critic's settings in a PPO job
_GROUP_OF_A_KIND = re.compile(r"(?:model|trainer)\.(?:sft|rm|dpo|ppo|grpo)\.")
_SETTING = re.compile(r"[a-z_]+(?:\.[a-z_*]+)+")
# NeMo-Aligner's names of settings without an equivalent, with the cures. A `*` stands for any text, in a cure for the kind's loop.
NOT_HERE = {
    "trainer.accelerator": "a job takes the machine's GPUs, and the CPU where there is none",
    "trainer.max_epochs": "each loop has a max_epochs of its own, as trainer.*.max_epochs",
    "trainer.max_steps": "each loop has a max_steps of its own, as trainer.*.max_steps",
    "trainer.max_time": "before Slurm's time limit, a run writes a checkpoint, and the job is queued again",
    "exp_manager.max_time_per_run": "before Slurm's time limit, a run writes a checkpoint, and the job is queued again",
    "exp_manager.exp_dir": "exp_manager.explicit_log_dir (or --run) is the run folder",
    "*.resume_from_checkpoint": "a run continues from the last checkpoint in its folder; restore_from_path starts a new run from a checkpoint",
    "*.limit_train_batches": "max_steps ends the training earlier",
    "*.repetition_penalty": "sampling has no penalty for repeated tokens, as with 1.0 in NeMo-Aligner",
    "*.add_BOS": "the tokenizer decides whether a text begins with the BOS token",
    "model.data.*_ds.add_bos": "the tokenizer decides whether a text begins with the BOS token",
    "model.data.*_ds.add_eos": "an answer always ends with the stop token",
    "model.data.*_ds.add_sep": "input and output are joined by a space, or are turns of the chat template",
    "model.data.*_ds.label_key": "model.data.columns gives the meaning of columns, as in {answer: output}",
    "model.data.*_ds.prompt_template": "a sample is `{input} {output}`, or two turns with model.data.chat_template=tokenizer: "
    "put further words into the input",
    "model.data.*_ds.truncation_*": "the input's longest paragraph is cut in its middle",
    "model.data.*_ds.packed_sequence": "model.data.packed_sequence packs micro batches, without a conversion of the files",
    "model.data.chat": "the keys of a line decide: `messages` or `conversations` is a conversation",
    "model.data.chat_prompt_tokens*": "model.data.chat_template=tokenizer takes the marks of turns from the model's tokenizer",
    "model.data.apply_chat_template": "model.data.chat_template chooses how turns are written",
    "model.dpo.sft_average_log_probs": "the SFT term is always a mean over a response's tokens",
    "model.dpo.preference_loss_weight": "the preference loss has the weight 1; model.dpo.sft_loss_weight is the other term's",
    "model.dpo.gt_reward_scale": "RPO's losses, which have this scale, are not here",
    "model.dpo.log_prob_forward_micro_batch_size": "the reference takes model.micro_batch_size",
    "trainer.ppo.max_steps": "the critic ends with its actor; model.optim.sched.max_steps is the length of the decay",
    "model.ppo.forward_micro_batch_size": "the name here is model.ppo.logprob_forward_micro_batch_size",
    "model.forward_micro_batch_size": "the critic takes trainer.ppo.inference_micro_batch_size",
    "model.reward_standardization*": "`aligner rm` sets the scale of rewards, and the checkpoint keeps the scale",
    "model.reward_model_type": "a reward model gives one reward, and learns from pairs",
    "model.regression*": "a reward model gives one reward, and learns from pairs",
    "model.*_dropout": "there is no dropout, except model.peft.lora_tuning.adapter_dropout",
    "remote_rm.reward_model.ip": "the name here is remote_rm.ip",
    "remote_rm.reward_model.port": "the name here is remote_rm.port",
    "trainer.grpo.num_prompts_per_grpo_step": "the name here is model.grpo.num_prompts_per_step",
    "trainer.grpo.samples_per_prompt": "the name here is model.grpo.num_generations_per_prompt",
    "trainer.grpo.use_leave_one_out_baseline": "the name here is model.grpo.baseline=leave_one_out",
}

# NeMo-Aligner's names without an equivalent, by the values with which a job leaves them out, because they change nothing.
_NAMES_ONLY = (
    (None, """trainer.max_epochs trainer.max_time exp_manager.exp_dir exp_manager.max_time_per_run *.resume_from_checkpoint
    model.activations_checkpoint_layers_per_pipeline model.seq_len_interpolation_factor model.use_flash_attention
    model.regression.attribute_weights model.peft.restore_from_ckpt.* model.data.splits_string model.data.*index_mapping_dir
    model.data.pad_length_to_multiple_of model.data.*_ds.memmap_workers trainer.ppo.rollout_batch_seq_length
    trainer.ppo.pad_sequence_length_to_multiple model.reward_standardization.mean model.reward_standardization.std"""),
    (False, """trainer.logger trainer.enable_checkpointing trainer.use_distributed_sampler model.sync_batch_comm
    model.gradient_as_bucket_view model.hidden_dropout model.attention_dropout model.ffn_dropout model.use_avg_pool
    model.share_embeddings_and_output_weights model.output_sequence model.reward_standardization.enable model.data.chat
    model.data.sample model.data.reset_position_ids model.data.reset_attention_mask model.data.eod_mask_loss
    model.data.default_rejected_reward model.data.*_ds.add_bos model.data.*_ds.add_sep model.data.*_ds.hf_dataset
    model.data.validation_ds.drop_last exp_manager.checkpoint_callback_params.save_best_model
    *.sampling_params.add_BOS *.sampling_params.all_probs *.sampling_params.compute_logprob"""),
    (True, """model.output_sequence model.save_nemo_on_validation_end model.data.skip_warmup model.data.default_chosen_reward
    model.data.train_ds.drop_last model.data.*_ds.add_eos model.data.*_ds.min_seq_length
    model.data.*_ds.output_original_text model.dpo.preference_loss_weight model.dpo.gt_reward_scale
    model.regression.num_attributes *.limit_train_batches *.sampling_params.repetition_penalty
    remote_critic_rm.combine_rm_and_critic_server"""),
    ("gpu", "trainer.accelerator"),
    ("cpu", "trainer.accelerator"),
    ("auto", "trainer.accelerator"),
    ("binary_ranking", "model.reward_model_type"),
    ("float32", "model.force_head_dtype"),
    ("single", "model.data.dataloader_type"),
    ("output", "model.data.*_ds.label_key"),
    ("input", "model.data.*_ds.truncation_field"),
    ("right", "model.data.*_ds.truncation_method"),
    ("{input} {output}", "model.data.*_ds.prompt_template"),
    ("\x00", "model.data.chat_prompt_tokens.system_turn_start"),
    ("\x11", "model.data.chat_prompt_tokens.turn_start"),
    ("\x12", "model.data.chat_prompt_tokens.label_start"),
    ("\n", "model.data.chat_prompt_tokens.end_of_turn model.data.chat_prompt_tokens.end_of_name"),
)  # fmt: skip
# Names that a job leaves out with any value: labels, and settings of speed alone.
_LABELS = """name exp_manager.name exp_manager.checkpoint_callback_params.filename remote_critic_rm.*.name*
exp_manager.checkpoint_callback_params.model_parallel_size model.overwrite_base_config.*
remote_rm.reward_model.name model.regression.merge_attributes model.regression.loss_mask_val model.optim.bucket_cap_mb model.optim.overlap_*_sync
model.optim.contiguous_grad_buffer trainer.ppo.max_queue_delay_microseconds trainer.ppo.trt_llm.seed"""
# Names that a job leaves out if the value is a reference to another setting.
_COPIES = """precision trainer.max_steps trainer.*.model_gbs trainer.*.model_mbs model.precision model.max_position_embeddings
model.data.seq_length model.forward_micro_batch_size model.*.forward_micro_batch_size model.*.trt_llm
model.dpo.log_prob_forward_micro_batch_size model.dpo.sft_average_log_probs"""


def not_here(key: str, known: Collection[str]) -> str | None:
    """The cure for a name of NeMo-Aligner's without an equivalent. None for other names, for a name in the group of another kind
    of job, and for a cure with a setting that the kind lacks. known: the kind's settings."""
    name = key.removeprefix(CRITIC)
    prefix = key.removesuffix(name)
    cure = next((cure for pattern, cure in NOT_HERE.items() if fnmatchcase(name, pattern)), None)
    group = _GROUP_OF_A_KIND.match(name)
    if cure is None or (group and not any(setting.startswith(prefix + group[0]) for setting in known)):
        return None
    for named in _SETTING.findall(cure):
        here = next((setting for setting in known if fnmatchcase(setting, prefix + named)), None)
        if here is None:
            return None
        cure = cure.replace(named, here)
    return cure


def is_name_only(key: str, value: object) -> bool:
    """Whether a job leaves out a name without an equivalent: the name is NeMo-Aligner's, and the value changes nothing."""
    key = key.removeprefix(CRITIC)
    is_copy = isinstance(value, str) and value.startswith("${")
    names = [of_value for usual, of_value in _NAMES_ONLY if is_copy or value == usual]
    names += [_LABELS, *([_COPIES] if is_copy else [])]
    return any(fnmatchcase(key, name) for line in names for name in line.split())
