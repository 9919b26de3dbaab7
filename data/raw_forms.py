"""The forms of raw records that `data.convert` reads, recognised by their columns.

A record with a column that its form does not read is refused, and the error names the column. Metadata (`data.fields`) and
columns that the caller ignores are exceptions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from data.conversations import (
    Message,
    answer_of,
    hh_messages,
    hh_prompt,
    is_templated,
    messages_of,
    turns_of,
    unusable,
    with_turns,
)
from data.fields import METADATA, ignored_keys, is_empty, text_field
from data.raw_samples import (
    RawDialogue,
    RawLabelled,
    RawPair,
    RawPrompt,
    RawSample,
    RawScored,
    TurnsOrText,
    with_answer,
    without_loss,
    without_weights,
)
from data.report import Reason, Unusable
from data.tools import checked_tools


class RawForm(NamedTuple):
    """A form of raw records."""

    name: str
    """The name in reports."""
    columns: tuple[str, ...]
    """A record's required columns."""
    read: Callable[[dict[str, Any]], RawSample]
    """Returns a record's sample. Raises Unusable."""
    optional: frozenset[str] = frozenset()
    """Optional columns, read when present."""
    without_effect: frozenset[str] = frozenset()
    """Frequent further columns of the form, without content to learn."""


SYSTEM = frozenset({"system", "system_prompt"})
SCORES = ("score", "overall_score", "rating", "reward", "helpfulness")
HELPSTEER = frozenset({"correctness", "coherence", "complexity", "verbosity"})
LABELS = {
    "true": True,
    "false": False,
    "1": True,
    "0": False,
    "-1": False,
    "1.0": True,
    "0.0": False,
    "-1.0": False,
}
LOSS_MASK = "User"  # NeMo-Aligner's `mask`: the loss leaves out the user's turns
PAIR_SCORES = frozenset(
    {f"{name}_{side}" for name in ("score", "rating") for side in ("chosen", "rejected")}
    | {f"{side}_{name}" for name in ("score", "rating", "reward", "model") for side in ("chosen", "rejected")}
    | {"margin", "messages"}
)


# ---- readers of records ---------------------------------------------------------------------------------------------


def _prompt(record: dict[str, Any], key: str, *, with_tools: bool = False) -> TurnsOrText:
    """The prompt under a column, after the record's system turn if the record has one."""
    value = record[key]
    if is_templated(value):
        if _opening(record):
            raise Unusable(Reason.TEMPLATED, f"{key!r}, so the system turn has no place")
        return text_field(record, key)
    in_hh_s_form = hh_prompt(value, key) if isinstance(value, str) else None
    turns = in_hh_s_form or messages_of(value, key, with_tools=with_tools)
    return _unanswered(_opened(record, turns), key)


def _unanswered(prompt: list[Message], key: str) -> list[Message]:
    """The turns of a prompt, without their weights, because no loss covers a prompt."""
    if prompt and prompt[-1]["role"] == "assistant":
        raise Unusable(Reason.PROMPT_ANSWERED, repr(key))
    return without_weights(prompt)


def _opened(record: dict[str, Any], turns: list[Message]) -> list[Message]:
    """The turns after the record's system turn, unless the turns have the same one. Raises Unusable for another one."""
    opening = [turn for turn in _opening(record) if turn not in turns]
    if opening and turns[0]["role"] == "system":
        column = next(name for name in sorted(SYSTEM) if not is_empty(record.get(name)))
        raise Unusable(
            Reason.UNREAD_KEY,
            f"{column!r} and the first turn differ, and only one can be the system turn: use --ignore {column}",
        )
    return [*opening, *turns]


def _opening(record: dict[str, Any]) -> list[Message]:
    """The system turn of a record, if the record has one. Raises Unusable for two different texts."""
    texts = {text_field(record, name) for name in SYSTEM if not is_empty(record.get(name))}
    if len(texts) > 1:
        raise Unusable(
            Reason.UNREAD_KEY, f"{' and '.join(sorted(SYSTEM))} differ, and only one can be the system turn"
        )
    return [{"role": "system", "content": text} for text in texts]


def _answered(record: dict[str, Any], prompt: str, answer: str) -> RawDialogue:
    """A prompt with its answer: a text, or turns of which SFT learns the assistant's."""
    question = _prompt(record, prompt, with_tools=True)
    if not isinstance(given := with_turns(record[answer], answer), list):
        return _dialogue(record, with_answer(question, answer_of(given, answer)), len(question))
    turns = turns_of(given, answer, with_tools=True)
    return _dialogue(record, [*without_loss(question), *turns], len(question))


def _dialogue(
    record: dict[str, Any], messages: list[Message], prompt_turns: int | None = None
) -> RawDialogue:
    """A conversation with the record's tools. Raises Unusable for tools that the system turn has in words already."""
    with unusable():
        tools = checked_tools(record.get("tools", []))
    system = messages[0]["content"] if messages[0]["role"] == "system" else ""
    if tools and "<tools>" in system:
        raise Unusable(
            Reason.UNREAD_KEY,
            "'tools'; the system turn lists the tools already, and the template would list them again: use --ignore tools",
        )
    return RawDialogue(messages, tools, prompt_turns)


