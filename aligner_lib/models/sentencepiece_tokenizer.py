"""Convert SentencePiece's tokenizer.model into a `tokenizers` tokenizer, for models without a tokenizer.json.

A SentencePiece model is a normalizer and a table of pieces with scores. There are two kinds (Kudo and Richardson 2018,
arXiv:1808.06226). A unigram model chooses the pieces with the highest sum of scores. A BPE model repeatedly merges the pair
whose joint piece has the highest score, until no pair is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cluster.record import write_json

UNIGRAM, BPE = 1, 2  # model types
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # kinds of pieces
SPACE = "▁"
OUT_OF_REACH = -1e4  # a score below the score of any path through other pieces


def write_tokenizer(model: Path, out: Path, config: dict[str, Any]) -> None:
    """Write tokenizer.json and tokenizer_config.json into a folder.

    model: the .model file. config: the content of the tokenizer_config.json beside the model, such as a chat template; its
    `add_bos_token` decides whether a text begins with BOS. If config names no BOS, stop or unknown token, the model's own token
    is used. Ids equal the ids of `sentencepiece`, except for special tokens in a text, which are recognised as in
    `transformers`. With `legacy: false`, ids equal the ids of transformers' classes: no space is added after a special token,
    or before a text that begins with a special token. Raises ValueError for a damaged file and an unsupported feature.
    """
    proto = _read(model)
    names = {"bos_token": proto.trainer_spec.bos_id, "eos_token": proto.trainer_spec.eos_id}
    names["unk_token"] = proto.trainer_spec.unk_id
    own = {name: proto.pieces[number].piece for name, number in names.items() if number >= 0}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", **own, **config}
    _build(model, proto, config).save(str(out / "tokenizer.json"))
    write_json(out / "tokenizer_config.json", config)


def _read(path: Path):
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(path.read_bytes())
    except DecodeError as error:
        raise ValueError(
            f"{path} is not a complete SentencePiece model ({error}): download the file again"
        ) from None
    kind, unused = proto.trainer_spec.model_type, sum(piece.type == UNUSED for piece in proto.pieces)
    if not proto.pieces:
        raise ValueError(f"{path} is not a SentencePiece model: the file has no pieces")
    if kind not in (UNIGRAM, BPE):
        raise ValueError(
            f"{path} is a SentencePiece model of words or characters; only unigram and BPE can be read"
        )
    if (
        unused
        or proto.trainer_spec.treat_whitespace_as_suffix
        or not proto.normalizer_spec.escape_whitespaces
    ):
        raise ValueError(
            f"{path} has pieces marked as unused, or spaces behind words, or no spaces, which is not supported"
        )
    spec = proto.normalizer_spec
    runs = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED and {*piece.piece} == {SPACE}]
    if kind == BPE and runs and spec.add_dummy_prefix and not spec.remove_extra_whitespaces:
        raise ValueError(
            f"{path} adds a space before a text and has the user-defined piece {runs[0]!r} of spaces, which is not supported "
            "together: take the model's tokenizer.json and tokenizer_config.json instead"
        )
    return proto


def _build(path: Path, proto, config: dict[str, Any]):
    from tokenizers import AddedToken, Tokenizer, pre_tokenizers

    tokenizer = Tokenizer(_unigram(proto) if proto.trainer_spec.model_type == UNIGRAM else _bpe(proto))
    first_only = proto.normalizer_spec.add_dummy_prefix and not config.get("legacy", True)
    tokenizer.normalizer = _normalizer(proto.normalizer_spec, first_only)
    if first_only:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first", split=False)
    tokenizer.decoder = _decoder(proto.normalizer_spec.add_dummy_prefix)
    for piece in proto.pieces:
        if piece.type in (UNKNOWN, CONTROL):
            tokenizer.add_special_tokens([AddedToken(piece.piece, special=True, normalized=False)])
        elif piece.type == USER_DEFINED:
            is_normalized = SPACE in piece.piece and _matches_normalized(proto)
            tokenizer.add_tokens([AddedToken(piece.piece, normalized=is_normalized)])
    add_tokens(path, tokenizer, config.get("added_tokens_decoder") or {})
    bos = config.get("bos_token")
    if config.get("add_bos_token") and bos:
        bos = bos["content"] if isinstance(bos, dict) else bos
        begin_texts(tokenizer, [tokenizer.token_to_id(bos)])
    return tokenizer


def _matches_normalized(proto) -> bool:
    """Whether user-defined pieces with spaces are found in the normalized text, where ▁ stands for a space.

    Unigram finds the pieces by their scores. If the normalizer adds or removes spaces, it would change the pieces, too.
    """
    spec = proto.normalizer_spec
    return proto.trainer_spec.model_type == BPE and not (
        spec.add_dummy_prefix or spec.remove_extra_whitespaces
    )


def _unigram(proto):
    from tokenizers import models

    # a text that spells the piece of a byte, such as <0x41>, is split into the pieces of its letters, where they exist
    scores = [(piece.piece, OUT_OF_REACH if piece.type == BYTE else piece.score) for piece in proto.pieces]
    return models.Unigram(scores, proto.trainer_spec.unk_id, byte_fallback=proto.trainer_spec.byte_fallback)


def _bpe(proto):
    from tokenizers import models

    numbers = {piece.piece: number for number, piece in enumerate(proto.pieces)}
    merged = {piece.piece: piece.score for piece in proto.pieces if piece.type == NORMAL}
    merges = [
        (-score, numbers[piece[:cut]], numbers[piece[cut:]], piece[:cut], piece[cut:])
        for piece, score in merged.items()
        for cut in range(1, len(piece))
        if piece[:cut] in merged and piece[cut:] in merged
    ]
    return models.BPE(
        numbers,
        [(left, right) for *_, left, right in sorted(merges)],
        unk_token=proto.pieces[proto.trainer_spec.unk_id].piece,
        fuse_unk=True,
        byte_fallback=proto.trainer_spec.byte_fallback,
    )


def _normalizer(spec, first_only: bool):
    """first_only: the pre-tokenizer adds the space before a text and replaces spaces by ▁, so the normalizer does neither."""
    from tokenizers import Regex, normalizers

    steps = []
    if spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(spec.precompiled_charsmap))
    if spec.remove_extra_whitespaces:
        ends = normalizers.Replace(Regex(rf"\A +|[ {SPACE}]+\z"), "")
        steps += [ends, normalizers.Replace(Regex(" {2,}"), " ")]
    if spec.add_dummy_prefix and not first_only:
        steps.append(normalizers.Prepend(SPACE))
    return normalizers.Sequence([*steps, *([] if first_only else [normalizers.Replace(" ", SPACE)])])


def _decoder(dummy_prefix: bool):
    from tokenizers import decoders

    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if dummy_prefix else [])])


def begin_texts(tokenizer, bos_ids: list[int]) -> None:
    """Let a `tokenizers` tokenizer put tokens before each text, and nothing behind it."""
    from tokenizers import processors

    bos = [tokenizer.id_to_token(token_id) for token_id in bos_ids]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[*bos, "$A"], pair=[*bos, "$A", *bos, "$B"], special_tokens=[*zip(bos, bos_ids)]
    )


def add_tokens(path: Path, tokenizer, added: dict[str, dict]) -> None:
    """Add the tokens listed in tokenizer_config.json besides the model's own, by id.

    path: the vocabulary's file, for messages. Raises ValueError when a token would get another id than the listed one.
    """
    from tokenizers import AddedToken

    for number, entry in sorted(added.items(), key=lambda item: int(item[0])):
        flags = {name: entry.get(name, False) for name in ("single_word", "lstrip", "rstrip", "special")}
        token = AddedToken(entry["content"], normalized=False, **flags)
        (tokenizer.add_special_tokens if flags["special"] else tokenizer.add_tokens)([token])
        if (token_id := tokenizer.token_to_id(entry["content"])) != int(number):
            raise ValueError(
                f"{path}: tokenizer_config.json gives {entry['content']!r} the id {number}, but the vocabulary gives "
                f"{token_id}: correct added_tokens_decoder in tokenizer_config.json, or download both files again"
            )
