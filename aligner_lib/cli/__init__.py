"""The `aligner` command: jobs, the tutorial, runs, models, data, and the check of an installation."""
