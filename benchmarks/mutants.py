"""`python -m benchmarks.mutants`: how many planted mistakes the tests detect.

Each mutant changes one expression of the library, cluster/, data/ or widgets/ (`benchmarks/mutations.py`). A seed draws the
mutants. For each mutant, the test files that name the mutated module run first, then every test file that can reach the module
(`./lab test --since HEAD`), until a test fails.

To compare the tests of two commits, give the second run the record of the first run with `--again`. The second run plants the same
mutants at the present places of their expressions, and begins with the test file that caught each mutant.

Run the benchmark in a clean clone with a separate environment (`./lab test --co -q` makes the environment), because each mutant is
written into the checkout and removed afterwards, and because the tests' processes import the environment's project.

    --count 60 --seed 0   how many mutants, and which draw
    --list                print the mutants and run no test
    --minutes 10          the limit for each mutant; a mutant whose tests take longer is counted as `slow`, not as caught
    --json FILE           the verdicts; a mutant with a verdict in the file is not run again
    --again FILE          plant the mutants of these verdicts; expressions that no longer exist are listed and left out
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from benchmarks.kept import described_run, write_result
from benchmarks.mutations import MISTAKES, Mutant, mutants_of, planted
from benchmarks.options import documented_parser

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("aligner_lib", "cluster", "data", "widgets")
PLANTED_ALREADY = "aligner_lib/tutorial/exercises/notebook_"  # these files hold wrong answers on purpose


@dataclass(frozen=True)
class MutantVerdict:
    """The tests' verdict on a mutant. outcome: caught, survived or slow; by: the first failing test."""

    mutant: Mutant
    outcome: str
    seconds: float
    by: str = ""


# ---- the draw -------------------------------------------------------------------------------------------------------


def draw(count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """Mutants of all kinds of mistakes, each kind equally often, with at most one mutant per line."""
    pools: dict[str, list[Mutant]] = {mistake: [] for mistake in MISTAKES}
    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(PLANTED_ALREADY):
                for mutant in mutants_of(name, path.read_text(encoding="utf-8")):
                    pools[mutant.mistake].append(mutant)
    for mistake, pool in pools.items():
        random.Random(f"{seed} {mistake}").shuffle(pool)
    drawn: dict[tuple[str, int], Mutant] = {}
    while len(drawn) < count and any(pools.values()):
        for pool in pools.values():
            if pool and len(drawn) < count:
                mutant = pool.pop()
                drawn.setdefault((mutant.path, mutant.line), mutant)
    return list(drawn.values())


def found_again(verdicts: Iterable[MutantVerdict]) -> dict[Mutant, str]:
    """The mutants of an earlier record at the present places of their expressions, and for each mutant the test file that
    caught it ("" for none).

    When an expression occurs several times, the occurrence nearest to the earlier line is used. Mutants without their
    expression are left out.
    """
    again = {}
    for verdict in verdicts:
        old, path = verdict.mutant, ROOT / verdict.mutant.path
        source = path.read_text(encoding="utf-8") if path.exists() else ""
        same = [
            mutant
            for mutant in mutants_of(old.path, source)
            if (mutant.mistake, mutant.before, mutant.after) == (old.mistake, old.before, old.after)
        ]
        if same:
            mutant = min(same, key=lambda mutant: abs(mutant.line - old.line))
            again[mutant] = verdict.by.partition("::")[0]
    return again


# ---- the trial ------------------------------------------------------------------------------------------------------


def try_out(mutant: Mutant, seconds: float, first: str = "") -> MutantVerdict:
    """Run the tests with the mutant in the checkout: first the test file `first`, then the files that name the mutant's module,
    then all others.

    seconds: the limit for all tests together. Ends the program if tests of the failing file also fail without the mutant.
    """
    path, begin = ROOT / mutant.path, time.monotonic()
    source = path.read_text(encoding="utf-8")
    path.write_text(planted(source, mutant), encoding="utf-8")
    try:
        earlier = [first] if first and (ROOT / first).exists() else []
        for chosen in (earlier, _naming(mutant.path), ["--since", "HEAD"]):
            left = seconds - (time.monotonic() - begin)
            failed = _first_failure(chosen, left) if chosen else None
            if failed is not None:
                verdict = MutantVerdict(mutant, "caught", time.monotonic() - begin, failed)
                path.write_text(source, encoding="utf-8")
                check_without_mutant(failed.partition("::")[0], seconds)
                return verdict
        return MutantVerdict(mutant, "survived", time.monotonic() - begin)
    except subprocess.TimeoutExpired:
        return MutantVerdict(mutant, "slow", time.monotonic() - begin)
    finally:
        path.write_text(source, encoding="utf-8")


@cache
def check_without_mutant(file: str, seconds: float) -> None:
    """End the program if a test of the file fails in the checkout as it is."""
    if (failed := _first_failure([file], seconds)) is not None:
        sys.exit(
            f"error: {failed} fails on this machine without a mutant too, so its failure says nothing about a mutant: mend "
            "the test or its surroundings, and run the benchmark again"
        )


def _naming(path: str) -> list[str]:
    """The test files of the default lane that name a module."""
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    words = (module, f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}")
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if any(word in file.read_text(encoding="utf-8") for word in words)]


