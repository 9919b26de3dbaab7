"""Tokenizers of the kinds that Llama models have, trained on a few lines: folders that transformers reads, too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

LINES = [
    "User: Say hello to the people in the garden, please.",
    "Assistant: Hello there, my dear people in the garden.",
    "User: How are you, and how is the weather?",
    "Assistant: I am well, and the weather is fine today.",
    "System: Be kind to all the people.",
]
BOS, EOS = "<s>", "</s>"
# Llama 3 has punctuation and the newlines after it in one piece
LLAMA_3_PIECES = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\p{N}{1,3}| ?\p{L}+|\s*[\r\n]+|\s+(?!\S)|\s+"


def gpt2(folder: Path) -> Path:
    """Byte-level without BOS, as SmolLM2's and the smoke model's."""
    tokenizer = _byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return write(folder, tokenizer, "PreTrainedTokenizerFast")


def llama_3(folder: Path) -> Path:
    """Byte-level with BOS, and tokens that reach from a sentence's end into the next paragraph."""
    pieces = pre_tokenizers.Split(Regex(LLAMA_3_PIECES), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer = _byte_level(pre_tokenizers.Sequence([pieces, byte_level]))
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), _bos_first()])
    return write(folder, tokenizer, "PreTrainedTokenizerFast")


def llama_2(folder: Path) -> Path:
    """SentencePiece's: a space before the text, spaces as ▁, byte fallback, BOS. TinyLlama's is like this."""
    tokenizer = _sentence_piece()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return write(folder, tokenizer, "PreTrainedTokenizerFast", add_bos_token=True)


def metaspace(folder: Path) -> Path:
    """SentencePiece's as transformers 5 writes it; transformers builds its own from vocabulary and merges."""
    tokenizer = _sentence_piece()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", "first", split=False)
    return write(folder, tokenizer, "LlamaTokenizer", legacy=False)


STYLES = {style.__name__: style for style in (gpt2, llama_3, llama_2, metaspace)}


def write(folder: Path, tokenizer: Tokenizer, tokenizer_class: str, **config: object) -> Path:
    """A folder with a tokenizer's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": tokenizer_class, "bos_token": BOS, "eos_token": EOS, "unk_token": "<unk>"}
    settings = {"clean_up_tokenization_spaces": False, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | settings | config))
    return folder


def with_settings(source: Path, folder: Path, **config: object) -> Path:
    """A copy of a tokenizer's folder with other settings in its tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    shutil.copy(source / "tokenizer.json", folder)
    settings = json.loads((source / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | config))
    return folder


def _byte_level(pre_tokenizer) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<unk>", BOS, EOS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["\n\n".join(LINES), *LINES], trainer)
    return tokenizer


def _sentence_piece() -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace("▁", "always")
    trained.train_from_iterator(LINES, trainers.BpeTrainer(vocab_size=120, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", BOS, EOS, *(f"<0x{byte:02X}>" for byte in range(256)), *model["vocab"]]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", BOS, EOS)])
    spaces = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(spaces)
    tokenizer.post_processor = _bos_first()
    return tokenizer


def _bos_first() -> processors.TemplateProcessing:
    return processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, 1)]
    )
