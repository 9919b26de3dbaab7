"""Metrics of policies and of preference pairs, with confidence intervals."""
