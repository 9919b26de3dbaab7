"""`python -m benchmarks.growth`: how the time and the memory of training grow with the size of the work.

Five quantities grow, each by itself: the rows of a batch, the tokens of a row, the parameters, the data-parallel ranks (each with
a batch of its own), and the samples of a data file. A point is measured in processes of its own, on one thread each: the median
CPU seconds of a training step (for data: of reading the file), and the memory that the process had at most beyond what it had
before. With several ranks both are sums over the ranks. A line through the points in logarithms gives the exponent: 1 is linear.
Nothing may grow faster than linearly, except for time against length, where attention compares all tokens of a row, and time
against ranks, of which a single one exchanges no gradients.

    --only batch,length      some of the quantities
    --precision 32           32 or bf16
    --steps 3                measured steps, after a first that sets libraries up
    --memory 8               GiB; sizes that need more, or more than the machine has free, are left out
    --smoke                  tiny sizes: only to test that the benchmark runs
    --out FOLDER             growth.json and growth.png [benchmarks/results; runs/growth with --smoke or some of the quantities]
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, median

import psutil

from benchmarks.kept import RESULTS, described_run
from benchmarks.options import documented_parser, some_of, whole_number

QUANTITIES = {
    "batch": "rows of a batch",
    "length": "tokens of a row",
    "parameters": "parameters",
    "ranks": "ranks, each with its batch",
    "data": "samples of a file",
}
BOUND = 1.1
"""The largest allowed exponent. The room above 1 is for the scatter of the measurements."""
BOUNDS = {("length", "seconds"): 1.5, ("ranks", "seconds"): 1.3}
"""Attention's share of a row's products grows with its length: at 2,048 tokens and 512 hidden values about 40 %. One rank exchanges
nothing, while each of N ranks sends 2 (N − 1) / N times its gradients: the cost of a rank rises, but stays below a constant."""
BYTES_OF_PARAMETER = 16  # weight, gradient and Adam's two moments in float32
GIB = 2**30
PRELOADED = ["aligner_lib.kinds.sft.trainer", "aligner_lib.megatron.parallel"]


@dataclass(frozen=True)
class Shape:
    """A model of Llama's architecture with heads of 64 values and a small vocabulary."""

    layers: int
    hidden: int
    vocabulary: int = 8192

    @property
    def parameters(self) -> int:
        return self.architecture().num_parameters

    def architecture(self):
        from aligner_lib.models.architecture import Architecture

        return Architecture(
            num_layers=self.layers,
            hidden_size=self.hidden,
            num_attention_heads=self.hidden // 64,
            num_query_groups=self.hidden // 64,
            ffn_hidden_size=8 * self.hidden // 3 // 64 * 64,
            vocab_size=self.vocabulary,
            max_position_embeddings=4096,
            kv_channels=64,
        )


SHAPES = [Shape(8, 512), Shape(11, 640), Shape(16, 768), Shape(19, 1024), Shape(20, 1280), Shape(20, 2048)]
TINY = [Shape(layers, 64, 256) for layers in (1, 2, 4)]


@dataclass(frozen=True)
class Work:
    """What a point does: training steps, or reading a file of `samples` samples."""

    shape: Shape
    rows: int = 4
    length: int = 128
    ranks: int = 1
    samples: int = 0
    steps: int = 3
    bf16: bool = False

    @property
    def least_gib(self) -> float:
        """The memory of the weights, the gradients and the optimizer's state."""
        return 0.0 if self.samples else self.ranks * self.shape.parameters * BYTES_OF_PARAMETER / GIB


@dataclass(frozen=True)
class Point:
    """A measured point. size: the quantity that grows; seconds: of CPU time."""

    size: int
    seconds: float
    gib: float


def works(quantity: str, options: argparse.Namespace) -> dict[int, Work]:
    """The points of a quantity, by size."""
    shapes, tiny = (TINY if options.smoke else SHAPES), options.smoke
    common = {"steps": options.steps, "bf16": options.precision == "bf16"}
    if quantity == "batch":
        return {n: Work(shapes[0], rows=n, **common) for n in ((1, 2, 4) if tiny else (1, 2, 4, 8, 16))}
    if quantity == "length":
        lengths = (16, 32, 64) if tiny else (128, 256, 512, 1024, 2048)
        return {n: Work(shapes[0], rows=1, length=n, **common) for n in lengths}
    if quantity == "parameters":
        return {shape.parameters: Work(shape, rows=2, **common) for shape in shapes}
    if quantity == "ranks":
        return {n: Work(shapes[0], rows=2, ranks=n, **common) for n in ((1, 2) if tiny else (1, 2, 4))}
    numbers = (20, 40, 80) if tiny else (1000, 2000, 4000, 8000, 16000)
    return {n: Work(shapes[0], samples=n, **common) for n in numbers}


