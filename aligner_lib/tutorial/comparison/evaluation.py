"""The evaluation of the course's policies. Notebook 08 writes its record to results/08.json. The notebook, the report and the
portfolio show this record, so all three show the same figures from the same prompts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.conclusion import conclusion
from aligner_lib.tutorial.comparison.drawn_prompts import DrawnPrompt, as_json, draw_prompts, from_json
from aligner_lib.tutorial.comparison.gains_picture import GainsPicture
from aligner_lib.tutorial.comparison.policies import PolicyComparison, compare_policies
from aligner_lib.tutorial.comparison.statistics import Estimate

CONVERSATIONS, SUMS = "conversations", "sums"
DRAWN = 4  # prompts
AGAINST = "SFT"
"""The policy in every comparison."""
KEY = "evaluation"
"""The record's key in results/08.json and in summary.json."""


@dataclass(frozen=True)
class PolicyEvaluation:
    """All policies' answers to the same held-out prompts: figures of both environments, and some drawn prompts."""

    conversations: PolicyComparison
    sums: PolicyComparison
    drawn: list[DrawnPrompt]

    @property
    def table(self) -> PolicyComparison:
        """The figures of the conversations, with the share of right sums."""
        figures = {
            name: of_policy
            | {
                key.replace("right", "right_sums"): self.sums.figures[name][key]
                for key in ("right", "right_gain")
                if key in self.sums.figures[name]
            }
            for name, of_policy in self.conversations.figures.items()
        }
        return PolicyComparison(self.conversations.caption, figures)

    @property
    def picture(self) -> GainsPicture:
        """The gains of all policies with their intervals."""
        return GainsPicture(self.table, AGAINST)

    @property
    def conclusion(self) -> str:
        """The conclusions from the figures, and their limits."""
        return conclusion(self.table, AGAINST)

    def results(self) -> dict:
        """The content of results/08.json: figures of PPO, DPO and GRPO, and the record under `evaluation`."""
        figures = self.conversations.figures
        shared = {
            "ppo": {
                "kl_per_token": figures["PPO"].get("kl_per_token"),
                "win_rate": figures["PPO"]["win_rate"].value,
            },
            "dpo": {
                "kl_per_token": figures["DPO"].get("kl_per_token"),
                "val_reward": figures["DPO"]["reward"].value,
            },
            "grpo": {},
        }
        for name in ("DPO", "GRPO"):
            if "good" in figures[name]:
                shared[name.lower()]["good"] = figures[name]["good"].value
        record = {
            CONVERSATIONS: figures,
            SUMS: self.sums.figures,
            "captions": {CONVERSATIONS: self.conversations.caption, SUMS: self.sums.caption},
            "drawn": as_json(self.drawn),
        }
        return shared | {KEY: record}


def runs_of_seeds(runs: Mapping[str, RunFolder], beside: str) -> dict[str, list[RunFolder]]:
    """Each policy's run in a workspace, followed by its runs in the workspaces of other training seeds.

    beside: the other workspaces' folders, separated by commas. Raises ValueError for a folder in which a policy was not evaluated.
    """
    others = [Path(folder.strip()).expanduser() for folder in beside.split(",") if folder.strip()]
    pooled = {
        name: [run, *(RunFolder(other / "runs" / "evaluate" / name) for other in others)]
        for name, run in runs.items()
    }
    for of_policy in pooled.values():
        for run in of_policy[1:]:
            if run.status != "finished":
                raise ValueError(
                    f"beside={beside!r}: there is no finished evaluation in {run.path.absolute()}; name the folder `out` of a "
                    "tutorial with another seed whose notebook 08 has run"
                )
    return pooled


def evaluate_policies(runs: Mapping[str, Sequence[RunFolder]], seed: int) -> PolicyEvaluation:
    """The evaluation from runs of `aligner evaluate`, with the environments `conversations` and `sums`.

    runs: by the policy's name, a run for each training seed; SFT, PPO, DPO and GRPO are among the names. The prompts are drawn
    from the first training seed. seed: of the draw. Raises ValueError for runs with different prompts.
    """
    first = {name: of_policy[0] for name, of_policy in runs.items()}
    of_environment = {
        name: compare_policies(runs, AGAINST, environment=name) for name in (CONVERSATIONS, SUMS)
    }
    return PolicyEvaluation(**of_environment, drawn=draw_prompts(first, CONVERSATIONS, seed, DRAWN))


def recorded_evaluation(summary: dict) -> PolicyEvaluation | None:
    """The evaluation in a summary, or None if notebook 08 has not recorded one.

    summary: the content of summary.json, or of all files in results/.
    """
    record = summary.get(KEY, {})
    if not {CONVERSATIONS, SUMS, "captions", "drawn"} <= record.keys():
        return None
    tables = {
        name: PolicyComparison(
            record["captions"][name],
            {
                policy: {key: _figure(key, value) for key, value in of_policy.items()}
                for policy, of_policy in record[name].items()
            },
        )
        for name in (CONVERSATIONS, SUMS)
    }
    return PolicyEvaluation(**tables, drawn=from_json(record["drawn"]))


def _figure(name: str, value):
    """A figure of JSON: a list is a value with its interval, except for the values by seed; null stands for NaN."""
    if isinstance(value, list) and not name.endswith("_by_seed"):
        return Estimate(*(math.nan if part is None else part for part in value))
    return math.nan if value is None else value
