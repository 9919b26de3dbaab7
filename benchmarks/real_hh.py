"""`python -m benchmarks.real_hh --raw FILE`: accuracies of a reward model and DPO on real HH pairs, beside rules that learn nothing.

The pairs are split by their first question, so that no conversation is in both splits. Then `aligner data hh`, `aligner rm` and
`aligner dpo` run with the ordinary commands, with adapters on SmolLM2. Duration: about twenty minutes each on one core. A finished
run is not made again.

    --out runs/hh         the folder of the files and the runs
    --only rm,dpo         the kinds to train
    --seed 1234           of the weights and of the order
    --json FILE           the figures
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from aligner_lib.models.hash import file_hash
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.baselines import best_rules, text_pairs
from aligner_lib.tutorial.comparison.statistics import Estimate, share
from benchmarks.kept import described_run
from benchmarks.options import documented_parser, some_of

HELD_OUT = 4  # one question in HELD_OUT is held out
LONGEST = 1100  # characters of a conversation; longer conversations are left out, and counted
STEPS = 43  # of 16 pairs: an epoch of the data
COMMON = {
    "model.data.chat_template": "plain",
    "model.encoder_seq_length": 512,  # tokens; the remaining conversations are shorter
    "model.global_batch_size": 16,
    "model.micro_batch_size": 4,
    "model.peft.peft_scheme": "lora",
    "model.peft.lora_tuning.adapter_dim": 16,
}
SETTINGS = {
    "rm": {"model.optim.lr": 4e-4},
    "dpo": {
        "model.optim.lr": 2e-4,
        "model.dpo.ref_policy_kl_penalty": 0.1,
        "model.dpo.num_val_samples": 0,
    },
}


TITLES = {"rm": "reward model", "dpo": "DPO's implicit reward"}


def split(raw: Path, out: Path) -> dict[str, Path]:
    """Write the raw pairs to two files. Conversations with the same first question go to the same file."""
    opened = gzip.open if raw.suffix == ".gz" else open
    files = {name: out / f"raw_{name}.jsonl" for name in ("train", "test")}
    lines = {name: [] for name in files}
    with opened(raw, "rt", encoding="utf-8") as source:
        for line in source:
            question = json.loads(line)["chosen"].partition("\n\nAssistant:")[0]
            digest = hashlib.sha256(question.encode()).digest()
            lines["test" if digest[0] % HELD_OUT == 0 else "train"].append(line)
    for name, path in files.items():
        path.write_text("".join(lines[name]), encoding="utf-8")
    return files


def prepare(raw: Path, out: Path) -> dict[str, Path]:
    """Run `aligner data hh` on both files. Returns the files of comparisons."""
    out.mkdir(parents=True, exist_ok=True)
    for name, path in split(raw, out).items():
        options = ["--raw", str(path), "--split", name, "--out", str(out), "--max-chars", str(LONGEST)]
        aligner("data", "hh", *options)
    return {name: out / f"{name}_comparisons.jsonl" for name in ("train", "test")}


def check_pairs(run: RunFolder, raw: Path) -> None:
    """Note the raw file's content beside the run's folder. Ends the program if the run has learned from another content."""
    note, digest = run.path.with_suffix(".raw"), file_hash(raw)
    if run.info and not (note.exists() and note.read_text() == digest):
        sys.exit(
            f"error: {run.path} has learned from another file than --raw {raw}: remove the run, or choose another --out"
        )
    run.path.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(digest)


def train(kind: str, files: dict[str, Path], run: RunFolder, seed: int, **settings: object) -> None:
    loop = {"max_steps": STEPS, "val_check_interval": STEPS, "save_interval": STEPS, "limit_val_batches": -1}
    overrides = (
        {"pretrained_checkpoint.restore_from_path": "smollm2-135m", "model.seed": seed}
        | {f"trainer.{kind}.{key}": value for key, value in loop.items()}
        | COMMON
        | SETTINGS[kind]
        | settings
    )
    data = f"++model.data.data_prefix={{train: [{files['train']}], validation: [{files['test']}]}}"
    written = [f"{key}={value}" for key, value in overrides.items()]
    aligner(kind, "--profile", "laptop", "--run", str(run.path), *written, data)


def held_out(run: RunFolder, pairs: int) -> dict[str, object]:
    """A finished run's accuracy on all held-out pairs, with its interval, and its loss."""
    last = [record for record in run.metrics() if "validation/acc" in record][-1]
    right = round(last["validation/acc"] * pairs)
    accuracy = share([1.0] * right + [0.0] * (pairs - right), range(pairs))
    return {"accuracy": accuracy._asdict(), "loss": last["validation/loss"], "step": last["step"]}


def aligner(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "aligner_lib", *arguments], check=True)


def main() -> None:
    arguments = _parse()
    runs = {kind: RunFolder(arguments.out / f"{kind}-{arguments.seed}") for kind in arguments.only}
    for run in runs.values():
        check_pairs(run, arguments.raw)
    arguments.out.mkdir(parents=True, exist_ok=True)
    files = prepare(arguments.raw, arguments.out)
    pairs = {name: text_pairs(path) for name, path in files.items()}
    rules = best_rules(pairs["train"], pairs["test"])
    figures = {"pairs": {name: len(of) for name, of in pairs.items()}, "rules": rules, "seed": arguments.seed}
    for kind, run in runs.items():
        if run.status != "finished":  # a stopped or failed run continues
            train(kind, files, run, arguments.seed)
        figures[kind] = held_out(run, len(pairs["test"]))
    if arguments.json:
        description = described_run("python -m benchmarks.real_hh", arguments)
        arguments.json.write_text(json.dumps(description | figures, indent=1) + "\n")
    print(f"\n{len(pairs['test'])} held-out pairs, {len(pairs['train'])} to learn from; 0.5 is a coin\n")
    print("| judge | right on held-out pairs |\n| --- | --- |")
    for name, value in rules.items():
        print(f"| {name} | {value:.3f} |")
    for kind in arguments.only:
        print(f"| {TITLES[kind]} | {Estimate(**figures[kind]['accuracy'])} |")


def _parse() -> argparse.Namespace:
    parser = documented_parser("real_hh", __doc__)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/hh"))
    parser.add_argument("--only", type=partial(some_of, TITLES), default=list(TITLES))
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