def _instruction(context: str, answer: str) -> Callable[[dict[str, Any]], RawDialogue]:
    """Reads an instruction and its material, if any, into a user's turn (Alpaca's `input`, Dolly's `context`)."""
    return lambda record: _answered(
        record | {"instruction": _with_material(record, "instruction", context)}, "instruction", answer
    )


def _with_material(record: dict[str, Any], question: str, *materials: str) -> str:
    """The text under the column `question`, and the texts under the columns of its material that the record has."""
    texts = [text_field(record, key, may_be_blank=True) for key in materials if not is_empty(record.get(key))]
    instruction = text_field(record, question)
    if is_templated(instruction) and not texts:
        return instruction
    return "\n\n".join(filter(None, (text.strip() for text in [instruction, *texts])))


def _conversation(key: str) -> Callable[[dict[str, Any]], RawDialogue]:
    def read(record: dict[str, Any]) -> RawDialogue:
        if record.get("mask", LOSS_MASK) != LOSS_MASK:
            raise Unusable(
                Reason.UNREAD_KEY,
                f"'mask' is {record['mask']!r}, but the loss covers the assistant's turns alone",
            )
        return _dialogue(record, _opened(record, turns_of(record[key], key, with_tools=True)))

    return read


def _pair(chosen: str, rejected: str) -> Callable[[dict[str, Any]], RawPair]:
    return lambda record: _pair_of(record, chosen, rejected)


def _pair_after(question: str, *materials: str) -> Callable[[dict[str, Any]], RawPair]:
    """Reads a pair whose prompt has another name than `prompt`."""
    return lambda record: _pair_of(
        record | {"prompt": _with_material(record, question, *materials)}, "chosen", "rejected"
    )


def _openai_pair(record: dict[str, Any]) -> RawPair:
    """OpenAI's preference: the prompt's turns are the messages of `input`."""
    if not isinstance(given := record["input"], dict) or "messages" not in given:
        raise Unusable(Reason.WRONG_TYPE, "'input' is not an object with messages")
    ignored_keys(given, frozenset({"messages", "parallel_tool_calls"}))
    return _pair_of(record | {"prompt": given["messages"]}, "preferred_output", "non_preferred_output")


def _pair_of(record: dict[str, Any], chosen: str, rejected: str) -> RawPair:
    """A pair whose prompt is a separate column, or the common beginning of two conversations."""
    sides = [_side(record[key], key) for key in (chosen, rejected)]
    prompts = [messages[:-1] for messages in sides]
    if prompts[0] != prompts[1]:
        raise Unusable(Reason.DIFFERENT_PROMPTS, f"{chosen!r} and {rejected!r} differ before the last answer")
    if any(messages[-1]["role"] != "assistant" for messages in sides):
        raise Unusable(Reason.NO_ANSWER, f"{chosen!r} or {rejected!r}")
    if not prompts[0] and is_empty(record.get("prompt")):
        raise Unusable(
            Reason.MISSING_KEY, f"'prompt': {chosen!r} and {rejected!r} are answers without a question"
        )
    return RawPair(
        _prompt_of_pair(record, prompts[0], chosen), *(messages[-1]["content"] for messages in sides)
    )


def _prompt_of_pair(record: dict[str, Any], turns: list[Message], key: str) -> TurnsOrText:
    """The prompt of a pair. turns: those before the answer in the column `key`."""
    if not turns:
        return _prompt(record, "prompt")
    if not is_empty(record.get("prompt")):
        _require_within(_prompt(record, "prompt"), [*_opening(record), *turns], key)
    return _unanswered(_opened(record, turns), key)


def _require_within(prompt: TurnsOrText, turns: list[Message], key: str) -> None:
    """Raises Unusable unless the turns of the column `prompt` are among those before the answer in the column `key`."""
    texts = [(turn["role"], turn["content"].strip()) for turn in turns]
    if isinstance(prompt, str) or not all(
        (turn["role"], turn["content"].strip()) in texts for turn in prompt
    ):
        raise Unusable(Reason.DIFFERENT_PROMPTS, f"the turns of {key!r} do not contain 'prompt'")


def _side(value: Any, key: str) -> list[Message]:
    """The turns of a chosen or rejected answer. When the column also holds the prompt, the prompt's turns come first."""
    if isinstance(value := with_turns(value, key), str):
        return hh_messages(value, key) or [{"role": "assistant", "content": answer_of(value, key)}]
    return messages_of(value, key)


