"""The common basis of a comparison, equal for every side: the model, the samples and the optimiser."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from aligner_lib.algorithms.batching import sample_order
from aligner_lib.datasets.load import load_preferences, load_prompts, load_sft
from aligner_lib.datasets.samples import PreferenceSample, PromptSample, SFTSample
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
ROOT = Path(__file__).parents[1]
SAMPLES = ROOT / "data" / "samples"
HH_REAL = ROOT.parent / "shared" / "data" / "hh-harmless-1200.jsonl.gz"
BUNDLED = SAMPLES / "hh-sample-train.jsonl"

LONG_PROMPTS = range(100, 201)  # tokens: a conversation of a few turns
SHORT_PROMPTS = range(10, 15)


@dataclass(frozen=True)
class Setting:
    """Sizes of a run of the benchmarks. A round is `steps` optimiser steps, or the generation for a set of prompts."""

    folder: Path  # for models and data of this run
    model: str = "6m"  # or a name that `aligner model fetch` knows
    seed: int = 1234
    repeats: int = 5
    steps: int = 4
    global_batch: int = 32
    micro_batch: int = 8
    max_length: int = 256  # tokens; no bundled sample is longer
    prompts: int = 64
    generation_batch: int = 32  # prompts generated together
    raw_pairs: Path = BUNDLED  # records in HH's format: the source of the pairs and of GRPO's prompts
    dpo_beta: float = 0.1
    grpo_lr: float = 1e-6  # with `lr`, the KL of the unlikely given responses would soon be infinite
    grpo_beta: float = 0.04  # weight of the KL to the reference, in the loss
    group_size: int = 8  # responses to each of GRPO's prompts; one prompt a step
    new_tokens: int = 40  # of each response; no response ends earlier
    lr: float = 1e-4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float = 1.0
    precision: str = "32"  # or bf16: the weights of the optimiser stay float32 on all sides
    beside: tuple[int, ...] | None = (
        None  # the other sides that run, counted from 1 in the table's order; None: all
    )
    clock: str = "wall"  # or "cpu": the process's own processor time, for a machine with other users

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
        format_hh(self.raw_pairs, self.folder / "hh", "train")

    def answers(self, count: int) -> list[SFTSample]:
        """`count` instruction samples, the same for every side."""
        return self._some(
            load_sft([self.folder / "sft" / "train.jsonl"], self.tokenizer(), self.max_length), count
        )

    def pairs(self, count: int) -> list[PreferenceSample]:
        """`count` preference pairs, evenly distributed over their lengths, the same for every side."""
        files = [self.folder / "hh" / "train_comparisons.jsonl"]
        pairs, _ = load_preferences(files, self.tokenizer(), self.max_length)
        return evenly(pairs, count, lambda pair: pair.num_tokens)

    def grpo_prompts(self, lengths: range) -> list[PromptSample]:
        """A round's prompts, with lengths in tokens from `lengths`. When too few prompts fit, the prompts with the nearest
        lengths."""
        files = [self.folder / "hh" / "train_prompts.jsonl"]
        prompts, _ = load_prompts(files, self.tokenizer(), self.max_length)
        fitting = [prompt for prompt in prompts if len(prompt) in lengths]
        if len(fitting) < self.steps:
            middle = lengths[len(lengths) // 2]
            fitting = sorted(prompts, key=lambda prompt: abs(len(prompt) - middle))[: self.steps]
        return evenly(fitting, self.steps, len)

    def learnt_responses(self) -> list[list[int]]:
        """Token ids of the responses that GRPO learns from in a round, in the order of its prompts and of their groups.

        Both sides generate `new_tokens` tokens for each response, but learn from the given responses instead. Generated
        responses depend on a library's random numbers. With generated responses, the losses could not show whether two sides
        did the same work.
        """
        needed = self.steps * self.group_size * self.new_tokens
        pairs, _ = load_preferences(
            [self.folder / "hh" / "train_comparisons.jsonl"], self.tokenizer(), self.max_length
        )
        text = [token for pair in pairs for token in pair.chosen[pair.chosen_start : -1]]
        assert needed <= len(text), f"{needed} tokens of responses are asked for and there are {len(text)}"
        return [text[i : i + self.new_tokens] for i in range(0, needed, self.new_tokens)]

    def _some(self, loaded: tuple[list, object], count: int) -> list:
        samples, _ = loaded
        check_enough(samples, count)
        random.Random(self.seed).shuffle(samples)
        return samples[:count]

    def in_first_epoch(self, samples: list) -> list:
        """The samples in the order of the first epoch of Aligner Lab's trainers."""
        return [samples[i] for i in sample_order(len(samples), 0, self.seed)]

    def optimizer(self) -> dict:
        """The settings of AdamW, in the form of `Engine`."""
        return {"lr": self.lr, "weight_decay": self.weight_decay, "betas": list(self.betas), "eps": 1e-8}


def evenly(samples: list, count: int, size: Callable[[object], int]) -> list:
    """`count` of the samples, evenly distributed over their sizes: the samples are sorted by size and divided into `count`
    equal parts, and the middle sample of each part is taken."""
    check_enough(samples, count)
    by_size = sorted(samples, key=size)
    return [by_size[(2 * i + 1) * len(samples) // (2 * count)] for i in range(count)]


def check_enough(samples: list, count: int) -> None:
    assert count <= len(samples), (
        f"{count} samples are asked for and there are {len(samples)}: take fewer steps"
    )


def reward(response: list[int]) -> float:
    """The reward of a response in GRPO's benchmark: the share of different tokens."""
    return len(set(response)) / len(response)
