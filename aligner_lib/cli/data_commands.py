"""`aligner data`: data for the trainers.

Each command imports its own dependencies.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from aligner_lib.datasets.tokenizer import Tokenizer
    from data import Conversion


class DataCommands(typer.core.TyperGroup):
    """The commands of `aligner data`. Any other word is data to convert: `aligner data FILE --to sft --out DIR`."""

    def resolve_command(self, ctx, args):
        """Resolve a command as click does, with `convert` before a word that is not a command."""
        words = args if args[0] in self.commands or args[0].startswith("-") else ["convert", *args]
        return super().resolve_command(ctx, words)


commands = typer.Typer(
    cls=DataCommands,
    help="Data: convert raw data sets to files for the trainers. `aligner data FILE --to sft --out DIR` converts your own.",
    no_args_is_help=True,
)


Raw = Annotated[
    list[str], typer.Option(help="File (.jsonl, .jsonl.gz, .parquet) or hub data set; may be repeated.")
]
Out = Annotated[Path, typer.Option(help="Folder to write to.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first bad record.")]
MaxChars = Annotated[int | None, typer.Option(help="Leave out longer samples (characters).")]


TokenizerOf = Annotated[
    str,
    typer.Option(
        "--tokenizer",
        "--tokenizer-model",
        help="The tokenizer's model: a name, a model folder, checkpoint or run.",
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        help="plain or tokenizer, as model.data.chat_template; else the template of the model's training."
    ),
]


@commands.command("convert")
def data_convert(
    raw: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH|HUB-NAME",
            help="Files (.jsonl, .jsonl.gz, .json, .csv, .tsv, .parquet, .arrow), folders of them, or a hub data set.",
        ),
    ],
    to: Annotated[str, typer.Option(help="sft, preferences or prompts.")],
    out: Out,
    columns: Annotated[
        str, typer.Option("--map", help="Meanings of columns, as in question=prompt,best=chosen.")
    ] = "",
    ignore: Annotated[str, typer.Option(help="Columns to leave out on purpose, as in id2,margin.")] = "",
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="A model: counts lengths in its tokens, and shows ten samples with the part covered by the loss."
        ),
    ] = None,
    validation_fraction: Annotated[
        float,
        typer.Option(help="Share of held-out prompts, where the data has no split of its own."),
    ] = 0.05,
    max_length: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="model.encoder_seq_length, for prompts less a response's tokens, with --tokenizer; else the model's positions, for "
            "prompts no limit.",
        ),
    ] = None,
    chat_template: ChatTemplate = None,
    seed: Annotated[int, typer.Option(help="Seed of the split.")] = 1234,
    strict: Strict = False,
):
    """Convert data of your own, recognized by its columns, and report the recognized, omitted, repeated and leaked data.

    The records of files in a job's own format stay unchanged.
    """
    from aligner_lib.errors import UserError
    from data import convert

    if max_length and tokenizer is None:
        raise UserError(f"--max-length {max_length} is a number of tokens: give --tokenizer MODEL, too")
    meanings = {"columns": _renamings(columns), "ignore": _names(ignore)}
    options = {"validation_fraction": validation_fraction, "seed": seed, "strict": strict}
    unchanged = _stay_unchanged(raw, to, [*meanings["columns"], *meanings["ignore"]])
    conversion = convert(_source(raw), out, to, **meanings, **options, unchanged=unchanged)
    if tokenizer is None:
        typer.echo(conversion)
    else:
        _show_samples(conversion, to, _tokenizer(tokenizer, chat_template), max_length)


def _stay_unchanged(raw: list[str], to: str, names: list[str]) -> bool:
    """Whether a job reads the records of all files as they are. names: the columns that the user names.

    Raises UserError for a mixture with files that a job converts, and for whole texts of preferences or prompts, which need no conversion.
    """
    from aligner_lib.datasets.json_lines import first_record
    from aligner_lib.datasets.own_format import is_read_as_it_is
    from aligner_lib.errors import UserError
    from data.fields import is_empty

    files = [Path(path) for path in raw]
    own_files = [file for file in files if is_read_as_it_is(file, to, names, is_split=True)]
    others = [file for file in files if file not in own_files]
    if own_files and others:
        raise UserError(
            f"{own_files[0]} is in a job's own format, and {others[0]} is not, so a job converts {others[0]} alone: give each file "
            "an `aligner data` command of its own, with another --out"
        )
    if to != "sft" and any(not is_empty(first_record([file]).get("text")) for file in own_files):
        jobs = "`aligner rm` and `aligner dpo`" if to == "preferences" else "`aligner ppo` and `aligner grpo`"
        raise UserError(
            f"{', '.join(raw)} has whole texts, which {jobs} read as they are: give the job the file itself"
        )
    return not others


def _show_samples(conversion: Conversion, to: str, tokenizer: Tokenizer, max_length: int | None) -> None:
    """Print a conversion with its lengths in tokens, the samples that a training leaves out, and ten samples."""
    from aligner_lib.datasets.lengths import token_lengths
    from aligner_lib.tutorial.displays.show_converted import show_converted

    lengths, left_out = token_lengths(conversion.paths, to, tokenizer)
    typer.echo(replace(conversion, lengths=lengths, unit="tokens"))
    for line in left_out.lines():
        typer.echo(f"in a training: {line}")
    # a prompt's limit depends on the length of a job's responses
    limit = max_length or (None if to == "prompts" else _positions(tokenizer.folder))
    if limit and (longer := sum(length > limit for length in lengths)):
        shortened = " (SFT shortens an input)" if to == "sft" else ""
        typer.echo(
            f"in a training: {longer:,} of {len(lengths):,} samples are longer than {limit:,} tokens, and left out{shortened}"
        )
    typer.echo(f"\n{show_converted(conversion, tokenizer)}")


@commands.command("dolly")
def data_dolly(
    raw: Raw,
    out: Out,
    strict: Strict = False,
    max_chars: MaxChars = None,
    seed: Annotated[
        int, typer.Option(help="Seed for the order of context and instruction, and for the split.")
    ] = 1234,
    validation_fraction: Annotated[float, typer.Option(help="Share of held-out prompts.")] = 0.1,
):
    """Convert Dolly's instructions to SFT's train.jsonl and validation.jsonl."""
    from data import format_dolly

    options = {
        "seed": seed,
        "validation_fraction": validation_fraction,
        "max_chars": max_chars,
        "strict": strict,
    }
    typer.echo(format_dolly(_source(raw), out, **options))


@commands.command("hh")
def data_hh(
    raw: Raw,
    out: Out,
    split: Annotated[str, typer.Option(help="Prefix of the files' names: train or test.")],
    strict: Strict = False,
    max_chars: MaxChars = None,
    subset: Annotated[
        str | None, typer.Option(help="A folder of a hub data set, as in harmless-base.")
    ] = None,
):
    """Convert HH's pairs to comparisons (reward model) and prompts (PPO)."""
    from data import format_hh

    typer.echo(format_hh(_source(raw), out, split, max_chars=max_chars, strict=strict, subset=subset))


