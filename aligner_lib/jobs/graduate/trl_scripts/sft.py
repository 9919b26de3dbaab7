"""Supervised fine-tuning with TRL's SFTTrainer: python train.py."""

from __future__ import annotations

import graduated
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer


def make_trainer(begin: str = "end", **changes) -> SFTTrainer:
    """The trainer. begin: end or start of the run; changes: of the arguments in config.yaml.

    The rows have token ids and labels. TRL also takes rows of texts {prompt, completion} instead.
    """
    folder = graduated.model_folder(begin)
    return SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        args=SFTConfig(**graduated.arguments(**changes)),
        train_dataset=graduated.rows("train"),
        eval_dataset=graduated.rows("validation"),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=graduated.adapters(),
    )


if __name__ == "__main__":
    graduated.train(make_trainer)
