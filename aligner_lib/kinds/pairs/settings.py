"""The settings shared by the kinds with pairs of responses: the reward model and DPO."""

from __future__ import annotations

from dataclasses import dataclass

from aligner_lib.config.schema import Data, Packed


@dataclass
class PairData(Packed, Data):
    """model.data of a job on pairs of responses."""


PAIR_FILES = {
    "model.data.data_prefix.train": ["hh/train_comparisons.jsonl"],
    "model.data.data_prefix.validation": ["hh/test_comparisons.jsonl"],
}
"""Setting → the data files of a notebook's job."""
START = {"pretrained_checkpoint.restore_from_path": "policy"}
"""Setting → the tutorial stage whose model training starts from."""
