"""The exercises of notebook 14: the loss mask of a tool conversation, answering a call, and the tokens of an episode."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import accumulate

from aligner_lib.rollouts.environments.tool_calculator import calculator
from aligner_lib.tutorial.exercises.draw import Draw
from aligner_lib.tutorial.exercises.exercise import Exercise, ImportedLate, Mistake

torch = ImportedLate("torch")

# ---- learnt_predictions ---------------------------------------------------------------------------------------------


def _token_mask(roles, heads, lengths, counts, of_head=False, stop=True):
    """A list with a bool for each token. counts(number of a turn, roles): whether the loss covers the turn's text.

    of_head: whether the turn's head counts as its text does. stop: whether the last token of a counted text counts.
    """
    mask = []
    for turn, (head, length) in enumerate(zip(heads, lengths)):
        learnt = counts(turn, roles)
        mask += [learnt and of_head] * head + [learnt] * (length - 1) + [learnt and stop]
    return mask


def _by_assistant(turn, roles):
    return roles[turn] == "assistant"


def _mask_of(counts=_by_assistant, **options):
    """The mask of the predictions, for the turns that count."""
    return lambda roles, heads, lengths: torch.tensor(
        _token_mask(roles, heads, lengths, counts, **options)[1:]
    )


def _is_call(turn, roles):
    return roles[turn] == "assistant" and roles[turn + 1 : turn + 2] == ["tool"]


def _from_the_first_call(roles, heads, lengths):
    first = roles.index("assistant")
    start = sum(heads[: first + 1]) + sum(lengths[:first])
    tokens = sum(heads) + sum(lengths)
    return torch.tensor([token >= start for token in range(1, tokens)])


def _tool_conversation(draw: Draw) -> dict:
    """One or two questions. The answer to the first question needs one or two results."""
    results = draw.in_turn((1, 2, 1))
    roles = ["system", "user", "assistant", *["tool"] * results, "assistant"]
    roles += draw.in_turn(([], ["user", "assistant"]))
    return {
        "roles": roles,
        "heads": [draw.random.randint(1, 3) for _ in roles],
        "lengths": [draw.random.randint(2, 4) for _ in roles],
    }


LEARNT_PREDICTIONS = Exercise(
    name="learnt_predictions",
    notebook="14",
    title="what SFT learns from a conversation with tools",
    minutes=10,
    difficulty=2,
    hint="First write a list with a bool for each *token*, turn by turn: False for the head, then `role == 'assistant'` for "
    "each token of the text. Prediction $i$ predicts token $i+1$, so the mask of the predictions is this list without its "
    "first element.",
    reference=_mask_of(),
    inputs=_tool_conversation,
    outputs=("mask",),
    mistakes=(
        Mistake(
            "of_tokens",
            "The mask marks the positions of the tokens. The prediction of a token stands one position further left.",
            lambda roles, heads, lengths: torch.tensor(
                _token_mask(roles, heads, lengths, _by_assistant)[:-1]
            ),
        ),
        Mistake(
            "one_too_many",
            "The mask has a value for each token. The first token is never predicted, so T tokens have T − 1 predictions.",
            lambda roles, heads, lengths: torch.tensor(_token_mask(roles, heads, lengths, _by_assistant)),
        ),
        Mistake(
            "results_learnt",
            "The results count, too. The tool writes the results, and a policy that learns to write them learns to guess "
            "results instead of waiting for the tool.",
            _mask_of(lambda turn, roles: roles[turn] in ("assistant", "tool")),
        ),
        Mistake(
            "all_after_the_prompt",
            "Everything from the first call on counts. This is the mask of a conversation with a single answer. Here, turns of "
            "the tool and of the user follow, which the policy does not write.",
            _from_the_first_call,
        ),
        Mistake(
            "answers_alone",
            "The calls do not count, so the policy learns to read a result and never learns to ask for one.",
            _mask_of(lambda turn, roles: _by_assistant(turn, roles) and not _is_call(turn, roles)),
        ),
        Mistake(
            "calls_alone",
            "Only the calls count. The policy also writes the answer after the result.",
            _mask_of(_is_call),
        ),
        Mistake(
            "last_turn_alone",
            "Only the last turn counts. Every turn of the assistant was written by the policy's teacher and is learnt.",
            _mask_of(lambda turn, roles: turn == len(roles) - 1),
        ),
        Mistake(
            "heads_learnt",
            "The heads of the assistant's turns count, too. The template writes the heads, and in generation they are given.",
            _mask_of(of_head=True),
        ),
        Mistake(
            "no_stop_token",
            "The last token of each text is missing. This token is the stop token. Without it, the policy does not learn to "
            "end a call, and writes the result itself.",
            _mask_of(stop=False),
        ),
        Mistake(
            "inverted",
            "The turns of the others count in place of the assistant's.",
            _mask_of(lambda turn, roles: not _by_assistant(turn, roles), of_head=True),
        ),
    ),
)

# ---- answer_call ----------------------------------------------------------------------------------------------------

NOT_JSON = "error: the call is not JSON"
NO_CALL = "error: a call is an object with name and arguments"
FISHED = re.compile(r"\d[\d +*/()-]*")


def _no_function(name):
    return f"error: there is no function {name}"


def _one_text(name):
    return f"error: {name} takes a single text, expression"


def _fits(arguments):
    return (
        isinstance(arguments, dict)
        and arguments.keys() == {"expression"}
        and isinstance(arguments["expression"], str)
    )


def _run(function: Callable[[str], object], expression: str) -> str:
    try:
        return str(function(expression))
    except Exception as error:
        return f"error: {error}"


def _answer_call(call, functions, fits=_fits, run=_run, of_broken=None, of_unknown=None):
    """The right answer to a call; the options replace a part, for planted mistakes."""
    try:
        value = json.loads(call)
    except (ValueError, RecursionError):  # RecursionError: for thousands of nested lists
        return of_broken(call, functions) if of_broken else NOT_JSON
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        return NO_CALL
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or name not in functions:
        if of_unknown is None:
            return _no_function(name)
        name = of_unknown(functions)
    if not fits(arguments):
        return _one_text(name)
    return run(functions[name], arguments["expression"])


def _answer_with(**options):
    return lambda call, functions: _answer_call(call, functions, **options)


def _with_errors(change):
    """The right answer, with each error replaced by change(error)."""

    def answer(call, functions):
        text = _answer_call(call, functions)
        return change(text) if text.startswith("error") else text

    return answer


def _fished(call, functions):
    """The result of the first expression anywhere in a text."""
    expression = FISHED.search(call)
    return _run(functions["calculator"], expression[0]) if expression else NOT_JSON


def _without_other_keys(call):
    try:
        value = json.loads(call)
    except ValueError:
        return call
    if not isinstance(value, dict):
        return call
    return json.dumps({key: value[key] for key in ("name", "arguments") if key in value})


def _arguments_first(call, functions):
    text = _answer_call(call, functions)
    unknown = json.loads(call)["name"] if text.startswith("error: there is no function") else None
    return _one_text(unknown) if unknown is not None and not _fits(json.loads(call)["arguments"]) else text


def _zero_for_an_error(function, expression):
    text = _run(function, expression)
    return "0" if text.startswith("error") else text


def _kind_of_error(function, expression):
    try:
        return str(function(expression))
    except Exception as error:
        return f"error: {type(error).__name__}"


def letters(expression: str) -> int:
    """The number of characters of a text."""
    return len(expression)


def capital(expression: str) -> str:
    """The capital of a country."""
    return {"France": "Paris", "Japan": "Tokyo"}[expression]


CALLS = (
    '{"name": "calculator", "arguments": {"expression": "A + B"}}',
    '{"name": "calculator", "arguments": {"expression": "A + B"}',
    '{"name": "calculater", "arguments": {"expression": "A + B"}}',
    '{"name": "calculator", "arguments": {"expression": "A / 0"}}',
    '{"name": "calculator", "arguments": {"expression": "A + B", "digits": 3}}',
    '{"name": "calculator", "arguments": {"expression": A}}',
    '{"name": "letters", "arguments": {"expression": "A + B"}}',
    "calculator(A + B)",
    '{"name": "calculator", "arguments": {"text": "A + B"}}',
    '{"name": "calculator", "arguments": "A + B"}',
    '{"name": [7], "arguments": {"expression": "A + B"}}',
    '{"expression": "A + B"}',
    '"A + B"',
    '{"name": "calculator", "arguments": {"expression": "A plus B"}}',
    "{}",
    '\n{"arguments": {"expression": "(A - B) * 2"}, "name": "calculator"}\n',
    "",
    "A",
    "null",
    '["name", "arguments"]',
    '{"name": "calculator", "arguments": A}',
    '{"name": "calculator", "arguments": {"expression": "A + B"}, "id": 7}',
    '{"name": "calculater", "arguments": {"text": "A + B"}}',
    '{"name": "capital", "arguments": {"expression": "moon"}}',
)


def _written_call(draw: Draw) -> dict:
    a, b = (str(draw.random.randint(100, 999)) for _ in range(2))
    call = draw.in_turn(CALLS).replace("A", a).replace("B", b)
    return {"call": call, "functions": {"calculator": calculator, "letters": letters, "capital": capital}}


ANSWER_CALL = Exercise(
    name="answer_call",
    notebook="14",
    title="run a call, or say what is wrong with it",
    minutes=15,
    difficulty=3,
    hint="`json.loads` raises ValueError for a text that is not JSON. JSON can also be a number, a text or a list, so test "
    "`isinstance(value, dict)`. `value.keys() == {'name', 'arguments'}` compares the keys as a set. Put a `try` around the "
    "function's call alone, and return `str(result)`.",
    reference=_answer_call,
    inputs=_written_call,
    outputs=("text",),
    cases=40,  # every call at least once
    mistakes=(
        Mistake(
            "fished",
            "If the call is not JSON, the expression is searched in the text. Then a broken call works as well as a right call, "
            "and the policy never learns the form that other programs require.",
            _answer_with(of_broken=_fished),
        ),
        Mistake(
            "nearest_function",
            "An unknown name calls another function. A policy that writes the wrong name has to read that the name is wrong.",
            _answer_with(of_unknown=lambda functions: next(iter(functions))),
        ),
        Mistake(
            "extra_arguments",
            "Arguments that the function does not have are ignored. The policy believes that they had an effect.",
            _answer_with(
                fits=lambda arguments: (
                    isinstance(arguments, dict) and isinstance(arguments.get("expression"), str)
                )
            ),
        ),
        Mistake(
            "extra_keys",
            "A call with other keys beside name and arguments runs. The table asks for exactly these two keys.",
            lambda call, functions: _answer_call(_without_other_keys(call), functions),
        ),
        Mistake(
            "arguments_first",
            "The arguments are tested before the name. The policy should read the first error of the table, and a function that does "
            "not exist has no arguments.",
            _arguments_first,
        ),
        Mistake(
            "any_type",
            "An expression that is a number in JSON is accepted. The description of the function says text.",
            _answer_with(
                fits=lambda arguments: isinstance(arguments, dict) and arguments.keys() == {"expression"},
                run=lambda function, expression: _run(function, str(expression)),
            ),
        ),
        Mistake(
            "silent",
            "Errors give an empty text. The policy cannot correct what it does not read.",
            _with_errors(lambda error: ""),
        ),
        Mistake(
            "no_reason",
            "Every error is the same text. The reason tells the policy what to write differently.",
            _with_errors(lambda error: "error"),
        ),
        Mistake(
            "zero_for_an_error",
            "If the function fails, the policy reads 0, which looks like a result. The policy then answers with 0.",
            _answer_with(run=_zero_for_an_error),
        ),
        Mistake(
            "kind_of_error",
            "The policy reads the error's class, such as ValueError, in place of its message.",
            _answer_with(run=_kind_of_error),
        ),
        Mistake(
            "quoted",
            "The result is written as JSON, so a text has quotation marks. Return the text itself.",
            lambda call, functions: (
                text
                if (text := _answer_call(call, functions)).startswith("error") or "letters" in call
                else json.dumps(text)
            ),
        ),
    ),
)

# ---- episode_tokens -------------------------------------------------------------------------------------------------


def _episode_tokens(prompt, written, observed):
    turns = [response + result for response, result in zip(written, observed)]
    return sum(written), sum(accumulate(turns, initial=prompt))


def _read(tokens_read):
    """A wrong function: the right number of drawn tokens, and tokens_read(prompt, written, observed)."""
    return lambda prompt, written, observed: (sum(written), tokens_read(prompt, written, observed))


def _lengths_of_turns(draw: Draw) -> dict:
    turns = draw.in_turn((2, 3, 4, 1, 3, 2))
    return {
        "prompt": draw.random.randint(100, 200),
        "written": [draw.random.randint(5, 40) for _ in range(turns)],
        "observed": [draw.random.randint(10, 30) for _ in range(turns - 1)],
    }


EPISODE_TOKENS = Exercise(
    name="episode_tokens",
    notebook="14",
    title="what an episode with calls costs",
    minutes=8,
    difficulty=2,
    hint="The policy draws its responses and nothing else. Before the first response, the server reads the prompt. With each "
    "result, the conversation has grown by a response and the result, and the server reads the conversation again.",
    reference=_episode_tokens,
    inputs=_lengths_of_turns,
    outputs=("drawn", "read"),
    mistakes=(
        Mistake(
            "results_drawn",
            "The results count as drawn. The tool writes them, so the policy only reads them.",
            lambda prompt, written, observed: (
                sum(written) + sum(observed),
                _episode_tokens(prompt, written, observed)[1],
            ),
        ),
        Mistake(
            "read_once",
            "Each token is read once. This holds for a server that keeps the conversation in its cache. Here, every turn reads "
            "the whole conversation anew.",
            _read(lambda prompt, written, observed: prompt + sum(written[:-1]) + sum(observed)),
        ),
        Mistake(
            "prompt_read_once",
            "Only the first turn reads the prompt. The later turns need the prompt, too, because the question stands there.",
            _read(
                lambda prompt, written, observed: (
                    _episode_tokens(prompt, written, observed)[1] - prompt * len(observed)
                )
            ),
        ),
        Mistake(
            "without_history",
            "Every turn reads the prompt alone. The calls and results of earlier turns are part of the conversation.",
            _read(lambda prompt, written, observed: prompt * len(written)),
        ),
        Mistake(
            "results_alone",
            "The earlier responses are missing: the policy reads its own calls again, too.",
            _read(
                lambda prompt, written, observed: sum(accumulate(observed, initial=prompt)),
            ),
        ),
        Mistake(
            "calls_alone",
            "The results are missing: the policy reads them in every later turn.",
            _read(
                lambda prompt, written, observed: sum(accumulate(written[:-1], initial=prompt)),
            ),
        ),
        Mistake(
            "own_response_read",
            "The tokens of a response count as read before they are drawn. They are read from the next turn on.",
            _read(
                lambda prompt, written, observed: _episode_tokens(prompt, written, observed)[1] + sum(written)
            ),
        ),
    ),
)

EXERCISES = (LEARNT_PREDICTIONS, ANSWER_CALL, EPISODE_TOKENS)
