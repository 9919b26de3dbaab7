"""`python -m benchmarks.gpu`: the checks and measurements that need a GPU, with one command and one JSON file.

figures   steps of each kind in float32 with the smoke model, on the GPU and on this machine's CPU: losses agree within BOUND; rewards
          and gradients of PPO and GRPO agree at the first step, whose responses rounding has not changed yet
kinds     seconds, tokens a second and peak memory of a step of each kind, in float32 and in bf16
capture   tokens a second of a generation whose step is a CUDA graph, beside the same without one, on random weights of SMALL's shape
size      the same for SFT and reward model on random weights of LARGE's shape in bf16, beside the estimate of `aligner size`
beside    SFT, reward model, DPO, GRPO and generation beside TRL and transformers, in float32 and in bf16 (`./lab bench`)

    --only figures,kinds    some of the parts
    --kinds sft,ppo         some of the kinds, in `figures` and `kinds`
    --profile laptop        the profile of `kinds`; smoke: only to test that the benchmark runs
    --quick                 two measured steps and two rounds of everything but `figures`, which always takes four steps
    --out FOLDER            runs, logs and gpu.json

Without a GPU every part runs on the CPU, and the report names the CPU.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.convert import write_model_folder
from aligner_lib.models.fetch import fetch
from aligner_lib.models.smoke import random_weights
from aligner_lib.models.stream import write_store
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.workspace.workspace import Workspace
from benchmarks.engines import common_share
from benchmarks.jobs import run, step_records
from benchmarks.kept import described_run
from benchmarks.options import documented_parser, some_of
from cluster.sizing import MODELS, Parallelism, memory, step_flops

KINDS = ("sft", "rm", "dpo", "ppo", "grpo")
PRECISIONS = ("32", "bf16")
COMPARISONS = ("sft", "rm", "dpo", "grpo", "generation")
WARM_UP = 2  # steps in which libraries set themselves up; they count in no median
LARGE, LARGE_TOKENS, LARGE_BATCH = "SmolLM2-1.7B", 1024, 8
SMALL, ROWS, PROMPT_TOKENS, NEW_TOKENS = "SmolLM2-135M", (1, 64), (10, 60), 64
ROLES = {"sft": "sft", "rm": "reward model"}
PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
"""Peak speed in bf16 without sparsity, from the makers' data sheets."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}

FIGURES = {
    "sft": ("train/loss", "validation/loss"),
    "rm": ("train/loss", "validation/loss"),
    "dpo": ("train/loss", "validation/loss"),
    "ppo": ("train_rollouts/rewards", "train_optim/grad_norm"),
    "grpo": ("train_rollouts/entropy", "train_optim/grad_norm"),
}
BOUND = 1e-3
"""The largest allowed difference from the CPU's figure: a share of the CPU's figure, or of 1 when 1 is larger."""
COMPARED = {"ppo": 1, "grpo": 1}
"""The number of steps whose figures are compared; all steps for a kind without an entry. After PPO's first update, rounding
changes the drawn responses: on an H200, the rewards of steps 1 to 4 differed from the CPU's by 1e-6, 0.02, 0.09 and 0.10."""


@dataclass(frozen=True)
class StepSpeed:
    """A step of a kind of job. seconds: the median; tokens: read in a step, on average; peak: GiB of tensors, None on a CPU."""

    kind: str
    precision: str
    seconds: float
    tokens: float
    peak: float | None

    def as_row(self) -> dict:
        """The speed with its tokens a second."""
        return asdict(self) | {"tokens_per_second": self.tokens / self.seconds}


# ---- jobs ------------------------------------------------------------------------------------------------------------


def steps_of(kind: str, steps: int, precision: str) -> dict[str, object]:
    """The settings of a job of a few steps."""
    settings = {f"trainer.{kind}.max_steps": steps, f"trainer.{kind}.val_check_interval": steps}
    settings |= {
        "exp_manager.create_checkpoint_callback": False,
        "trainer.precision": precision,
    }  # a checkpoint of LARGE takes 27 GB
    return settings | ({"critic.trainer.precision": precision} if kind == "ppo" else {})


def measured_steps(options: argparse.Namespace) -> int:
    """The number of measured steps of a job, and of measured rounds of generation."""
    return 2 if options.quick else 8


def speed_of(kind: str, precision: str, folder: RunFolder) -> StepSpeed:
    """A run's speed without its warm-up."""
    records = step_records(folder, WARM_UP)
    tokens = [record.get("train_rollouts/tokens") or record["train/tokens"] for record in records]
    peaks = [record["memory/peak"] for record in records if "memory/peak" in record]
    seconds = median(record["timers/step_time"] for record in records)
    return StepSpeed(kind, precision, seconds, sum(tokens) / len(tokens), max(peaks, default=None))


# ---- the parts -------------------------------------------------------------------------------------------------------


