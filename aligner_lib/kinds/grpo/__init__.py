"""GRPO and its relatives."""
