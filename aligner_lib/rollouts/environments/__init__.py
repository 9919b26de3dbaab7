"""Environments give the policy prompts and judge its responses: sums, rules of form, tools, games, and a user's own files."""
