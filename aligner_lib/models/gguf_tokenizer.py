"""The tokenizer inside a GGUF file, rebuilt as a `tokenizers` byte-level BPE."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from aligner_lib.models.hf_folder import copy_tokenizer
from cluster.record import write_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # token types of the GGUF specification
ENDS = ("eot", "eom")  # tokens that end a turn or a message, and therefore end an answer like the stop token
DIGITS_APART = {"smollm": True, "gpt-2": False}  # the known pre-tokenizers


def write_tokenizer(field: Callable, path: Path, out: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json from a GGUF file's metadata.

    A model with more than one stop token also gets a generation_config.json. field: looks up a metadata key. A tokenizer.json
    beside the GGUF file takes precedence over the metadata. A GGUF file contains only the name of its pre-tokenizer. Raises
    ValueError for an unknown name, because a guess would silently tokenise texts wrongly.
    """
    if (path.parent / "tokenizer.json").exists():
        copy_tokenizer(path.parent, out)
        return
    model, pre = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre", "unnamed")
    if model != "gpt2" or pre not in DIGITS_APART:
        raise ValueError(
            f"{path}: the tokenizer is {model!r} with pre-tokenizer {pre!r}, but only 'gpt2' with "
            f"{' or '.join(map(repr, DIGITS_APART))} is known. Put the model's tokenizer.json and tokenizer_config.json beside the file"
        )
    tokens, types = field("tokenizer.ggml.tokens"), field("tokenizer.ggml.token_type")
    _build(tokens, types, field("tokenizer.ggml.merges"), DIGITS_APART[pre]).save(str(out / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if (bos := field("tokenizer.ggml.bos_token_id", -1)) >= 0:
        config["bos_token"] = tokens[bos]
    config |= {
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "model_max_length": field("llama.context_length"),
        "clean_up_tokenization_spaces": False,
    }
    if (unknown := field("tokenizer.ggml.unknown_token_id", -1)) >= 0:
        config["unk_token"] = tokens[unknown]
    if field("tokenizer.ggml.add_bos_token", False):
        config["add_bos_token"] = True
    if template := field("tokenizer.chat_template", ""):
        config["chat_template"] = template
    write_json(out / "tokenizer_config.json", config)
    ids = [field(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", *ENDS)]
    if further := [token_id for token_id in ids[1:] if token_id >= 0]:
        write_json(out / "generation_config.json", {"eos_token_id": [ids[0], *further]})


def _build(tokens: list[str], types: list[int], merges: list[str], digits_apart: bool):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if digits_apart else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        AddedToken(t, special=True, normalized=False) for t, kind in zip(tokens, types) if kind == CONTROL
    ]
    added = [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == USER_DEFINED]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(added)
    assert tokenizer.get_vocab_size() == len(tokens), "a special token is not in the vocabulary"
    return tokenizer
