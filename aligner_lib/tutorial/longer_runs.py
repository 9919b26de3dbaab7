"""Runs that notebook 07 shows from a recording, since the tutorial has no minutes for them: their settings, laptop profile."""

from __future__ import annotations

# PPO on sums: as many responses a step as the profile's GRPO, each to a prompt of its own.
PPO_ON_SUMS = {
    "model.environments": {"sums": {"use": "sums"}},
    "trainer.ppo.max_steps": 20,
    "trainer.ppo.val_check_interval": 10,
    "trainer.ppo.save_interval": 20,
    "trainer.ppo.initial_policy_kl_penalty": 0.0,
    "trainer.ppo.max_init_policy_kl": None,
    "model.encoder_seq_length": 128,
    "model.micro_batch_size": 64,
    "model.global_batch_size": 64,
    "model.optim.lr": 2e-5,
    "model.optim.weight_decay": 0.0,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.sched.min_lr": 2e-6,
    "model.ppo.num_rollout_samples": 64,
    "model.ppo.rollout_micro_batch_size": 64,
    "model.ppo.num_val_samples": 120,
    "model.ppo.val_rollout_micro_batch_size": 120,
    "model.ppo.logprob_forward_micro_batch_size": 64,
    "model.ppo.length_params.max_length": 8,
    "critic.model.micro_batch_size": 64,
    "critic.trainer.ppo.inference_micro_batch_size": 64,
}

# Instructions whose form a program checks.
GRPO_ON_FORMS = {
    "model.environments": {"forms": {"use": "form_rules"}},
    "model.encoder_seq_length": 128,
    "model.grpo.length_params.max_length": 48,
    "model.grpo.num_val_samples": 180,
    "trainer.grpo.max_steps": 20,
    "trainer.grpo.val_check_interval": 10,
    "trainer.grpo.save_interval": 20,
    "model.optim.sched.min_lr": 1e-5,
}
