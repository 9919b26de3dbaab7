"""A run's responses at every step: filter, sort, choose a step, compare responses, and inspect single tokens."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from aligner_lib.config.kinds import kinds
from aligner_lib.run_folder.turns import turns_of
from widgets.completions.paged import Paged, of_query, window
from widgets.completions.tables import table_of
from widgets.frontend.table import Table
from widgets.frontend.widget import script
from widgets.runs.following import Following
from widgets.runs.rollouts import RunRollouts
from widgets.runs.series import as_run

PAGE = 8
GROUPS = 3  # groups on a page, if the responses to a prompt are shown together
POLL_SECONDS = 1.0
PERCENTILE = 98  # the colour scale ends at this percentile of the page's tokens, so that outliers do not use up the scale
SORTS = {  # (field, 1 for ascending or -1 for descending); records without the field come last
    "written": ("id", 1),
    "best reward": ("reward", -1),
    "worst reward": ("reward", 1),
    "highest KL": ("kl", -1),
    "longest": ("length", -1),
    "shortest": ("length", 1),
}
COLOURS = {"none": "", "KL": "token_kl", "advantage": "token_advantage"}
SHOWN_BESIDE = (
    *("step", "response", "reward", "kl", "length", "finished"),
    *("turns", "metrics", "failure"),
)
VALIDATION = "validation"
OF_GENERATION = ("train_rollouts/", "val_rollouts/", "evaluation/")  # metrics of runs that generate


class CompletionPages:
    """Answers queries about a run's completions with a page of results.

    reference: another run, whose responses are shown beside the run's responses to the same prompts; None: show the run's own
    first response to the prompt.
    """

    def __init__(self, run, reference=None):
        self.run = as_run(run)
        self._rollouts = RunRollouts(self.run)
        self._reference = self._rollouts if reference is None else RunRollouts(as_run(reference))
        self._beside = "first answer" if reference is None else as_run(reference).name
        self.poll()

    def poll(self) -> bool:
        """Read new rollouts of both runs. Returns True if there were any."""
        return any(
            [rollouts.poll() for rollouts in {id(r): r for r in (self._rollouts, self._reference)}.values()]
        )

    def find(self, query: dict) -> dict:
        """The page for a query. All fields of the query are optional:

        {step, split, environment, every, together, sort, colour, end, beside, cut, failed, text, start}

        For a step without completions, the page shows the nearest earlier step with completions. `asked` in the result is the
        query with default values: the latest step, the validation prompts if the run has any, and the first response beside
        each response.
        If a run samples several responses to a prompt, the default shows these groups. A row is then {prompt, best, worst,
        mean, members}, with the members sorted by reward. A group is shown completely if any of its responses matches the
        query.
        """
        every = self._rollouts.records
        splits = sorted({record.get("split", "") for record in every})
        options = self._with_defaults(query, splits)
        records = [record for record in every if options["split"] in ("", record.get("split", ""))]
        steps = sorted({record["step"] for record in records})
        chosen_step = query.get("step")
        chosen_step = chosen_step if type(chosen_step) is int else None
        step = _nearest(steps, chosen_step)
        matching = [record for record in records if _matches(record, options, step)]
        matching.sort(key=_sorted_by(options["sort"]))
        can_group = bool(self._rollouts.splits_with_groups & {record.get("split", "") for record in matching})
        together = can_group and options["together"]
        size = GROUPS if together else PAGE
        if together:
            groups: dict[int, dict] = {}  # id of the group's first response → the first response that matches
            for record in matching:
                groups.setdefault(self._rollouts.group_of(record)[0]["id"], record)
            matching = list(groups.values())
        start, page = window(matching, query, size)
        rows = [self._group(record, options) if together else self._row(record, options) for record in page]
        responses = [response for row in rows for response in row.get("members", [row])]
        scale = _scale(responses)
        notes = self._notes(options, chosen_step, step, responses)
        if rows and all("note" in row.get("beside", {}) for row in rows):
            # show the note once, not in every row
            notes += dict.fromkeys(row.pop("beside")["note" if len(rows) == 1 else "notes"] for row in rows)
        return {
            "run": self.run.name,
            "beside": self._beside,
            "steps": steps,
            "step": step,
            "latest": chosen_step is None,
            "splits": splits,
            "environments": list(
                dict.fromkeys(record["environment"] for record in every if "environment" in record)
            ),
            "can_group": can_group,
            "can_fail": any("failure" in record for record in every),
            "counted": "groups " if together else "",
            "sorts": list(SORTS),
            "colours": list(COLOURS),
            "asked": options,
            "scale": scale,
            "verdicts": self._rollouts.verdicts,
            "note": " ".join(notes),
            "all": len(every),
            "total": len(matching),
            "start": start,
            "size": size,
            "rows": rows,
        }

    def _with_defaults(self, query: dict, splits: list[str]) -> dict:
        first = min(self._rollouts.splits_with_groups, default=VALIDATION if VALIDATION in splits else "")
        return {
            "split": of_query(query, "split", first, ["", *splits]),
            "environment": str(of_query(query, "environment", "")),
            "together": bool(of_query(query, "together", True)),
            "sort": of_query(query, "sort", "written", SORTS),
            "colour": of_query(query, "colour", "none", COLOURS),
            "text": str(of_query(query, "text", "")).lower(),
            "beside": bool(of_query(query, "beside", True)),
            **{name: bool(of_query(query, name, False)) for name in ("every", "cut", "failed", "end")},
        }

    def _notes(self, options: dict, chosen_step, step, rows: list) -> list[str]:
        """Notes that explain to the reader why something is missing."""
        if not self._rollouts.records:
            kind = self.run.kind
            writes = (
                "not written any completions yet"
                if _may_generate(kind)
                else f"no completions: {kind} does not generate"
            )
            return [f"{self.run.name} has {writes}."]
        notes = []
        if chosen_step is not None and chosen_step != step:
            which = f"{options['split']} completions" if options["split"] else "completions"
            notes.append(f"Step {chosen_step} has no {which}; these are of step {step}.")
        without = sum("weights" not in row for row in rows) if options["colour"] != "none" else 0
        if without:
            which = "These responses have" if without == len(rows) else f"{without} of these responses have"
            notes.append(
                f"{which} no {options['colour']} of their tokens: the run computes it only for those it trains on, "
                "which are under the prompts of train."
            )
        if failed := sum("failure" in row for row in rows):
            notes.append(
                f"{failed} of these responses have no reward, as their environment failed; environment_failures.txt in the "
                "run folder has its first traceback."
            )
        return notes

    def _group(self, record: dict, options: dict) -> dict:
        """The row of a group: the responses to a prompt, the highest reward first, responses without a reward last."""
        by_reward = sorted(self._rollouts.group_of(record), key=_sorted_by("best reward"))
        members = [
            self._with_weights(self._rollouts, member, options) | self._advantage(member)
            for member in by_reward
        ]
        rewards = [member["reward"] for member in by_reward if _figure(member, "reward") is not None]
        figures = (
            {"best": rewards[0], "worst": rewards[-1], "mean": sum(rewards) / len(rewards)} if rewards else {}
        )
        return {
            "prompt": record["prompt"],
            "prompt_turns": turns_of(record["prompt"]),
            "step": record["step"],
            "split": record.get("split", ""),
            "environment": record.get("environment", ""),
            "members": members,
            **figures,
        }

    def _advantage(self, record: dict) -> dict:
        """{advantage}: the mean of the tokens' advantages; empty if the run did not train on the response."""
        of_tokens = self._rollouts.tokens(record["id"]).get("token_advantage")
        return {"advantage": sum(of_tokens) / len(of_tokens)} if of_tokens else {}

    def _row(self, record: dict, options: dict) -> dict:
        row = self._with_weights(self._rollouts, record, options)
        row["prompt_turns"] = turns_of(record["prompt"])
        if options["beside"]:
            row["beside"] = self._other(record, options)
        return row

    @staticmethod
    def _with_weights(rollouts: RunRollouts, record: dict, options: dict) -> dict:
        """A record with its tokens and their weights, if logged. The end token is included only if the query has `end`."""
        row, field = dict(record), COLOURS[options["colour"]]
        tokens = rollouts.tokens(record["id"]) if field else {}
        if field in tokens and len(tokens[field]) == len(tokens.get("tokens", ())):
            count = len(tokens["tokens"]) - (not options["end"] and _has_end_token(record, tokens["tokens"]))
            row |= {"tokens": tokens["tokens"][:count], "weights": tokens[field][:count]}
        return row

    def _other(self, record: dict, options: dict) -> dict:
        """The reference's response to the same prompt, or the reason for its absence: {note, notes}, singular and plural."""
        index = self._reference.first_of(record)
        if index is None:
            note, notes = "has no answer to this prompt.", "has no answers to these prompts."
            return {"note": f"{self._beside} {note}", "notes": f"{self._beside} {notes}"}
        other = self._reference.records[index]
        if other is record:
            return {
                "note": "The run's first answer to this prompt: none came before it.",
                "notes": "The run's first answers to these prompts: none came before them.",
            }
        other = self._with_weights(self._reference, other, options)
        return {name: other.get(name) for name in (*SHOWN_BESIDE, "tokens", "weights") if name in other}


