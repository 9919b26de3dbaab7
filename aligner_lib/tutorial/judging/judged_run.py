"""A run with a judge, read by the gold program that never took part: what the policy gained, and how often the judge was right."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import permutations
from statistics import fmean
from typing import NamedTuple

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.good_answers import first_and_last, mean_parts, verdicts_of
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import Estimate, mean_interval, share, share_gain
from data.gold import GoldParts


class HeldOutAnswer(NamedTuple):
    """An answer to a held-out prompt, with both verdicts."""

    turn: str
    response: str
    reward: float
    """Of the run's judge."""
    parts: GoldParts
    """Of the gold program."""
    tokens: int
    ended: bool

    @property
    def is_good(self) -> bool:
        """Whether the gold program calls the answer good."""
        return self.parts.good


@dataclass(frozen=True)
class HeldOutPairs:
    """For each held-out prompt, the answers of the first and of the last validation."""

    pairs: list[tuple[HeldOutAnswer, HeldOutAnswer]]

    @property
    def table(self) -> PolicyComparison:
        """The judge's reward and the gold program's parts, before and after."""
        return PolicyComparison(
            f"{len(self.pairs)} held-out prompts with one answer each; 95 % intervals in brackets",
            self.figures(),
        )

    def figures(self) -> dict[str, dict]:
        """The figures of the table: by before and after, and by measure."""
        prompts = range(len(self.pairs))
        before, after = zip(*self.pairs)
        of_both = {}
        for name, side in {"before": before, "after": after}.items():
            of_both[name] = {
                "judge's reward": mean_interval([answer.reward for answer in side], prompts),
                "good": share([float(answer.is_good) for answer in side], prompts),
                **mean_parts([answer.parts for answer in side], GoldParts._fields),
                "tokens": fmean(answer.tokens for answer in side),
            }
        of_both["after"]["reward gained"] = mean_interval(
            [b.reward - a.reward for a, b in self.pairs], prompts
        )
        of_both["after"]["good gained"] = share_gain([b.is_good - a.is_good for a, b in self.pairs], prompts)
        return of_both

    def drawn(self, count: int) -> list[tuple[HeldOutAnswer, HeldOutAnswer]]:
        """Pairs of answers drawn at random, always the same; all pairs if there are fewer than count."""
        return random.Random(0).sample(self.pairs, min(count, len(self.pairs)))


def before_and_after(run: RunFolder) -> HeldOutPairs:
    """The answers of the first and the last validation of a run, by prompt. Answers without a reward are left out.

    Raises ValueError for a run with a single validation, for a run without a rewarded answer to the same prompt in both, and for
    prompts without an instruction of data/forms.py.
    """
    validations = first_and_last(r for r in run.rollouts() if r["split"] == "validation")
    if len(validations) < 2:
        raise ValueError(
            f"{run.path} has {len(validations)} validations, and the comparison needs two: run the cell of the training again, and "
            "the run goes on"
        )
    first, last = map(_by_group, validations.values())
    if not (both := sorted(first.keys() & last.keys())):
        raise ValueError(
            f"{run.path}: no held-out prompt has a rewarded answer at step {' and at step '.join(map(str, validations))}: "
            "read the judge's reasons in environment_failures.txt, and train again with a judge that answers"
        )
    return HeldOutPairs([(first[group], last[group]) for group in both])


def right_within_prompts(run: RunFolder, first: int, last: int) -> Estimate:
    """The share of pairs of a good and another response to the same prompt in which the good response has the higher reward.

    first, last: training steps, inclusive. The gold program decides which responses are good. A tie counts half, and the interval
    counts the prompts with such a pair. Raises ValueError without such a pair.
    """
    wins, prompts = [], []
    for step in range(first, last + 1):
        records = [r for r in run.rollouts() if (r["split"], r["step"]) == ("train", step)]
        records = [record for record in records if record["reward"] is not None]
        judged = [(r["group"], r["reward"], v.good) for r, v in zip(records, verdicts_of(records))]
        for (group, reward, is_good), (other_group, other_reward, other_is_good) in permutations(judged, 2):
            if group == other_group and is_good and not other_is_good:
                wins.append((reward > other_reward) + 0.5 * (reward == other_reward))
                prompts.append((step, group))
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return share(wins, [numbers[prompt] for prompt in prompts])


def _by_group(records: list[dict]) -> dict[int, HeldOutAnswer]:
    return {
        record["group"]: HeldOutAnswer(
            last_turn(record["prompt"]),
            record["response"],
            record["reward"],
            parts,
            record["length"],
            record["finished"],
        )
        for record, parts in zip(records, verdicts_of(records))
        if record["reward"] is not None
    }