def figures(out: Path, options: argparse.Namespace) -> list[dict]:
    """Each kind's figures on this device and on the CPU, and the largest difference as a share."""
    here, there = Workspace(out / "here", "smoke"), Workspace(out / "on-cpu", "smoke")
    rows = []
    for kind in options.kinds:
        series = []
        for lab, environment in ((here, {}), (there, NO_GPU)):
            settings = steps_of(kind, 4, "32") | (lab.conversations() if kind == "ppo" else {})
            folder = run(lab, kind, kind, settings, environment)
            series.append({name: folder.series(name)[1] for name in FIGURES[kind]})
        for name in FIGURES[kind]:
            pairs = list(zip(*(of_one[name] for of_one in series), strict=True))
            shares = [abs(a - b) / max(abs(b), 1.0) for a, b in pairs[: COMPARED.get(kind)]]
            # `max` passes over a NaN that is not the first number
            apart = max(shares) if all(map(math.isfinite, shares)) else math.nan
            rows.append({"kind": kind, "figure": name, "apart": apart, "bound": BOUND, "pairs": pairs})
    return rows


def kinds(out: Path, options: argparse.Namespace) -> list[dict]:
    """Each kind's step with the profile's settings, in both precisions."""
    rows = []
    for precision in PRECISIONS:
        lab = Workspace(out / f"kinds-{precision}", options.profile)
        for kind in options.kinds:
            settings = steps_of(kind, WARM_UP + measured_steps(options), precision)
            settings |= lab.conversations() if kind == "ppo" else {}
            rows.append(speed_of(kind, precision, run(lab, kind, kind, settings)).as_row())
    return rows


def capture(out: Path, options: argparse.Namespace) -> list[dict]:
    """Generation with and without a CUDA graph, in both precisions. `common`: the share of tokens before a first difference."""
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    parallel.initialize()
    rows = []
    for precision in PRECISIONS:
        model = Engine(architecture_of(SMALL), Numerics(bf16=precision == "bf16")).module
        for count in ROWS:
            prompts = random_prompts(count, model.architecture.vocab_size)
            model.captures_steps = False
            eager, expected = generated(model, prompts, measured_steps(options))
            model.captures_steps = True
            captured, responses = generated(model, prompts, measured_steps(options))
            row = {"precision": precision, "rows": count, "eager": eager, "captured": captured}
            rows.append(row | {"ratio": captured / eager, "common": common_share(responses, expected)})
    return rows


def random_prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Prompts of random tokens, of different lengths."""
    import torch

    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(*PROMPT_TOKENS, (count,), generator=generator).tolist()
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def generated(model, prompts: list[list[int]], rounds: int) -> tuple[float, list[list[int]]]:
    """The median tokens a second, and the last round's responses."""
    from aligner_lib.megatron.generate import Sampling, generate

    sampling = Sampling(max_length=NEW_TOKENS)
    speeds = []
    for _ in range(1 + rounds):  # libraries set themselves up in the first round
        started = time.perf_counter()
        responses = generate(model, prompts, range(len(prompts)), sampling, stop_ids=[0])
        tokens = [response.tokens for response in responses]
        speeds.append(sum(map(len, tokens)) / (time.perf_counter() - started))
    return median(speeds[1:]), tokens