@commands.command("squad")
def data_squad(
    raw: Raw,
    out: Out,
    split: Annotated[str, typer.Option(help="The file's name: train or validation.")],
    strict: Strict = False,
    max_chars: MaxChars = None,
):
    """Convert SQuAD's questions to SFT's train.jsonl or validation.jsonl."""
    from data import format_squad

    typer.echo(format_squad(_source(raw), out, split, max_chars=max_chars, strict=strict))


@commands.command("mmap")
def data_mmap(
    source: Annotated[Path, typer.Option("--input", help="A .jsonl file of comparisons or prompts.")],
    output_prefix: Annotated[
        Path, typer.Option(help="Prefix of the files' names: PREFIX_text_document.bin and .idx.")
    ],
    tokenizer: TokenizerOf,
    json_keys: Annotated[str, typer.Option(help="The text's key in a line.")] = "text",
    append_eod: Annotated[
        bool, typer.Option("--append-eod", help="Write the stop token behind each document.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, help="Tokenising processes.")] = 1,
    chunk_size: Annotated[
        int, typer.Option("--chunk-size", "--chunk_size", min=1, help="Lines per process at a time.")
    ] = 100,
    chat_template: ChatTemplate = None,
    dataset_impl: Annotated[str, typer.Option(help="Only mmap is possible.")] = "mmap",
    tokenizer_library: Annotated[
        str | None, typer.Option(help="Ignored: the model's own tokenizer is used.")
    ] = None,
):
    """Convert comparisons or prompts to Megatron's token files (model.data.data_impl=mmap). A killed call can be continued."""
    from aligner_lib.datasets.tokenize_files import tokenize_file
    from aligner_lib.errors import UserError

    if dataset_impl != "mmap":
        raise UserError(f"--dataset-impl {dataset_impl}: only mmap can be written")
    options = {"key": json_keys, "append_eod": append_eod, "workers": workers, "chunk_size": chunk_size}
    typer.echo(tokenize_file(source, output_prefix, _tokenizer(tokenizer, chat_template), **options))


@commands.command("lengths")
def data_lengths(
    file: Annotated[Path, typer.Argument(help="A .jsonl file of SFT's samples, or of comparisons.")],
    tokenizer: TokenizerOf,
    max_length: Annotated[int, typer.Option(help="model.encoder_seq_length.")] = 4096,
    global_batch_size: Annotated[int, typer.Option(min=1, help="Samples in a step.")] = 64,
    micro_batch_size: Annotated[int, typer.Option(min=1, help="Samples in a micro batch.")] = 8,
    packed_sequence_size: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens in a packed micro batch; else as many as the longest samples have."),
    ] = None,
    chat_template: ChatTemplate = None,
    seed: Annotated[int, typer.Option(help="model.seed, for the order.")] = 1234,
):
    """Show the lengths of samples, and the padding in micro batches limited by samples or by tokens."""
    from aligner_lib.datasets.chat_template import ANSWER
    from aligner_lib.datasets.lengths import length_report
    from aligner_lib.datasets.load import load_labelled, load_pairs, load_sft
    from aligner_lib.datasets.own_format import first_records, is_read_as_it_is, may_be_own
    from aligner_lib.errors import UserError
    from data.fields import METADATA, is_empty
    from data.raw_forms import recognise, unread_columns

    own = _tokenizer(tokenizer, chat_template)
    heads = first_records(file) if may_be_own(file) else []
    columns = {key for head in heads for key, value in head.items() if not is_empty(value)} - METADATA
    form = recognise(columns)
    required = columns if columns == {"text"} else set(form.columns) if form else set()
    # an empty answer of `aligner data hh` has a space behind `Assistant:`
    is_text = columns == {"text"} and str(heads[0].get("text")).endswith(ANSWER)
    are_prompts = required in ({"prompt"}, {"question"})
    if is_text or (are_prompts and not unread_columns(form, columns)):
        renaming = " --map text=prompt" if is_text else ""
        raise UserError(
            f"{file} has prompts without answers: `aligner data {file} --to prompts{renaming} --out DIR --tokenizer MODEL` shows "
            "their lengths"
        )
    compared = {"text", "chosen", "chosen_response", "preferred_output", "label"} & required
    to = "preferences" if compared else "sft"
    if file.is_file() and not is_read_as_it_is(file, to):
        raise UserError(
            f"{file} is not in the format that a job reads as it is: convert the file with `aligner data {file} --to "
            f"{to if required and not are_prompts else '…'} --out DIR`, and give DIR/train.jsonl"
        )
    load = load_labelled if "label" in required else load_pairs if compared else load_sft
    samples, report = load([file], own, max_length)
    longest = max(sample.num_tokens for sample in samples)
    budget = packed_sequence_size or micro_batch_size * longest
    typer.echo(length_report(file.name, samples, global_batch_size, micro_batch_size, budget, seed))
    for line in report.lines():
        typer.echo(line)


def _tokenizer(model: str, chat_template: str | None):
    """The tokenizer of a model, with its chosen template."""
    from aligner_lib.datasets.chat_template import OWN, PLAIN, recorded_template, use_template
    from aligner_lib.datasets.tokenizer import Tokenizer
    from aligner_lib.errors import UserError
    from aligner_lib.models import resolve

    if chat_template not in (None, PLAIN, OWN):
        raise UserError(f"--chat-template {chat_template}: the value must be {PLAIN} or {OWN}")
    path = Path(model)
    # a tokenizer's file stands for its folder
    folder = path.parent if path.is_file() else path if (path / "tokenizer.json").exists() else resolve(model)
    return use_template(Tokenizer(folder), chat_template or recorded_template(folder) or PLAIN)


def _positions(folder: Path) -> int:
    """The positions of a model; for a tokenizer without a model, no sample is too long."""
    from aligner_lib.datasets.load.lines import UNBOUNDED
    from aligner_lib.models.architecture import Architecture

    return (
        Architecture.load(folder).max_position_embeddings if (folder / "model.json").exists() else UNBOUNDED
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _renamings(text: str) -> dict[str, str]:
    """{own name: the form's name} from `question=prompt,best=chosen`. Raises UserError for a part without an equals sign."""
    from aligner_lib.errors import UserError

    pairs = [name.partition("=") for name in _names(text)]
    if wrong := [own for own, equals, form in pairs if not (own and equals and form)]:
        raise UserError(
            f"--map {text}: {wrong[0]!r} has no name behind an equals sign, as in question=prompt"
        )
    return {own: form for own, _, form in pairs}


def _source(raw: list[str]) -> str | list[str]:
    return raw[0] if len(raw) == 1 else raw  # a single value may also be the name of a hub data set
