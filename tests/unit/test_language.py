"""The prose of notebooks, pages and docstrings names things: pronouns are rare, and a notebook's cell holds a single short idea.

1.4 to 3.4 of 100 words in rlhf-book can hide a noun. "that" is counted as a conjunction, too: counting cannot tell the two
apart, and the limit leaves room for it.
"""

import ast
import io
import re
import tokenize
from pathlib import Path
from typing import NamedTuple

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


class Texts(NamedTuple):
    """The words of a module."""

    explanations: str
    """Docstrings of modules, classes, functions and fields, and comments."""
    messages: list[str]
    """The text of each raise statement, without the expressions in the text."""
    names: list[str]
    """Variables and arguments."""


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def texts_of(source: str) -> Texts:
    nodes = list(ast.walk(ast.parse(source)))
    docstrings = [node.value.value for node in nodes if isinstance(node, ast.Expr) and is_text(node.value)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline) if "#" in source else []
    comments = [token.string for token in tokens if token.type == tokenize.COMMENT]
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise) and node.exc is not None]
    messages = [" ".join(part.value for part in ast.walk(error) if is_text(part)) for error in raised]
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    return Texts("\n".join([*docstrings, *comments]), messages, names)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_comments_messages_and_variables_name_things(package):
    texts = {
        path.relative_to(ROOT).as_posix(): texts_of(path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / package).rglob("*.py"))
    }
    explained = {path: of_file.explanations for path, of_file in texts.items()}
    rates = {path: round(rate(text), 1) for path, text in explained.items() if len(words(text)) >= 80}
    assert rates, f"no docstring of {package} was read"
    assert [(path, of_file) for path, of_file in rates.items() if of_file > MOST_OF_100_WORDS] == []
    messages = [message for of_file in texts.values() for message in of_file.messages]
    assert rate("\n".join(messages)) <= MOST_OF_100_WORDS, sorted(messages, key=rate)[-3:]
    unclear = {path: NO_NAMES.intersection(of_file.names) for path, of_file in texts.items()}
    assert {path: names for path, names in unclear.items() if names} == {}
