"""Settings and builders for all kinds that learn from pairs of responses."""
