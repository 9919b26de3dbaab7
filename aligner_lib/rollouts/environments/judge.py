"""A language model as the judge of responses: a rubric of weighted criteria, or comparisons within the group."""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, permutations
from pathlib import Path
from typing import Any

from aligner_lib.datasets.tool_calls import in_words
from aligner_lib.rollouts.environments.base import Message, NoVerdict, Step, require
from aligner_lib.rollouts.environments.judge_endpoint import JudgeEndpoint
from aligner_lib.rollouts.environments.prompt_files import PromptFiles, PromptRecord

HIGHEST = 10  # the most points for a criterion
# a line of points; between the colon and the number only Markdown, because a sign would change the number
POINTS = re.compile(
    rf"\W*(C\d+)\W*:[\s*_`]*(\d+)(?:\.0+)?(?:[\s*_`]*(?:/|out of)\s*{HIGHEST})?(?:[\s*_`]*points?)?\W*",
    re.IGNORECASE,
)
BY_RUBRIC = """\
You judge an answer to a user. The criteria are:
{criteria}

Write one sentence on each criterion. Then end with one line for each criterion, its name, a colon, and its points, a whole number \
from 0 to {highest}, as in
{example}: 7"""
BY_COMPARISON = """\
You compare two answers to the same user. Which one is better by these criteria?
{criteria}

The order of the answers means nothing, and length alone is no virtue. Write one sentence. Then end with a line of one word: FIRST, \
SECOND or TIE."""
YES_OR_NO = """\
Is this true of the answer? "{criterion}"
Reply with one word: Yes or No."""
A_OR_B = """\
Which answer is better by these criteria?
{criteria}
Reply with one letter: A or B."""
LIKELIEST = 20  # first tokens whose probabilities a judge returns, the most of an OpenAI-compatible server
VERDICTS = ("text", "logprobs")
WINS = {"FIRST": 1.0, "TIE": 0.5, "SECOND": 0.0}
ALONE = NoVerdict(
    "not_understood",
    "the prompt has a single response, and compare=True needs several (num_generations_per_prompt)",
)
VERDICT = re.compile(rf"\W*(?:verdict\s*:)?\W*({'|'.join(WINS)})\W*", re.IGNORECASE)


