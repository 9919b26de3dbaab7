"""Builds and runs jobs from their settings: inputs, models, trainer and processes. Also writes the command lines of jobs."""
