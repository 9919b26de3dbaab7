"""The `aligner` command: jobs, the tutorial, runs, models and data, and what is installed."""
