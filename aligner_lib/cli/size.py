"""`aligner size`: whether a job fits on some GPUs, and in which layout."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.config import peft, validation
from aligner_lib.config.compose import profile_section
from aligner_lib.config.kind import JobKind, TrainedModel
from aligner_lib.config.kinds import kind_of, kinds
from aligner_lib.errors import ConfigError, UserError
from cluster.sizing import (
    MODELS,
    OVERHEAD_GIB,
    Adapters,
    Memory,
    ModelShape,
    Parallelism,
    Recomputation,
    layouts,
    memory,
)

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


def model_of_job(kind: str, config: DictConfig, profile: str | None) -> str:
    """The model that the job's settings start from, else the model that the profile trains; without a profile, the profile gpu."""
    setting = next(iter(kind_of(kind).models), None)  # of the policy; PPO's critic has a setting of its own
    start = OmegaConf.select(config, setting) if setting else None
    return start or profile_section(profile or "gpu", "tutorial")["model"]


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
        arch.kv_channels,
        arch.gated,
    )


def trained_models(kind: str, config: DictConfig) -> tuple[TrainedModel, ...]:
    """The models that the job trains, with their adapters, frozen layers and recomputation.

    Raises UserError for a kind that trains no model.
    """
    known = kinds()
    if kind not in known or not (models := known[kind].trains(config)):
        sized = ", ".join(name for name, other in known.items() if other.trains is not JobKind.trains)
        raise UserError(f"there is no size of {kind!r}; the sized kinds are {sized}")
    return tuple(_with_settings(model, OmegaConf.select(config, f"{model.prefix}model")) for model in models)


def _with_settings(model: TrainedModel, settings: DictConfig) -> TrainedModel:
    shared = settings.sequence_parallel
    packed = OmegaConf.select(settings, "data.packed_sequence")
    model = replace(
        model,
        sequence_parallel=_has_transformer_engine() if shared is None else shared,
        packed_tokens=settings.data.packed_sequence_size if packed else None,
    )
    if settings.activations_checkpoint_granularity == "full":
        model = replace(
            model,
            recomputed=settings.activations_checkpoint_num_layers or 1,
            recomputes_block=settings.activations_checkpoint_method == "block",
        )
    if (adapters := settings.get("peft")) is not None and peft.is_lora(adapters):
        layers = tuple(peft.target_layers(adapters))
        return replace(model, adapter_rank=adapters.lora_tuning.adapter_dim, adapted_layers=layers)
    return replace(model, last_layers=settings.get("num_layers_unfrozen"))


def _has_transformer_engine() -> bool:
    return find_spec("transformer_engine") is not None


