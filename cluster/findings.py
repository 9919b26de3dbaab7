"""What a check has found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One result of a check: all is well, or what is wrong and how to fix it."""

    what: str
    ok: bool
    detail: str
    needed: bool = True
    """False: a job runs without it."""

    def __str__(self) -> str:
        mark = "ok  " if self.ok else ("FAIL" if self.needed else "note")
        return f"{mark}  {self.what}: {self.detail}"
