"""The metrics and the replaceable functions that kinds of job share, whichever algorithm they run."""

from __future__ import annotations

from pathlib import Path

from aligner_lib.config.metrics_file import shelf_of

TRAINING_FUNCTIONS = {"learning_rate": "aligner_lib.algorithms.schedule:learning_rate"}

TIMERS = shelf_of(Path(__file__).with_name("metrics.toml")).sections["seconds"]
"""Seconds of a step and of a validation, for a kind of your own that declares its metrics in Python."""
