"""All rollouts of a run: texts in memory, tokens compressed until they are needed."""

from __future__ import annotations

import json
import zlib

TOKEN_FIELDS = ("tokens", "token_kl", "token_advantage")
CHUNK_BYTES = 1 << 22


class RunRollouts:
    """Follows a run's rollouts: `records` without their tokens, and `tokens(i)` for those of record i."""

    def __init__(self, run):
        self._reader = run.rollouts_reader()
        self._restarts = 0
        self._clear()

    def _clear(self) -> None:
        self.records: list[dict] = []
        self._tokens: list[bytes] = []
        self._first: dict[tuple[str, str], int] = {}  # (split, prompt) → its earliest record
        self._groups: dict[tuple, list[int]] = {}  # (step, split, prompt's number) → records
        self.splits_with_groups: set[str] = set()
        self._judged: dict[str, bool] = {}  # metric of an environment → whether it was always 0 or 1

    def poll(self) -> bool:
        """Read new rollouts; True when there were any."""
        news = False
        while records := self._reader.poll(CHUNK_BYTES):
            if self._reader.restarts != self._restarts:
                self._restarts = self._reader.restarts
                self._clear()
            for record in records:
                self._add(record)
            news = True
        return news

    def _add(self, record: dict) -> None:
        if not isinstance(record.get("step"), int) or not isinstance(record.get("response"), str):
            return
        tokens = {name: record[name] for name in TOKEN_FIELDS if name in record}
        self._tokens.append(zlib.compress(json.dumps(tokens).encode(), 1))
        light = {key: value for key, value in record.items() if key not in TOKEN_FIELDS}
        light["id"] = len(self.records)
        self._first.setdefault((light.get("split", ""), light.setdefault("prompt", "")), light["id"])
        for name, value in (light.get("metrics") or {}).items():
            self._judged[name] = self._judged.get(name, True) and value in (0, 1)
        if "group" in light:
            responses = self._groups.setdefault((light["step"], light.get("split", ""), light["group"]), [])
            responses.append(light["id"])
            if len(responses) > 1:
                self.splits_with_groups.add(light.get("split", ""))
        self.records.append(light)

    @property
    def verdicts(self) -> list[str]:
        """The environments' metrics that say yes or no: so far each was 0 or 1."""
        return [name for name, judged in self._judged.items() if judged]

    def group_of(self, record: dict) -> list[dict]:
        """The responses of the same step to the same prompt, in the order of the file; a run before groups has one each."""
        key = (record["step"], record.get("split", ""), record.get("group"))
        return [self.records[i] for i in self._groups.get(key, [record["id"]])]

    def first_of(self, record: dict) -> int | None:
        """The number of the earliest record of the same prompt: of the same split, else of any; None without one."""
        prompt = record["prompt"]
        same = self._first.get((record.get("split", ""), prompt))
        others = (index for (_, other), index in self._first.items() if other == prompt)
        return same if same is not None else next(others, None)

    def tokens(self, record: int) -> dict:
        """The {tokens, token_kl, token_advantage} of a record, as far as the run logged them."""
        return json.loads(zlib.decompress(self._tokens[record]))
