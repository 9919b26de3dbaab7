"""`python -m benchmarks.unseen_faults`: the answers of `aligner explain` for faults for which none of its checks was made.

The benchmark plants faults in real trainings of the smoke model, in every kind of job, and also trains healthy runs with unusual
settings. None of the faults is a fault of the bug hunt (aligner_lib.tutorial.hunt.faults). Half of the runs were examined while the
checks were written, and half afterwards (HELD_OUT). Existing runs are reused. Duration: ten minutes on one core.

    --out runs/unseen     the folder of the runs; of each run only the figures are kept
    --only seen           one half of the runs: seen or held-out
    --pack FOLDER         each run's figures, a few KB, as a recording (tests/unit/unseen has them)

The verdict on a faulty run is `right` when only the planted cause fits, `several` when the planted cause is among the fitting causes,
`unknown` when the run failed, alarms sounded or figures are out of range and no cause fits, `missed` when nothing looks wrong, and
`wrong` when only other causes fit. A healthy run is `quiet` or `accused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aligner_lib.run_folder.explain import Explanation, explain
from aligner_lib.tutorial import Workspace
from benchmarks.alarms import STEPS, carry_out, judged_by, pack, reward_short, train_starting_points
from benchmarks.options import documented_parser
from widgets.recordings.recording_file import PACKED

SEED = 5  # the ranges of the checks were not chosen on runs with this seed


@dataclass(frozen=True)
class Planted:
    """A training whose fault is known.

    fits: the causes that describe the fault; none: a healthy run. held_out: not examined before the checks were complete.
    """

    name: str
    kind: str
    settings: dict[str, object] = field(default_factory=dict)
    fits: tuple[str, ...] = ()
    held_out: bool = False
    is_healthy: bool = False


# ---- wrong functions; each is sent as its source, so it imports its own modules ---------------------------------------


def prompt_tokens(response_mask, learnt):
    """The loss also covers the prompt: all predictions up to the response's last one."""
    after = response_mask.flip(1).int().cumsum(dim=1).flip(1)
    return (after > 0) & learnt[:, None]


def advantages_negated(values, rewards, mask, discount_factor, gae_lambda):
    """A response that was better than expected becomes less likely."""
    from aligner_lib.algorithms.ppo import advantages_and_returns

    advantages, returns = advantages_and_returns(values, rewards, mask, discount_factor, gae_lambda)
    return -advantages, returns


def returns_without_values(values, rewards, mask, discount_factor, gae_lambda):
    """The critic learns the advantages in place of the returns."""
    from aligner_lib.algorithms.ppo import advantages_and_returns

    advantages, _ = advantages_and_returns(values, rewards, mask, discount_factor, gae_lambda)
    return advantages, advantages


def not_normalised(advantages, mask, sum_over_ranks, keep_mean=False):
    """Advantages are not normalised."""
    return advantages * mask


def penalty_missing(rewards, kl, mask, coefficient):
    """The KL penalty is missing, for every coefficient."""
    from aligner_lib.algorithms.ppo import rewards_with_kl

    return rewards_with_kl(rewards, kl, mask, 0.0)


def penalty_summed(rewards, kl, mask, coefficient):
    """Every token has the penalty of the whole response's KL."""
    from aligner_lib.algorithms.ppo import rewards_with_kl

    return rewards_with_kl(rewards, kl.sum(dim=1, keepdim=True) * mask, mask, coefficient)


def ratio_inverted(ratio, advantages, low, high):
    """The loss reads π_old / π_now."""
    import torch

    inverse = 1 / ratio
    losses = torch.maximum(-advantages * inverse, -advantages * inverse.clamp(1 - low, 1 + high))
    return losses, ratio.clamp(1 - low, 1 + high)


def rewards_shuffled(trainer):
    """Each response has the reward of another response."""
    source = trainer.collector.reward_source
    collect = source.collect
    source.collect = lambda requests: [rewards.roll(1) for rewards in collect(requests)]
    return trainer


