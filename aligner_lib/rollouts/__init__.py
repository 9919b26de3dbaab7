"""Rollouts: the policy responds to prompts; environments, a reward model and a critic judge the responses. Typed records carry
the data."""
