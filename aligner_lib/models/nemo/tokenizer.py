"""Convert an archive's tokenizer into a model folder's tokenizer.json and tokenizer_config.json.

model_config.yaml names the tokenizer's files as `nemo:HASH_name`. HASH is a prefix of 32 hexadecimal digits from NeMo.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path, PurePosixPath

from aligner_lib.models.hf_folder import copy_tokenizer, template_files
from aligner_lib.models.nemo.archive import NemoArchive
from aligner_lib.models.nemo.config import NemoConfig
from aligner_lib.models.nemo.torch_file import all_of
from cluster.record import write_json

logger = logging.getLogger(__name__)

FILES = ("tokenizer.json", "tokenizer_config.json")
GENERATION = "generation_config.json"  # further stop tokens
SENTENCEPIECE = "tokenizer.model"
MAX_BYTES = 1 << 27
END_OF_TEXT = "<|endoftext|>"  # the stop token of NeMo's GPT-2 tokenizers


def write_tokenizer(archive: NemoArchive, config: NemoConfig, out: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and a generation_config.json, if there is one, into a folder.

    Files beside the archive take precedence over other files in the archive, with a warning. Without either, the tokenizer is
    made from the files named in model_config.yaml: a SentencePiece model (library: sentencepiece), or GPT-2's vocabulary and
    merges (library: megatron).

    Raises ValueError when there are no such files. With library: huggingface, the settings name a model of the hub, and no
    archive contains its tokenizer.
    """
    beside = archive.path.parent
    section = config.get("tokenizer")
    section = NemoConfig(section if isinstance(section, dict) else {}, f"{config.where}: tokenizer")
    has_own = all(name in archive for name in FILES)
    if files_beside(archive.path):
        if has_own and any(_content(archive, name) != (beside / name).read_bytes() for name in FILES):
            logger.warning(
                "%s has a tokenizer, but the tokenizer in %s is read: move %s away if they belong to another model",
                archive.path,
                beside,
                " and ".join(FILES),
            )
        return copy_tokenizer(beside, out)
    if has_own:
        for name in (*FILES, *([GENERATION] if GENERATION in archive else [])):
            (out / name).write_bytes(_json(archive, name))
        if section.get("library") == "sentencepiece":  # kept for an export to NeMo
            (out / SENTENCEPIECE).write_bytes(_content(archive, _artifact(archive, section, "model")))
        return None
    library, vocabulary = section.get("library"), section.get("vocab_file")
    if library == "sentencepiece":
        return _write_sentencepiece(archive, section, out)
    if library == "megatron" and vocabulary and section.get("merge_file"):
        vocabulary = _content(archive, _artifact(archive, section, "vocab_file"))
        return _write_gpt2(vocabulary, _content(archive, _artifact(archive, section, "merge_file")), out)
    raise ValueError(
        f"{archive.path} contains no tokenizer: model_config.yaml names library={ascii(library)[:40]}, "
        f"type={ascii(section.get('type'))[:80]}. Put the model's {' and '.join(FILES)} into {beside}"
    )


def files_beside(archive: Path) -> dict[str, Path]:
    """The tokenizer's files beside an archive, by name; empty unless both FILES exist."""
    names = (*FILES, GENERATION)
    files = {name: path for name in names if (path := archive.parent / name).is_file()}
    files |= template_files(archive.parent)
    return files if files.keys() >= {*FILES} else {}


def _write_sentencepiece(archive: NemoArchive, section: NemoConfig, out: Path) -> None:
    """Convert a SentencePiece model. The model itself stays beside tokenizer.json, for an export to NeMo."""
    from aligner_lib.models import sentencepiece_tokenizer

    if section.get("special_tokens"):
        raise ValueError(
            f"{section.where}.special_tokens can't be read; put a tokenizer.json with them beside {archive.path}"
        )
    model = out / SENTENCEPIECE
    model.write_bytes(_content(archive, _artifact(archive, section, "model")))
    sentencepiece_tokenizer.write_tokenizer(model, out, {})


def _artifact(archive: NemoArchive, section: NemoConfig, key: str) -> str:
    """The name of a key's file in the archive: with NeMo's prefix, or the last part of the original path."""
    value = section.get(key)
    name = PurePosixPath(str(value).removeprefix("nemo:")).name
    matches = [path for path in archive.names() if path == name or (path[33:] == name and path[32] == "_")]
    if len(matches) != 1:
        raise ValueError(
            f"{archive.path}: {section.where}.{key} is {ascii(value)[:80]}, but the archive has no such file"
        )
    return matches[0]


def _content(archive: NemoArchive, name: str) -> bytes:
    with archive.open(name) as file:
        if file.size > MAX_BYTES:
            raise ValueError(f"{archive.path}: {name} has {file.size} bytes, too many for a tokenizer")
        return all_of(file)


def _json(archive: NemoArchive, name: str) -> bytes:
    """A file's content. Raises ValueError unless the content is a JSON object."""
    content = _content(archive, name)
    try:
        is_object = isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise ValueError(f"{archive.path}: {name} is not a JSON object")
    return content


def _write_gpt2(vocabulary: bytes, merges: bytes, out: Path) -> None:
    """Convert GPT-2's byte-level BPE: a vocab.json and a merges.txt."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        ids = json.loads(vocabulary)
        lines = merges.decode("utf-8").splitlines()
        pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
        tokenizer = Tokenizer(models.BPE(ids, pairs))
    except Exception as error:  # the tokenizers library raises nothing more precise
        raise ValueError(f"the GPT-2 vocabulary or merges can't be read ({ascii(str(error))[:80]})") from None
    if END_OF_TEXT not in ids:
        raise ValueError(f"the vocabulary has no {END_OF_TEXT}, the stop token at the end of every response")
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    tokenizer.save(str(out / FILES[0]))
    write_json(out / FILES[1], {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_TEXT})
