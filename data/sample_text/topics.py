"""Everyday topics, each with a question, a true answer, and a second question; written in topics/*.txt."""

from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "topics"
TASK_TAGS = ("task", "steps", "next", "reply", "more")
FACT_TAGS = ("question", "clause", "answer", "next", "reply", "more")


@dataclass(frozen=True)
class Topic:
    """A topic. A task ("how to …") has `task`; for a fact, `task` is None."""

    area: str
    task: str | None  # "clean a cast-iron pan"
    question: str  # "How do I clean a cast-iron pan?"
    clause: str  # "how to clean a cast-iron pan"
    answer: str  # begins by restating the subject
    next_question: str
    reply: str
    more: str

    @property
    def text(self) -> str:
        """Everything about the topic as one paragraph."""
        return f"{self.answer} {self.reply} {self.more}"


def load_topics() -> list[Topic]:
    """Every topic, in the order of file names and of lines."""
    return [
        _parse(block, path.stem)
        for path in sorted(FOLDER.glob("*.txt"))
        for block in _blocks(path.read_text(encoding="utf-8"))
    ]


def in_first_person(task: str) -> str:
    """A task in the words of the person asking: "keep your passport safe" → "keep my passport safe"."""
    return task.replace("your ", "my ").replace("you don't", "I don't")


def _blocks(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block.strip()]


def _parse(block: str, area: str) -> Topic:
    fields = dict(line.split(": ", 1) for line in block.strip().splitlines())
    shared = {"area": area, "next_question": fields["next"], "reply": fields["reply"], "more": fields["more"]}
    if "task" in fields:
        assert tuple(fields) == TASK_TAGS, f"{area}: {block}"
        task = fields["task"]
        return Topic(
            task=task,
            question=f"How do I {in_first_person(task)}?",
            clause=f"how to {task}",
            answer=f"To {task}, {fields['steps']}.",
            **shared,
        )
    assert tuple(fields) == FACT_TAGS, f"{area}: {block}"
    return Topic(
        task=None, question=fields["question"], clause=fields["clause"], answer=fields["answer"], **shared
    )
