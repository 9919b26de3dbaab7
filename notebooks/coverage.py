"""`python notebooks/coverage.py`: where each term of the course is explained first, as docs/decisions/coverage.md.

`--check` only compares, and fails as well if a term is nowhere explained.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "decisions" / "coverage.md"
TERMS = {  # term → the words with which a notebook explains it
    "SFT": r"supervised fine-tuning",
    "temperature": r"temperature \$|divide\w* .{0,60}by the temperature|\*\*temperature\*\*",
    "top-p": r"\*\*Top-p\*\*",
    "greedy decoding": r"\*\*Greedy\*\*",
    "LLM judges and rubrics (RLAIF)": r"rubric",
    "safety and refusals": r"refus",
    "expected reward": r"\*\*expected reward\*\*",
    "log-derivative trick": r"log-derivative trick",
    "REINFORCE": r"\*\*REINFORCE\*\*",
    "baseline, advantage": r"\*\*baseline\*\*",
    "reference, KL": r"Kullback.{0,30}the mean of a difference",
    "optimum under a KL penalty": r"solution in closed form",
    "importance weights": r"\*\*Importance weights\*\*",
    "why clip": r"## Why clip",
    "value loss": r"\*\*value loss\*\*",
    "GAE": r"Generalized advantage estimation",
    "whitening": r"\*\*whitens\*\*",
    "implicit reward": r"\*\*implicit reward\*\*",
    "GRPO's loss, Dr. GRPO": r"names two biases",
    "why the loss reads 0": r"loss read 0",
    "k1 to k3 and their gradients": r"As a loss, \$k_1\$",
    "on-policy, stale rollouts": r"\*\*on-policy\*\*",
    "sampler correction": r"sampler_correction",
    "distillation": r"\*\*Distillation\*\*",
    "entropy": r"\*\*entropy\*\*",
    "spurious rewards": r"\*\*spurious rewards\*\*",
    "best of n, over-optimisation": r"over-optimis",
    "rejection sampling": r"\*\*rejection sampling\*\*",
    "when RL and when not": r"worth its cost if",
    "tool calls": r"\*\*tool call\*\*",
    "exploration": r"\*\*exploration problem\*\*",
}


def first_place(pattern: str) -> tuple[str, str] | None:
    """The notebook and the heading above the first match in the prose of a notebook; None without a match."""
    for source in sorted((HERE / "src").glob("[0-9]*.py")):
        text = source.read_text(encoding="utf-8")
        cells = [cell for cell in re.split(r"(?m)^# %%", text) if cell.startswith(" [markdown]")]
        prose = re.sub(r"(?m)^# ?", "", "\n".join(cell.partition("\n")[2] for cell in cells))
        prose = re.sub(r"(?<=\S)\n(?=\S)", " ", prose)
        if match := re.search(pattern, prose):
            headings = re.finditer(r"(?m)^#+ ([^\n]+)", prose)
            return source.stem, [line[1] for line in headings if line.start() <= match.start()][-1]
    return None


def page() -> str:
    """The page's text. Raises ValueError for a term that no notebook explains."""
    rows = []
    for term, pattern in TERMS.items():
        place = first_place(pattern)
        if place is None:
            raise ValueError(f"no notebook explains {term!r}: nothing matches {pattern!r}")
        rows.append(f"| {term} | {place[0].partition('_')[0]} | {place[1]} |")
    head = (
        "# Where each term is explained\n\n`python notebooks/coverage.py` writes the page, and a test compares the page with the "
        "notebooks. The program searches the prose of the notebooks in order for the words with which a notebook explains the "
        "term. The table names the first notebook with these words and the section above the words. A missing term is an error.\n\n"
    )
    return head + "| term | notebook | section |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    text = page()
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
