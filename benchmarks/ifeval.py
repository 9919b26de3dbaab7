"""`python -m benchmarks.ifeval PROMPTS --checkers PYTHON --out FOLDER NAME=POLICY …`: policies on IFEval, compared in pairs.

PROMPTS is `instruction_following_eval/data/input_data.jsonl` of github.com/google-research/google-research, 541 prompts with
instructions that a program can check (Zhou et al. 2023, arXiv:2311.07911). PYTHON is the interpreter of an environment with
`lm_eval[ifeval]==0.4.13`, whose checkers judge the answers. Each policy answers greedily and is compared with the policy before
it. Answers are kept in FOLDER and are not generated again; answers of another policy, prompt, length or precision are refused.

Three tables follow: the policies; the same differences for each kind of instruction, because a policy can lose long answers and
win short ones; and the cheats, which never read the prompt's question. A policy that a cheat beats is not good at IFEval.

    --max-length 256      tokens of an answer; lm_eval's own task allows 1,280
    --limit 541           the first prompts only
    --precision bf16      where the machine supports it in hardware, for all policies alike; otherwise float32
    --rows 32             answers generated at the same time
    --json FILE           the figures
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from aligner_lib.models import resolve
from aligner_lib.models.hash import model_hash
from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.comparison.statistics import mean_interval, share, share_gain
from benchmarks.kept import described_run
from benchmarks.options import documented_parser

CHECK = """
import json, sys
from lm_eval.tasks.ifeval.utils import process_results
for line in sys.stdin:
    prompt, answer = json.loads(line)
    print(json.dumps(process_results(prompt, [answer])), flush=True)
"""
"""Reads a prompt and its answer a line, and writes the verdict of lm_eval's task."""

WHOLE = {"prompt_strict": "prompt_level_strict_acc", "prompt_loose": "prompt_level_loose_acc"}
"""By measure: lm_eval's name. The answer follows every instruction of its prompt. Loose: also without markup, or without its
first or last line."""
CHEATS: dict[str, Callable[[str], str]] = {
    "empty answer": lambda prompt: "",
    "a constant": lambda prompt: "this is an answer in lower case without any comma.",
    "the prompt": lambda prompt: prompt,
    "the prompt in lower case and quotation marks": lambda prompt: f'"{prompt.lower()}"',
}
"""By name: the answer to a prompt, made without a model."""
EACH = {"instruction_strict": "inst_level_strict_acc", "instruction_loose": "inst_level_loose_acc"}
"""By measure: lm_eval's name. The share of the instructions that the answers follow."""


def main() -> None:
    options = _parsed()
    lines = options.prompts.read_text(encoding="utf-8").splitlines()
    prompts = [json.loads(line) for line in lines][: options.limit]
    policies = dict(text.split("=", 1) for text in options.policies)
    options.out.mkdir(parents=True, exist_ok=True)
    verdicts, records = {}, {}
    for name, policy in policies.items():
        file = options.out / f"{name}.jsonl"
        records[name] = answered(prompts, policy, file, options)
        verdicts[name] = checked(prompts, records[name], options.checkers)
    tables = {"policies": compared(verdicts, records), "kinds": by_kind(prompts, verdicts)}
    tables["cheats"] = of_cheats(prompts, options.checkers)
    print(*tables.values(), sep="\n\n")
    if options.json:
        figures = described_run("python -m benchmarks.ifeval", options, ("prompts", "policies"))
        figures |= {name: table.figures for name, table in tables.items()}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


def answered(prompts: Sequence[dict], policy: str, file: Path, options) -> list[dict]:
    """The records of a policy's answers, in the order of the prompts. Answers in the file are not generated again. Ends the
    program if the file has answers that were generated in another way."""
    shared = {
        "policy": policy,
        "hash": model_hash(resolve(policy)),
        "max_length": options.max_length,
        "precision": options.precision,
    }
    settings = {prompt["key"]: shared | {"prompt": prompt["prompt"]} for prompt in prompts}
    records = {record["key"]: record for record in _lines(file)}
    for key, record in records.items():
        required = settings.get(key, shared)
        stored = {name: record.get(name) for name in required}
        if stored != required:
            sys.exit(
                f"{file} has answers of {stored}, but {required} is asked for: remove the file, or choose another NAME"
            )
    left = [prompt for prompt in prompts if prompt["key"] not in records]
    if left:
        with file.open("a", encoding="utf-8") as out:
            for record in generated(left, policy, options):
                records[record["key"]] = record
                print(json.dumps(record | settings[record["key"]]), file=out, flush=True)
    return [records[prompt["key"]] for prompt in prompts]


def generated(prompts: Sequence[dict], policy: str, options) -> Iterator[dict]:
    """A record for each answer, as soon as the answer is over: key, answer, number of tokens, and whether the answer ended."""
    from aligner_lib.datasets.chat_template import encode_prompt
    from aligner_lib.jobs.inference import resolve_with_head, tokenizer_of
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.generate import ContinuousBatch, Sampling
    from aligner_lib.megatron.model import Numerics
    from aligner_lib.megatron.precision import computed_precision
    from aligner_lib.models.architecture import Architecture

    folder = resolve_with_head(policy, "lm")
    parallel.initialize()
    engine = Engine(Architecture.load(folder), Numerics(bf16=computed_precision(options.precision) == "bf16"))
    engine.load(folder)
    tokenizer = tokenizer_of(folder)
    batch = ContinuousBatch(engine.module, options.rows, stop_ids=tokenizer.stop_ids)
    greedy = Sampling(max_length=options.max_length, greedy=True)
    growing = {}
    for prompt in prompts:
        turns = [{"role": "user", "content": prompt["prompt"]}]
        growing[prompt["key"]] = batch.add(encode_prompt(tokenizer, turns), 0, greedy)
    while growing:
        batch.run(enough=lambda: any(response.is_over for response in growing.values()))
        for key in [key for key, response in growing.items() if response.is_over]:
            response = growing.pop(key)
            yield {
                "key": key,
                "answer": tokenizer.decode(response.tokens).strip(),
                "tokens": len(response.tokens),
                "ended": response.finished,
            }


