"""The settings that the kinds share which learn from pairs of responses: the reward model and DPO."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.config.schema import Data, Packed


@dataclass
class PairData(Packed, Data):
    """model.data of a job that learns from pairs."""
