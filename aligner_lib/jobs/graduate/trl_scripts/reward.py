"""Reward-model training with TRL's RewardTrainer: python train.py."""

from __future__ import annotations

import graduated
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer


def make_trainer(begin: str = "end", **changes) -> RewardTrainer:
    """The trainer. begin: end or start of the run; changes: of the arguments in config.yaml."""
    folder, settings = graduated.model_folder(begin), graduated.config()["head"]
    # the exported tokenizer of the reward model has the token for padding
    tokenizer = AutoTokenizer.from_pretrained(graduated.model_folder("end"))
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, dtype=torch.float32, num_labels=1, pad_token_id=tokenizer.pad_token_id
    )
    with torch.no_grad():
        if begin == "start" and settings["is_new"]:
            torch.manual_seed(settings["seed"])
            model.score.weight.normal_(0, settings["init_std"]) if settings[
                "init_std"
            ] else model.score.weight.zero_()
        else:
            # the loss compares rewards before they are standardised
            model.score.weight.mul_(settings["reward_std" if begin == "end" else "start_std"])
    return RewardTrainer(
        model=model,
        args=RewardConfig(**graduated.arguments(**changes)),
        train_dataset=graduated.rows("train"),
        eval_dataset=graduated.rows("validation"),
        processing_class=tokenizer,
        peft_config=graduated.adapters(),
    )


if __name__ == "__main__":
    graduated.train(make_trainer)
