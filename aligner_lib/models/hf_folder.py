"""A Hugging Face folder: config.json, safetensors (one file or several) and a fast tokenizer's files."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from aligner_lib.datasets.json_file import DamagedFileError, read_object
from aligner_lib.models import families
from aligner_lib.models.peft_folder import refused_as_model
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.sentencepiece_tokenizer import add_tokens, write_tokenizer
from aligner_lib.models.stream import TensorFile
from cluster.record import write_json

if TYPE_CHECKING:
    from aligner_lib.datasets.tokenizer import Tokenizer

# settings of tokenizer_config.json with several tokens: a list, or an object of names and tokens
TOKEN_LISTS = ("additional_special_tokens", "extra_special_tokens", "model_specific_special_tokens")
TEMPLATE = "chat_template.jinja"
logger = logging.getLogger(__name__)


class HfFolder:
    """Reads a Hugging Face folder one weight at a time.

    Raises ValueError with the name of the missing, damaged or unsupported part.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        if refusal := refused_as_model(self.folder):
            raise ValueError(refusal)
        config = _read_json(self.folder / "config.json")
        if config.get("quantization_config") is not None:
            raise ValueError(
                f"{self.folder} contains quantised weights, which the importer reads only from GGUF files"
            )
        self.architecture = families.from_hf(config, str(self.folder / "config.json"))
        self._reward_constant = config.get("reward_constant")  # written by `aligner model export`
        self._stop_ids = config.get("eos_token_id")
        self._file_of = _files_by_weight(self.folder)

    def names(self) -> set[str]:
        """The names of all weights."""
        return set(self._file_of)

    def dtype(self, name: str) -> str:
        """A weight's stored dtype: F64, F32, F16 or BF16."""
        return self._file_of[name].dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape."""
        return self._file_of[name].shape(name)

    def read(self, name: str) -> np.ndarray:
        """A weight in its stored dtype (bfloat16 as its bits in uint16)."""
        return self._file_of[name].read(name)

    def write_tokenizer(self, out: Path) -> None:
        """Write the tokenizer and the ids of further stop tokens into a folder, and a reward model's scale, if there is one."""
        copy_tokenizer(self.folder, out)
        settings = out / "generation_config.json"
        # transformers, too, takes the stop tokens from config.json in this case
        if self._stop_ids is not None and not settings.exists() and self._has_tokens(out):
            _check_stop_ids(self._stop_ids, self.folder / "config.json", out)
            write_json(settings, {"eos_token_id": self._stop_ids})
        if self._reward_constant is not None:
            RewardScale(mean=-self._reward_constant).save(out)

    def _has_tokens(self, out: Path) -> bool:
        """Whether the tokenizer has the stop token of config.json. A single id may be left over from a larger vocabulary."""
        return isinstance(self._stop_ids, list) or open_tokenizer(out).is_id(self._stop_ids)


def open_tokenizer(folder: Path) -> Tokenizer:
    """A model folder's tokenizer. Raises ValueError when tokenizer.json can't be read."""
    from aligner_lib.datasets.tokenizer import Tokenizer

    try:
        return Tokenizer(folder)
    except DamagedFileError as error:
        raise ValueError(
            f"the model's tokenizer.json can't be read ({error.__cause__ or error}): download the file again"
        ) from None


