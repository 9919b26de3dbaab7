"""The table of formats in docs/data.md, measured: small files in each format are converted, and the report is counted.

`python tests/data/format_table.py` writes the table into the page.
"""

from __future__ import annotations

import csv
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pyarrow.parquet

from data import DataError, convert
from data.convert import TARGETS

PAGE = Path(__file__).parents[2] / "docs" / "data.md"
BEGIN, END = "| file | columns |", "\n\n"
Q, GOOD, BAD = "What is the sea?", "Salt water.", "No idea."


def _turns(*texts: str) -> list[dict]:
    return [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(texts)]


def _sharegpt(*texts: str) -> list[dict]:
    return [{"from": ("human", "gpt")[n % 2], "value": text} for n, text in enumerate(texts)]


def _hh(answer: str) -> str:
    return f"\n\nHuman: {Q}\n\nAssistant: {answer}"


PAIR = {"prompt": Q, "chosen": GOOD, "rejected": BAD}
# small files: two rows each, of which the second usually has a fault
FORMATS = {
    "pairs.parquet": [PAIR, PAIR | {"chosen": " "}],
    "turns.arrow": [{"chosen": _turns(Q, GOOD), "rejected": _turns(Q, BAD)}, {"chosen": _turns(Q, GOOD), "rejected": _turns("Why?", BAD)}],
    "hh.jsonl.gz": [{"chosen": _hh(GOOD), "rejected": _hh(BAD)}, {"chosen": _hh(GOOD), "rejected": _hh(" ")}],
    "instructions.jsonl": [{"instruction": Q, "chosen": GOOD, "rejected": BAD}, {"instruction": Q, "chosen": GOOD, "rejected": GOOD}],
    "orca_pairs.jsonl": [{"system": "", "question": Q, "chosen": GOOD, "rejected": BAD}, {"system": "Be brief.", "question": " ", "chosen": GOOD, "rejected": BAD}],
    "nemo.jsonl": [{"prompt": Q, "chosen_response": GOOD, "rejected_response": BAD}, {"prompt": Q, "chosen_response": "", "rejected_response": BAD}],
    "labels.csv": [{"prompt": Q, "completion": GOOD, "label": True}, {"prompt": "Why?", "completion": BAD, "label": False}],
    "helpsteer.jsonl": [{"prompt": Q, "response": text, "helpfulness": score} for text, score in ((GOOD, 4), (BAD, 1))],
    "ultrafeedback.json": [{"instruction": question, "completions": [{"response": BAD, "overall_score": 5}, {"response": GOOD, "overall_score": score}]} for question, score in ((Q, 8), ("Why?", 5))],
    "chat.jsonl": [{"messages": _turns(Q, GOOD)}, {"messages": _turns("Why?")}],
    "tools.jsonl": [{"messages": [*_turns(Q), {"role": "assistant", "tool_calls": [{"function": {"name": "look_up", "arguments": arguments}}]}, {"role": "tool", "content": GOOD}, {"role": "assistant", "content": GOOD}], "tools": [{"type": "function", "function": {"name": "look_up"}}]} for arguments in ({"word": "sea"}, "sea")],
    "sharegpt.json": [{"conversations": _sharegpt(Q, GOOD)}, {"conversations": [{"from": "critic", "value": "4"}]}],
    "calls.json": [{"conversations": [*_sharegpt(Q), {"from": "function_call", "value": call}, {"from": "observation", "value": GOOD}, {"from": "gpt", "value": GOOD}], "tools": '[{"name": "look_up"}]'} for call in ('{"name": "look_up", "arguments": {"word": "sea"}}', "look_up(sea)")],
    "alpaca.json": [{"instruction": "What is", "input": "the sea?", "output": GOOD}, {"instruction": Q, "input": "", "output": " "}],
    "dolly.jsonl": [{"instruction": Q, "context": "", "response": GOOD}, {"instruction": Q, "context": "The sea.", "response": None}],
    "completions.jsonl": [{"prompt": Q, "completion": GOOD}, {"prompt": Q, "completion": GOOD}],
    "orca.parquet": [{"system_prompt": "Be brief.", "question": Q, "response": GOOD}, {"system_prompt": "", "question": Q, "response": " "}],
    "problems.tsv": [{"problem": "1 + 1?", "solution": "2"}, {"problem": "1 + 2?", "solution": " "}],
    "trl.jsonl": [{"prompt": _turns(Q), "completion": [{"role": "assistant", "tool_calls": [{"function": {"name": "look_up", "arguments": {"word": "sea"}}}]}, {"role": "tool", "content": GOOD}, {"role": "assistant", "content": answer}], "tools": [{"type": "function", "function": {"name": "look_up"}}]} for answer in (GOOD, " ")],
    "prompts.csv": [{"prompt": Q}, {"prompt": " "}],
}  # fmt: skip


def write(path: Path, rows: list[dict]) -> None:
    """Write rows in the format of the file's name."""
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if path.suffix in (".parquet", ".arrow"):
        table = pyarrow.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, path)
            return
        with pyarrow.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table)
    elif path.suffix in (".csv", ".tsv"):
        with path.open("w", newline="", encoding="utf-8-sig") as stream:
            writer = csv.DictWriter(stream, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode()))
    else:
        path.write_text(f"\n{json.dumps(rows, indent=1)}\n" if path.suffix == ".json" else lines)


def measured(folder: Path) -> Iterator[list[str]]:
    """The cells of each format's row. folder: for the files."""
    for name, rows in FORMATS.items():
        write(folder / name, rows)
        kept, left_out, form = [], {}, ""
        for to in TARGETS:
            try:
                result = convert(folder / name, folder / to, to, validation_fraction=0)
            except DataError:
                kept.append("–")
                continue
            kept.append(str(result.report.kept))
            left_out |= dict.fromkeys(result.report.skipped)
            form = result.form.name
        columns = ", ".join(f"`{column}`" for column in rows[0])
        yield [f"`{name}`", columns, form, "/".join(kept), ", ".join(left_out) or "–"]


def table() -> str:
    """The table in Markdown."""
    head = ["file", "columns", "recognised as", "rows", "left out"]
    with tempfile.TemporaryDirectory() as folder:
        rows = [head, ["---"] * len(head), *measured(Path(folder))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page_with(new: str, page: str) -> str:
    """The page with a new table."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{new}{END}{rest.partition(END)[2]}"


def main() -> None:
    PAGE.write_text(page_with(table(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
