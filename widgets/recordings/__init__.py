"""Recorded runs: the files that come with this package, and playing them as if they ran now."""
