"""The way from a downloaded model to an aligned one, as a drawing. It takes the colour of the text around it.

python -m aligner_lib.tutorial.displays.pipeline_drawing > docs/pipeline.svg
"""

from __future__ import annotations

from html import escape

WIDTH, HEIGHT = 912, 320
BOX = (122, 42)  # width and height
WORDS = (
    "SFT trains a downloaded model on good answers (1). The SFT policy is trained on pairs of answers and becomes a reward "
    "model (2). PPO (3) has four models. The actor starts as the SFT policy, and the reference is a frozen copy of the SFT "
    "policy. The critic starts as the reward model, and a frozen copy of the reward model gives the rewards. The actor "
    "writes responses. Rewards, KL and values come back and update the actor. After many steps the actor is the aligned policy."
)
BOXES = {  # name: (left, top, whether it is trained there)
    "model": (10, 60, None),
    "SFT policy": (205, 60, True),
    "reward model": (205, 205, True),
    "actor": (406, 113, True),
    "reference": (626, 60, False),
    "reward model ": (626, 160, False),
    "critic": (626, 230, True),
    "aligned policy": (784, 113, None),
}
ARROWS = (  # (path, what it says, where)
    ("M132 81H203", "1 · SFT", (168, 70)),
    ("M266 102V203", "2 · pairs", (300, 153)),
    ("M327 74H624", "copy", (467, 64)),
    ("M327 92 404 122", "start", (352, 117)),
    ("M327 219H570C590 219 590 181 624 181", "copy", (467, 209)),
    ("M327 235H570C590 235 600 251 624 251", "start", (467, 247)),
    ("M528 126H608", "responses", (566, 116)),
    ("M608 146H530", "rewards, KL,", (567, 159)),
    ("", "values", (567, 173)),
    ("M766 134H782", "", (0, 0)),
)
STYLE = """
.lab-pipeline { max-width: 912px; width: 100%; display: block; font: 14px system-ui, sans-serif; }
.lab-pipeline text { fill: currentColor; text-anchor: middle; dominant-baseline: central; }
.lab-pipeline .said { font-size: 12px; opacity: .85; }
.lab-pipeline .left { text-anchor: start; }
.lab-pipeline rect { fill: none; stroke: currentColor; stroke-opacity: .65; stroke-width: 1.3; }
.lab-pipeline .trained { fill: #e69f00; fill-opacity: .32; }
.lab-pipeline .frozen { fill: #2b8cc4; fill-opacity: .25; stroke-dasharray: 2 3; }
.lab-pipeline .stage { stroke-dasharray: 7 5; stroke-opacity: .5; }
.lab-pipeline path { fill: none; stroke: currentColor; stroke-width: 1.5; stroke-opacity: .75; }
.lab-pipeline .head { fill: currentColor; fill-opacity: .75; stroke: none; }
"""
ON_PAPER = (
    '<rect width="100%" height="100%" style="fill: #fff; stroke: none"/>'  # for pages of unknown colour
)


class PipelineDrawing:
    """Boxes of what is trained and what is frozen, and how they make each other; shown in a notebook."""

    def svg(self, on_paper: bool = False) -> str:
        """The drawing as SVG. on_paper: dark on white, as a file of its own."""
        style = STYLE.replace("currentColor", "#20303f") if on_paper else STYLE
        boxes = "".join(_box(name, *place) for name, place in BOXES.items())
        arrows = "".join(_arrow(*arrow) for arrow in ARROWS)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="lab-pipeline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
            f'aria-label="{escape(WORDS)}"><style>{style}</style>{ON_PAPER if on_paper else ""}<defs><marker id="lab-head" '
            'viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            f'<path class="head" d="M0 0 8 4 0 8z"/></marker></defs>{_stage()}{boxes}{arrows}{_legend()}</svg>'
        )

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        return WORDS


def _box(name: str, left: int, top: int, trained: bool | None) -> str:
    width, height = BOX
    kind = {True: "trained", False: "frozen", None: ""}[trained]
    middle = f'x="{left + width / 2:g}" y="{top + height / 2:g}"'
    return (
        f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}" rx="8"/>'
        f"<text {middle}>{escape(name.strip())}</text>"
    )


def _arrow(path: str, words: str, at: tuple[int, int]) -> str:
    line = f'<path d="{path}" marker-end="url(#lab-head)"/>' if path else ""
    text = f'<text class="said" x="{at[0]}" y="{at[1]}">{escape(words)}</text>' if words else ""
    return line + text


def _stage() -> str:
    """PPO's frame, and inside a frame around reference, reward model and critic."""
    return (
        '<rect class="stage" x="391" y="14" width="375" height="274" rx="12"/><text class="left" x="406" y="34">3 · PPO</text>'
        '<rect class="stage" x="612" y="46" width="146" height="236" rx="10"/>'
    )


def _legend() -> str:
    swatches = ""
    for x, kind, words in ((10, "trained", "trained"), (150, "frozen", "frozen copy")):
        swatches += f'<rect class="{kind}" x="{x}" y="296" width="18" height="14" rx="3"/>'
        swatches += f'<text class="said left" x="{x + 25}" y="303">{words}</text>'
    return swatches


if __name__ == "__main__":
    print(PipelineDrawing().svg(on_paper=True))