class Completions(Paged, Following):
    """Prompt, response, reward, KL and length of every rollout of a run, during or after training.

    run: a run folder (path or RunFolder) or a Recording. reference: another run, whose response to the same prompt is shown
    beside each response, such as an evaluation of the model before training. By default, the run's own first response to the
    prompt is shown, from a time when the policy was still equal to the reference policy.
    """

    _esm = script("dom", "format", "lost", "textbox", "turns", "paged", "completions", "completions_widget")

    def __init__(self, run, reference=None):
        self._pages = CompletionPages(run, reference)
        self.run = self._pages.run
        super().__init__()
        self.follow(POLL_SECONDS, self.refresh)

    def find(self, query: dict) -> dict:
        """The page of rollouts for a query from the browser."""
        return self._pages.find(query)

    def table(self) -> Table:
        """The current page as a static table."""
        rows = [response for row in self.page["rows"] for response in row.get("members", [row])]
        return table_of(rows, f"{self.run.name}, step {self.page['step']}: {self.caption}")

    def refresh(self) -> None:
        """Read new rollouts now. The widget also calls `refresh` every second."""
        with self._lock:
            news = self._pages.poll()
        if news:
            self.answer()


def _nearest(steps: list[int], chosen_step: int | None) -> int | None:
    """The last step up to `chosen_step`; the first step if all steps are later; the latest step for None."""
    if not steps or chosen_step is None:
        return steps[-1] if steps else None
    return max((step for step in steps if step <= chosen_step), default=steps[0])


