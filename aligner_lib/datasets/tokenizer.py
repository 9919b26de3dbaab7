"""Text to token ids and back, without transformers and without torch."""

from __future__ import annotations

import hashlib
import json
import shutil
from bisect import bisect_left
from datetime import date
from functools import cached_property
from itertools import accumulate, takewhile
from pathlib import Path

from tokenizers import Encoding
from tokenizers import Tokenizer as _Tokenizer

from aligner_lib.datasets.json_file import CURE, DamagedFileError, read_object
from aligner_lib.errors import UserError

DATE = date(2025, 1, 1)  # any fixed date works: runs on different days then have the same prompts
LONG = 1 << 16  # characters, which take about 50 ms to tokenise
FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "tokenizer.model",
    "generation_config.json",
)
REPLACEMENT = "\ufffd"  # decoding gives this character for an incomplete character's bytes


class Tokenizer:
    """A model folder's tokenizer: `tokenizer.json` and `tokenizer_config.json` (Hugging Face tokenizers).

    A text is tokenised as a whole and begins with `bos_ids`, so its ids equal the ids from `transformers`. Tokens that a
    tokenizer would append to a text are left out. Each of `stop_ids` ends a response. The first of them, the stop token
    (`eos_id`), ends the plain texts in training data. Padding uses the same id, so code recognises padding by masks and
    lengths, never by the id. Raises FileNotFoundError for a folder without a tokenizer, DamagedFileError for an unreadable file.
    """

    template: str | None = None
    """The template of conversations, set by chat_template.use_template."""
    date: date | None = DATE
    """The date for chat templates that write a date; None: today."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{self.folder} has no tokenizer.json: the folder holds no model, or a critic's checkpoint, which "
                "has no tokenizer; give the reward model from which the critic started"
            )
        try:
            self._tokenizer = _Tokenizer.from_file(str(path))
        except Exception as error:  # the tokenizers library raises nothing more precise
            raise DamagedFileError(f"{path} can't be read ({error}): {CURE}") from error
        self._tokenizer.no_truncation()  # some tokenizer.json files have truncation and padding switched on
        self._tokenizer.no_padding()
        self.config = read_object(self.folder / "tokenizer_config.json")

    # -- special tokens -------------------------------------------------------------------------------------------

    @cached_property
    def eos_id(self) -> int:
        """The id of the stop token. Raises ValueError when the stop token is not in the vocabulary."""
        return self._id_of("eos_token", "stop token")

    @cached_property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids of all tokens that end a response: the stop token, then `eos_token_id` of generation_config.json.

        Instruct models often have two: one ends a turn, the other a text. Raises ValueError for an id outside the vocabulary.
        """
        path = self.folder / "generation_config.json"
        further = read_object(path).get("eos_token_id") if path.exists() else None
        ids = further if isinstance(further, list) else [] if further is None else [further]
        for token_id in ids:
            if not self.is_id(token_id):
                raise ValueError(
                    f"{path}: eos_token_id contains {token_id!r}, which is not a token of "
                    f"{self.folder / 'tokenizer.json'}: correct the id, or remove the id from the list"
                )
        return tuple(dict.fromkeys([self.eos_id, *ids]))

    @property
    def pad_id(self) -> int:
        """The id of padding, which is the stop token's id."""
        return self.eos_id

    @cached_property
    def bos_ids(self) -> list[int]:
        """The ids at the start of every text: the BOS token for some models, no token for others.

        If `add_bos_token` is set in tokenizer_config.json, the setting decides (as in transformers 4 for Llama). Otherwise the
        post-processor of tokenizer.json decides (as always in transformers 5), also when the file names no BOS token. Raises
        ValueError when the BOS token is not in the vocabulary.
        """
        adds_bos = self.config.get("add_bos_token")
        if adds_bos is None or (adds_bos and self._named("bos_token") is None):
            encoding = self._tokenizer.encode("a")
            ids = zip(encoding.ids, encoding.special_tokens_mask)
            return [token_id for token_id, _ in takewhile(lambda pair: pair[1], ids)]
        return [self._id_of("bos_token", "BOS token")] if adds_bos else []

    def is_id(self, value: object) -> bool:
        """Whether a value is the id of a token."""
        return type(value) is int and 0 <= value < 1 << 32 and self._tokenizer.id_to_token(value) is not None

    @property
    def vocab_size(self) -> int:
        """The number of token ids, special tokens included."""
        return self._tokenizer.get_vocab_size()

    @property
    def largest_id(self) -> int:
        """The largest token id. If the vocabulary has gaps, the largest id is above `vocab_size` - 1."""
        return max(self._tokenizer.get_vocab().values())

    def id_of(self, key: str) -> int | None:
        """The id of a token by its key in tokenizer_config.json, such as `unk_token`; None when there is no such token."""
        return self._tokenizer.token_to_id(self._named(key) or "")

    def _named(self, key: str) -> str | None:
        token = self.config.get(key)
        return token.get("content") if isinstance(token, dict) else token

    def _id_of(self, key: str, name: str) -> int:
        token_id = self.id_of(key)
        if token_id is None:
            raise ValueError(f"{self.folder}: the {name} {self._named(key)!r} is not in the vocabulary")
        return token_id

    # -- text to ids ----------------------------------------------------------------------------------------------

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, `bos_ids` included."""
        return self.bos_ids + self._encoding(text).ids

    def _encoding(self, text: str) -> Encoding:
        # `encode` holds the interpreter's lock until it returns, so the other threads of a server would wait. `encode_batch`
        # releases the lock, but starts threads, which cost too much for short texts and make later forks unsafe.
        if len(text) < LONG:
            return self._tokenizer.encode(text, add_special_tokens=False)
        return self._tokenizer.encode_batch([text], add_special_tokens=False)[0]

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, `bos_ids` included."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [self.bos_ids + encoding.ids for encoding in encodings]

    def encode_parts(self, parts: list[str]) -> list[list[int]]:
        """Token ids of a text in parts: for each part, the ids of the tokens that end in the part, without `bos_ids`.

        The text is tokenised as a whole, because a part alone may have other tokens. A token across a border belongs to the
        part after the border, so an answer includes its first character and nothing of the next turn.
        """
        encoding = self._encoding("".join(parts))
        borders = list(accumulate(map(len, parts)))
        ids: list[list[int]] = [[] for _ in parts]
        for token_id, (_, end) in zip(encoding.ids, encoding.offsets):
            ids[bisect_left(borders, end)].append(token_id)
        assert [token_id for part in ids for token_id in part] == encoding.ids, (
            "the tokens are not in the order of the text"
        )
        return ids

    # -- ids to text ----------------------------------------------------------------------------------------------

    def decode(self, ids: list[int], special_tokens: bool = False, continues: bool = False) -> str:
        """The text of token ids; special tokens are left out unless special_tokens is True.

        continues: whether the ids follow other ids, as a response follows its prompt. The space before the first word is then
        kept. (SentencePiece tokenizers put a space before the first word of a text, and decoding removes the space.)
        """
        if not special_tokens:
            ids = [token_id for token_id in ids if token_id not in self.special_ids]
        if not continues:
            return self._decode(ids)
        return self._decode([self.eos_id, *ids]).removeprefix(self._eos_text)

    def tokens(self, ids: list[int]) -> list[str]:
        """The text added by each token, special tokens included, to show values token by token.

        If several tokens form one character, the last of them has the character, and the texts of the others are empty.
        """
        pieces: list[str] = []
        # the tokens since the last complete character, and the length of their text in `pieces`
        pending, shown = [], 0
        for token_id in ids:
            pending.append(token_id)
            text = self.decode(pending, special_tokens=True, continues=True)
            complete = text.rstrip(REPLACEMENT)
            pieces.append(complete[shown:])
            shown = len(complete)
            if complete == text:
                pending, shown = [], 0
        if pending:
            pieces[-1] += text[shown:]
        return pieces

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    @cached_property
    def _eos_text(self) -> str:
        return self._decode([self.eos_id])

    @cached_property
    def special_ids(self) -> set[int]:
        """The ids of all tokens that do not stand for text.

        Special tokens are marked in tokenizer.json, or have a name in tokenizer_config.json (as in transformers), such as
        `pad_token`, or end a response. A stop token from the base vocabulary, such as a newline, remains text.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        marked = {token_id for token_id, token in added.items() if token.special or token_id in self.stop_ids}
        names = (self._named(key) for key in self.config if key.endswith("_token"))
        named = {self._tokenizer.token_to_id(name) for name in names if isinstance(name, str)}
        return (marked | named) - {None}

    @property
    def json(self) -> str:
        """The content of tokenizer.json, without truncation and padding."""
        return self._tokenizer.to_str()

    # -- comparing, copying ---------------------------------------------------------------------------------------

    @cached_property
    def hash(self) -> str:
        """32 hex digits, equal for two tokenizers that give all texts the same ids, `bos_ids` and stop token included.

        The hash is computed from the content of tokenizer.json, without the file's layout and without the decoder.
        """
        content = json.loads(self.json)
        for name in ("version", "truncation", "padding", "post_processor", "decoder"):
            del content[name]
        content |= {"bos_ids": self.bos_ids, "eos_id": self.eos_id}
        text = json.dumps(content, sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def save(self, folder: Path) -> None:
        """Copy the tokenizer's files into another model folder."""
        for name in FILES:
            if (self.folder / name).exists() and Path(folder) != self.folder:
                shutil.copy(self.folder / name, Path(folder) / name)


def check_same_tokenizer(policy: Tokenizer, other_hash: str, other: str) -> None:
    """Raises UserError when a model that reads the policy's token ids has another tokenizer than the policy.

    other_hash: the hash of the model's tokenizer; other: the name of the model and its folder, for the message.
    """
    if other_hash != policy.hash:
        raise UserError(
            f"{other} has another tokenizer than the policy in {policy.folder}, and would read the policy's token "
            "ids as other text: give two models with the same origin, such as a policy of `aligner sft` and the "
            "reward model which `aligner rm` trained from the policy"
        )
