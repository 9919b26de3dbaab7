"""A job from its settings: inputs, models, trainer, processes; and the command lines that start one."""
