"""The table of formats in docs/data.md is what the conversion of these files gives today."""

import format_table
import pytest


def test_the_page_has_the_measured_table():
    page = format_table.PAGE.read_text(encoding="utf-8")
    assert format_table.BEGIN in page
    assert format_table.page_with(format_table.table(), page) == page, "run python tests/data/format_table.py"


def test_a_known_row_by_hand():
    (row,) = [line for line in format_table.table().splitlines() if "labels.csv" in line]
    # of a desirable and an undesirable answer SFT learns one, KTO both
    assert row.endswith("| labelled answers | 1/2/2 | an undesirable answer |")


def test_help_writes_no_page(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(format_table, "PAGE", tmp_path / "absent")
    with pytest.raises(SystemExit, match="0"):
        format_table.main(["--help"])
    assert "the table into the page" in " ".join(capsys.readouterr().out.split())
