"""What PPO, GRPO and the evaluation share: a policy answers prompts and is judged."""
