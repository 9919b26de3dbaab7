"""A reward model in a separate job."""
