"""Make the notebooks from their sources, and fill in the pages' figures: `python notebooks/build.py` (`--check` only compares).

    python notebooks/build.py --record runs/tutorial-laptop-…/summary.json    take over a run's figures
    python notebooks/build.py --outputs runs/tutorial-laptop-…                and the outputs of its notebooks (outputs.py)

Sources are py:percent files in src/. `{{laptop.sft.val_loss_after}}` stands for a figure in recorded.json, which a run
of this project wrote, or in measured.toml; README.md and docs/ have `2.15<!--laptop.sft.val_loss_after-->` in its place
(figures.py), and `<!-- shows FILE -->` before a code block with the text of a file. `{{card}}` and `{{map}}` stand for a
notebook's card and its place in the pipeline. A cell tagged `solution` has the answer to an exercise, a function of its
name. The learner's notebooks have a stub in its place, with the signature and the docstring; the solved ones, in solved/,
have it. Above either stands what the exercise is.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))
from figures import fill_markers, fill_placeholders, read_figures
from outputs import key, outputs_of, record_outputs

from aligner_lib.errors import UserError
from aligner_lib.tutorial.exercises import registry
from aligner_lib.tutorial.exercises.exercise import Exercise

STAGES = {
    "00": ("00_start_here", "start"),
    "01": ("01_model", "model"),
    "02": ("02_data", "data"),
    "03": ("03_sft", "SFT"),
    "04": ("04_reward_model", "reward model"),
    "04b": ("04b_policy_gradients", "policy gradients"),
    "05": ("05_ppo", "PPO"),
    "06": ("06_dpo", "DPO"),
    "07": ("07_grpo", "GRPO"),
    "08": ("08_compare", "compare"),
}
# notebooks beside the way from a model to an aligned one
FURTHER = {
    "09": ("09_scale_out", "scale out"),
    "10": ("10_bug_hunt", "bug hunt"),
    "11": ("11_capstone", "RLHF in a hundred lines"),
    "12": ("12_attacked_judge", "your judge, attacked"),
    "13": ("13_llm_judge", "a language model as judge"),
    "14": ("14_tools", "call a tool"),
}
PROFILES = ("smoke", "laptop")


def build(source: Path, figures: dict, solved: bool = False) -> str:
    """The notebook of a source as JSON text, the learner's or the solved one: fixed cell ids; the solved one has recorded outputs.

    Raises UserError for a source without a line in STAGES or FURTHER, and as `exercise_of` does.
    """
    import jupytext
    from nbformat.v4 import new_markdown_cell

    number = source.stem.partition("_")[0]
    if number not in STAGES | FURTHER:
        raise UserError(
            f"{source.name}: STAGES and FURTHER in notebooks/build.py lack {number!r}: add a line to one of them"
        )
    text = source.read_text()
    text = text.replace("{{map}}", pipeline_map(number)).replace("{{card}}", card(source.stem, figures))
    text = fill_placeholders(text, figures, source.name)
    notebook = jupytext.reads(text, fmt="py:percent")
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in reversed(notebook.cells):
        if "solution" in cell.metadata.get("tags", []):
            exercise = exercise_of(cell.source, source.name)
            notebook.cells.insert(notebook.cells.index(cell), new_markdown_cell(task(exercise)))
            if not solved:
                cell.source, cell.metadata["tags"] = stub(cell.source, exercise), ["exercise"]
    recorded = outputs_of(source.stem) if solved else {}
    for index, cell in enumerate(notebook.cells):
        if solved:  # a folder deeper
            cell.source = re.sub(r"""(?<=["'(])\.\./""", "../../", cell.source)
            # papermill starts the kernel in any folder, so the folder's name alone does not tell that the notebook is solved
            cell.source = re.sub(r"(Workspace\(out, [^)\n]*)\)", r"\1, solved=True)", cell.source)
        if cell.cell_type == "code":
            cell.outputs = recorded.get(key(cell.source), [])
        cell["id"] = f"{number}-{index:02d}"
        cell.metadata = {"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {}
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            cell.metadata["slideshow"] = {"slide_type": "slide"}  # for `jupyter nbconvert --to slides`
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def exercise_of(solution: str, source: str) -> Exercise:
    """The exercise of a solution's cell. source: the file's name, for errors.

    Raises UserError unless the cell ends with a function that has an exercise's name and a docstring.
    """
    function = ast.parse(solution).body[-1]
    if not isinstance(function, ast.FunctionDef):
        raise UserError(
            f"{source}: the solution ends with `{ast.unparse(function)}`: end the cell with the exercise's function"
        )
    if ast.get_docstring(function) is None:
        raise UserError(
            f"{source}: {function.name} needs a docstring with its shapes, after which the learner's notebook ends the function"
        )
    try:
        return registry.exercise(function.name)
    except UserError as error:
        raise UserError(
            f"{source}: {error}. A new module's number has to be in NOTEBOOKS of registry.py"
        ) from None


def task(exercise: Exercise) -> str:
    """What stands above an exercise: what it is, how long it takes, how hard it is, and a hint that unfolds."""
    difficulty = "●" * exercise.difficulty + "○" * (5 - exercise.difficulty)
    trains = " · trains the model" if exercise.trains else ""
    return (
        f"### Yours to write: {exercise.title}\n\n"
        f"`{exercise.name}` · about {exercise.minutes} minutes · difficulty {difficulty}{trains}\n\n"
        f"<details><summary>A hint</summary>\n\n{exercise.hint}\n\n</details>"
    )


def stub(solution: str, exercise: Exercise) -> str:
    """The solution's cell with its last function's body gone, all but the docstring."""
    function = ast.parse(solution).body[-1]
    kept = solution.splitlines()[: function.body[0].end_lineno]
    return "\n".join([*kept, f'    raise NotImplementedError("{exercise.stub}")'])


def pipeline_map(number: str) -> str:
    """The stages in order, the current one in bold; what lies beside the way stands at its end."""
    words = [
        f"**{name}**" if stage == number else f"[{name}]({file}.ipynb)"
        for stage, (file, name) in STAGES.items()
    ]
    return " → ".join(words) + (f" · **{FURTHER[number][1]}**" if number in FURTHER else "")


def card(stem: str, figures: dict) -> str:
    """Run time and memory of a notebook as measured, a row a profile; "" for a notebook that no profile has measured."""
    rows = []
    for profile in PROFILES:
        run = figures[profile]
        if stem not in run["seconds"]:
            continue  # not measured with this profile yet
        rows.append(f"# | `{profile}` | {run['seconds'][stem]:.0f} s | {run['memory_gib'][stem]:.1f} GiB |")
    head = ["| profile | run time | largest process |", "# | --- | --- | --- |"]
    return "\n".join([*head, *rows] if rows else [])


def documents() -> dict[Path, str]:
    """What is made, as it should be: each notebook, and each page with its figures."""
    figures = read_figures(ROOT)
    made = {}
    for source in sorted((HERE / "src").glob("[0-9]*.py")):
        for folder in (HERE, HERE / "solved"):
            made[folder / f"{source.stem}.ipynb"] = build(source, figures, solved=folder != HERE)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        made[page] = fill_examples(fill_markers(page.read_text(encoding="utf-8"), figures, page.name))
    return made


def fill_examples(page: str) -> str:
    """A page with the present text of every file that it shows: a code block behind `<!-- shows FILE -->`."""
    shown = re.compile(r"<!-- shows (\S+) -->\n```(\w+)\n.*?```\n", re.DOTALL)

    def block(match: re.Match) -> str:
        text = (ROOT / match[1]).read_text(encoding="utf-8")
        return f"<!-- shows {match[1]} -->\n```{match[2]}\n{text}```\n"

    return shown.sub(block, page)


def main(check: bool) -> int:
    try:
        made = documents()
    except UserError as error:
        sys.exit(f"notebooks/build.py: {error}")
    stale = [path for path, text in made.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in [] if check else stale:
        path.parent.mkdir(exist_ok=True)
        path.write_text(made[path], encoding="utf-8")
    if stale:
        names = ", ".join(str(path.relative_to(ROOT)) for path in stale)
        print(("not current: " if check else "written: ") + names)
    return 1 if check and stale else 0


def record(summary: Path, path: Path = HERE / "recorded.json") -> None:
    """Put a tutorial's summary into recorded.json, under its profile; what it did not run stays as it was."""
    figures = json.loads(summary.read_text())
    recorded = json.loads(path.read_text())
    before = recorded.setdefault(figures["profile"], {})
    for of_each_notebook in ("parameters", "seconds", "memory_gib"):
        figures[of_each_notebook] = before.get(of_each_notebook, {}) | figures.get(of_each_notebook, {})
    figures["peak_memory_gib"] = max(figures["memory_gib"].values())
    before |= figures
    path.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    if "--record" in sys.argv:
        record(Path(sys.argv[sys.argv.index("--record") + 1]))
    if "--outputs" in sys.argv:
        tutorial = Path(sys.argv[sys.argv.index("--outputs") + 1])
        root = tutorial.resolve().parents[1]
        if not (root / "notebooks" / "build.py").exists():
            sys.exit(
                f"{tutorial} is not in the folder `runs` of a checkout, whose place the outputs must not name"
            )
        record_outputs(tutorial, root)
    sys.exit(main("--check" in sys.argv))
