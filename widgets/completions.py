"""A run's responses at every step: filter, sort, choose a step, compare, look at single tokens."""

from __future__ import annotations

import threading

from widgets import frontend, waiting
from widgets.paged import Paged, of_query, window
from widgets.rollouts import Rollouts
from widgets.series import as_run
from widgets.tables import Table, table_of

PAGE = 8
POLL_SECONDS = 1.0
SORTS = {
    "written": lambda record: record["id"],
    "best reward": lambda record: -_figure(record, "reward"),
    "worst reward": lambda record: _figure(record, "reward"),
    "highest KL": lambda record: -_figure(record, "kl"),
    "longest": lambda record: -_figure(record, "length"),
    "shortest": lambda record: _figure(record, "length"),
}
COLOURS = {"none": "", "KL": "token_kl", "advantage": "token_advantage"}


class Completions(Paged):
    """Prompt, response, reward, KL and length of every rollout of a run, during training or after.

    run: a run folder (path or RunFolder) or a Recording. reference: another run to show beside it, prompt by
    prompt, such as the evaluation of the model before training. By default this is the same run's first
    response to the prompt, from when the policy was still equal to its reference.
    """

    _esm = frontend.script("dom", "format", "textbox", "paged", "completions")
    _css = frontend.style("base", "cards")

    def __init__(self, run, reference=None):
        self.run = as_run(run)
        self._rollouts = Rollouts(self.run)
        self._rollouts.poll()
        self._reference = None
        if reference is not None:
            self._reference = Rollouts(as_run(reference))
            self._reference.poll()
        self._beside = f"{as_run(reference).name}" if reference is not None else "first answer"
        super().__init__()
        self._closed = threading.Event()
        threading.Thread(target=self._follow, name="Completions", daemon=True).start()

    def find(self, query: dict) -> dict:
        """The page of rollouts for a query from the browser."""
        every = self._rollouts.records
        splits = sorted({record.get("split", "") for record in every})
        split = of_query(query, "split", "", splits)
        records = [record for record in every if not split or record.get("split") == split]
        steps = sorted({record["step"] for record in records})
        step = of_query(query, "step", None, steps)
        shown = step if step is not None else (steps[-1] if steps else None)
        found = [record for record in records if self._matches(record, query, shown)]
        found.sort(key=SORTS[of_query(query, "sort", "written", SORTS)])
        start, page = window(found, query, PAGE)
        return {
            "run": self.run.name,
            "beside": self._beside,
            "steps": steps,
            "step": shown,
            "latest": step is None,
            "splits": splits,
            "sorts": list(SORTS),
            "colours": list(COLOURS),
            "all": len(every),
            "total": len(found),
            "start": start,
            "size": PAGE,
            "rows": [self._row(record, query) for record in page],
        }

    def _matches(self, record: dict, query: dict, step: int | None) -> bool:
        text = str(of_query(query, "text", "")).lower()
        return (
            (bool(query.get("every")) or record["step"] == step)
            and (not query.get("cut") or not record.get("finished", True))
            and (not text or text in record["prompt"].lower() or text in record["response"].lower())
        )

    def _row(self, record: dict, query: dict) -> dict:
        row = dict(record)
        field = COLOURS[of_query(query, "colour", "none", COLOURS)]
        if field:
            tokens = self._rollouts.tokens(record["id"])
            if field in tokens and len(tokens[field]) == len(tokens.get("tokens", ())):
                row |= {"tokens": tokens["tokens"], "weights": tokens[field]}
        if query.get("beside"):
            row["beside"] = self._other(record)
        return row

    def _other(self, record: dict) -> dict | None:
        """The reference's response to the same prompt; None without one, or for the first response itself."""
        source = self._reference or self._rollouts
        index = source.first.get(record["prompt"])
        if index is None or source.records[index] is record:
            return None
        return {key: source.records[index].get(key) for key in ("step", "response", "reward")}

    def table(self) -> Table:
        """The current page as a static table."""
        return table_of(self.page["rows"], f"{self.run.name}, step {self.page['step']}: {self.caption}")

    def _follow(self) -> None:
        waiting.keep_looking(self._closed, POLL_SECONDS, self.refresh)

    def refresh(self) -> None:
        """Read new rollouts now; this also happens every second."""
        with self._lock:
            news = self._rollouts.poll()
        if news:
            self.answer()

    def close(self) -> None:
        """Stop following the run."""
        self._closed.set()
        super().close()


def _figure(record: dict, name: str) -> float:
    value = record.get(name)
    return float(value) if isinstance(value, (int, float)) else 0.0
