"""What gives a policy its prompts and judges its responses: sums, rules of form, tools, games, and files of the user's."""
