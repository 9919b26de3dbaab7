"""The accuracy of a reward model on preference pairs, by the fault of the rejected answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import share
from data.forms import instruction_in
from data.gold import fault_of

PAIRS, RIGHT = "pairs", "right on"


def right_by_fault(
    pairs: Sequence[Mapping[str, str]], scores: Sequence[tuple[float, float]]
) -> PolicyComparison | None:
    """The share of pairs whose chosen answer has the higher score: over all pairs, and for each fault of the rejected answer.

    pairs: each with `prompt`, `chosen` and `rejected`. scores: for each pair (score of the chosen answer, score of the rejected
    answer). A program finds the fault (`data.gold.fault_of`). None if a prompt has no instruction that a
    program can check.
    """
    turns = [last_turn(pair["prompt"]) for pair in pairs]
    if any(instruction_in(turn) is None for turn in turns):
        return None
    right: dict[str, list[float]] = defaultdict(list)
    for turn, pair, (chosen, rejected) in zip(turns, pairs, scores, strict=True):
        for fault in ("all", fault_of(turn, pair["rejected"])):
            right[fault].append(float(chosen > rejected))
    counted = sorted(right.items(), key=lambda of_fault: -len(of_fault[1]))
    return PolicyComparison(
        f"{len(pairs)} held-out pairs, by the fault of the rejected answer; 95 % intervals in brackets",
        {
            PAIRS: {fault: float(len(wins)) for fault, wins in counted},
            RIGHT: {fault: share(wins, range(len(wins))) for fault, wins in counted},
        },
    )
