"""Direct preference optimization with TRL's DPOTrainer: python train.py."""

from __future__ import annotations

import graduated
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import DPOConfig, DPOTrainer


def make_trainer(begin: str = "end", **changes) -> DPOTrainer:
    """The trainer. begin: end or start of the run; changes: of the arguments in config.yaml.

    The reference is the model at the run's start. With adapters, TRL's reference is the model without the adapters.
    """
    folder, adapters = graduated.model_folder(begin), graduated.adapters()
    reference = None
    if adapters is None:
        reference = AutoModelForCausalLM.from_pretrained(graduated.model_folder("start"), dtype=torch.float32)
    return DPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        ref_model=reference,
        args=DPOConfig(**graduated.arguments(**changes)),
        train_dataset=graduated.rows("train"),
        eval_dataset=graduated.rows("validation"),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=adapters,
    )


if __name__ == "__main__":
    graduated.train(make_trainer)
