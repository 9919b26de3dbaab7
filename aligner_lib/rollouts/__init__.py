"""Prompts in, scored responses out: the policy, the critic, and the records that they hand on."""
