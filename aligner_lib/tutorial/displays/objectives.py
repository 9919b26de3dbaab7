"""A comparison of objectives on the same rollout: the gradient weight that each objective gives each token.

The result is a static HTML table. Torch is imported only when objectives are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape

from aligner_lib.algorithms.objective import PRESETS, Objective
from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.displays.tokens import STYLE, coloured, scale, strongest

SHOWN = 4  # responses in the table


@dataclass(frozen=True)
class ObjectiveComparison:
    """The weights of a rollout's tokens under several objectives: a table in a notebook, and numbers in Python.

    A weight is the gradient of the objective with respect to the token's log π, times the number of tokens in the batch. If all
    tokens count equally, the weight is the advantage times the ratio. A positive weight makes the token likelier.
    """

    run: str
    step: int
    ratio: float
    """π_now / π_old, the same for every token."""
    objectives: tuple[str, ...]
    responses: tuple[dict, ...]
    """Records of rollouts.jsonl."""
    weights: dict[str, list[list[float]]]
    """By objective: for each response, the weight of each token."""

    def sums(self, objective: str) -> list[float]:
        """The sum of the absolute weights of each response."""
        return [sum(map(abs, weights)) for weights in self.weights[objective]]

    @property
    def shown(self) -> list[int]:
        """Indices of the responses in the table: best and worst of the group with the largest range of rewards."""
        groups: dict[object, list[int]] = {}
        for i, response in enumerate(self.responses):
            if response["reward"] is not None:
                groups.setdefault(response.get("group", response["prompt"]), []).append(i)
        if not groups:
            return []
        by_reward = [sorted(group, key=lambda i: -self.responses[i]["reward"]) for group in groups.values()]
        if max(map(len, by_reward)) == 1:  # a single response to each prompt: treat all responses as a group
            by_reward = [
                sorted((group[0] for group in by_reward), key=lambda i: -self.responses[i]["reward"])
            ]
        widest = max(by_reward, key=lambda group: self._reward(group[0]) - self._reward(group[-1]))
        ends = widest[: SHOWN // 2], widest[max(SHOWN // 2, len(widest) - SHOWN // 2) :]
        return [*ends[0], *ends[1]]

    def _reward(self, i: int) -> float:
        return self.responses[i]["reward"]

    def _repr_html_(self) -> str:
        most = self._strongest()
        parts, prompt = [scale(most)], None
        for i in self.shown:
            if (own := self.responses[i]["prompt"]) != prompt:  # show the prompt of a group once
                parts.append(f'<p class="lab-said">{escape(_without_blank_lines(own))}</p>')
            parts.append(self._response(i, most))
            prompt = own
        parts.append(self._sums())
        return f'{STYLE}<div class="lab-tokens mathjax_ignore tex2jax_ignore"><p>{escape(self._caption())}</p>{"".join(parts)}</div>'

    def __repr__(self) -> str:
        lines = [self._caption(), "sum of the absolute weights of each response:"]
        for i in self.shown:
            figures = ", ".join(f"{name} {self.sums(name)[i]:.3g}" for name in self.objectives)
            lines.append(f"  reward {self._reward(i):.3g}, {self.responses[i]['length']} tokens: {figures}")
        return "\n".join(lines)

    def _caption(self) -> str:
        at = "at the start of the step" if self.ratio == 1 else f"where every token's ratio is {self.ratio:g}"
        return (
            f"{self.run}, step {self.step}, {len(self.responses)} responses: the weight of each token's log π under each objective "
            f"{at} (a weight of 1 belongs to an advantage of 1, if all tokens count equally)"
        )

    def _strongest(self) -> float:
        return strongest(
            weight for name in self.objectives for i in self.shown for weight in self.weights[name][i]
        )

    def _response(self, i: int, most: float) -> str:
        response = self.responses[i]
        ended = "" if response["finished"] else ", cut off"
        caption = f"reward {self._reward(i):.3g}, {response['length']} tokens{ended}"
        rows = "".join(
            f'<tr><th scope="row">{escape(name)}</th><td class="lab-said">'
            + "".join(
                coloured(token, weight, most)
                for token, weight in zip(response["tokens"], self.weights[name][i])
            )
            + "</td></tr>"
            for name in self.objectives
        )
        return f"<table><caption>{caption}</caption>{rows}</table>"

    def _sums(self) -> str:
        head = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.objectives)
        rows = "".join(
            f"<tr><td>{self._reward(i):.3g}</td><td>{self.responses[i]['length']}</td>"
            + "".join(f"<td>{self.sums(name)[i]:.3g}</td>" for name in self.objectives)
            + "</tr>"
            for i in self.shown
        )
        caption = "<caption>Sum of the absolute weights of a response</caption>"
        return f"<table>{caption}<tr><th>reward</th><th>tokens</th>{head}</tr>{rows}</table>"


def compare_objectives(
    run: RunFolder, objectives: Sequence[str | Objective], step: int | None = None, ratio: float = 1.0
) -> ObjectiveComparison:
    """The weights that each objective gives to the tokens of a step's rollout; see ObjectiveComparison.

    run: of PPO or GRPO. objectives: names of PRESETS, or objectives of your own. step: None for the last step. ratio: an
    assumed probability ratio π_now / π_old for every token. A ratio far from 1 shows which tokens are clipped.
    Raises UserError for a run or a step without training rollouts, and for an objective that needs something the run did not
    have, such as a critic.
    """
    from omegaconf import OmegaConf

    from aligner_lib.kinds.grpo.settings import objective_of
    from aligner_lib.kinds.policy_gradient.recorded_rollout import rollout_of

    if run.kind not in ("ppo", "grpo"):
        raise UserError(f"{run.path} is a run of kind {run.kind or 'unknown'}: choose a run of PPO or GRPO")
    if ratio <= 0:
        raise UserError(f"ratio={ratio}: a ratio of probabilities is above 0")
    records = [record for record in run.rollouts() if record["split"] == "train"]
    steps = sorted({record["step"] for record in records})
    if not steps or (step is not None and step not in steps):
        raise UserError(
            f"{run.path} has no training rollout{'' if step is None else f' of step {step}'}; steps: {steps}"
        )
    step = steps[-1] if step is None else step
    records = [record for record in records if record["step"] == step]
    at, coefficients = run.series("train_rollouts/kl_coef")
    config = OmegaConf.create(run.info["config"])
    baseline = "critic" if run.kind == "ppo" else objective_of(config).baseline
    # a run without a KL logs no coefficient
    coefficient = dict(zip(at, coefficients)).get(step, config.trainer[run.kind].initial_policy_kl_penalty)
    rollout = rollout_of(records, config, coefficient, baseline)
    tokens, weights = sum(rollout.lengths.tolist()), {}
    for name, objective in _named(objectives).items():
        of_responses = rollout.gradient_weights(objective, ratio)
        weights[name] = [[tokens * weight for weight in response] for response in of_responses]
    return ObjectiveComparison(run.name, step, ratio, tuple(weights), tuple(records), weights)


def _named(objectives: Sequence[str | Objective]) -> dict[str, Objective]:
    """The objectives by their names in the table. The name of your own objective consists of its differences from GRPO."""
    if unknown := [
        objective for objective in objectives if isinstance(objective, str) and objective not in PRESETS
    ]:
        raise UserError(f"there is no objective {unknown[0]!r}; there are {', '.join(PRESETS)}")
    return {
        objective if isinstance(objective, str) else _differences(objective): PRESETS.get(
            objective, objective
        )
        for objective in objectives
    }


def _differences(objective: Objective) -> str:
    usual = asdict(Objective())
    changed = [f"{name}={value}" for name, value in asdict(objective).items() if value != usual[name]]
    return "grpo, " + ", ".join(changed) if changed else "grpo"


def _without_blank_lines(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if line.strip())
