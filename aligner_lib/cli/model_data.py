"""The commands `aligner model` and `aligner data`: models and data for a run.

Each command imports what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

model = typer.Typer(help="Models: fetch one by name, or import Hugging Face weights.", no_args_is_help=True)
data = typer.Typer(help="Data: raw sets to the files that the trainers read.", no_args_is_help=True)


@model.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(help="smollm2-135m, smoke, or ORG/NAME[@REVISION] of the hub.")],
):
    """Bring a model into the cache, ready for training; prints its folder."""
    from aligner_lib.models import fetch

    typer.echo(fetch(name))


@model.command("import")
def model_import(
    source: Annotated[Path, typer.Argument(help="Folder with config.json and safetensors, or a .gguf file.")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
):
    """Import a Hugging Face model: Llama, Mistral, Qwen, SmolLM3, Gemma, Nemotron."""
    from aligner_lib.models import import_hf

    typer.echo(import_hf(source, out))


@model.command("export")
def model_export(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Run, checkpoint or model folder.")],
    out: Annotated[Path, typer.Option(help="What to write; it must not exist yet.")],
    to: Annotated[str, typer.Option(help="hf: a Hugging Face folder. peft: adapters alone.")] = "hf",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16; else the weights' own.")
    ] = None,
    shard_gb: Annotated[float, typer.Option(help="Largest file of weights, in 10⁹ bytes.")] = 5.0,
):
    """Write a trained policy or reward model for another library."""
    from aligner_lib.models.export import Options, export
    from aligner_lib.models.progress import show_steps

    with show_steps("export", True) as report:
        notes = export(source, to, out, Options(dtype, int(shard_gb * 1e9), report))
    typer.echo("\n".join([*notes, str(out)]))


@model.command("merge")
def model_merge(
    folder: Annotated[str, typer.Argument(help="A run, checkpoint or model folder with adapters (LoRA).")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
):
    """Merge adapters into the weights that they belong to."""
    from aligner_lib.models import resolve
    from aligner_lib.models.merge import merge

    typer.echo(merge(resolve(folder), out))


Raw = Annotated[
    list[str], typer.Option(help="File (.jsonl, .jsonl.gz, .parquet) or hub data set; may be repeated.")
]
Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.")]
MaxChars = Annotated[int | None, typer.Option(help="Leave out longer samples (characters).")]


@data.command("dolly")
def data_dolly(
    raw: Raw,
    out: Out,
    strict: Strict = False,
    max_chars: MaxChars = None,
    seed: Annotated[
        int, typer.Option(help="Of the order of context and instruction, and of the split.")
    ] = 1234,
    validation_fraction: Annotated[float, typer.Option(help="Share of the prompts that is held out.")] = 0.1,
):
    """Dolly's instructions to SFT's train.jsonl and validation.jsonl."""
    from data import format_dolly

    options = {
        "seed": seed,
        "validation_fraction": validation_fraction,
        "max_chars": max_chars,
        "strict": strict,
    }
    typer.echo(format_dolly(_source(raw), out, **options))


@data.command("hh")
def data_hh(
    raw: Raw,
    out: Out,
    split: Annotated[str, typer.Option(help="Begins the names of the files: train or test.")],
    strict: Strict = False,
    max_chars: MaxChars = None,
    subset: Annotated[
        str | None, typer.Option(help="A folder of a hub data set, as in harmless-base.")
    ] = None,
):
    """HH's pairs to comparisons (reward model) and prompts (PPO)."""
    from data import format_hh

    typer.echo(format_hh(_source(raw), out, split, max_chars=max_chars, strict=strict, subset=subset))


@data.command("squad")
def data_squad(
    raw: Raw,
    out: Out,
    split: Annotated[str, typer.Option(help="train or validation: names the file.")],
    strict: Strict = False,
    max_chars: MaxChars = None,
):
    """SQuAD's questions to SFT's train.jsonl or validation.jsonl."""
    from data import format_squad

    typer.echo(format_squad(_source(raw), out, split, max_chars=max_chars, strict=strict))


def _source(raw: list[str]) -> str | list[str]:
    return raw[0] if len(raw) == 1 else raw  # a single one may also be a name
