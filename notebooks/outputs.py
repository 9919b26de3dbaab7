"""The outputs of the solved notebooks, so that the repository's pages show the course.

`src/outputs/NN_name.json` has the outputs of each code cell by the hash of its source: a cell whose source changes loses its outputs.
Kept is what needs no kernel: printed text, tables, and pictures of few colours. Places of the machine are left out.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import socket
from collections.abc import Iterable
from pathlib import Path

OUTPUTS = Path(__file__).parent / "src" / "outputs"
KINDS = ("text/html", "image/png", "text/markdown", "text/latex", "text/plain")
LARGEST = 130_000  # characters of a table or a picture
COLOURS = 64


def outputs_of(stem: str) -> dict[str, list[dict]]:
    """The outputs of a notebook's cells, by `key`; none for a notebook that was not recorded."""
    path = OUTPUTS / f"{stem}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def key(source: str) -> str:
    """Of a code cell's source in a solved notebook."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:16]


def record_outputs(tutorial: Path, root: Path) -> list[Path]:
    """Take over the outputs of a tutorial's executed notebooks, and return the files that were written.

    tutorial: a folder of `aligner tutorial`; root: the project whose notebooks it executed.
    """
    OUTPUTS.mkdir(exist_ok=True)
    places = {
        str(tutorial.resolve()): f"runs/{tutorial.name}",
        str(root.resolve()): ".",
        str(Path.home()): "~",
    }
    paths = []
    for executed in sorted((tutorial / "notebooks").glob("[0-9]*.ipynb")):
        notebook = _without(places, json.loads(executed.read_text(encoding="utf-8")))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        kept = {
            key("".join(cell["source"])): shown
            for cell in cells
            if (shown := _joined(filter(None, map(static, cell["outputs"]))))
        }
        paths.append(OUTPUTS / f"{executed.stem}.json")
        paths[-1].write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return paths


def _without(places: dict[str, str], value, kind: str = ""):
    """A value of JSON whose texts name neither a place nor this host. A picture in base 64 is no text: it may contain "vm"."""
    if isinstance(value, dict):
        return {key: _without(places, part, key) for key, part in value.items()}
    if isinstance(value, list):
        return [_without(places, part, kind) for part in value]
    if not isinstance(value, str) or kind == "image/png":
        return value
    for place, name in places.items():
        value = value.replace(place, name)
    return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "localhost", value)


def _joined(outputs: Iterable[dict]) -> list[dict]:
    """The outputs, with printed text in one piece: how many pieces a kernel sends depends on the moment."""
    joined: list[dict] = []
    for output in outputs:
        if joined and joined[-1]["output_type"] == output["output_type"] == "stream":
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def static(output: dict) -> dict | None:
    """An output as far as it needs no kernel; None for warnings, and for an output of which nothing is left."""
    if output["output_type"] == "stream":
        return None if output["name"] == "stderr" else {**output, "text": "".join(output["text"])}
    data = {
        kind: value
        for kind in KINDS
        if kind in output.get("data", {})
        and len(value := _small(kind, "".join(output["data"][kind]))) <= LARGEST
    }
    if not data or (data.keys() == {"text/plain"} and len(output["data"]) > 1):
        return None  # the name of a widget, or of a table that is too large
    return {"output_type": "display_data", "metadata": {}, "data": data}


def _small(kind: str, value: str) -> str:
    if kind != "image/png":
        return value
    from PIL import Image

    picture, file = Image.open(io.BytesIO(base64.b64decode(value))), io.BytesIO()
    picture.convert("RGB").quantize(COLOURS).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()