def critic_frozen(trainer):
    """The critic's optimiser takes steps of length 0."""
    train = trainer.critic.train
    trainer.critic.train = lambda batch, lr: train(batch, 0.0)
    return trainer


def group_advantages_negated(rewards, group):
    """The best response of a group becomes less likely."""
    from aligner_lib.algorithms.policy_gradient import grpo_advantages

    return -grpo_advantages(rewards, group)


def no_baseline(rewards, group):
    """The rewards themselves, without a baseline."""
    return rewards.clone()


def kl_negated(logprobs, reference_logprobs, estimator):
    """Distance from the reference is rewarded."""
    from aligner_lib.algorithms.policy_gradient import kl_loss

    return -kl_loss(logprobs, reference_logprobs, estimator)


def ascent(logprobs):
    """The likelihood is minimised."""
    return logprobs


def only_prompts(learnt, lengths):
    """The loss covers the users' tokens in place of the answers'."""
    import torch

    columns = torch.arange(learnt.shape[1], device=learnt.device)
    return (~learnt & (columns < lengths[:, None]))[:, 1:]


def rate_zero(step, *, peak, max_steps, warmup_steps=0, constant_steps=0, min_lr=0.0, name="CosineAnnealing"):
    """The schedule ignores its peak."""
    return 0.0


def pair_swapped(chosen_rewards, rejected_rewards):
    """The rejected answer should score higher."""
    from aligner_lib.algorithms.preference import preference_loss

    return preference_loss(rejected_rewards, chosen_rewards)


def pair_linear(chosen_rewards, rejected_rewards):
    """The margin without log σ."""
    return rejected_rewards - chosen_rewards


def dpo_swapped(chosen, rejected, reference_chosen, reference_rejected, beta):
    """The rejected answer should gain."""
    from aligner_lib.algorithms.preference import dpo_loss

    return dpo_loss(rejected, chosen, reference_rejected, reference_chosen, beta)


def dpo_without_beta(chosen, rejected, reference_chosen, reference_rejected, beta):
    """β is ignored."""
    from aligner_lib.algorithms.preference import dpo_loss

    return dpo_loss(chosen, rejected, reference_chosen, reference_rejected, 1.0)


def dpo_without_reference(chosen, rejected, reference_chosen, reference_rejected, beta):
    """The margin of the policy alone, without the reference."""
    from aligner_lib.algorithms.preference import dpo_loss

    return dpo_loss(chosen, rejected, 0 * chosen, 0 * rejected, beta)


# ---- the runs -------------------------------------------------------------------------------------------------------


def planted(lab: Workspace) -> Iterator[Planted]:
    """All runs: twenty-two with a fault, and thirteen healthy runs."""
    yield from _faulty(lab)
    yield from _healthy(lab)


