"""`./lab bench`: every comparison in one run, a table at the end, and the figures as JSON."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from benchmarks import ours
from benchmarks.contest import Contestant, check_beside, compete
from benchmarks.kept import described, write_result
from benchmarks.measure import Comparison
from benchmarks.monitor import check_browser
from benchmarks.options import some_of, whole_number
from benchmarks.setting import BUNDLED, HH_REAL, LONG_PROMPTS, SHORT_PROMPTS, Setting
from benchmarks.table import Result, table_of


def main() -> None:
    options = _parse(sys.argv[1:])
    if options.threads:
        # torch reads the variable in the sides' processes
        os.environ["OMP_NUM_THREADS"] = str(options.threads)
    if find_spec("trl") is None:
        sys.exit("error: TRL is not installed: `./lab bench` installs it (or pip install -e '.[bench]')")
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    if "monitor" in options.only:
        check_browser()
    with tempfile.TemporaryDirectory(prefix="aligner-bench-") as folder:
        setting = Setting(
            Path(folder),
            model=options.model,
            clock=options.clock,
            precision=options.precision,
            raw_pairs=options.pairs,
            beside=options.beside,
            **_sizes(options),
        )
        if setting.beside is not None:
            for name in options.only:
                check_beside(name, _sides(name, setting), setting.beside)
        setting.prepare()
        description = described("./lab bench", setting, options)
        results, failed = [], []
        for name in options.only:
            try:
                results.append(
                    _run(name, setting, lambda text: console.print(text, highlight=False, markup=False))
                )
            except Exception:  # the figures of the other parts stay
                traceback.print_exc()
                failed.append(name)
            else:
                write_result(options.json, description, [result.as_dict() for result in results])
    if results:
        console.print(_title(description), *map(table_of, results), sep="\n", highlight=False)
        console.print(f"written to {options.json}")
    if failed:
        names = ",".join(failed)
        sys.exit(
            f"error: {names} failed, as written above: mend the cause, and measure --only {names} again, with another --json"
        )


def _run(name: str, setting: Setting, say) -> Result:
    if name in COMPARISONS:
        return _compare(name, setting, say)
    # a module only when it is measured: most of them import torch
    return import_module(f"benchmarks.{name.replace('-', '_')}").measure(setting, say)


def _compare(name: str, setting: Setting, say) -> Comparison:
    title, _, aim = COMPARISONS[name]
    if name in GRPO_PROMPTS:
        prompt_lengths = [len(prompt) for prompt in setting.grpo_prompts(GRPO_PROMPTS[name])]
        title += f", prompts of {span(prompt_lengths)} tokens"
    comparison = compete(title, _sides(name, setting), setting, aim, say)
    if name in GRPO_PROMPTS:
        comparison.sizes = {"global_batch": setting.group_size, "micro_batch": setting.group_size}
    return comparison


def _sides(name: str, setting: Setting) -> list[Contestant]:
    _, sides, _ = COMPARISONS[name]
    return sides(setting)


def _sft(setting: Setting) -> list[Contestant]:
    from benchmarks import theirs

    return [
        Contestant("Aligner Lab", "length-grouped in the global batch, logits of answers only", ours.sft),
        Contestant("TRL SFTTrainer", "loss on completions, sampler as it comes", theirs.trl_sft),
        Contestant(
            "TRL SFTTrainer",
            "… and train_sampling_strategy=batch_rebalance",
            partial(theirs.trl_sft, sampling="batch_rebalance"),
        ),
        Contestant("transformers", "plain loop, padded in order of arrival", theirs.plain_sft),
    ]


def _reward_model(setting: Setting) -> list[Contestant]:
    from benchmarks import theirs

    return [
        Contestant("Aligner Lab", "length-grouped, a pair's common prefix once", ours.reward_model),
        Contestant("TRL RewardTrainer", "sampler as it comes", theirs.trl_reward),
        _with(FASTEST_ON_PAIRS, "TRL RewardTrainer", theirs.trl_reward),
    ]


def _dpo(setting: Setting) -> list[Contestant]:
    from benchmarks import theirs

    # TRL computes these log-probabilities before the first round, outside the measured time
    known = FASTEST_ON_PAIRS | {"precompute_ref_log_probs": True}
    return [
        Contestant("Aligner Lab", "length-grouped, a pair's common prefix once", ours.dpo),
        Contestant("TRL DPOTrainer", "sampler as it comes", theirs.trl_dpo),
        _with(FASTEST_ON_PAIRS, "TRL DPOTrainer", theirs.trl_dpo),
        _with(known, "TRL DPOTrainer", theirs.trl_dpo),
    ]


def _grpo(setting: Setting, lengths: range) -> list[Contestant]:
    from benchmarks import theirs

    run = partial(theirs.trl_grpo, lengths=lengths)
    return [
        Contestant("Aligner Lab", "a group's prompt once", partial(ours.grpo, lengths=lengths)),
        Contestant("TRL GRPOTrainer", "as it comes", run),
        _with(FASTEST_GRPO, "TRL GRPOTrainer", run),
    ]


def span(numbers: list[int]) -> str:
    """The smallest and the largest number, or the number that is both."""
    return " to ".join(map(str, sorted({min(numbers), max(numbers)})))


def _with(options: dict, name: str, run: Callable) -> Contestant:
    """TRL's trainer with settings other than TRL's defaults."""
    listed = ", ".join(f"{option}={value}" for option, value in options.items())
    return Contestant(name, f"… and {listed}", partial(run, **options))


def _generation(setting: Setting) -> list[Contestant]:
    from benchmarks import theirs

    batch = f"{setting.prompts} prompts, {setting.generation_batch} together"
    return [
        Contestant("Aligner Lab", f"{batch}, waiting prompts take the places of what ended", ours.generation),
        Contestant("transformers generate", f"{batch}, left padded", theirs.generation),
    ]


# the fastest settings of TRL's trainers among all options of their configs on a CPU: see docs/decisions/benchmarks.md
FASTEST_ON_PAIRS = {"per_device_train_batch_size": 1}  # almost no padding
FASTEST_GRPO = {"per_device_train_batch_size": 2}

GRPO_PROMPTS = {"grpo": LONG_PROMPTS, "grpo-short": SHORT_PROMPTS}
COMPARISONS = {
    "sft": ("SFT", _sft, 2.0),
    "rm": ("reward model", _reward_model, 2.5),
    "dpo": ("DPO", _dpo, 3.0),
    "grpo": ("GRPO", partial(_grpo, lengths=LONG_PROMPTS), 3.0),
    "grpo-short": ("GRPO", partial(_grpo, lengths=SHORT_PROMPTS), None),
    "generation": ("generation", _generation, 1.2),
}
"""By name: the title, the sides of a setting, and the aim beside the first of the others."""
NAMES = [*COMPARISONS, "ppo", "remote-critic", "imports", "disk", "monitor"]
TAKES = {
    "beside": [*COMPARISONS],  # the others have no sides
    "clock": [*COMPARISONS, "ppo"],  # the others wait for disks, browsers and other processes
    "precision": [*COMPARISONS, "ppo", "remote-critic"],
}
"""By option: the parts on which a value other than the default has an effect."""


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "./lab bench", description="Speed against TRL and transformers on this machine."
    )
    parser.add_argument("--model", default="6m", help="6m, or a name that `aligner model fetch` knows [6m]")
    parser.add_argument("--only", type=partial(some_of, NAMES), help=f"some of {','.join(NAMES)} [all]")
    parser.add_argument(
        "--repeats",
        type=partial(whole_number, 1),
        help="rounds of each side after its warm-up, runs of imports and disk [5]",
    )
    parser.add_argument("--steps", type=partial(whole_number, 1), help="optimiser steps a round [4]")
    parser.add_argument(
        "--global-batch",
        type=partial(whole_number, 1),
        help="samples an optimiser step [32; GRPO: a group of 8]",
    )
    parser.add_argument(
        "--micro-batch", type=partial(whole_number, 1), help="samples a forward-backward [8; GRPO: its group]"
    )
    parser.add_argument("--prompts", type=partial(whole_number, 1), help="prompts a round of generation [64]")
    parser.add_argument(
        "--pairs",
        type=Path,
        default=HH_REAL if HH_REAL.exists() else BUNDLED,
        help="preference pairs in HH's format [%(default)s]",
    )
    parser.add_argument(
        "--beside",
        metavar="1,2",
        type=lambda text: tuple(map(int, text.split(","))),
        help="only some of the other sides, in the table's order: a side with SmolLM2-135M takes 3 GiB [all]; "
        "leaves out ppo, remote-critic, imports, disk, monitor",
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it run?")
    parser.add_argument(
        "--precision",
        choices=["32", "bf16"],
        default="32",
        help="of all sides [32]; bf16 leaves out imports, disk, monitor",
    )
    parser.add_argument(
        "--threads", type=partial(whole_number, 1), help="threads of each side [as many as torch takes]"
    )
    parser.add_argument(
        "--clock",
        choices=["wall", "cpu"],
        default="wall",
        help="cpu: processor time, on a busy machine; leaves out remote-critic, imports, disk, monitor",
    )
    parser.add_argument(
        "--json", metavar="FILE", type=Path, default=Path("runs/bench.json"), help="the figures [%(default)s]"
    )
    options = parser.parse_args(arguments)
    for option, names in TAKES.items():
        if getattr(options, option) == parser.get_default(option):
            continue
        if unfit := [name for name in options.only or [] if name not in names]:
            parser.error(
                f"--{option} has no effect on {', '.join(unfit)}: measure {', '.join(unfit)} without it"
            )
        options.only = options.only or names
    options.only = options.only or NAMES
    return options


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    quick = {"repeats": 2, "steps": 1, "prompts": 16, "generation_batch": 8} if options.quick else {}
    chosen = {
        name: getattr(options, name)
        for name in ("repeats", "steps", "global_batch", "micro_batch", "prompts")
    }
    return quick | {name: value for name, value in chosen.items() if value is not None}


def _title(description: dict) -> str:
    libraries = ", ".join(f"{name} {number}" for name, number in description["versions"].items())
    machine = description["machine"]
    return (
        f"\n{description['command']}\n{description['model']} ({description['parameters'] / 1e6:.1f} M parameters), "
        f"precision {description['precision']}, {machine['processor']}, {machine['cores']} cores, "
        f"{description['clock']} clock, pairs of {description['pairs']}; commit {description['commit']}; "
        f"Python {description['python']}, {libraries}"
    )


if __name__ == "__main__":
    main()
