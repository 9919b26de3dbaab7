"""The parts that PPO, GRPO and the evaluation share: a policy responds to prompts, and the responses get rewards."""
