"""Runs the notebooks in order, without a browser."""
