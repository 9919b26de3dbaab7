"""Names of settings in other kinds of job and in NeMo-Reinforcer, with the names that take their place."""

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
