"""Text to token ids and back, without transformers and without torch."""

from __future__ import annotations

import json
import shutil
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer


class Tokenizer:
    """A model folder's tokenizer: `tokenizer.json` and `tokenizer_config.json` (Hugging Face tokenizers).

    The stop token (`eos_id`) ends a response. Padding uses the same id, so code tells padding by masks and
    lengths, never by the id. Raises FileNotFoundError for a folder without a tokenizer.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.exists():
            raise FileNotFoundError(f"{self.folder} has no tokenizer.json: it is no model folder")
        self._tokenizer = _Tokenizer.from_file(str(path))
        self.config = json.loads((self.folder / "tokenizer_config.json").read_text())

    @cached_property
    def eos_id(self) -> int:
        """The id of the stop token. Raises ValueError when it is not in the vocabulary."""
        token = self.config["eos_token"]
        token = token["content"] if isinstance(token, dict) else token
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"{self.folder}: the stop token {token!r} is not in the vocabulary")
        return token_id

    @property
    def pad_id(self) -> int:
        """The id used for padding: the stop token's."""
        return self.eos_id

    @property
    def vocab_size(self) -> int:
        """The number of token ids, special tokens included."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; no special token is added."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text; no special token is added."""
        return [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)]

    def decode(self, ids: list[int], special_tokens: bool = False) -> str:
        """The text of token ids; special tokens are left out unless special_tokens is True."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=not special_tokens)

    def tokens(self, ids: list[int]) -> list[str]:
        """The text of each token, to show values token by token."""
        return [self._tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]

    def save(self, folder: Path) -> None:
        """Copy the tokenizer's files into another model folder."""
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (self.folder / name).exists() and Path(folder) != self.folder:
                shutil.copy(self.folder / name, Path(folder) / name)