def _labelled(answer: str) -> Callable[[dict[str, Any]], RawLabelled]:
    def read(record: dict[str, Any]) -> RawLabelled:
        label = LABELS.get(str(record["label"]).lower())  # CSV has only texts
        if label is None:
            raise Unusable(
                Reason.WRONG_TYPE, f"'label' is {record['label']!r}, but must be true or 1, or false, 0 or -1"
            )
        return RawLabelled(_prompt(record, "prompt"), answer_of(record[answer], answer), label)

    return read


def _scored(answer: str, score: str) -> Callable[[dict[str, Any]], RawScored]:
    return lambda record: RawScored(
        _prompt(record, "prompt"), [(answer_of(record[answer], answer), _number(record, score))]
    )


def _several(record: dict[str, Any]) -> RawScored:
    """UltraFeedback's record: an instruction with several scored answers."""
    completions = record["completions"]
    if not isinstance(completions, list) or not all(isinstance(item, dict) for item in completions):
        raise Unusable(Reason.WRONG_TYPE, "'completions' is not a list of answers")
    score = next((name for name in SCORES if all(name in item for item in completions)), None)
    if score is None:
        raise Unusable(
            Reason.MISSING_KEY, f"'completions' need a score each, under one key of {', '.join(SCORES)}"
        )
    answers = [
        (answer_of(text_field(item, "response"), "response"), _number(item, score)) for item in completions
    ]
    return RawScored(_prompt(record, "instruction"), answers)


def _number(record: dict[str, Any], key: str) -> float:
    try:
        number = float(record[key])
        if math.isnan(number):
            raise ValueError
        return number
    except (TypeError, ValueError, OverflowError):
        raise Unusable(Reason.WRONG_TYPE, f"{key!r} is {record[key]!r}, not a number") from None


# ---- the forms ------------------------------------------------------------------------------------------------------

QUESTION = RawForm("prompts", ("question",), lambda record: RawPrompt(_prompt(record, "question")), SYSTEM)
# A record gets the first form whose columns it has, so a form comes before the forms with a subset of its columns.
FORMS = (
    RawForm("NeMo-Aligner's pairs", ("prompt", "chosen_response", "rejected_response"), _pair("chosen_response", "rejected_response"), SYSTEM, PAIR_SCORES),
    RawForm("OpenAI's pairs", ("input", "preferred_output", "non_preferred_output"), _openai_pair),
    RawForm("preference pairs", ("instruction", "chosen", "rejected"), _pair_after("instruction", "input"), SYSTEM | {"input"}, PAIR_SCORES),
    RawForm("preference pairs", ("question", "chosen", "rejected"), _pair_after("question"), SYSTEM, PAIR_SCORES),
    RawForm("preference pairs", ("chosen", "rejected"), _pair("chosen", "rejected"), SYSTEM | {"prompt"}, PAIR_SCORES),
    RawForm("several scored answers", ("instruction", "completions"), _several, SYSTEM, frozenset({"models", "correct_answers", "incorrect_answers"})),
    *(RawForm("labelled answers", ("prompt", answer, "label"), _labelled(answer), SYSTEM) for answer in ("completion", "response")),
    *(
        RawForm("scored answers", ("prompt", answer, score), _scored(answer, score), SYSTEM, HELPSTEER)
        for answer in ("response", "completion")
        for score in SCORES
    ),
    *(
        RawForm("prompts and answers", columns, lambda record, columns=columns: _answered(record, *columns), SYSTEM | {"tools"})
        for columns in (("prompt", "completion"), ("prompt", "response"), ("question", "answer"), ("question", "response"), ("problem", "solution"), ("input", "output"))
    ),
    RawForm("conversations", ("messages",), _conversation("messages"), SYSTEM | {"tools"}, frozenset({"prompt"})),
    RawForm("ShareGPT's conversations", ("conversations",), _conversation("conversations"), SYSTEM | {"tools", "mask"}),
    RawForm("Alpaca's instructions", ("instruction", "output"), _instruction("input", "output"), SYSTEM | {"input"}, frozenset({"text"})),
    RawForm("Dolly's instructions", ("instruction", "response"), _instruction("context", "response"), SYSTEM | {"context"}),
    RawForm("prompts", ("prompt",), lambda record: RawPrompt(_prompt(record, "prompt")), SYSTEM),
    QUESTION,
)  # fmt: skip


def recognise(columns: Iterable[str]) -> RawForm | None:
    """The form of records with these columns; None for an unknown form. Beside `instruction`, Alpaca's `input` is not the input
    of an input/output record. Beside columns of another meaning, `question` may be the prompt of a pair."""
    present = set(columns)
    fitting = [form for form in FORMS if present.issuperset(form.columns)]
    if "instruction" in present:
        fitting = [form for form in fitting if form.columns != ("input", "output")]
    return next((form for form in fitting if form is not QUESTION or not unread_columns(form, present)), None)


def unread_columns(form: RawForm, columns: Iterable[str]) -> list[str]:
    """The columns neither read by the form nor known to be without content to learn."""
    known = {*form.columns, *form.optional, *form.without_effect, *METADATA}
    return [column for column in columns if column not in known]
