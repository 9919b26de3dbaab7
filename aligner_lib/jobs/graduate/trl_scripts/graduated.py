"""The files of a run that has left Aligner Lab, and the command line of train.py."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import torch
import yaml
from datasets import Dataset

FOLDER = Path(__file__).resolve().parent
BEGINS = {"end": "model", "start": "start"}


def config() -> dict:
    """The content of config.yaml: `trainer` has the arguments of TRL's config."""
    return yaml.safe_load((FOLDER / "config.yaml").read_text(encoding="utf-8"))


def arguments(**changes) -> dict:
    """The arguments of TRL's config, with changes. bf16 is left out without a GPU."""
    on_gpu = torch.cuda.is_available()
    given = config()["trainer"] | {"use_cpu": not on_gpu}
    given["bf16"] = given["bf16"] and on_gpu
    return given | changes


def model_folder(begin: str) -> Path:
    """The folder of the model to begin with. begin: end (where the run ended) or start (where the run started)."""
    folder = FOLDER / BEGINS[begin]
    if not folder.is_dir():
        raise SystemExit(
            f"{folder} does not exist: the model at the run's start was not carried over, use --begin end"
        )
    return folder


def rows(split: str) -> Dataset:
    """The rows of data/SPLIT.jsonl."""
    # a text may contain separators of lines such as U+2028, at which splitlines() would split
    with (FOLDER / "data" / f"{split}.jsonl").open(encoding="utf-8") as lines:
        return Dataset.from_list([json.loads(line) for line in lines])


def adapters():
    """The configuration of new adapters for `peft`; None for a run that trained all weights."""
    settings = config().get("lora")
    if settings is None:
        return None
    from peft import LoraConfig

    return LoraConfig(**settings)


def draw_adapters(model: torch.nn.Module) -> None:
    """Draw the matrices A of new adapters as the run did: peft's own values are about half as wide. B is 0."""
    for name, matrix in model.named_parameters():
        if ".lora_A." in name:
            torch.nn.init.xavier_normal_(matrix.data)


def train(make_trainer: Callable) -> None:
    """Train with the command line's choices, and save the model. make_trainer: a function of `begin` and of changes."""
    parser = argparse.ArgumentParser(description="Train with TRL, from the model of a run of Aligner Lab.")
    parser.add_argument(
        "--begin", choices=BEGINS, default="end", help="the run's end (continue) or start (repeat)"
    )
    parser.add_argument("--max-steps", type=int, help="optimizer steps, instead of those of config.yaml")
    parser.add_argument(
        "--out", default=str(FOLDER / "out"), help="the folder for checkpoints and the trained model"
    )
    chosen = parser.parse_args()
    changes = {"output_dir": chosen.out}
    if chosen.max_steps is not None:
        changes["max_steps"] = chosen.max_steps
    trainer = make_trainer(chosen.begin, **changes)
    draw_adapters(trainer.model)
    trainer.train()
    trainer.save_model(chosen.out)
