"""A page of runs for readers without a kernel or a network."""
