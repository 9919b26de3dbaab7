"""Notebook 11: the loop of the solved notebook learns, and cheats without the KL penalty. Its cells run as they stand."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib
import pytest
import torch

SOLVED = Path(__file__).parents[2] / "notebooks" / "solved" / "11_capstone.ipynb"
STEPS = 30


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """The names of the notebook after the cell that defines the loop."""
    matplotlib.use("agg")
    threads = torch.get_num_threads()
    names = {"display": lambda shown: None}
    for cell in json.loads(SOLVED.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            if "parameters" in cell["metadata"].get("tags", []):
                source += f"\nout = {str(tmp_path_factory.mktemp('capstone'))!r}\nprofile = 'smoke'"
            exec(compile(source, SOLVED.name, "exec"), names)
        if "def train(" in source:
            break
    yield names
    torch.set_num_threads(threads)


def test_the_loop_raises_the_score_near_the_reference(notebook):
    """The score rises by 2 of at most 3 that a sentence can have, for less than 6 nats a response."""
    _, history = notebook["train"](beta=0.3, seed=0, steps=STEPS)
    (first_score, first_kl, _, _), (score, kl, sentences, texts) = history[0], history[-5:].mean(0)
    assert first_kl == pytest.approx(0, abs=1e-5)
    assert score > first_score + 2 and kl < 6
    assert sentences > 0.7 and texts > 32


def test_without_a_penalty_every_prompt_gets_the_same_text(notebook):
    written, history = notebook["train"](beta=0.0, seed=0, steps=STEPS)
    score, kl, sentences, _ = history[-1]
    assert score > 9.5 and kl > 40 and sentences == 0
    happy = " happy" * 10
    assert sum(text in (f"the{happy}", f"a{happy}") for text in written) > 0.9 * len(written)
