"""The jobs and results of the notebooks: workspace, learner's progress, recorded runs, longer runs, recipes for Slurm."""
