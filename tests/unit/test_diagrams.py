"""The notebooks' diagrams: every part has its place, and a reader of either theme sees it."""

import re
from pathlib import Path

import pytest

from aligner_lib.tutorial import Diagram
from aligner_lib.tutorial.displays.diagram import BOX, TOKEN_HEIGHT, diagrams

ROOT = Path(__file__).parents[2]
SHOWN = re.compile(r'^Diagram\("([\w-]+)"\)$', re.MULTILINE)
WIDTH_OF_A_LETTER = 7.8  # pixels at most, on average, of a letter 14 pixels high


def boxes_of(parts: dict) -> list[tuple[str, float, float, float, float]]:
    """Text, left, top, width and height of each box and each token."""
    boxes = [(box["text"], *box["at"], *box.get("size", BOX)) for box in parts.get("boxes", ())]
    for strip in parts.get("tokens", ()):
        left, top = strip["at"]
        for number, text in enumerate(strip["texts"]):
            boxes.append((text, left + (strip["width"] + 4) * number, top, strip["width"], TOKEN_HEIGHT))
    return boxes


def letters(text: str) -> int:
    """Of the longest line, without the marks of subscripts."""
    return max(len(re.sub(r"_\{(\w+)\}", r"\1", line)) for line in text.split("\n"))


@pytest.mark.parametrize("name", diagrams())
def test_every_box_lies_inside_holds_its_text_and_touches_no_other(name):
    diagram = Diagram(name)
    width, height = diagram.size
    boxes = boxes_of(diagram.parts)
    assert boxes
    for number, (text, left, top, wide, high) in enumerate(boxes):
        assert left >= 0 and left + wide <= width and top >= 0 and top + high <= height, text
        assert letters(text) * WIDTH_OF_A_LETTER <= wide, text
        for other, x, y, of_other, high_other in boxes[number + 1 :]:
            apart = x >= left + wide or left >= x + of_other or y >= top + high or top >= y + high_other
            assert apart, (text, other)


def test_every_notebook_shows_a_diagram_and_every_diagram_is_shown():
    shown = {
        path.name: SHOWN.findall(path.read_text()) for path in (ROOT / "notebooks" / "src").glob("[0-9]*.py")
    }
    assert len(shown) == 16 and all(shown.values()), shown
    assert sorted(name for names in shown.values() for name in names) == sorted(diagrams())


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