def _matches(record: dict, options: dict, step: int | None) -> bool:
    text = options["text"]
    return (
        (options["every"] or record["step"] == step)
        and (not options["cut"] or not record.get("finished", True))
        and (not options["failed"] or "failure" in record)
        and options["environment"] in ("", record.get("environment"))
        and (not text or text in record["prompt"].lower() or text in record["response"].lower())
    )


def _scale(rows: list[dict]) -> dict | None:
    """The colour scale for all tokens of the page, including the reference's responses; None if no token has a weight.

    least, most: the ends of the scale, symmetric about 0 if there are negative weights. beyond: the number of tokens outside.
    """
    sides = [side for row in rows for side in (row, row.get("beside") or {}) if "weights" in side]
    weights = [weight for side in sides for weight in side["weights"] if isinstance(weight, (int, float))]
    weights = np.array([weight for weight in weights if np.isfinite(weight)])
    if not len(weights):
        return None
    most = float(np.percentile(np.abs(weights), PERCENTILE)) or float(np.abs(weights).max()) or 1.0
    least = -most if weights.min() < 0 else 0.0
    beyond = int((np.abs(weights) > most).sum())
    return {"least": least, "most": most, "beyond": beyond, "percentile": PERCENTILE}


def _has_end_token(record: dict, tokens: list[str]) -> bool:
    """Whether the last token is the end token, which is not a part of the text."""
    return bool(tokens) and bool(record.get("finished", True)) and not record["response"].endswith(tokens[-1])


def _may_generate(kind: str) -> bool:
    """Whether the kind's runs log metrics of generation. Runs of an unknown kind, or of a kind that declares no metrics, may."""
    names = kinds()[kind].metric_names() if kind in kinds() else ()
    return not names or any(name.startswith(OF_GENERATION) for name in names)


def _sorted_by(sort: str) -> Callable[[dict], tuple]:
    name, sign = SORTS[sort]

    def key(record: dict) -> tuple:
        value = _figure(record, name)
        return (value is None, sign * (value or 0.0), record["id"])

    return key


def _figure(record: dict, name: str) -> float | None:
    value = record.get(name)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None