# ---- in a process of its own ----------------------------------------------------------------------------------------


def resident(field: str) -> int:
    """Bytes of this process: VmRSS are those in memory now, VmHWM the most since `forget_peak`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def do(work: Work, folder: Path, environment: dict[str, str], connection) -> None:
    """Do the work, and send the CPU seconds of a step and the bytes."""
    os.environ.update(environment)
    import torch

    torch.set_num_threads(1)
    forget_peak()
    before = resident("VmRSS")
    seconds = list(read_samples(work, folder) if work.samples else train(work))
    connection.send((median(seconds), resident("VmHWM") - before))


def read_samples(work: Work, folder: Path) -> Iterator[float]:
    """Read a file of samples with a tokenizer, as a job does."""
    from aligner_lib.datasets.load import load_sft
    from aligner_lib.datasets.tokenizer import Tokenizer

    began = time.process_time()
    samples, _ = load_sft([folder / f"{work.samples}.jsonl"], Tokenizer(folder / "6m"), work.length)
    yield time.process_time() - began
    assert samples, "the bundled samples are too long"


def train(work: Work) -> Iterator[float]:
    """Train a model with random weights on random tokens. Yields the seconds of every step but the first."""
    import torch

    from aligner_lib.kinds.sft.trainer import AnswerBatch
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine, LossTerms
    from aligner_lib.megatron.logprobs import selected_logprobs
    from aligner_lib.megatron.model import Numerics

    def loss(model, batch, hidden) -> LossTerms:
        logprobs, _ = selected_logprobs(model, batch.tokens, hidden, batch.mask)
        return LossTerms(-logprobs.sum(), batch.mask.sum())

    parallel.initialize()
    optim = {"lr": 1e-4, "weight_decay": 0.01, "betas": [0.9, 0.98], "eps": 1e-8}
    engine = Engine(work.shape.architecture(), Numerics(bf16=work.bf16), optim=optim)
    generator = torch.Generator().manual_seed(parallel.rank())
    sizes = (work.rows, work.length)
    tokens = torch.randint(work.shape.vocabulary, sizes, generator=generator)
    mask = torch.ones(work.rows, work.length - 1, dtype=torch.bool)
    batch = AnswerBatch(tokens, torch.full((work.rows,), work.length), mask)
    for step in range(work.steps + 1):
        began = time.process_time()
        engine.train_step([batch], loss, 1e-4)
        if step:
            yield time.process_time() - began


# ---- the parent -----------------------------------------------------------------------------------------------------


def measure(work: Work, folder: Path) -> tuple[float, float]:
    """CPU seconds and GiB of the work, summed over its ranks."""
    context = multiprocessing.get_context("forkserver")  # every process begins with the libraries imported
    context.set_forkserver_preload(PRELOADED)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1])}
    started = []
    for rank in range(work.ranks):
        ours, theirs = context.Pipe()
        environment = address | {"WORLD_SIZE": str(work.ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
        process = context.Process(target=do, args=(work, folder, environment, theirs), daemon=True)
        process.start()
        theirs.close()
        started.append((process, ours))
    try:
        costs = [connection.recv() for _, connection in started]
    except EOFError:
        sys.exit(f"a process of {work} ended early; its traceback stands above")
    finally:
        for process, _ in started:
            process.join(10)
            process.kill()
    return sum(seconds for seconds, _ in costs), sum(size for _, size in costs) / GIB


def points_of(quantity: str, options: argparse.Namespace, folder: Path) -> list[Point]:
    """The measured points of a quantity."""
    points = []
    for size, work in works(quantity, options).items():
        room = min(options.memory, 0.8 * psutil.virtual_memory().available / GIB)
        if work.least_gib > room:
            print(
                f"{quantity} {size:,}: left out, it needs {work.least_gib:.1f} GiB of {room:.1f}", flush=True
            )
            continue
        if work.samples:
            write_samples(folder, work.samples)
        points.append(Point(size, *measure(work, folder)))
        print(f"{quantity} {size:,}: {points[-1].seconds:.3f} s, {points[-1].gib:.3f} GiB", flush=True)
    return points


def measured(options: argparse.Namespace, folder: Path) -> Iterator[dict]:
    """The growth of each quantity that has enough points for a line."""
    for name in options.only:
        points = points_of(name, options, folder)
        if len(points) < 2:
            print(f"{name}: left out, an exponent needs 2 points and there are {len(points)}", flush=True)
            continue
        yield growth(name, points)


def write_samples(folder: Path, number: int) -> None:
    """A file of so many different samples: the bundled ones in turn, each with a number."""
    lines = (folder / "sft" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    with (folder / f"{number}.jsonl").open("w", encoding="utf-8") as file:
        for i in range(number):
            record = json.loads(lines[i % len(lines)])
            file.write(json.dumps(record | {"input": f"{i} {record['input']}"}) + "\n")


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of the least-squares line through the logarithms: 1 for a cost proportional to the size."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    middle = fmean(x)
    return sum((a - middle) * b for a, b in zip(x, y)) / sum((a - middle) ** 2 for a in x)


def growth(quantity: str, points: Sequence[Point]) -> dict:
    """The points of a quantity with the exponents of time and memory, and their bounds."""
    sizes = [point.size for point in points]
    fits = {}
    for cost in ("seconds", "gib"):
        value = exponent(sizes, [getattr(point, cost) for point in points])
        fits[cost] = {"exponent": value, "bound": BOUNDS.get((quantity, cost), BOUND)}
    return {"quantity": quantity, "points": [asdict(point) for point in points], **fits}


def draw(grown: Sequence[dict], path: Path) -> None:
    """A picture: a column for each quantity; time above, memory below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(2, len(grown), figsize=(3 * len(grown), 5), squeeze=False)
    for column, entry in enumerate(grown):
        sizes = [point["size"] for point in entry["points"]]
        for axes, (cost, unit) in zip(grid[:, column], {"seconds": "CPU seconds", "gib": "GiB"}.items()):
            costs = [point[cost] for point in entry["points"]]
            fit = entry[cost]
            level = fmean(math.log(y) - fit["exponent"] * math.log(x) for x, y in zip(sizes, costs))
            line = [math.exp(level) * size ** fit["exponent"] for size in sizes]
            axes.loglog(sizes, line, color="0.7", linewidth=1)
            axes.loglog(sizes, costs, "o", color="#0072B2")
            axes.set_title(f"exponent {fit['exponent']:.2f} (bound {fit['bound']:g})", fontsize=9)
            axes.set(xlabel=QUANTITIES[entry["quantity"]], ylabel=unit if column == 0 else "")
            axes.tick_params(labelsize=7, which="both")
            axes.minorticks_off()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main(arguments: Sequence[str]) -> list[dict]:
    """Measure, print, write and draw. Ends with an error if an exponent is above its bound."""
    options = parse(arguments)
    os.environ |= {"OMP_NUM_THREADS": "1"}  # read by the processes
    with tempfile.TemporaryDirectory(prefix="aligner-growth-") as folder:
        if "data" in options.only:
            from benchmarks.setting import Setting

            Setting(Path(folder)).prepare()
        grown = list(measured(options, Path(folder)))
    if not grown:
        sys.exit("no quantity has two points: free memory, or raise --memory")
    options.out.mkdir(parents=True, exist_ok=True)
    description = described_run("python -m benchmarks.growth", options) | {"precision": options.precision}
    (options.out / "growth.json").write_text(json.dumps(description | {"growth": grown}, indent=1) + "\n")
    draw(grown, options.out / "growth.png")
    for entry in grown:
        fits = ", ".join(f"{cost} {entry[cost]['exponent']:.2f}" for cost in ("seconds", "gib"))
        print(f"{entry['quantity']}: exponents of {fits}")
    above = [
        f"{entry['quantity']} ({cost} {entry[cost]['exponent']:.2f}, bound {entry[cost]['bound']:g})"
        for entry in grown
        for cost in ("seconds", "gib")
        if entry[cost]["exponent"] > entry[cost]["bound"]
    ]
    if above and not options.smoke:  # tiny sizes show fixed costs alone
        sys.exit("faster than allowed grows the cost with " + ", ".join(above))
    return grown


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = documented_parser("growth", __doc__)
    parser.add_argument("--only", type=partial(some_of, QUANTITIES), default=list(QUANTITIES))
    parser.add_argument("--precision", choices=["32", "bf16"], default="32")
    parser.add_argument("--steps", type=partial(whole_number, 1), default=3)
    parser.add_argument("--memory", type=float, default=8.0)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    if options.out is None:
        whole = not options.smoke and set(options.only) == set(QUANTITIES)
        options.out = RESULTS if whole else Path("runs/growth")
    return options


if __name__ == "__main__":
    main(sys.argv[1:])