def _faulty(lab: Workspace) -> Iterator[Planted]:
    ppo = {"trainer.ppo.max_steps": STEPS, "trainer.ppo.val_check_interval": STEPS // 2}
    grpo = _loop_of_grpo() | judged_by(lab, reward_short)

    def of(kind: str, settings: dict, name: str, function: Callable, *fits: str, held_out: bool = False):
        run = f"{kind}-{function.__name__.replace('_', '-')}"
        return Planted(run, kind, settings | {name: function}, fits, held_out)

    yield of("ppo", ppo, "loss_mask", prompt_tokens, "prompt_trained")
    yield of("ppo", ppo, "advantages", advantages_negated, "advantage_sign")
    yield of("ppo", ppo, "advantages", returns_without_values, "returns", held_out=True)
    yield of("ppo", ppo, "normalize", not_normalised, "not_normalised", held_out=True)
    yield of("ppo", ppo, "token_rewards", penalty_missing, "kl_penalty")
    yield of("ppo", ppo, "token_rewards", penalty_summed, "kl_penalty", held_out=True)
    yield of("ppo", ppo, "loss", ratio_inverted, "advantage_sign")
    yield of("ppo", ppo, "trainer", rewards_shuffled)
    yield of("ppo", ppo, "trainer", critic_frozen, "critic_frozen", held_out=True)
    yield of("grpo", grpo, "advantages", group_advantages_negated, "advantage_sign")
    yield of("grpo", grpo, "loss_mask", prompt_tokens, "prompt_trained")
    yield of("grpo", grpo, "advantages", no_baseline, "no_baseline", held_out=True)
    yield of("grpo", grpo, "kl", kl_negated, "kl_loss_sign", held_out=True)
    yield of("sft", {}, "loss", ascent, "loss_sign")
    yield of("sft", {}, "loss_mask", only_prompts, held_out=True)
    yield of("sft", {}, "learning_rate", rate_zero, "rate_zero", held_out=True)
    yield of("rm", {}, "loss", pair_swapped, "pair_swapped")
    yield of("rm", {}, "loss", pair_linear, "pair_loss", held_out=True)
    yield of("dpo", {}, "loss", dpo_swapped, "pair_swapped")
    yield of("dpo", {}, "loss", dpo_without_beta, "pair_loss")
    yield of("dpo", {}, "loss", dpo_without_reference, "pair_loss", held_out=True)
    turned = _pairs(lab, "turned", lambda chosen, rejected, number: (rejected, chosen))
    key = "model.data.data_prefix.validation"
    yield Planted("rm-turned-validation", "rm", {key: turned[key]}, ("validation_turned",), held_out=True)


def _healthy(lab: Workspace) -> Iterator[Planted]:
    """Runs with unusual settings, and with data of little use."""
    turned = _pairs(
        lab, "noisy", lambda chosen, rejected, n: (chosen, rejected) if n % 2 else (rejected, chosen)
    )
    program, model = judged_by(lab, reward_short), judged_by(lab)
    loop = {"trainer.ppo.max_steps": STEPS, "trainer.ppo.val_check_interval": STEPS // 2}

    def ppo(name: str, held_out: bool = False, **settings: object) -> Planted:
        return _unusual(f"ppo-{name}", "ppo", loop, held_out, settings)

    def grpo(name: str, judge: dict, held_out: bool = False, **settings: object) -> Planted:
        return _unusual(f"grpo-{name}", "grpo", _loop_of_grpo() | judge, held_out, settings)

    yield ppo(
        "discounted",
        trainer__ppo__gae_lambda=0.9,
        trainer__ppo__discount_factor=0.97,
        trainer__ppo__whiten_rewards=True,
        trainer__ppo__normalize_advantages=False,
    )
    yield ppo("signed-kl", trainer__ppo__use_absolute_kl=False, trainer__ppo__initial_policy_kl_penalty=0.3)
    yield ppo(
        "cool-sampler",
        held_out=True,
        model__ppo__sampling_params__temperature=0.7,
        trainer__ppo__missing_eos_penalty=1.0,
        model__global_batch_size=8,
        model__micro_batch_size=4,
    )
    yield ppo(
        "three-epochs",
        held_out=True,
        model__ppo__rollout_epochs=3,
        model__ppo__entropy_bonus=0.02,
        trainer__ppo__mask_truncated_responses=True,
        trainer__ppo__critic_warmup_steps=3,
    )
    yield grpo("rloo", model, model__grpo__objective="rloo")
    yield grpo("two-of-each", program, held_out=True, **_pairs_of_grpo())
    yield grpo("reinforce", model, held_out=True, model__grpo__objective="reinforce_pp")
    slow = {"model.optim.lr": 1e-5, "model.optim.sched.name": "constant", "model.optim.sched.warmup_steps": 0}
    yield Planted("healthy-sft-slow", "sft", slow, is_healthy=True)
    yield Planted(
        "healthy-rm-noisy",
        "rm",
        turned | {"model.center_rewards_coefficient": 0.1},
        is_healthy=True,
    )
    random_head = {"model.init_method_std": 0.05, "model.num_layers_unfrozen": 1, "model.optim.lr": 1e-3}
    yield Planted("healthy-rm-random-head", "rm", random_head, held_out=True, is_healthy=True)
    yield Planted("healthy-dpo-simpo", "dpo", {"model.dpo.preference_loss": "simpo"}, is_healthy=True)
    yield Planted("healthy-dpo-noisy", "dpo", turned, held_out=True, is_healthy=True)
    conservative = {"model.dpo.preference_loss": "cdpo", "model.dpo.sft_loss_weight": 0.2}
    yield Planted("healthy-dpo-conservative", "dpo", conservative, held_out=True, is_healthy=True)


def _unusual(name: str, kind: str, loop: dict, held_out: bool, settings: dict) -> Planted:
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    return Planted(f"healthy-{name}", kind, loop | changed, held_out=held_out, is_healthy=True)


def _loop_of_grpo() -> dict[str, object]:
    return {"trainer.grpo.max_steps": STEPS, "trainer.grpo.val_check_interval": STEPS // 2}


def _pairs_of_grpo() -> dict[str, object]:
    return {
        "model__grpo__num_generations_per_prompt": 2,
        "model__grpo__num_prompts_per_step": 32,
        "trainer__grpo__initial_policy_kl_penalty": 0.0,
        "model__grpo__sampling_params__temperature": 1.2,
    }


def _pairs(lab: Workspace, name: str, change: Callable[[str, str, int], tuple[str, str]]) -> dict:
    """Settings of a job on the preference pairs, with both files changed pair by pair."""
    paths = {}
    for split, file in (("train", "train_comparisons.jsonl"), ("validation", "test_comparisons.jsonl")):
        lines = (lab.preference_data() / file).read_text().splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        changed = [line for number, pair in enumerate(pairs) for line in change(*pair, number)]
        paths[split] = lab.preference_data() / f"{name}_{file}"
        paths[split].write_text("".join(f"{line}\n" for line in changed))
    return {f"model.data.data_prefix.{split}": [path] for split, path in paths.items()}


# ---- verdicts -------------------------------------------------------------------------------------------------------


def verdict(run: Planted, explanation: Explanation) -> str:
    """See the module."""
    causes = [diagnosis.cause.name for diagnosis in explanation.likeliest]
    if run.is_healthy:
        return "accused" if explanation.off else "quiet"
    if explanation.is_healthy:
        return "missed"
    if not causes:
        return "unknown"
    if not set(causes) & set(run.fits):
        return "wrong"
    return "right" if len(causes) == 1 else "several"


def table(rows: list[tuple[Planted, Explanation]]) -> str:
    """A row for each run, in Markdown."""
    lines = [
        "| run | half | out of range, since step | causes that fit | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run, explanation in rows:
        off = ", ".join(f"{finding.name} {finding.step}" for finding in explanation.off) or "–"
        causes = ", ".join(candidate.cause.name for candidate in explanation.likeliest) or "–"
        half = "held out" if run.held_out else "seen"
        lines.append(f"| {run.name} | {half} | {off} | {causes} | {verdict(run, explanation)} |")
    return "\n".join(lines)


def main() -> None:
    """See the module."""
    parser = documented_parser("unseen_faults", __doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/unseen"))
    parser.add_argument("--only", choices=("seen", "held-out"))
    parser.add_argument("--train", action="store_true", help="only train; say nothing of the runs")
    parser.add_argument("--pack", type=Path)
    options = parser.parse_args()
    lab, rows = Workspace(options.out, "smoke"), []
    train_starting_points(lab)
    for run in planted(lab):
        if options.only and run.held_out != (options.only == "held-out"):
            continue
        folder = carry_out(lab, run.name, run.kind, run.settings | {"model.seed": SEED}, run.is_healthy)
        if options.train:
            print(f"{run.name}: {folder.status}", flush=True)
            continue
        rows.append((run, explain(folder)))
        if options.pack:
            pack(folder, options.pack / f"{run.name}{PACKED}")
    if rows:
        print(table(rows))


if __name__ == "__main__":
    main()
