"""The results of a check."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A result of a check: success, or the problem and its cure."""

    what: str
    ok: bool
    detail: str
    needed: bool = True
    """False: a job also runs when the check fails."""

    def __str__(self) -> str:
        mark = "ok  " if self.ok else ("FAIL" if self.needed else "note")
        return f"{mark}  {self.what}: {self.detail}"
