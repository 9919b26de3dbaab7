"""The recorded verdicts of notebook 13: the answers of SmolLM2-135M-Instruct to the notebook's requests.

A recording is a cache of the environment `judge` for an endpoint that does not exist, so the notebook uses the same environment
with recorded verdicts as with a live judge.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from aligner_lib.rollouts.environments.base import Message, NoVerdict
from aligner_lib.rollouts.environments.judge import JudgedPrompts, probability_of
from aligner_lib.rollouts.environments.judge_endpoint import JudgeEndpoint
from aligner_lib.rollouts.environments.prompt_files import PromptRecord
from aligner_lib.tutorial.judging.labelled import AnswerPair, LabelledAnswer

FILE = Path(__file__).with_name("verdicts.json.gz")
URL, MODEL = "http://recorded", "smollm2-135m"
WORDS = ("yes", "no", "a", "b")
Verdict = TypeVar("Verdict")
TIE = 1e-6  # above the rounding of float32
KEPT = 5  # likeliest first tokens that a recording keeps beside WORDS


def recorded_judge(folder: Path) -> dict[str, object]:
    """The arguments of the environment `judge` for the recorded verdicts. folder: for the cache.

    A request without a recording has the reason `budget` in place of a verdict.
    """
    args = {"url": URL, "model": MODEL, "cache": str(folder / "recorded-verdicts.sqlite"), "max_calls": 0}
    JudgeEndpoint(URL, MODEL, cache=Path(args["cache"])).remember(
        json.loads(gzip.decompress(FILE.read_bytes()))
    )
    return args


def requests_of(
    judge: JudgedPrompts, answers: Sequence[LabelledAnswer], pairs: Sequence[AnswerPair]
) -> list[list[Message]]:
    """The notebook's requests without a live judge: both criteria of each answer, and the first pair in both orders."""
    requests = [
        request
        for answer in answers
        for request in judge.rubric_requests(record_of(answer.turn), answer.answer)
    ]
    return requests + _in_both_orders(judge, pairs[:1])


def record_verdicts(
    judge: JudgedPrompts, answers: Sequence[LabelledAnswer], pairs: Sequence[AnswerPair]
) -> int:
    """Ask a live judge all requests of the notebook, and write the answers. Returns the number of answers.

    Raises RuntimeError for a request without an answer.
    """
    requests = requests_of(judge, answers, pairs)
    recorded = JudgeEndpoint(URL, MODEL, likeliest=judge.endpoint.likeliest)
    kept = {}
    for request, answer in zip(requests, judge.endpoint.ask(requests), strict=True):
        if not isinstance(answer, str):
            raise RuntimeError(f"the judge gave no answer: {answer.text}")
        kept[recorded.identity(request)] = _shortened(answer)
    FILE.write_bytes(gzip.compress(json.dumps(kept, sort_keys=True).encode(), mtime=0))
    return len(kept)


def record_of(turn: str) -> PromptRecord:
    """A user's turn as the environment `judge` has it."""
    return PromptRecord([{"role": "user", "content": turn}], {})


def require_verdicts(verdicts: Sequence[Verdict | NoVerdict]) -> list[Verdict]:
    """The verdicts unchanged. Raises RuntimeError with the number of missing verdicts and the first reason."""
    if missing := [verdict for verdict in verdicts if isinstance(verdict, NoVerdict)]:
        raise RuntimeError(f"{len(missing)} of {len(verdicts)} have no verdict: {missing[0].text}")
    return list(verdicts)


def wins_of(judge: JudgedPrompts, pairs: Sequence[AnswerPair]) -> list[tuple[float, float]]:
    """For each pair the probability that the judge prefers the first place: with the better answer first, and with the worse.

    Raises RuntimeError with the reason for a request without a verdict.
    """
    answers = judge.endpoint.ask(_in_both_orders(judge, pairs))
    wins = require_verdicts([probability_of(answer, "a", "b") for answer in answers])
    return list(zip(wins[::2], wins[1::2]))


def right_by(wins: Iterable[float]) -> list[float]:
    """1 for each pair in which the better answer wins, 0 for a loss, and 0.5 for a tie. wins: from 0 to 1, float32 or finer."""
    return [0.5 if abs(win - 0.5) < TIE else float(win > 0.5) for win in wins]


def _in_both_orders(judge: JudgedPrompts, pairs: Sequence[AnswerPair]) -> list[list[Message]]:
    return [
        judge.comparison_request(record_of(pair.turn), *order)
        for pair in pairs
        for order in ((pair.better, pair.worse), (pair.worse, pair.better))
    ]


def _shortened(answer: str) -> str:
    tokens = sorted(json.loads(answer).items(), key=lambda item: -item[1])
    kept = {
        token: round(logprob, 4)
        for place, (token, logprob) in enumerate(tokens)
        if place < KEPT or token.strip().lower() in WORDS
    }
    return json.dumps(kept)
