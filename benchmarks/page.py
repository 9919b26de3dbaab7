"""`python -m benchmarks.page`: writes the kept figures of benchmarks/results/ into docs/performance.md, between its two marks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aligner_lib.config.generated_page import GeneratedPage
from benchmarks.kept import RESULTS
from benchmarks.options import documented_parser

PAGE = GeneratedPage("docs/performance.md", "benchmarks/page.py")
PRECISIONS = {"32": "float32", "bf16": "bf16"}


def read_results(folder: Path = RESULTS) -> list[dict]:
    """All kept files, in the order of their names."""
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]


def tables(files: Sequence[dict]) -> str:
    """A table for each machine and model: a row for each side beside Aligner Lab, a column for each precision."""
    by_place: dict[tuple, list[dict]] = {}
    for file in files:
        if comparisons(file):
            by_place.setdefault(place(file), []).append(file)
    return "\n\n".join(table(of_one_place) for of_one_place in by_place.values())


def comparisons(file: dict) -> list[dict]:
    """The file's comparisons of speeds. Other figures of a file have no sides."""
    return [result for result in file.get("results", []) if "sides" in result]


def place(file: dict) -> tuple:
    """What the files of a table have in common."""
    machine = file["machine"]
    return file["model"], machine["gpu"] or machine["processor"], file["threads"], file["clock"]


def table(files: Sequence[dict]) -> str:
    """The table of one machine and model, under a line that says how the figures were measured.

    Raises ValueError for two files with figures of the same cell.
    """
    precisions = [name for name in PRECISIONS if any(file["precision"] == name for file in files)]
    cells: dict[tuple[str, str], dict[str, str]] = {}
    aims: dict[tuple[str, str], str] = {}
    for file in files:
        for result in comparisons(file):
            for number, side in enumerate(result["sides"][1:]):
                settings = side["settings"].removeprefix("… and ")
                row = (
                    result["name"],
                    side["name"] if settings in result["name"] else f"{side['name']}: {settings}",
                )
                ratios = cells.setdefault(row, {})
                if file["precision"] in ratios:
                    raise ValueError(
                        f"two files of {RESULTS.name}/ have {' beside '.join(row)} in {PRECISIONS[file['precision']]}: "
                        "remove the older file"
                    )
                ratios[file["precision"]] = f"{side['ours_is_times_as_fast']:.2f}"
                if number == 0 and result["aim"]:
                    aims[row] = f"{result['aim']:g}"
    lines = [
        caption(files),
        "",
        line(["", "beside", *(PRECISIONS[name] for name in precisions), "aim"]),
        line(["---"] * (3 + len(precisions))),
    ]
    for (name, side), ratios in cells.items():
        shown = [ratios.get(precision, "") for precision in precisions]
        lines.append(line([name, side, *shown, aims.get((name, side), "")]))
    return "\n".join(lines)


def caption(files: Sequence[dict]) -> str:
    """The model, the machine and the versions."""
    model, device, threads, clock = place(files[0])
    counted = "CPU time" if clock == "cpu" else "wall-clock time"
    units = ", ".join(files[0]["machine"]["units"])
    dates = sorted({file["date"] for file in files})
    commits = sorted({file["commit"] for file in files})
    libraries: dict[str, set[str]] = {}
    for file in files:
        for name, number in file["versions"].items():
            libraries.setdefault(name, set()).add(number)
    parts = [
        model,
        f"{threads} thread" + ("" if threads == 1 else "s"),
        counted,
        f"{device} ({units})" if units else device,
        " to ".join(dict.fromkeys((dates[0], dates[-1]))),
        f"commit {', '.join(commits)}",
        *(f"{name} {', '.join(sorted(numbers))}" for name, numbers in libraries.items()),
    ]
    return "; ".join(parts) + "."


def line(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def main(words: list[str] | None = None) -> None:
    documented_parser("page", __doc__).parse_args(words)
    PAGE.update(tables(read_results()))


if __name__ == "__main__":
    main()