def size(out: Path, options: argparse.Namespace) -> list[dict]:
    """Steps of a model of LARGE's shape, with their share of the GPU's peak speed and the estimated memory."""
    shape = MODELS[LARGE]
    folder = out / "large"
    if not folder.exists():
        write_model_folder(folder, write_large, {"name": LARGE, "origin": "random weights"})
    lab = Workspace(out / "size", "smoke")
    peak = next((tflops for name, tflops in PEAK_TFLOPS.items() if name in device_name()), None)
    rows = []
    for kind in ROLES:
        settings = large_settings(kind, folder, str(long_texts(out, kind, folder)))
        settings |= steps_of(kind, WARM_UP + measured_steps(options), "bf16")
        speed = speed_of(kind, "bf16", run(lab, kind, kind, settings))
        estimate = memory(shape, Parallelism(1, 1, 1), ROLES[kind], LARGE_TOKENS, LARGE_BATCH // 2)
        texts = LARGE_BATCH * (2 if kind == "rm" else 1)
        flops = step_flops(shape, ROLES[kind], texts, int(speed.tokens) // texts)
        mfu = flops.training / speed.seconds / (peak * 1e12) if peak else None
        rows.append(speed.as_row() | {"mfu": mfu, "estimated_gib": estimate.total})
    return rows


def large_settings(kind: str, model: Path, data: str) -> dict[str, object]:
    """The settings of a job of `size`. data: a file of samples."""
    batches = {"micro_batch_size": LARGE_BATCH // 2, "global_batch_size": LARGE_BATCH}
    shared = {"model.encoder_seq_length": LARGE_TOKENS, f"trainer.{kind}.limit_val_batches": 1}
    if kind == "rm":
        files = {"model.data.data_prefix": {"train": [data], "validation": [data]}}
        own = {f"model.{name}": size for name, size in batches.items()}
        return shared | files | own | {"pretrained_checkpoint.restore_from_path": str(model)}
    own = {"model.restore_from_path": str(model)}
    for split in ("train_ds", "validation_ds"):
        own[f"model.data.{split}.file_path"] = data
        own |= {f"model.data.{split}.{name}": size for name, size in batches.items()}
    return shared | own


def write_large(folder: Path) -> None:
    """Random weights of LARGE's shape, with the tokenizer of a model that has the same vocabulary."""
    architecture, tokenizer = architecture_of(LARGE), fetch("smollm2-135m", progress=False)
    architecture.save(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder)
    write_store(folder / "weights", list(random_weights(architecture, seed=1234)), progress=None)


def architecture_of(name: str) -> Architecture:
    """The architecture of a model of the sizing table."""
    shape = MODELS[name]
    return Architecture(
        num_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        num_query_groups=shape.kv_heads,
        ffn_hidden_size=shape.feed_forward,
        vocab_size=shape.vocabulary,
        max_position_embeddings=2 * LARGE_TOKENS,
        kv_channels=shape.hidden // shape.heads,
        tied_embeddings=shape.tied,
    )


def long_texts(out: Path, kind: str, model: Path) -> Path:
    """A file of samples of nearly LARGE_TOKENS tokens."""
    tokenizer = Tokenizer(model)
    words = [str(number) for number in range(LARGE_TOKENS)]
    while len(tokenizer.encode(" ".join(words))) > LARGE_TOKENS - 100:
        words = words[: len(words) * 9 // 10]
    text, other = " ".join(words), " ".join(reversed(words))
    record = {"input": "Count.", "output": text}
    if kind == "rm":
        record = {"prompt": "Count.", "chosen": text, "rejected": other}
    path = out / f"long-{kind}.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for _ in range(64)))
    return path


def beside(out: Path, options: argparse.Namespace) -> list[dict]:
    """`./lab bench` in both precisions."""
    rows = []
    for precision in PRECISIONS:
        report = out / f"beside-{precision}.json"
        rounds = ["--quick"] if options.quick else ["--repeats", "3"]
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "--only",
            ",".join(COMPARISONS),
            "--precision",
            precision,
        ]
        command += ["--model", options.model, "--json", str(report), *rounds]
        if code := subprocess.run(command).returncode:
            sys.exit(f"{' '.join(command)} ended with {code}")
        rows.append(json.loads(report.read_text()))
    return rows


PARTS = {"figures": figures, "kinds": kinds, "capture": capture, "size": size, "beside": beside}


# ---- the report ------------------------------------------------------------------------------------------------------


def device_name() -> str:
    """The GPU's name, or `CPU`."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def tables(results: dict) -> Iterator[Table]:
    """Tables of all parts except `beside`, which has printed its own."""
    for part in set(results) & {"figures", "capture", "kinds", "size"}:
        rows = results[part]
        table = Table(title=part, title_justify="left", box=None, header_style="bold")
        names = [name for name in rows[0] if name != "pairs"]
        for name in names:
            table.add_column(name)
        for row in rows:
            table.add_row(*(f"{row[n]:.4g}" if isinstance(row[n], float) else str(row[n]) for n in names))
        yield table


def main(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    report = options.out / "gpu.json"
    results = described_run("python -m benchmarks.gpu", options) | {"parts": {}}
    for part in options.only:
        started = time.perf_counter()
        results["parts"][part] = PARTS[part](options.out, options)
        print(f"{part}: {time.perf_counter() - started:.0f} s", flush=True)
        report.write_text(json.dumps(results, indent=1) + "\n")
    Console(width=140).print(device_name(), *tables(results["parts"]), sep="\n")
    apart = [row for row in results["parts"].get("figures", []) if not row["apart"] <= row["bound"]]
    print(f"all figures: {report}")
    if apart:
        sys.exit(
            "farther from the CPU's than allowed: " + ", ".join(f"{r['kind']} {r['figure']}" for r in apart)
        )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = documented_parser("gpu", __doc__)
    parser.add_argument("--only", type=partial(some_of, PARTS), default=[*PARTS])
    parser.add_argument("--kinds", type=partial(some_of, KINDS), default=[*KINDS])
    parser.add_argument("--profile", default="laptop")
    parser.add_argument("--model", default="smollm2-135m", help="of the comparisons [smollm2-135m]")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("runs") / f"gpu-{time.strftime('%Y%m%d-%H%M%S')}")
    options = parser.parse_args(arguments)
    options.out = options.out.absolute()
    return options


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