def copy_tokenizer(folder: Path, out: Path) -> None:
    """Write a folder's tokenizer into another folder.

    The new files are tokenizer.json, tokenizer_config.json, and generation_config.json with further stop tokens. Chat
    templates in separate files move into tokenizer_config.json, as do tokens named only in special_tokens_map.json. Tokens listed
    only in tokenizer_config.json are added to tokenizer.json, and tokens named there become special. A SentencePiece
    tokenizer.model is converted if there is no tokenizer.json. Raises ValueError for a folder without a tokenizer or without an
    eos_token, for a listed token whose id differs from the vocabulary's, and for an unknown stop token.
    """
    if (folder / "tokenizer.json").exists():
        config = _with_special_tokens_map(folder, _read_json(folder / "tokenizer_config.json"))
        shutil.copy(folder / "tokenizer.json", out / "tokenizer.json")
    elif (folder / "tokenizer.model").exists():
        write_tokenizer(folder / "tokenizer.model", out, _sentencepiece_config(folder))
        config = _read_json(out / "tokenizer_config.json")
    else:
        raise ValueError(f"{folder} has neither a tokenizer.json nor a tokenizer.model of SentencePiece")
    stop = config.get("eos_token")
    if not (stop.get("content") if isinstance(stop, dict) else isinstance(stop, str) and stop):
        raise ValueError(
            f"{folder / 'tokenizer_config.json'} names no eos_token, the token at the end of a response: add the model's eos_token"
        )
    if templates := _templates_in_files(folder):
        config["chat_template"] = templates
    _warn_without_default(folder, config.get("chat_template"))
    write_json(out / "tokenizer_config.json", config)
    _add_missing_tokens(out, config)
    if (path := folder / "generation_config.json").exists():
        settings = _read_json(path)
        _check_stop_ids(settings.get("eos_token_id"), path, out)
        write_json(out / path.name, settings)


def template_files(folder: Path) -> dict[str, Path]:
    """A folder's separate files of chat templates, by their paths in the folder."""
    paths = [folder / TEMPLATE, *sorted((folder / "additional_chat_templates").glob("*.jinja"))]
    return {str(path.relative_to(folder)): path for path in paths if path.is_file()}


def _templates_in_files(folder: Path) -> str | list[dict[str, str]]:
    """The chat templates of separate files in tokenizer_config.json's form: a template, or named templates."""
    named = {
        "default" if name == TEMPLATE else path.stem: path.read_text(encoding="utf-8")
        for name, path in template_files(folder).items()
    }
    if [*named] == ["default"]:
        return named["default"]
    return [{"name": name, "template": template} for name, template in named.items()]


def _warn_without_default(folder: Path, templates: object) -> None:
    names = [entry["name"] for entry in templates] if isinstance(templates, list) else ["default"]
    if "default" not in names:
        logger.warning(
            f"{folder} has the chat templates {', '.join(names)} and none named default: conversations are written as `User: …` and "
            "`Assistant: …`. Name the model's template default for another form"
        )


def _check_stop_ids(ids: object, path: Path, out: Path) -> None:
    """Raises ValueError for an id that the tokenizer in `out` lacks. path: the file with the ids, for the message."""
    if ids is None:
        return
    tokenizer = open_tokenizer(out)
    for token_id in ids if isinstance(ids, list) else [ids]:
        if not tokenizer.is_id(token_id):
            raise ValueError(
                f"{path}: eos_token_id contains {token_id!r}, which is not a token of the tokenizer in {path.parent}: correct the "
                "id, or remove the id from the list"
            )


def _add_missing_tokens(out: Path, config: dict) -> None:
    """Add the tokens of tokenizer_config.json that are missing among the added tokens of tokenizer.json, as transformers does.

    config: the content of tokenizer_config.json. A listed token may get a new id. A token with a name, such as the stop token,
    becomes special, and is left out if the vocabulary lacks it.
    """
    import tokenizers

    path, listed = out / "tokenizer.json", config.get("added_tokens_decoder") or {}
    tokenizer, added = tokenizers.Tokenizer.from_str(open_tokenizer(out).json), {}
    stored = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing = {int(number): entry for number, entry in listed.items() if entry["content"] not in stored}
    stored |= {entry["content"] for entry in missing.values()}
    named = {text: entry for text, entry in _special_tokens(config).items() if text not in stored}
    next_id = tokenizer.get_vocab_size()
    for number, entry in sorted(missing.items()):
        known = tokenizer.token_to_id(entry["content"])
        if number == (next_id if known is None else known):
            added[str(number)] = entry
            next_id += known is None
        else:
            logger.warning(
                f"{path.name} cannot give {entry['content']!r} the id {number} of tokenizer_config.json: the import leaves out the "
                "token"
            )
    for text, entry in named.items():
        if (known := tokenizer.token_to_id(text)) is not None:
            added[str(known)] = entry
        else:
            logger.warning(
                f"{path.name} has no {text!r}, which tokenizer_config.json names: the import leaves out the token"
            )
    if added:
        add_tokens(path, tokenizer, added)
        tokenizer.save(str(path))