class JudgedPrompts(PromptFiles):
    """Prompts whose responses a language model judges.

    rubric: criterion → weight, or a criterion, or a list of criteria with equal weights, or a list of [criterion, weight]. With a rubric, the
    reward is the weighted mean of the criteria's points, from 0 to 1. compare=True: the reward is the share of wins against the other responses to the same
    prompt, and the judge sees each pair in both orders. A response whose verdict is missing or not understood is left out and
    counted.

    verdict="text": the judge writes a sentence on each criterion, and then its points. verdict="logprobs": the judge answers Yes
    or No to each criterion, or A or B to a pair, and the points are the probability of Yes (or A) at the first token, divided by
    the probability of both words. Small models seldom keep to a form, and each of their answers has these probabilities. A rubric
    then costs a request for each criterion.

    cache: a file for the judge's answers, by default judge.sqlite in the cache folder of the project; false: no cache. The other
    arguments are those of JudgeEndpoint.

    Sources: Zheng et al. 2023 (arXiv:2306.05685) for both orders; Gunjal et al. 2025 (arXiv:2507.17746) for rubrics as rewards;
    Liu et al. 2023 (arXiv:2303.16634) for verdicts weighted by their probabilities.
    """

    judges_together = True

    def __init__(
        self,
        split: str = "train",
        *,
        prompts: Any,
        url: str,
        model: str,
        rubric: str | Mapping[str, float] | Sequence[str | Sequence] = (
            "The answer is right, to the point and in plain words.",
        ),
        compare: bool = False,
        verdict: str = "text",
        held_out: float = 0.2,
        cache: str | bool = True,
        **endpoint: Any,
    ):
        super().__init__(split, prompts=prompts, held_out=held_out)
        weights = _weights(rubric)
        require(bool(weights), "rubric: give at least one criterion")
        wrong = [
            f"{text}: {weight!r}"
            for text, weight in weights.items()
            if not isinstance(weight, int | float) or not 0 < weight < math.inf
        ]
        require(not wrong, f"rubric: {', '.join(wrong)}; a weight must be a number above 0")
        # Criteria are sentences, so the judge's verdict uses short names.
        self.criteria = {f"C{number}": text for number, text in enumerate(weights, start=1)}
        whole = sum(weights.values())
        self.weights = {name: weights[text] / whole for name, text in self.criteria.items()}
        self.compare = compare
        require(verdict in VERDICTS, f"verdict={verdict!r}: choose from {', '.join(VERDICTS)}")
        self.by_probability = verdict == "logprobs"
        known = {
            "key_variable",
            "max_tokens",
            "temperature",
            "concurrency",
            "retries",
            "timeout",
            "max_calls",
        }
        unknown = sorted(set(endpoint) - known)
        require(
            not unknown,
            f"there is no args.{(unknown or [''])[0]}; a judge also takes {', '.join(sorted(known))}",
        )
        key = endpoint.get("key_variable")
        require(not key or key in os.environ, f"key_variable={key}: this environment variable is not set")
        self.endpoint = JudgeEndpoint(
            url,
            model,
            cache=_cache_file(cache),
            likeliest=LIKELIEST if self.by_probability else 0,
            **endpoint,
        )
        requests = 1 if compare or not self.by_probability else len(self.criteria)
        self.waiting_seconds = math.ceil(requests / self.endpoint.concurrency) * self.endpoint.longest_wait
        self.compared_at_once = self.endpoint.concurrency if compare else 0

    def step(self, response: str) -> Step | NoVerdict:
        require(
            not self.compare, "compare=True judges the responses to a prompt beside each other: use step_all"
        )
        (answer,) = self._by_rubric([self.record], [response])
        return answer

    def step_all(
        self, seeds: Sequence[int], responses: Sequence[str], groups: Sequence[int] | None = None
    ) -> list[Step | NoVerdict]:
        records = [self.records[seed % self.size] for seed in seeds]
        return (
            self._by_comparison(seeds if groups is None else groups, records, responses)
            if self.compare
            else self._by_rubric(records, responses)
        )

    # -- by a rubric ----------------------------------------------------------------------------------------------

    def _by_rubric(self, records: Sequence[PromptRecord], responses: Sequence[str]) -> list[Step | NoVerdict]:
        requests = [self.rubric_requests(*pair) for pair in zip(records, responses)]
        answers = iter(self.endpoint.ask(list(chain(*requests))))
        step_of = self._by_yes_or_no if self.by_probability else self._by_points
        return [step_of([next(answers) for _ in of_response]) for of_response in requests]

    def rubric_requests(self, record: PromptRecord, response: str) -> list[list[Message]]:
        """The requests for a response: with verdict="logprobs" a request for each criterion, otherwise a single request."""
        text = f"{_conversation(record)}\n\nTHE ANSWER:\n{response}"
        if self.by_probability:
            return [
                _asked(text, YES_OR_NO.format(criterion=criterion)) for criterion in self.criteria.values()
            ]
        instruction = BY_RUBRIC.format(
            criteria=self._listed(), highest=HIGHEST, example=next(iter(self.criteria))
        )
        return [[{"role": "system", "content": instruction}, {"role": "user", "content": text}]]

    def _by_points(self, answers: Sequence[str | NoVerdict]) -> Step | NoVerdict:
        """The weighted mean of the points. The last lines of the answer with a word must be one for each criterion."""
        (answer,) = answers
        if isinstance(answer, NoVerdict):
            return answer
        points_by_criterion: dict[str, float] = {}
        for line in _lines(answer)[-len(self.criteria) :]:
            match = POINTS.fullmatch(line)
            if match and (name := match[1].upper()) in self.criteria and int(match[2]) <= HIGHEST:
                points_by_criterion[name] = int(match[2]) / HIGHEST
        if set(points_by_criterion) != set(self.criteria):
            return NoVerdict(
                "not_understood",
                f"the judge's last lines are no points for each criterion: {answer[-200:]!r}",
            )
        return self._weighted(points_by_criterion)

    def _by_yes_or_no(self, answers: Sequence[str | NoVerdict]) -> Step | NoVerdict:
        """The points of each criterion are the probability of Yes."""
        points = [probability_of(answer, "yes", "no") for answer in answers]
        missing = [point for point in points if isinstance(point, NoVerdict)]
        return missing[0] if missing else self._weighted(dict(zip(self.criteria, points)))

    def _weighted(self, points_by_criterion: Mapping[str, float]) -> Step:
        """A step whose reward is the weighted mean of the points, each from 0 to 1."""
        reward = sum(self.weights[name] * points for name, points in points_by_criterion.items())
        return Step(
            reward, metrics={f"criterion_{name[1:]}": points for name, points in points_by_criterion.items()}
        )

    # -- by comparisons -------------------------------------------------------------------------------------------

    def _by_comparison(
        self, groups: Sequence[int], records: Sequence[PromptRecord], responses: Sequence[str]
    ) -> list[Step | NoVerdict]:
        """The share of wins of each response. A pair without a verdict in one of its orders counts for neither response."""
        pairs = [(i, j) for i, j in permutations(range(len(groups)), 2) if groups[i] == groups[j]]
        answers = self.endpoint.ask(
            [self.comparison_request(records[i], responses[i], responses[j]) for i, j in pairs]
        )
        wins = dict(zip(pairs, map(self._win, answers)))
        steps: list[Step | NoVerdict] = []
        for i in range(len(groups)):
            others = [j for (first, j) in pairs if first == i]
            missing = {j: _missing(wins[i, j], wins[j, i]) for j in others}
            decided = [j for j in others if missing[j] is None]
            if not decided:
                steps.append(missing[others[0]] if others else ALONE)
                continue
            shares = [(wins[i, j] + 1 - wins[j, i]) / 2 for j in decided]
            # the answer in the same place won in both orders
            swayed = [(wins[i, j] - 0.5) * (wins[j, i] - 0.5) > 0 for j in decided]
            metrics = {"decided": len(decided) / len(others), "swayed_by_order": sum(swayed) / len(decided)}
            steps.append(Step(sum(shares) / len(shares), metrics=metrics))
        return steps

    def comparison_request(self, record: PromptRecord, first: str, second: str) -> list[Message]:
        """The request for a pair of responses in this order."""
        if self.by_probability:
            text = f"{_conversation(record)}\n\nANSWER A:\n{first}\n\nANSWER B:\n{second}"
            return _asked(text, A_OR_B.format(criteria=self._listed()))
        text = f"{_conversation(record)}\n\nTHE FIRST ANSWER:\n{first}\n\nTHE SECOND ANSWER:\n{second}"
        return [
            {"role": "system", "content": BY_COMPARISON.format(criteria=self._listed())},
            {"role": "user", "content": text},
        ]

    def _win(self, answer: str | NoVerdict) -> float | NoVerdict:
        """The first answer's win, from 0 to 1."""
        return probability_of(answer, "a", "b") if self.by_probability else _written_win(answer)

    def _listed(self) -> str:
        return "\n".join(f"{name}: {text}" for name, text in self.criteria.items())


