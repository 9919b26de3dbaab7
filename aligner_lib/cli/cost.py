"""`aligner cost`: the hours of a job on some GPUs, from the job's tokens and an assumed share of the GPUs' speed."""

from __future__ import annotations

from dataclasses import dataclass

from omegaconf import DictConfig
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from aligner_lib.cli.size import GPUs, shape_of, trained_models
from aligner_lib.config.kind import TrainedModel
from cluster.sizing import ModelShape, StepFlops, step_flops


@dataclass(frozen=True)
class Speed:
    """The speed of a GPU. tflops: the peak in bf16, in 10¹² operations per second; mfu: the fraction of the peak that training
    and scoring reach; generation_mfu: the fraction that generation reaches."""

    tflops: float
    mfu: float
    generation_mfu: float

    def seconds(self, flops: StepFlops, gpus: int) -> tuple[float, float, float]:
        """The seconds of training, scoring and generation on a number of GPUs."""
        reading, generating = (gpus * self.tflops * 1e12 * mfu for mfu in (self.mfu, self.generation_mfu))
        return flops.training / reading, flops.scoring / reading, flops.generation / generating


def flops_of(shape: ModelShape, model: TrainedModel, tokens: int) -> StepFlops:
    """The operations of a model of the job in a step. tokens: of a text, on average."""
    trained_share = min(model.last_layers or shape.layers, shape.layers) / shape.layers
    return step_flops(
        shape,
        model.role,
        model.batch,
        tokens,
        model.trained,
        model.scored,
        model.generated > 0,
        model.adapter_rank > 0,
        trained_share,
        _recomputed_share(shape, model),
    )


def _recomputed_share(shape: ModelShape, model: TrainedModel) -> float:
    """The layers that the backward pass computes again. A block is counted as if the job had one pipeline stage."""
    if model.recomputes_block:
        return min(model.recomputed, shape.layers) / shape.layers
    return float(model.recomputed > 0)


def show_cost(
    kind: str, config: DictConfig, model: str, gpus: GPUs, steps: int | None, tokens: int | None, speed: Speed
) -> None:
    """Print seconds of a step, hours of the job, and each assumption. tokens: of a text; None: half of the longest text."""
    models, shape, console = trained_models(kind, config), shape_of(model), Console(highlight=False)
    most = config.trainer[kind].max_steps
    steps = steps or (most if most > 0 else None)
    mean, texts = tokens or models[0].sequence // 2, models[0].batch
    run = f"{steps:,} steps" if steps else "a step"
    console.print(
        f"[bold]{kind}[/bold] of {escape(shape.name)} ({shape.parameters / 1e9:.2f} billion parameters) on {gpus}: {run} of {texts:,} "
        f"texts of {mean:,} tokens\n",
        soft_wrap=True,
    )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("seconds of a step", "training", "scoring", "generation", "in all"):
        table.add_column(column, justify="left" if not table.columns else "right")
    total = 0.0
    for trained in models:
        seconds = speed.seconds(flops_of(shape, trained, mean), gpus.number)
        table.add_row(trained.role, *(f"{part:.1f}" for part in (*seconds, sum(seconds))))
        total += sum(seconds)
    console.print(table)
    hours = (steps or 1) * total / 3600
    read = f"{(steps or 1) * texts * mean / 1e6:,.1f} million tokens"
    if steps:
        console.print(
            f"\n{hours:,.1f} hours, {hours * gpus.number:,.1f} GPU hours, for {read}\n", soft_wrap=True
        )
    else:
        console.print(f"\n{total:.1f} s a step, for {read}; --steps N gives the hours\n", soft_wrap=True)
    console.print("assumed, because nothing of this was measured on a GPU:")
    for line in assumptions(models, tokens, speed):
        console.print(f"  {line}", soft_wrap=True)


def assumptions(models: tuple[TrainedModel, ...], tokens: int | None, speed: Speed) -> list[str]:
    """A line for each assumption of the estimate. tokens: of a text; None: half of the longest text."""
    passes = {
        adapted: ", ".join(
            f"{model.role} {model.trained}" for model in models if (model.adapter_rank > 0) == adapted
        )
        for adapted in (False, True)
    }
    scored = ", ".join(f"{model.role} {model.scored}" for model in models if model.scored)
    lines = {
        "texts have half of the longest text's tokens (--tokens)": not tokens,
        f"a GPU's peak is {speed.tflops:g} TFLOP/s in bf16 (--tflops)": True,
        f"training and scoring reach {speed.mfu:.0%} of the peak (--mfu)": True,
        f"generation reaches {speed.generation_mfu:.1%} of the peak (--generation-mfu)": any(
            model.generated for model in models
        ),
        "2 operations for each token and weight, and attention to the whole text": True,
        f"passes with gradients, at three times the operations: {passes[False]}": bool(passes[False]),
        f"passes with gradients of adapters, at twice the operations: {passes[True]}": bool(passes[True]),
        "frozen layers, which have no backward pass, are counted once": any(
            model.last_layers for model in models
        ),
        "the backward pass computes recomputed layers once more": any(model.recomputed for model in models),
        f"passes without gradients, by models of the policy's size: {scored}": bool(scored),
        "no validation, checkpoints, padding or waiting": True,
    }
    return [line for line, applies in lines.items() if applies]
