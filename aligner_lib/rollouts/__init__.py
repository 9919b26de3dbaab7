"""The policy responds to prompts, and environments, a reward model and a critic judge. Hand-offs are typed records."""
