"""`aligner model`: models for a run, and models for other programs.

Each command imports its own dependencies.
"""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import Annotated

import typer

SMALLEST_SHARD_GB = 0.001
commands = typer.Typer(
    help="Models: fetch a model by name, or import Hugging Face weights.", no_args_is_help=True
)


@commands.command("fetch")
def model_fetch(
    name: Annotated[str, typer.Argument(help="smollm2-135m, smoke, or ORG/NAME[@REVISION] of the hub.")],
):
    """Fetch a model into the cache, ready for training, and print its folder."""
    from aligner_lib.models import fetch

    typer.echo(fetch(name))


@commands.command("import")
def model_import(
    source: Annotated[
        Path,
        typer.Argument(
            help="Folder with config.json and safetensors, .gguf file, or .nemo archive or folder."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
):
    """Import a model of GGUF, NeMo or Hugging Face.

    Families: Llama, Mistral, Phi-3, Qwen, SmolLM3, Granite, OLMo 2, Gemma, Nemotron and GPT-NeoX (Pythia).
    """
    from aligner_lib.models import import_model
    from aligner_lib.models.progress import show_steps

    with show_steps("import", True) as report:
        import_model(source, out, report)
    typer.echo(out)


@commands.command("export")
def model_export(
    source: Annotated[str, typer.Argument(metavar="FOLDER", help="Run, checkpoint or model folder.")],
    out: Annotated[Path, typer.Option(help="The folder or file to write; the path must not exist yet.")],
    to: Annotated[
        str,
        typer.Option(help="hf: a Hugging Face folder. nemo: a .nemo archive. peft: adapters alone."),
    ] = "hf",
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16 or bfloat16; else the weights' own.")
    ] = None,
    shard_gb: Annotated[float, typer.Option(help="Largest file of weights, in 10⁹ bytes.")] = 5.0,
):
    """Write a trained policy or reward model for another library."""
    from aligner_lib.errors import UserError
    from aligner_lib.models.export import Options, export
    from aligner_lib.models.progress import show_steps

    if not SMALLEST_SHARD_GB <= shard_gb < inf:  # also not a number
        raise UserError(f"--shard-gb {shard_gb}: give a number from {SMALLEST_SHARD_GB}, in 10⁹ bytes")
    with show_steps("export", True) as report:
        notes = export(source, to, out, Options(dtype, int(shard_gb * 1e9), report))
    typer.echo("\n".join([*notes, str(out)]))


@commands.command("merge")
def model_merge(
    folder: Annotated[str, typer.Argument(help="A run, checkpoint or model folder with adapters (LoRA).")],
    out: Annotated[Path, typer.Option(help="Model folder to write.")],
):
    """Merge adapters into the weights of their base."""
    from aligner_lib.models import resolve
    from aligner_lib.models.merge import merge
    from aligner_lib.models.progress import show_steps

    with show_steps("merge", True) as report:
        merge(resolve(folder), out, report)
    typer.echo(out)
