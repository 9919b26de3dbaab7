"""The notebooks' diagrams: each is shown, and its numbers are right."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from aligner_lib.tutorial import Diagram
from aligner_lib.tutorial.displays.diagram import diagrams

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r'^Diagram\("([\w-]+)"\)$', re.MULTILINE)


def test_every_notebook_shows_a_diagram_and_every_diagram_is_shown():
    shown = {
        path.name: SHOWN.findall(path.read_text()) for path in (ROOT / "notebooks" / "src").glob("[0-9]*.py")
    }
    assert len(shown) == 16 and all(shown.values()), shown
    assert sorted(name for names in shown.values() for name in names) == sorted(diagrams())
    for diagram in map(Diagram, diagrams()):  # each is drawn, and a screen reader has words
        assert ElementTree.fromstring(diagram._repr_html_()).get("aria-label") == repr(diagram)


def test_the_numbers_and_subscripts_of_a_diagram_are_right():
    penalty, reward, together = (bars["values"] for bars in Diagram("token-rewards").parts["bars"])
    assert penalty == [-0.5 * kl for kl in (0.2, 0.0, 0.4)] and reward == [0, 0, 1.0]
    assert together == [pytest.approx(a + b) for a, b in zip(penalty, reward)]
    drawn = Diagram("dpo").svg()  # with subscripts
    assert "_{" not in drawn and ">ref</tspan>" in drawn


def test_the_drawing_of_the_readme_is_that_of_the_first_notebook():
    command = "python -m aligner_lib.tutorial.displays.diagram pipeline > docs/pipeline.svg"
    drawn = Diagram("pipeline").svg(on_paper=True) + "\n"
    assert (ROOT / "docs" / "pipeline.svg").read_text() == drawn, f"run `{command}`"
