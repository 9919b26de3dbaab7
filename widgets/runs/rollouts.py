"""All rollouts of a run. Texts are in memory, and tokens are compressed until needed."""

from __future__ import annotations

import json
import zlib

TOKEN_FIELDS = ("tokens", "token_kl", "token_advantage")
CHUNK_BYTES = 1 << 22


class RunRollouts:
    """Follows the rollouts of a run. `records` has the records without tokens, and `tokens(i)` the tokens of record i."""

    def __init__(self, run):
        self._reader = run.rollouts_reader()
        self._restarts = 0
        self._clear()

    def _clear(self) -> None:
        self.records: list[dict] = []
        self._tokens: list[bytes] = []
        self._first: dict[tuple[str, str], int] = {}  # (split, prompt) → id of the earliest record
        self._groups: dict[tuple, list[int]] = {}  # (step, split, prompt's number) → ids of the records
        self.splits_with_groups: set[str] = set()
        self._judged: dict[str, bool] = {}  # metric of an environment → whether all values are 0 or 1

    def poll(self) -> bool:
        """Read new rollouts. Returns True if there were any, or if earlier ones became invalid."""
        news = False
        while True:
            records = self._reader.poll(CHUNK_BYTES)
            # checked also without records, because a run that was begun anew has none at first
            if self._reader.restarts != self._restarts:
                self._restarts = self._reader.restarts
                self._clear()
                news = True
            if not records:
                return news
            for record in records:
                self._add(record)
            news = True

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
        """The names of the environments' yes-or-no metrics, whose values were all 0 or 1 so far."""
        return [name for name, judged in self._judged.items() if judged]

    def group_of(self, record: dict) -> list[dict]:
        """The responses of a step to the record's prompt, in the order of the file; without groups, only the record."""
        key = (record["step"], record.get("split", ""), record.get("group"))
        return [self.records[i] for i in self._groups.get(key, [record["id"]])]

    def first_of(self, record: dict) -> int | None:
        """The id of the earliest record with the same prompt, in the same split or else in any split; None without a record."""
        prompt = record["prompt"]
        same = self._first.get((record.get("split", ""), prompt))
        others = (index for (_, other), index in self._first.items() if other == prompt)
        return same if same is not None else next(others, None)

    def tokens(self, record: int) -> dict:
        """{tokens, token_kl, token_advantage} of a record. Fields that the run does not log are missing."""
        return json.loads(zlib.decompress(self._tokens[record]))