def memory_of(shape: ModelShape, model: TrainedModel, parallelism: Parallelism) -> Memory:
    """The memory that a model of the job needs on the GPU with the highest memory use."""
    adapters = Adapters(model.adapter_rank, model.adapted_layers) if model.adapter_rank else None
    recomputation = Recomputation(model.recomputed, model.recomputes_block) if model.recomputed else None
    sequence, micro_batch = model.sequence, model.micro_batch
    if model.packed_tokens:  # of all texts of the micro batch; a reward model's micro batch counts pairs
        texts = 2 if model.role == "reward model" else 1
        sequence, micro_batch = max(sequence, model.packed_tokens // texts), 1
    return memory(
        shape,
        parallelism,
        model.role,
        sequence,
        micro_batch,
        rollout_batch=model.generated,
        sequence_parallel=model.sequence_parallel,
        adapters=adapters,
        last_layers=model.last_layers,
        recomputation=recomputation,
    )


def together(needs: list[Memory]) -> float:
    """The GiB of several models in a process, which share a CUDA context."""
    return sum(need.total - OVERHEAD_GIB for need in needs) + OVERHEAD_GIB


def refusal(
    kind: str,
    config: DictConfig,
    shape: ModelShape,
    models: tuple[TrainedModel, ...],
    gpus: GPUs,
    parallelism: Parallelism,
) -> str:
    """The reason why a job with the settings of a layout would not start, such as a batch that its ranks can't share; empty: the
    job starts."""
    for model in models:
        if reason := _refusal_of_stages(shape, model, parallelism):
            return reason
    changed = copy.deepcopy(config)
    for model in models:
        for key, value in _settings(model.prefix, parallelism, gpus).items():
            OmegaConf.update(changed, key, value)
    try:
        validation.check(kind_of(kind), changed)
    except ConfigError as error:
        return str(error)
    return ""


def _refusal_of_stages(shape: ModelShape, model: TrainedModel, parallelism: Parallelism) -> str:
    """The engine's reason to refuse the layers of a pipeline stage; empty: the stages are possible."""
    of_stage, settings = shape.layers // parallelism.pp, f"{model.prefix}model."
    if model.last_layers and shape.layers - model.last_layers >= of_stage:
        least = shape.layers - of_stage + 1
        return (
            f"{settings}num_layers_unfrozen={model.last_layers} leaves a pipeline stage of {of_stage} layers without a trained "
            f"layer: set at least {least}"
        )
    if model.recomputed > of_stage or (
        model.recomputed and not model.recomputes_block and of_stage % model.recomputed
    ):
        return (
            f"{settings}activations_checkpoint_num_layers={model.recomputed} does not divide the {of_stage} layers of a pipeline "
            "stage: set 1"
        )
    return ""


def best_layout(
    shape: ModelShape,
    models: tuple[TrainedModel, ...],
    gpus: GPUs,
    refused: Callable[[Parallelism], str] = lambda parallelism: "",
) -> tuple[Parallelism, bool]:
    """Return the layout with the least communication whose GPUs can hold the models together, and True.

    refused: the reason why the job would not start in a layout. A layout without a reason goes before all others. If no layout
    fits, return the layout that needs the least memory, and False.
    """
    splits = layouts(shape, gpus.number, gpus.per_node)
    needed = {split: together([memory_of(shape, model, split) for model in models]) for split in splits}
    fitting = [split for split in splits if needed[split] <= gpus.gib]
    if not fitting:
        return min(splits, key=needed.get), False
    return next((split for split in fitting if not refused(split)), fitting[0]), True


def enough_gpus(shape: ModelShape, models: tuple[TrainedModel, ...], gpus: GPUs) -> int | None:
    """The smallest number of these GPUs that can hold the models; None: more than MOST_GPUS.

    The numbers are the powers of two inside a node, and 1, 2, 4, … whole nodes.
    """
    nodes, per_node = 1, 1
    while nodes * per_node <= MOST_GPUS:
        if best_layout(shape, models, GPUs(nodes, per_node, gpus.gib))[1]:
            return nodes * per_node
        if per_node < gpus.per_node:
            per_node = min(2 * per_node, gpus.per_node)
        else:
            nodes *= 2
    return None


def show_size(kind: str, config: DictConfig, model: str, gpus: GPUs) -> bool:
    """Print memory, layout and settings of a job. Return whether the job fits and starts with these settings."""
    models, shape, console = trained_models(kind, config), shape_of(model), Console(highlight=False)
    refused = partial(refusal, kind, config, shape, models, gpus)
    parallelism, fits = best_layout(shape, models, gpus, refused)
    layout = f"TP {parallelism.tp} × PP {parallelism.pp} × DP {parallelism.dp}"
    console.print(
        f"[bold]{kind}[/bold] of {escape(shape.name)} ({shape.parameters / 1e9:.2f} billion parameters), texts of "
        f"{models[0].sequence:,} tokens at most, on {gpus}: {layout}\n",
        soft_wrap=True,
    )
    needs = [memory_of(shape, trained, parallelism) for trained in models]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("GiB on a GPU", *(part.replace("_", " ") for part in PARTS), "in all"):
        table.add_column(column, justify="left" if not table.columns else "right")
    for trained, need in zip(models, needs):
        parts = (getattr(need, part) for part in PARTS)
        table.add_row(trained.role, *(f"{gib:.1f}" for gib in (*parts, need.total - OVERHEAD_GIB)))
    for name, gib in (("overhead", OVERHEAD_GIB), ("together", together(needs))):
        table.add_row(name, *[""] * len(PARTS), f"{gib:.1f}")
    console.print(table)
    for note in _notes(config, models, parallelism):
        console.print(f"\n{escape(note)}", soft_wrap=True)
    if fits and (reason := refused(parallelism)):
        console.print(
            f"\nfits, but the job does not start in any layout of {gpus}: {escape(reason)}", soft_wrap=True
        )
        return False
    _say_whether_it_fits(console, shape, models, gpus, needs, fits)
    if fits:
        for prefix in dict.fromkeys(trained.prefix for trained in models):
            settings = _settings(prefix, parallelism, gpus).items()
            console.print(f"  {' '.join(f'{key}={value}' for key, value in settings)}", soft_wrap=True)
    return fits


def _notes(config: DictConfig, models: tuple[TrainedModel, ...], parallelism: Parallelism) -> Iterator[str]:
    """What the table assumes about the settings."""
    settings = [
        OmegaConf.select(config, model.prefix.rstrip(".")) if model.prefix else config for model in models
    ]
    if any(part.trainer.precision == "32" for part in settings):
        yield (
            "the table is for trainer.precision=bf16: with 32, weights, activations and KV cache need about twice as much"
        )
    if parallelism.tp > 1 and any(part.model.sequence_parallel is None for part in settings):
        state, here = ("on", "is") if _has_transformer_engine() else ("off", "is not")
        yield (
            f"the table has sequence parallelism {state}, because Transformer Engine {here} installed here: "
            "model.sequence_parallel=true or false decides"
        )


def _say_whether_it_fits(console, shape, models, gpus: GPUs, needs: list[Memory], fits: bool) -> None:
    if fits:
        console.print("\nfits, with the settings")
        return
    if gpus.gib <= OVERHEAD_GIB:
        console.print(
            f"\ndoes not fit: the overhead alone needs {OVERHEAD_GIB:g} GiB of each GPU, so no model is small enough: choose larger "
            "GPUs",
            soft_wrap=True,
        )
        return
    least = enough_gpus(shape, models, gpus)
    enough = f"{least} such GPUs are enough" if least else f"{MOST_GPUS} such GPUs are not enough"
    apart = all(need.total <= gpus.gib for need in needs) and len(needs) > 1
    as_jobs = f"; {len(needs)} jobs on {gpus} each fit" if apart else ""
    console.print(
        f"\ndoes not fit: {enough}{as_jobs}. Smaller micro batches, shorter texts, full recomputation or adapters need less",
        soft_wrap=True,
    )


def _settings(prefix: str, parallelism: Parallelism, gpus: GPUs) -> dict[str, int]:
    return {
        f"{prefix}trainer.devices": gpus.per_node,
        f"{prefix}trainer.num_nodes": gpus.nodes,
        f"{prefix}model.tensor_model_parallel_size": parallelism.tp,
        f"{prefix}model.pipeline_model_parallel_size": parallelism.pp,
    }
