"""One page of runs that anyone can open, without a kernel or a network."""
