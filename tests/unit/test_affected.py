"""`./lab test --since REF` runs what a change can reach: by import, in a string, through a fixture, as a file."""

import pytest
from affected import READ_EVERYTHING, READERS, affected, changed_since, reached, sources

EVERYTHING = {path for path in sources() if path.rpartition("/")[2].startswith("test_")}


@pytest.mark.parametrize(
    ("changed", "reached", "spared"),
    [
        # imported
        ("aligner_lib/algorithms/ppo.py", ["unit/test_algorithms", "jobs/test_trained"], ["data/test_hh"]),
        # through `from widgets import Monitor`, which looks for it at its first use
        ("widgets/monitor/monitor.py", ["browser/test_monitor"], ["unit/test_jsonl"]),
        # through `python -m aligner_lib` and a job that is submitted, the forks' preload, and the registry of kinds
        ("aligner_lib/cli/doctor.py", ["unit/test_cli", "slurm/test_slurm_training"], ["jobs/test_loop"]),
        ("aligner_lib/kinds/ppo/trainer.py", ["remote_critic/test_live", "jobs/test_job_layouts"], ["data/test_hh"]),
        ("tests/slurm/trainer.py", ["slurm/test_slurm_requeue"], ["slurm/test_slurm_profile"]),
        # through fixtures of a conftest.py, and of the one above
        ("data/hh.py", ["jobs/test_trained", "remote_critic/test_live"], ["megatron/test_kernels"]),
        ("tests/jobs/conftest.py", ["jobs/test_loop"], ["remote_critic/test_live"]),
        # a notebook, a page, and a file beside modules
        ("notebooks/03_sft.ipynb", ["notebooks/test_notebooks"], ["unit/test_cli"]),
        ("docs/cluster.md", ["unit/test_docs", "cluster/test_resources"], ["unit/test_cli"]),
        ("aligner_lib/config/profiles/smoke.yaml", ["unit/test_config"], ["data/test_hh"]),
        # itself; and the neighbours of a file that is gone
        ("tests/data/test_hh.py", ["data/test_hh"], ["data/test_dolly"]),
        ("aligner_lib/algorithms/gone.py", ["unit/test_algorithms"], ["widgets/test_downsample"]),
    ],
)  # fmt: skip
def test_a_change_reaches(changed, reached, spared):
    files, unknown = affected({changed})
    assert unknown is None
    assert files >= {f"tests/{name}.py" for name in [*reached, "unit/test_imports"]}
    assert not files & {f"tests/{name}.py" for name in spared}


def test_a_file_with_unknown_readers_reaches_everything_and_no_change_reaches_nothing():
    for changed in ("pyproject.toml", "requirements.lock", "tests/gone.py", "new/thing.c"):
        assert affected({"docs/cluster.md", changed}) == (EVERYTHING, changed)
    assert affected(set()) == (set(), None)
    assert {test for tests in READERS.values() for test in tests} <= EVERYTHING
    with pytest.raises(ValueError, match="no-such-commit"):
        changed_since("no-such-commit")


def test_every_module_of_the_product_is_reached_by_a_test():
    product = ("aligner_lib/", "cluster/", "data/", "widgets/")
    tests = EVERYTHING - READ_EVERYTHING
    known = set().union(*map(reached, tests)) | {"data/lm_eval/forms_task.py"}  # lm_eval imports the task
    assert [path for path in sources() if path.startswith(product) and path not in known] == []