def _weights(rubric: str | Mapping[str, float] | Sequence[str | Sequence]) -> dict[str, float]:
    """The weights of the criteria. A criterion without a weight has the weight 1."""
    if isinstance(rubric, Mapping):
        return dict(rubric)
    if isinstance(rubric, str):
        return {rubric: 1.0}
    require(isinstance(rubric, Sequence), f"rubric={rubric!r}: write [criterion, weight] for each criterion")
    entries = [(entry, 1.0) if isinstance(entry, str) else entry for entry in rubric]
    wrong = [entry for entry in entries if not _is_weighted(entry)]
    require(not wrong, f"rubric: {', '.join(map(str, wrong))}: write [criterion, weight]")
    counts = Counter(criterion for criterion, _ in entries)
    twice = [criterion for criterion, count in counts.items() if count > 1]
    require(
        not twice, f"rubric: {', '.join(twice)}: remove the repetition, or give the criterion more weight"
    )
    return dict(entries)


def _is_weighted(entry: object) -> bool:
    is_pair = isinstance(entry, Sequence) and len(entry) == 2
    return is_pair and isinstance(entry[0], str) and isinstance(entry[1], int | float)


def _asked(text: str, question: str) -> list[Message]:
    """A question about a text as a single user's turn, because small models confuse a system's turn with the text."""
    return [{"role": "user", "content": f"{text}\n\n{question}"}]


def probability_of(answer: str | NoVerdict, word: str, other: str) -> float | NoVerdict:
    """The probability of `word` divided by that of both words. answer: JSON of first tokens and their log-probabilities.

    Tokens that differ in case or in white space at their ends count together.
    """
    if isinstance(answer, NoVerdict):
        return answer
    probabilities = {word: 0.0, other: 0.0}
    for token, logprob in json.loads(answer).items():
        if (text := token.strip().lower()) in probabilities:
            probabilities[text] += math.exp(logprob)
    whole = sum(probabilities.values())
    if not whole:
        tokens = ", ".join(map(repr, json.loads(answer)))
        return NoVerdict(
            "not_understood",
            f"neither {word!r} nor {other!r} is among the judge's likeliest tokens: {tokens}",
        )
    return probabilities[word] / whole


def _written_win(answer: str | NoVerdict) -> float | NoVerdict:
    """The first answer's win (1, 0.5 or 0) according to the last line of a verdict, if the line is one of WINS."""
    if isinstance(answer, NoVerdict):
        return answer
    match = VERDICT.fullmatch("".join(_lines(answer)[-1:]))
    if not match:
        return NoVerdict(
            "not_understood", f"the judge's last line is none of {', '.join(WINS)}: {answer[-100:]!r}"
        )
    return WINS[match[1].upper()]


def _lines(answer: str) -> list[str]:
    """The lines of a judge's answer with a word: neither blank lines nor the end of a Markdown block."""
    return [line for line in answer.splitlines() if re.search(r"\w", line)]


def _missing(*wins: float | NoVerdict) -> NoVerdict | None:
    """The first missing verdict; None if every comparison has a verdict."""
    return next((win for win in wins if isinstance(win, NoVerdict)), None)


def _conversation(record: PromptRecord) -> str:
    """The prompt as the judge reads it, with calls and their results."""
    if isinstance(record.prompt, str):
        return f"THE PROMPT:\n{record.prompt}"
    turns = in_words(record.prompt, tools=())
    return "\n\n".join(f"THE {turn['role'].upper()}:\n{turn['content']}" for turn in turns)


def _cache_file(cache: str | bool) -> Path | None:
    if cache is False:
        return None
    if cache is True:
        from aligner_lib.models.fetch import cache_root

        return cache_root() / "judge.sqlite"
    # a text on the command line
    require(
        str(cache).lower() not in ("yes", "no", "on", "off"),
        f"cache={cache!r}: write true, false or a file, such as ./judge.sqlite",
    )
    return Path(cache).expanduser()
