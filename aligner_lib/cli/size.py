"""`aligner size`: whether a job fits on some GPUs, in which layout, and how long the job takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce

from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from aligner_lib.config.kind import JobKind, TrainedModel
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import UserError
from cluster.sizing import MODELS, OVERHEAD_GIB, Memory, ModelShape, Parallelism, layouts, memory, step_flops

MOST_GPUS = 4096
PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache")
GPUS = re.compile(r"(?:(?P<nodes>\d+)x)?(?P<gpus>\d+)x(?P<gib>\d+)")


@dataclass(frozen=True)
class GPUs:
    """The GPUs of a job. gib: memory of each GPU in GiB."""

    nodes: int
    per_node: int
    gib: int

    @property
    def number(self) -> int:
        """The number of GPUs on all nodes."""
        return self.nodes * self.per_node

    def __str__(self) -> str:
        return f"{self.number} GPU{'s' if self.number > 1 else ''} of {self.gib} GB"

    @staticmethod
    def parse(text: str) -> GPUs:
        """Parse GPUS×GIB or NODES×GPUS×GIB, with the letter x. Raises UserError for other text."""
        match = GPUS.fullmatch(text.lower())
        if match is None or min(map(int, match.groups("1"))) < 1:
            raise UserError(f"--gpus {text}: write GPUsxGB or NODESxGPUsxGB, such as 8x80 or 4x8x80")
        nodes, gpus, gib = map(int, match.groups("1"))
        return GPUs(nodes, gpus, gib)


@dataclass(frozen=True)
class Speed:
    """The speed of a GPU. tflops: the peak in bf16, in 10¹² operations per second; mfu: the fraction of the peak that training
    and scoring reach; generation_mfu: the fraction that generation reaches."""

    tflops: float
    mfu: float
    generation_mfu: float


def shape_of(model: str) -> ModelShape:
    """The shape of a model in the sizing table, of a model folder, or of a fetched model of the hub.

    Raises UserError, which lists the models of the table, for any other text.
    """
    by_name = {name.lower(): shape for name, shape in MODELS.items()}
    short = model.rpartition("/")[2].lower().removesuffix("-instruct")
    if short in by_name:
        return by_name[short]
    from aligner_lib.models.architecture import Architecture
    from aligner_lib.models.resolve import resolve

    try:
        arch = Architecture.load(resolve(model))
    except ValueError as error:
        near = get_close_matches(short, by_name, n=1)
        hint = f"; did you mean {by_name[near[0]].name}?" if near else ""
        raise UserError(f"{error}. The sizing table has {', '.join(MODELS)}{hint}") from None
    return ModelShape(
        model,
        arch.num_layers,
        arch.hidden_size,
        arch.ffn_hidden_size,
        arch.num_attention_heads,
        arch.num_query_groups,
        arch.vocab_size,
        arch.tied_embeddings,
    )


def trained_models(kind: str, config: DictConfig) -> tuple[TrainedModel, ...]:
    """The models that the job trains. Raises UserError for a kind that trains no model."""
    known = kinds()
    if kind not in known or not (models := known[kind].trains(config)):
        sized = ", ".join(name for name, other in known.items() if other.trains is not JobKind.trains)
        raise UserError(f"there is no size of {kind!r}; the kinds of jobs are {sized}")
    return models


def memory_of(shape: ModelShape, model: TrainedModel, parallelism: Parallelism) -> Memory:
    """The memory that a model of the job needs on the GPU with the highest memory use."""
    return memory(
        shape, parallelism, model.role, model.sequence, model.micro_batch, rollout_batch=model.generated
    )


def together(needs: list[Memory]) -> float:
    """The GiB of several models in a process, which share a CUDA context."""
    return sum(need.total - OVERHEAD_GIB for need in needs) + OVERHEAD_GIB


def best_layout(shape: ModelShape, models: tuple[TrainedModel, ...], gpus: GPUs) -> tuple[Parallelism, bool]:
    """Return the layout with the least communication whose GPUs can hold the models together, and True.

    If no layout fits, return the layout that needs the least memory, and False.
    """
    splits = layouts(shape, gpus.number, gpus.per_node)
    needed = {split: together([memory_of(shape, model, split) for model in models]) for split in splits}
    fitting = [split for split in splits if needed[split] <= gpus.gib]
    return (fitting[0], True) if fitting else (min(splits, key=needed.get), False)


def enough_gpus(shape: ModelShape, models: tuple[TrainedModel, ...], gpus: GPUs) -> int | None:
    """The smallest number of these GPUs, a power of two, that can hold the models; None: more than MOST_GPUS."""
    number = 1
    while number <= MOST_GPUS:
        per_node = min(number, gpus.per_node)
        if best_layout(shape, models, GPUs(number // per_node, per_node, gpus.gib))[1]:
            return number
        number *= 2
    return None


def seconds_of_a_step(
    shape: ModelShape, models: tuple[TrainedModel, ...], gpus: GPUs, tokens: int | None, speed: Speed
) -> float:
    """The time of a step in seconds. tokens: mean length of a text in tokens; None: half of the longest text."""
    flops = [
        step_flops(
            shape.parameters,
            model.batch,
            tokens or model.sequence // 2,
            model.trained,
            model.scored,
            model.generated > 0,
        )
        for model in models
    ]
    reading, generating = reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), flops)
    per_second = gpus.number * speed.tflops * 1e12
    return reading / (per_second * speed.mfu) + generating / (per_second * speed.generation_mfu)


def show_size(
    kind: str, config: DictConfig, model: str, gpus: GPUs, steps: int | None, tokens: int | None, speed: Speed
) -> bool:
    """Print memory, layout, settings and hours of a job. Return whether the job fits."""
    models, shape, console = trained_models(kind, config), shape_of(model), Console(highlight=False)
    parallelism, fits = best_layout(shape, models, gpus)
    layout = f"TP {parallelism.tp} × PP {parallelism.pp} × DP {parallelism.dp}"
    console.print(
        f"[bold]{kind}[/bold] of {shape.name} ({shape.parameters / 1e9:.2f} billion parameters), texts of "
        f"{models[0].sequence:,} tokens at most, on {gpus}: {layout}\n",
        soft_wrap=True,
    )
    needs = [memory_of(shape, trained, parallelism) for trained in models]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("GiB on a GPU", *(part.replace("_", " ") for part in PARTS), "in all"):
        table.add_column(column, justify="left" if not table.columns else "right")
    for trained, need in zip(models, needs):
        table.add_row(trained.role, *(f"{getattr(need, part):.1f}" for part in PARTS), f"{need.total:.1f}")
    if len(models) > 1:
        table.add_row("together", *[""] * len(PARTS), f"{together(needs):.1f}")
    console.print(table)
    _say_whether_it_fits(console, shape, models, gpus, needs, fits)
    if fits:
        for prefix in dict.fromkeys(trained.prefix for trained in models):
            console.print(f"  {' '.join(_settings(prefix, parallelism, gpus))}", soft_wrap=True)
    _say_hours(console, kind, config, shape, models, gpus, steps, tokens, speed)
    return fits


def _say_whether_it_fits(console, shape, models, gpus: GPUs, needs: list[Memory], fits: bool) -> None:
    if fits:
        console.print("\nfits, with the settings")
        return
    least = enough_gpus(shape, models, gpus)
    enough = f"{least} such GPUs are enough" if least else f"{MOST_GPUS} such GPUs are not enough"
    apart = all(need.total <= gpus.gib for need in needs) and len(needs) > 1
    as_jobs = f"; {len(needs)} jobs on {gpus} each fit" if apart else ""
    console.print(
        f"\ndoes not fit: {enough}{as_jobs}. Smaller micro batches, shorter texts or adapters need less",
        soft_wrap=True,
    )


def _settings(prefix: str, parallelism: Parallelism, gpus: GPUs) -> list[str]:
    return [
        f"{prefix}trainer.devices={gpus.per_node}",
        f"{prefix}trainer.num_nodes={gpus.nodes}",
        f"{prefix}model.tensor_model_parallel_size={parallelism.tp}",
        f"{prefix}model.pipeline_model_parallel_size={parallelism.pp}",
    ]


def _say_hours(console, kind, config, shape, models, gpus, steps, tokens, speed: Speed) -> None:
    seconds = seconds_of_a_step(shape, models, gpus, tokens, speed)
    loop = config.trainer[kind]
    steps = steps or (loop.max_steps if loop.max_steps > 0 else None)
    whole = f", {steps:,} steps {steps * seconds / 3600:.1f} h" if steps else " (--steps N gives the hours)"
    mean = f"{tokens:,}" if tokens else f"{models[0].sequence // 2:,} (half of the longest)"
    generated = any(model.generated for model in models)
    also = f", {speed.generation_mfu:.0%} of it in generation" if generated else ""
    console.print(f"\na step takes {seconds:.1f} s{whole}")
    console.print(
        f"assumed: {mean} tokens a text, {speed.tflops:g} TFLOP/s a GPU, {speed.mfu:.0%} of it in training{also}; nothing "
        "of this was measured on a GPU",
        soft_wrap=True,
    )
