"""Long answers of the downloaded model, with which SFT on short answers rehearses what the model already does.

The tasks ask for longer texts about the training topics, and the model's own answers are the examples. Source of the method: experience
replay, for instance Scialom et al. 2022 (arXiv:2205.12393); with a model's own answers, Huang et al. 2024 (arXiv:2403.01244).
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

from data.atomic_files import atomic_text_files
from data.sample_text import verifiable
from data.sample_text.make_samples import SEED
from data.sample_text.topics import load_topics
from data.sources import SAMPLES

TASKS = (
    "Write a short story about someone who learns {clause}.",
    "Write a blog post about {clause}.",
    "Write a poem about {clause}.",
    "Write a letter to a friend that explains {clause}.",
    "Give me a list of ten tips about {clause}.",
    "Explain {clause} in detail.",
    "Write an email to a colleague about {clause}.",
    "Write an essay with three paragraphs about {clause}.",
    "Write a dialogue between two people who talk about {clause}.",
    "Make an outline with headings for a talk about {clause}.",
    "Write a song about {clause}.",
    "Write a news article about {clause}.",
    "Explain {clause} to a child in a few paragraphs.",
    "Write a speech about {clause}.",
    "Write a funny advertisement for a course about {clause}.",
    "Write a summary about {clause} in bullet points.",
)
COUNT = 480
LONGEST = 256  # tokens of an answer
TEMPERATURE = 0.7
SHORTEST = 20  # words of an example
ITEM_NUMBER = re.compile(r"\n\s*\d+[.)]\s*$")
SENTENCE_END = re.compile(r"[.!?](?=\s|$)|\n")


def tasks(count: int = COUNT) -> list[str]:
    """`count` tasks: each topic in turn, with another kind of task in each round. The held-out topics of the drawn forms have no task."""
    topics = verifiable.splits(load_topics(), random.Random(f"{SEED} forms"))["train"]
    numbered = ((n // len(topics), n % len(topics)) for n in range(count))
    return [
        TASKS[(topic + round_) % len(TASKS)].format(clause=topics[topic].clause) for round_, topic in numbered
    ]


def example(answer: str, finished: bool) -> str | None:
    """The answer up to its first repeated line. None if fewer than SHORTEST words are left.

    An answer that is cut there or at the token limit ends after its last whole sentence or line, and without the number of an item
    that has not begun.
    """
    lines, seen = [], set()
    for line in answer.split("\n"):
        key = line.strip().casefold()
        if key and key in seen:
            finished = False
            break
        seen.add(key)
        lines.append(line)
    text = "\n".join(lines)
    if not finished:
        ends = [match.end() for match in SENTENCE_END.finditer(text)]
        text = ITEM_NUMBER.sub("", text[: ends[-1]]) if ends else ""
    return text.strip() if len(text.split()) >= SHORTEST else None


def write(answered: Iterable[tuple[str, str, bool]], folder: Path = SAMPLES) -> str:
    """Write `rehearsal.jsonl` in Dolly's format. answered: task, answer, and whether the model ended the answer. Returns the numbers of
    examples and of answers without an example, as a sentence."""
    records, left_out = [], 0
    for task, answer, finished in answered:
        if text := example(answer, finished):
            records.append({"instruction": task, "context": "", "response": text, "category": "rehearsal"})
        else:
            left_out += 1
    with atomic_text_files(folder / "rehearsal.jsonl") as (file,):
        file.writelines(json.dumps(record) + "\n" for record in records)
    return f"{folder / 'rehearsal.jsonl'}: {len(records)} examples; {left_out} answers were too short"
