"""The prose of notebooks, pages and docstrings names things: pronouns are rare, and a notebook's cell holds a single short idea.

1.4 to 3.4 of 100 words in rlhf-book can hide a noun. "that" is counted as a conjunction, too: counting cannot tell the two
apart, and the limit leaves room for it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "notebooks" / "src").glob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("aligner_lib", "benchmarks", "cluster", "data", "widgets")
NO_NAMES = {"asked", "found", "it", "nobody", "one", "ones", "said", "that", "those", "told", "wanted"}
HIDES_A_NOUN = {"it", "that", "this", "one", "what", "those", "such", "nobody"}
MOST_OF_100_WORDS = 3.4
MOST_WORDS_IN_A_CELL = 250
NO_PROSE = (  # in the order in which they are removed
    r"(?s)<!-- made by .*?<!-- until here -->",  # tables, from the texts of metrics and exercises
    r"(?s)<!--.*?-->",
    r"(?s)```.*?```",  # diagrams
    r"(?s)\$\$.*?\$\$",
    r"\$[^$]*\$",
    r"`[^`]*`",
    r"\{\{.*?\}\}",  # figures, the card and the map, which the build fills in
    r"(?<=\])\([^)]*\)",  # addresses of links
)


def prose_cells(source: str) -> list[str]:
    """The Markdown cells of a notebook's py:percent source."""
    headers_and_bodies = re.split(r"(?m)^# %%(.*)$", source)[1:]
    return [
        "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
        for header, body in zip(headers_and_bodies[::2], headers_and_bodies[1::2])
        if "[markdown]" in header
    ]


def words(prose: str) -> list[str]:
    for pattern in NO_PROSE:
        prose = re.sub(pattern, " ", prose)
    return re.findall(r"[a-z]+(?:['’-][a-z]+)*", prose.lower())


def rate(prose: str) -> float:
    """How many of 100 words can hide a noun."""
    counted = words(prose)
    return 100 * sum(word in HIDES_A_NOUN for word in counted) / max(len(counted), 1)


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_prose_names_things_in_cells_of_at_most_250_words(path):
    text = path.read_text(encoding="utf-8")
    cells = [text] if path.suffix == ".md" else prose_cells(text)
    paragraphs = [text for cell in cells for text in re.split(r"\n\s*\n", cell)]
    worst = max((text for text in paragraphs if len(words(text)) >= 20), key=rate, default="")
    of_all = rate("\n".join(cells))
    assert of_all <= MOST_OF_100_WORDS, (
        f"{path.name}: {of_all:.1f} of 100 words are pronouns or indefinites ({', '.join(sorted(HIDES_A_NOUN))}); at most "
        f"{MOST_OF_100_WORDS} may be. Name the things instead, first in this paragraph ({rate(worst):.0f}):\n\n{worst}"
    )
    if path.suffix == ".py":
        lengths = {cell.splitlines()[0]: len(words(cell)) for cell in cells}
        assert max(lengths.values()) <= MOST_WORDS_IN_A_CELL, f"{path.name}: {lengths}"


def docstrings_and_comments(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def test_docstrings_of_classes_and_fields_and_comments_are_read():
    source = '"""Module."""\nclass A:\n    x: int  # comment\n    """Field."""\nname = "no docstring"\n'
    assert [*docstrings_and_comments(source)] == ["Module.", "Field.", "# comment"]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_and_comments_name_things(package):
    texts = {
        path.relative_to(ROOT).as_posix(): "\n".join(
            docstrings_and_comments(path.read_text(encoding="utf-8"))
        )
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    rates = {path: round(rate(text), 1) for path, text in texts.items() if len(words(text)) >= 80}
    assert {path: of_file for path, of_file in rates.items() if of_file > MOST_OF_100_WORDS} == {}, (
        "name the things"
    )


def messages(source: str) -> Iterator[str]:
    """The text of every raise statement, without the expressions in the text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            parts = [
                part.value
                for part in ast.walk(node.exc)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
            yield " ".join(parts)


def test_messages_are_read_with_every_part_of_a_text():
    source = 'raise ValueError(f"size={size}: it is 0; " + "set 1")\nraise\nnote = "no message"\n'
    assert [text.split() for text in messages(source)] == [["set", "1", "size=", ":", "it", "is", "0;"]]


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_of_errors_name_things(package):
    texts = [
        text
        for path in sorted((ROOT / package).rglob("*.py"))
        for text in messages(path.read_text(encoding="utf-8"))
    ]
    of_all, worst = rate("\n".join(texts)), sorted(texts, key=rate)[-3:]
    assert of_all <= MOST_OF_100_WORDS, (
        f"{of_all:.1f} of 100 words in the messages of {package} hide a noun, most in {worst}"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_variables_are_named_after_their_content(package):
    named = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno}": name
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (name := getattr(node, "arg" if isinstance(node, ast.arg) else "id", "")) in NO_NAMES
    }
    assert named == {}
