"""The evaluation of a policy on held-out prompts."""
