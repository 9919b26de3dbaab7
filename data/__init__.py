"""Formats raw data sets for the trainers: Dolly and SQuAD for SFT, HH for the reward model and PPO."""

from data.dolly import format_dolly
from data.hh import format_hh
from data.report import DataError, Report
from data.sources import Source, resolve
from data.squad import format_squad

__all__ = ["DataError", "Report", "Source", "format_dolly", "format_hh", "format_squad", "resolve"]
