"""The table of formats in docs/data.md is what the conversion of these files gives today."""

import format_table


def test_the_page_has_the_measured_table():
    page = format_table.PAGE.read_text(encoding="utf-8")
    assert format_table.BEGIN in page
    assert format_table.page_with(format_table.table(), page) == page, "run python tests/data/format_table.py"
    # of a desirable and an undesirable answer SFT learns one, KTO both
    assert "| labelled answers | 1/2/2 | an undesirable answer |" in page
