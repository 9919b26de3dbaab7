"""Checks of a learner's function: the comparison with the reference function, and the verdict in words."""
