"""What the notebooks start and keep: the workspace, a learner's progress, recorded and longer runs, recipes for Slurm."""