def _first_failure(arguments: list[str], seconds: float) -> str | None:
    """The first test that fails, or a conftest.py that cannot be imported; None when all pass.

    Raises subprocess.TimeoutExpired after `seconds`, and ValueError when pytest itself could not run.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=max(seconds, 1)
    )
    if done.returncode in (0, 5):  # 5: no test was chosen
        return None
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if not failures and (
        broken := re.search(r"^ImportError while loading conftest '(.*)'", done.stderr, re.M)
    ):
        return Path(broken[1]).relative_to(ROOT).as_posix()
    if not failures:
        raise ValueError(f"pytest {' '.join(arguments)} did not run:\n{(done.stdout + done.stderr)[-2000:]}")
    return failures[0].partition(" ")[2].partition(" - ")[0]


# ---- the command ----------------------------------------------------------------------------------------------------


def main(words: list[str] | None = None) -> None:
    parser = documented_parser("mutants", __doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", type=Path)
    options = parser.parse_args(words)
    if options.again:
        earlier = _known(options.again)
        mutants = found_again(earlier.values())
        print(f"{len(earlier) - len(mutants)} of {len(earlier)} expressions no longer exist")
    else:
        mutants = dict.fromkeys(draw(options.count, options.seed), "")
    if options.list:
        print(*mutants, sep="\n")
        return
    if (installed := _installed()) != ROOT:
        sys.exit(
            f"error: this environment has the project of {installed}, so processes of tests would not see a mutant: run "
            "./lab test --co -q in this clone, and use the Python of its .venv"
        )
    if changes := _git("status", "--porcelain"):
        sys.exit(f"error: {ROOT} has changes that are not committed; run this in a clean clone:\n{changes}")
    verdicts = _known(options.json)
    # the tests' commit, not the library's
    description = described_run("python -m benchmarks.mutants", options) | {
        "commit": _git("rev-parse", "HEAD")
    }
    if verdicts and (of_file := json.loads(options.json.read_text())["commit"]) != description["commit"]:
        sys.exit(
            f"error: {options.json} has verdicts of commit {of_file}, and this is {description['commit']}: name another --json, with "
            f"--again {options.json} for the same mutants"
        )
    for mutant, first in mutants.items():
        if mutant not in verdicts:
            verdicts[mutant] = try_out(mutant, 60 * options.minutes, first)
            if options.json:
                records = [asdict(verdict) for verdict in verdicts.values()]
                write_result(options.json, description, records)
        verdict = verdicts[mutant]
        print(f"{verdict.outcome:8} {verdict.seconds:5.0f} s  {mutant}  {verdict.by}", flush=True)
    print(_summary([verdicts[mutant] for mutant in mutants]))


def _installed() -> Path:
    """The clone whose project this environment's processes import, from any folder."""
    command = [sys.executable, "-c", "import aligner_lib; print(aligner_lib.__file__)"]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=True)
    return Path(done.stdout.strip()).resolve().parents[1]


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _known(file: Path | None) -> dict[Mutant, MutantVerdict]:
    if file is None or not file.exists():
        return {}
    records = json.loads(file.read_text())["results"]
    verdicts = [MutantVerdict(**record | {"mutant": Mutant(**record["mutant"])}) for record in records]
    return {verdict.mutant: verdict for verdict in verdicts}


def _summary(verdicts: list[MutantVerdict]) -> str:
    caught = Counter(verdict.mutant.mistake for verdict in verdicts if verdict.outcome == "caught")
    planted_ = Counter(verdict.mutant.mistake for verdict in verdicts)
    rows = [f"{mistake:17} {caught[mistake]:3} of {planted_[mistake]}" for mistake in MISTAKES]
    total = f"{'caught':17} {caught.total():3} of {planted_.total()}"
    return "\n".join([*rows, f"{total} = {caught.total() / max(planted_.total(), 1):.2f}"])


if __name__ == "__main__":
    main()
