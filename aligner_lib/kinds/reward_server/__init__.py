"""A reward model in a job of its own."""