def _special_tokens(config: dict) -> dict[str, dict]:
    """The special tokens named in a tokenizer's settings: the token's text → an entry like those of added_tokens_decoder."""
    named = [config[key] for key in config if key.endswith("_token")]
    for tokens in (config.get(key) or [] for key in TOKEN_LISTS):
        named += tokens.values() if isinstance(tokens, dict) else tokens
    entries = [token if isinstance(token, dict) else {"content": token} for token in named]
    return {
        text: entry | {"special": True}
        for entry in entries
        if isinstance(text := entry.get("content"), str) and text
    }


def _with_special_tokens_map(folder: Path, config: dict) -> dict:
    """The settings, with the tokens named only in special_tokens_map.json, where earlier releases of transformers name them."""
    path = folder / "special_tokens_map.json"
    names = _read_json(path) if path.exists() else {}
    # Beside added_tokens_decoder, transformers lets no token of the map replace null. A model needs a stop token in any case.
    kept = {key for key in config if config[key] or ("added_tokens_decoder" in config and key != "eos_token")}
    return config | {key: names[key] for key in names.keys() - kept if names[key]}


def _sentencepiece_config(folder: Path) -> dict:
    """The settings beside a tokenizer.model. Missing settings get the defaults of Llama's class in transformers."""
    path = folder / "tokenizer_config.json"
    config: dict = {"add_bos_token": True, "legacy": False}
    config |= _with_special_tokens_map(folder, _read_json(path) if path.exists() else {})
    if (folder / "added_tokens.json").exists():
        added = _read_json(folder / "added_tokens.json")
        special = _special_tokens(config)
        entries = {str(i): {"content": text, "special": text in special} for text, i in added.items()}
        config.setdefault("added_tokens_decoder", entries)
    config.pop("tokenizer_class", None)  # names the class for reading tokenizer.model
    return config


def _read_json(path: Path) -> dict:
    try:
        return read_object(path, "download the file again")
    except FileNotFoundError:
        raise ValueError(
            f"{path.parent} has no {path.name}, which a Hugging Face model has: put the model's {path.name} there"
        ) from None


def _files_by_weight(folder: Path) -> dict[str, TensorFile]:
    """The file of each weight: the only file, or the file named by a sharded model's index."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        if not (folder / "model.safetensors").exists():
            raise ValueError(
                f"{folder} has neither model.safetensors nor {index.name} (pickled .bin files are not read)"
            )
        file = TensorFile(folder / "model.safetensors")
        return dict.fromkeys(file.names(), file)
    listed = _read_json(index).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise ValueError(f"{index} has no weight_map of weights and their files: download the file again")
    missing = sorted({name for name in listed.values() if not (folder / name).exists()})
    if missing:
        raise ValueError(
            f"{folder} is incomplete: {index.name} names {', '.join(missing)}, which do not exist"
        )
    files = {name: TensorFile(folder / name) for name in sorted(set(listed.values()))}
    stored = {(weight, name) for name, file in files.items() for weight in file.names()}
    if differing := sorted(stored ^ set(listed.items())):
        weight, name = differing[0]
        raise ValueError(f"{index} and {name} disagree on {len(differing)} weights, the first: {weight}")
    return {weight: files[name] for weight, name in listed.items()}
