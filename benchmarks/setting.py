"""What is compared on: one model, one set of samples, one optimiser. The same for every side."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

from aligner_lib.algorithms.batching import sample_order
from aligner_lib.datasets.load import PairSample, SFTSample, load_pairs, load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import fetch
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.smoke import ARCHITECTURE, SmokeModel

SIX_MILLION = replace(
    ARCHITECTURE,  # the smoke model's vocabulary and tokenizer
    num_layers=6,
    hidden_size=256,
    num_attention_heads=8,
    num_query_groups=4,
    kv_channels=32,
    ffn_hidden_size=1024,
)
SAMPLES = Path(__file__).parents[1] / "data" / "samples"


@dataclass(frozen=True)
class Setting:
    """Sizes of one run of the benchmarks. A round is `steps` optimiser steps, or one set of prompts generated."""

    folder: Path  # of models and data made for this run
    model: str = "6m"  # or a name that `aligner model fetch` knows
    seed: int = 1234
    repeats: int = 5
    steps: int = 4
    global_batch: int = 32
    micro_batch: int = 8
    max_length: int = 256  # tokens; no bundled sample is longer
    prompts: int = 64
    generation_batch: int = 32  # prompts generated together
    lr: float = 1e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    clock: str = (
        "wall"  # or "cpu": the process's own processor time, for machines that others use at the same time
    )

    @property
    def model_folder(self) -> Path:
        return fetch(self.model, progress=False) if self.model != "6m" else self.folder / "6m"

    @property
    def samples_a_round(self) -> int:
        return self.steps * self.global_batch

    def architecture(self) -> Architecture:
        return Architecture.load(self.model_folder)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer(self.model_folder)

    def prepare(self) -> None:
        """Make the model and format the data: once, before the sides' processes start."""
        from data import format_dolly, format_hh

        if self.model == "6m":
            SmokeModel(SIX_MILLION, seed=self.seed).make("6m", self.model_folder, progress=False)
        format_dolly(SAMPLES / "dolly-sample.jsonl", self.folder / "sft")
        format_hh(SAMPLES / "hh-sample-train.jsonl", self.folder / "hh", "train")

    def answers(self, count: int) -> list[SFTSample]:
        """That many instruction samples, the same for every side."""
        return self._some(
            load_sft([self.folder / "sft" / "train.jsonl"], self.tokenizer(), self.max_length), count
        )

    def pairs(self, count: int) -> list[PairSample]:
        """That many preference pairs, the same for every side."""
        files = [self.folder / "hh" / "train_comparisons.jsonl"]
        return self._some(load_pairs(files, self.tokenizer(), self.max_length), count)

    def _some(self, loaded: tuple[list, object], count: int) -> list:
        samples, _ = loaded
        assert count <= len(samples), (
            f"{count} samples are asked for and there are {len(samples)}: take fewer steps"
        )
        random.Random(self.seed).shuffle(samples)
        return samples[:count]

    def in_first_epoch(self, samples: list) -> list:
        """The samples in the order in which Aligner Lab's trainers take them in their first epoch."""
        return [samples[i] for i in sample_order(len(samples), 0, self.seed)]

    def optimizer(self) -> dict:
        """The settings of AdamW, as `Engine` takes them."""
        return {"lr": self.lr, "weight_decay": self.weight_decay, "betas": list(self.betas), "eps": 1e-8}
