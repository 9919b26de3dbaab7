"""Recorded runs: the package's recordings, and their playback as live runs."""
