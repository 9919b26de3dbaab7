"""What notebook 14 needs for a policy with tools: conversations to learn from, problems in words, and cheating policies."""
