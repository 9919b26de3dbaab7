"""The parts that PPO, GRPO and the evaluation share: a policy answers prompts, and its responses get rewards."""
