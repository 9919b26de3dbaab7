"""Build and run a job from its settings: inputs, models, trainer, processes; and write the command lines that start jobs."""
