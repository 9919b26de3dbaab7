"""The kinds of job, a folder each: settings.py, metrics.toml, trainer.py, build.py. What several kinds share lies beside them.

`aligner_lib.config.kinds` finds them. settings.py and metrics.toml are read without torch.
"""
