"""What the kinds share that learn from pairs of responses."""
