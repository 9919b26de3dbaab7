"""Texts of samples, for a library with its own tokenisation. Samples whose token ids would change are counted."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from aligner_lib.datasets.samples import LabelledSample, PreferenceSample, SFTSample
from aligner_lib.datasets.tokenizer import Tokenizer

AS_IT_IS = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template that joins texts. The texts already contain the run's template."""


@dataclass
class Texts:
    """Turns token ids into texts, special tokens included."""

    tokenizer: Tokenizer
    in_turns: bool
    """Whether the library reads turns with the chat template AS_IT_IS, tokenises each turn separately, and adds no BOS token.
    Otherwise the library tokenises prompt and response as a single text and adds the BOS token."""
    total: int = 0
    """The texts so far."""
    different: int = 0
    """The texts with other token ids than in the run."""

    def prompt(self, ids: list[int]) -> str:
        """The text of a prompt."""
        return self._texts([ids])[0]

    def preference(self, pair: PreferenceSample) -> dict[str, str]:
        """The texts of a pair."""
        (prompt, chosen), (_, rejected) = map(self._prompt_and_response, pair.rows, pair.starts)
        return {"prompt": prompt, "chosen": chosen, "rejected": rejected}

    def labelled(self, sample: LabelledSample) -> tuple[str, str]:
        """The texts of a prompt and its labelled response."""
        prompt, response = self._prompt_and_response(sample.rows[0], sample.starts[0])
        return prompt, response

    def turns(self, sample: SFTSample) -> list[dict[str, str]]:
        """The texts of a sample as turns. The loss covers the assistant's turns, and not the user's turns."""
        runs = [(learnt, [*run]) for learnt, run in groupby(range(len(sample)), sample.learnt.__getitem__)]
        texts = self._texts([[sample.tokens[i] for i in run] for _, run in runs])
        return [
            {"role": "assistant" if learnt else "user", "content": text}
            for (learnt, _), text in zip(runs, texts)
        ]

    def note(self, target: str) -> list[str]:
        """A sentence on the texts with other token ids in the target; no sentence without such texts."""
        if not self.different:
            return []
        return [
            f"{self.different} of {self.total} texts have other tokens in {target} than in the run, because {target} tokenises "
            "the texts again and splits words differently at the border of a prompt or of a shortened text"
        ]

    def _prompt_and_response(self, ids: list[int], start: int) -> list[str]:
        return self._texts([ids[:start], ids[start:]])

    def _texts(self, pieces: list[list[int]]) -> list[str]:
        """The text of each piece of a sample. Counts the sample."""
        first, *others = pieces
        bos = [] if self.in_turns else self.tokenizer.bos_ids
        begin = first[len(bos) :] if first[: len(bos)] == bos else first
        texts = [
            self.tokenizer.decode(begin, special_tokens=True),
            *(self.tokenizer.decode(piece, special_tokens=True, continues=True) for piece in others),
        ]
        self.total += 1
        self.different += not self._same_tokens(texts, pieces, bos)
        return texts

    def _same_tokens(self, texts: list[str], pieces: list[list[int]], bos: list[int]) -> bool:
        if self.in_turns:
            return [self.tokenizer.encode_parts([text])[0] for text in texts] == pieces
        whole = [token for piece in pieces for token in piece]
        return (
            bos + self.tokenizer.encode_parts(["".join(texts)])[0] == whole
            and bos + self.tokenizer.encode_parts(texts[:1])[0] == pieces[0]
        )
