"""Displays inside a notebook's cell: library code, the loss mask of a sample, a comparison of objectives, diagrams."""
