"""The kinds of samples in raw records, and each kind's data for SFT, for preference learning and as a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from data.conversations import Message
from data.report import Reason, Unusable, WrongTarget
from data.tools import Tool

TurnsOrText = list[Message] | str
"""Turns, or a text that a chat template has written, which stays unchanged."""


class RawDialogue(NamedTuple):
    """A conversation; SFT learns the assistant's turns."""

    messages: list[Message]
    tools: Sequence[Tool] = ()
    """The functions that the assistant may call."""
    prompt_turns: int | None = None
    """The number of turns in the prompt; None: all turns before the last answer."""

    def context(self) -> list[Message]:
        """The turns of the prompt, without their weights."""
        last = -1 if self.messages[-1]["role"] == "assistant" else None
        turns = self.messages[: last if self.prompt_turns is None else self.prompt_turns]
        if not turns:
            raise Unusable(Reason.EMPTY_TEXT, "no turn before the answer")
        return without_weights(turns)

    def answered(self) -> list[Message]:
        """The conversation that SFT learns. Raises Unusable when the last turn is not the assistant's, and when every answer
        has the weight 0."""
        if self.messages[-1]["role"] != "assistant":
            raise Unusable(Reason.NO_ANSWER, f"the {self.messages[-1]['role']}'s")
        if all(turn.get("weight") == 0 for turn in self.messages if turn["role"] == "assistant"):
            raise Unusable(Reason.NOT_LEARNT, "SFT has nothing to learn")
        return self.messages

    def compared(self) -> NoReturn:
        """Raises WrongTarget, because a conversation has no rejected answer."""
        _no_rejected()


class RawPair(NamedTuple):
    """A prompt with a chosen and a rejected answer."""

    prompt: TurnsOrText
    chosen: str
    rejected: str

    def context(self) -> TurnsOrText:
        """The prompt."""
        return self.prompt

    def answered(self) -> list[Message]:
        """The prompt with the chosen answer."""
        return with_answer(self.prompt, self.chosen)

    def compared(self) -> dict[str, Any]:
        """The record of a preference pair. Raises Unusable for equal answers."""
        if self.chosen == self.rejected:
            raise Unusable(Reason.EQUAL_ANSWERS, repr(self.chosen[:40]))
        return self._asdict()


class RawLabelled(NamedTuple):
    """An answer with a label, desirable or undesirable."""

    prompt: TurnsOrText
    answer: str
    desirable: bool

    def context(self) -> TurnsOrText:
        """The prompt."""
        return self.prompt

    def answered(self) -> list[Message]:
        """The prompt with a desirable answer. Raises Unusable for an undesirable answer."""
        if not self.desirable:
            raise Unusable(Reason.UNDESIRABLE, "SFT trains only on desirable answers")
        return with_answer(self.prompt, self.answer)

    def compared(self) -> dict[str, Any]:
        """The record of a labelled answer, for KTO."""
        return {"prompt": self.prompt, "response": self.answer, "label": self.desirable}


class RawScored(NamedTuple):
    """Answers to a prompt, with their scores."""

    prompt: TurnsOrText
    answers: list[tuple[str, float]]

    def context(self) -> TurnsOrText:
        """The prompt."""
        return self.prompt

    def answered(self) -> list[Message]:
        """The prompt with the answer of the highest score. Among equal scores, the first answer is used."""
        return with_answer(self.prompt, max(self.answers, key=_score)[0])

    def compared(self) -> dict[str, Any]:
        """The pair of the highest and the lowest score. Raises Unusable when all scores are equal."""
        best, worst = max(self.answers, key=_score), min(self.answers, key=_score)
        if best[1] == worst[1]:
            raise Unusable(
                Reason.EQUAL_SCORES,
                f"{len(self.answers)} answers"
                if len(self.answers) > 1
                else "one answer; sort the file by prompt, because only neighbours are compared",
            )
        return RawPair(self.prompt, best[0], worst[0]).compared()


class RawPrompt(NamedTuple):
    """A prompt without an answer."""

    messages: TurnsOrText

    def context(self) -> TurnsOrText:
        """The prompt."""
        return self.messages

    def answered(self) -> NoReturn:
        """Raises WrongTarget, because there is no answer."""
        raise WrongTarget("these records have no answers", "--to prompts reads them")

    def compared(self) -> NoReturn:
        """Raises WrongTarget, because there is no answer."""
        _no_rejected()


RawSample = RawDialogue | RawPair | RawLabelled | RawScored | RawPrompt


def _score(answer: tuple[str, float]) -> float:
    return answer[1]


def with_answer(prompt: TurnsOrText, answer: str) -> list[Message]:
    """A conversation of a prompt and its answer, which alone is learned."""
    return [*without_loss(prompt), {"role": "assistant", "content": answer}]


def without_loss(prompt: TurnsOrText) -> list[Message]:
    """The turns of a prompt, whose answers are not learned. Raises Unusable for a text that a chat template has written."""
    if isinstance(prompt, str):
        raise Unusable(
            Reason.TEMPLATED,
            "SFT writes the turns itself: give them without marks, as a list of role and content",
        )
    return [turn | {"weight": 0} if turn["role"] == "assistant" else turn for turn in prompt]


def without_weights(turns: list[Message]) -> list[Message]:
    """The turns without the key `weight`, which only SFT reads."""
    return [{key: value for key, value in turn.items() if key != "weight"} for turn in turns]


def _no_rejected() -> NoReturn:
    raise WrongTarget("these records have no rejected answers", "--to sft or --to prompts reads them")