def checked(prompts: Sequence[dict], records: Sequence[dict], python: str) -> list[dict]:
    """lm_eval's verdict on each answer. python: the interpreter of an environment with lm_eval."""
    lines = "".join(
        json.dumps([prompt, record["answer"]]) + "\n" for prompt, record in zip(prompts, records, strict=True)
    )
    done = subprocess.run([python, "-c", CHECK], input=lines, text=True, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def compared(verdicts: dict[str, list[dict]], records: dict[str, list[dict]]) -> PolicyComparison:
    """The table of all policies. A gain is the mean of the paired differences from the policy in the column before.

    verdicts: by policy, `checked`. records: by policy, `answered`.
    """
    figures, before = {}, None
    for name, own in verdicts.items():
        figures[name] = _alone(own, records[name])
        if before is not None:
            figures[name] |= _gains(own, verdicts[before])
        before = name
    count = len(own)
    return PolicyComparison(
        f"IFEval, {count} prompts, greedy answers; a gain is over the policy in the column before; "
        "95 % intervals in brackets",
        figures,
    )


def by_kind(prompts: Sequence[dict], verdicts: dict[str, list[dict]]) -> PolicyComparison:
    """The share of followed instructions of each kind, such as `keywords`, and the gain over the policy in the column before.

    prompts: records of IFEval; only `instruction_id_list` is read. verdicts: by policy, `checked`.
    """
    kinds = [[name.partition(":")[0] for name in prompt["instruction_id_list"]] for prompt in prompts]
    figures: dict[str, dict] = {name: {} for name in verdicts}
    for kind in sorted({kind for of_prompt in kinds for kind in of_prompt}):
        before = None
        for name, own in verdicts.items():
            chosen = [
                [
                    float(v)
                    for v, k in zip(verdict[EACH["instruction_strict"]], of_prompt, strict=True)
                    if k == kind
                ]
                for verdict, of_prompt in zip(own, kinds, strict=True)
            ]
            values, at = _flat(chosen)
            figures[name][f"{kind} ({len(values)})"] = share(values, at)
            if before is not None:
                gains = [a - b for a, b in zip(values, before, strict=True)]
                figures[name][f"{kind} gain"] = share_gain(gains, at)
            before = values
    return PolicyComparison(
        "Followed instructions by kind (number of instructions), strict; gains and intervals as above",
        figures,
    )


def of_cheats(prompts: Sequence[dict], python: str) -> PolicyComparison:
    """What answers get that no model wrote. python: see `checked`."""
    answers = {
        name: [{"answer": cheat(prompt["prompt"])} for prompt in prompts] for name, cheat in CHEATS.items()
    }
    figures = {name: _followed(checked(prompts, records, python)) for name, records in answers.items()}
    return PolicyComparison(f"Cheats, {len(prompts)} prompts", figures)


def _alone(verdicts: list[dict], records: list[dict]) -> dict:
    each = range(len(verdicts))
    return _followed(verdicts) | {
        "tokens": mean_interval([record["tokens"] for record in records], each),
        "ended": share([float(record["ended"]) for record in records], each),
    }


def _followed(verdicts: list[dict]) -> dict:
    each = range(len(verdicts))
    of_answers = {name: share([float(v[key]) for v in verdicts], each) for name, key in WHOLE.items()}
    return of_answers | {
        name: share(*_flat([verdict[key] for verdict in verdicts])) for name, key in EACH.items()
    }


def _gains(own: list[dict], others: list[dict]) -> dict:
    gains = {
        f"{name}_gain": share_gain(
            [float(a[key]) - float(b[key]) for a, b in zip(own, others)], range(len(own))
        )
        for name, key in WHOLE.items()
    }
    for name, key in EACH.items():
        values, prompts = _flat([[x - y for x, y in zip(a[key], b[key])] for a, b in zip(own, others)])
        gains[f"{name}_gain"] = share_gain(values, prompts)
    return gains


def _flat(lists: Sequence[Sequence[float]]) -> tuple[list[float], list[int]]:
    """The values of all prompts, and the prompt of each value."""
    return (
        [float(value) for of_prompt in lists for value in of_prompt],
        [at for at, of_prompt in enumerate(lists) for _ in of_prompt],
    )


def _lines(file: Path) -> list[dict]:
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:  # the program was killed while it wrote the last answer
        file.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def named_policy(text: str) -> str:
    """The text itself, NAME=POLICY. Raises ArgumentTypeError for a text without both."""
    name, _, policy = text.partition("=")
    if not (name and policy):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=POLICY, such as sft=runs/sft")
    return text


def _parsed() -> argparse.Namespace:
    parser = documented_parser("ifeval", __doc__)
    parser.add_argument("prompts", type=Path, metavar="PROMPTS")
    parser.add_argument("policies", nargs="+", type=named_policy, metavar="NAME=POLICY")
    parser.add_argument("--checkers", required=True, metavar="PYTHON")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--precision", default="bf16", choices=("32", "bf16"))
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    names = [text.partition("=")[0] for text in options.policies]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        parser.error(
            f"{', '.join(twice)}: several policies have this NAME, which names their file of answers"
        )
    return options


if __name__ == "__main__":
    main()
