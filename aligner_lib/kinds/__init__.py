"""The kinds of job. Each kind is a folder with settings.py, metrics.toml, trainer.py and build.py. Shared parts are modules
here.

`aligner_lib.config.kinds` finds the kinds, and reads settings.py and metrics.toml without importing torch.
"""
