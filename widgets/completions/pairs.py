"""A view of preference pairs, which also shows the pairs that a reward model ranks wrongly."""

from __future__ import annotations

import os
from collections.abc import Sequence

from aligner_lib.datasets.comparisons import read_pairs
from aligner_lib.run_folder.turns import turns_of
from widgets.completions.paged import Paged, of_query, window
from widgets.frontend.table import PromptCell, Table
from widgets.frontend.widget import script

PAGE = 5
SORTS = {
    "as in the file": lambda pair: pair["id"],
    "smallest margin": lambda pair: pair.get("margin") or 0.0,
    "largest margin": lambda pair: -(pair.get("margin") or 0.0),
    "longest": lambda pair: -len(pair["chosen"]) - len(pair["rejected"]),
    "chosen much longer": lambda pair: len(pair["rejected"]) - len(pair["chosen"]),
}


class Pairs(Paged):
    """Preference pairs, filtered and sorted, with the chosen and the rejected answer side by side.

    pairs: a file for `read_pairs`, or dicts {prompt, chosen, rejected}. scores: (chosen, rejected) rewards of each pair from a
    reward model, from which the margin is computed. Raises ValueError if lines, prompts or scores do not match.
    """

    _esm = script("dom", "format", "lost", "textbox", "turns", "paged", "pairs")

    def __init__(self, pairs, scores: Sequence[tuple[float, float]] | None = None):
        self.pairs = (
            read_pairs(pairs) if isinstance(pairs, (str, os.PathLike)) else [dict(pair) for pair in pairs]
        )
        if scores is not None and len(scores) != len(self.pairs):
            raise ValueError(
                f"Pairs: {len(scores)} scores for {len(self.pairs)} pairs: give (chosen, rejected) for each pair"
            )
        for i, pair in enumerate(self.pairs):
            pair["id"] = i
            if scores is not None:
                chosen, rejected = map(float, scores[i])
                pair |= {"reward_chosen": chosen, "reward_rejected": rejected, "margin": chosen - rejected}
        super().__init__()

    def find(self, query: dict) -> dict:
        """The page of pairs for a query from the browser."""
        text = str(of_query(query, "text", "")).lower()
        matching = [
            pair
            for pair in self.pairs
            if (not query.get("wrong") or pair.get("margin", 1.0) <= 0)
            and (not text or any(text in pair[field].lower() for field in ("prompt", "chosen", "rejected")))
        ]
        matching.sort(key=SORTS[of_query(query, "sort", "as in the file", SORTS)])
        start, rows = window(matching, query, PAGE)
        return {
            "sorts": list(SORTS),
            "scored": any("margin" in pair for pair in self.pairs),
            "all": len(self.pairs),
            "total": len(matching),
            "start": start,
            "size": PAGE,
            "rows": [pair | {"prompt_turns": turns_of(pair["prompt"])} for pair in rows],
        }

    def table(self) -> Table:
        """The current page as a static table."""
        columns = ["chosen", "rejected"] + ["margin"] * self.page["scored"]
        rows = [
            [PromptCell(pair["prompt"]), *(pair.get(column) for column in columns)]
            for pair in self.page["rows"]
        ]
        return Table(f"Pairs {self.caption}", ["prompt", *columns], rows)
