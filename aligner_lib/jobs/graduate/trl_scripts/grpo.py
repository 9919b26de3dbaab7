"""GRPO with TRL's GRPOTrainer: python train.py."""

from __future__ import annotations

import graduated
import torch
from rewards import RunRewards
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer


def make_trainer(begin: str = "end", **changes) -> GRPOTrainer:
    """The trainer. begin: end or start of the run; changes: of the arguments in config.yaml."""
    folder, adapters = graduated.model_folder(begin), graduated.adapters()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rewards = RunRewards(tokenizer)  # ends the script before the models are loaded if a package is missing
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards,
        args=GRPOConfig(**graduated.arguments(**changes)),
        train_dataset=graduated.rows("train"),
        eval_dataset=graduated.rows("validation"),
        processing_class=tokenizer,
        peft_config=adapters,
    )
    if trainer.ref_model is not None:
        # TRL's reference is the model at the beginning of this training; the run's is the model at its start
        start = AutoModelForCausalLM.from_pretrained(graduated.model_folder("start"), dtype=torch.float32)
        trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(start.state_dict())
    return trainer


if __name__ == "__main__":
    graduated.train(make_trainer)
