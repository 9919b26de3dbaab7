"""The settings that the kinds with pairs of responses share: the reward model and DPO."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.config.schema import Data, Packed


@dataclass
class PairData(Packed, Data):
    """model.data of a job that learns from pairs."""


PAIR_FILES = {
    "model.data.data_prefix.train": ["hh/train_comparisons.jsonl"],
    "model.data.data_prefix.validation": ["hh/test_comparisons.jsonl"],
}
"""Setting → the formatted files that a notebook's job reads."""
START = {"pretrained_checkpoint.restore_from_path": "policy"}
"""Setting → the stage of the tutorial whose model training starts from."""
