"""Formats raw data sets for the trainers: Dolly and SQuAD for SFT, HH for the reward model and PPO, and your own data."""

from data.convert import Conversion, convert
from data.dolly import format_dolly
from data.hh import format_hh
from data.report import DataError, Report
from data.sources import Source, resolve
from data.squad import format_squad

__all__ = [
    "Conversion",
    "DataError",
    "Report",
    "Source",
    "convert",
    "format_dolly",
    "format_hh",
    "format_squad",
    "resolve",
]
