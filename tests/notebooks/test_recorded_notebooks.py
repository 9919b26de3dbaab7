"""Notebooks 10, 12 and 13 with the smoke profile, as a user runs them. They play recordings, and train nothing by default."""

import json

from tutorial_runs import run_tutorial, runs_notebooks

from aligner_lib.tutorial.exercises.registry import exercises


@runs_notebooks
def test_the_notebooks_that_play_recordings_run_to_their_ends(tmp_path):
    run_tutorial(tmp_path, "--only", "10,12,13")
    shown = "".join(path.read_text() for path in (tmp_path / "notebooks").glob("*.ipynb"))
    own = [name for name, exercise in exercises().items() if exercise.notebook in ("10", "12", "13")]
    assert own and all(f"✓ {name}: passed" in shown for name in own)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["attack"]["naive"]["good"] < summary["attack"]["naive"]["reward"], "the judge is fooled"
    assert summary["judge"].keys() == {"before", "after"}
    assert not (tmp_path / "runs").exists()
