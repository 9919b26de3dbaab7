"""`./lab test --since REF` runs what a change can reach: by import, in a string, through a fixture, as a file."""

import subprocess
from types import SimpleNamespace

import pytest
from affected import READ_EVERYTHING, READERS, ROOT, affected, changed_since, reached, sources

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
    distances, unknown = affected({changed})
    assert unknown is None
    assert distances.keys() >= {f"tests/{name}.py" for name in [*reached, "unit/test_imports"]}
    assert not distances.keys() & {f"tests/{name}.py" for name in spared}


def test_a_distance_counts_the_imports_between_a_test_and_a_change():
    distances, _ = affected({"aligner_lib/algorithms/ppo.py"})
    assert distances["tests/unit/test_algorithms.py"] == 1
    assert distances["tests/unit/test_functions.py"] == 1
    assert distances["tests/jobs/test_grpo.py"] > 1
    # a test is next to itself, and to a page that it reads
    assert affected({"tests/data/test_hh.py"})[0]["tests/data/test_hh.py"] == 0
    assert affected({"docs/cluster.md"})[0]["tests/cluster/test_resources.py"] == 0


def test_changes_of_another_branch_are_no_changes_of_this_one(tmp_path, monkeypatch):
    monkeypatch.setattr("affected.ROOT", tmp_path)
    identity = ["-c", "user.name=n", "-c", "user.email=n@example.org"]

    def git(*words):
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True)

    git("init", "-q", "-b", "ours")
    git("commit", "-q", "--allow-empty", "-m", "begin")
    git("checkout", "-q", "-b", "theirs")
    (tmp_path / "their_file").touch()
    git("add", ".")
    git("commit", "-q", "-m", "their file")
    git("checkout", "-q", "ours")
    (tmp_path / "our_file").touch()
    assert changed_since("theirs") == {"our_file"}
    git("checkout", "-q", "--orphan", "unrelated")
    git("commit", "-q", "--allow-empty", "-m", "unrelated")
    with pytest.raises(ValueError, match="--since: `git merge-base theirs HEAD` finds no commit"):
        changed_since("theirs")


def test_a_worker_gets_what_the_controller_has_computed(request, monkeypatch, capsys):
    conftest = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    distances = {"tests/a.py": 2, "tests/b.py": 1, "tests/c.py": 1}
    monkeypatch.setattr(conftest, "changed_since", lambda ref: set())
    monkeypatch.setattr(conftest, "affected", lambda changed: (distances, None))
    controller, worker = (SimpleNamespace(getoption=lambda name: "main", stash={}) for _ in range(2))
    assert conftest.pytest_cmdline_main(controller) is None
    assert capsys.readouterr().out.endswith(
        "main reach 3 test files: by imports in between, 2 at 1, 1 at 2\n"
    )
    worker.workerinput = {}
    conftest.pytest_configure_node(SimpleNamespace(config=controller, workerinput=worker.workerinput))
    monkeypatch.setattr(conftest, "affected", lambda changed: ({}, None))
    conftest.pytest_cmdline_main(worker)
    assert worker.stash == controller.stash and list(worker.stash.values()) == [distances]
    assert conftest.pytest_cmdline_main(controller) == pytest.ExitCode.OK
    assert capsys.readouterr().out == "no test reaches a change since main\n"


def test_a_file_with_unknown_readers_reaches_everything_and_no_change_reaches_nothing():
    for changed in ("pyproject.toml", "requirements.lock", "tests/gone.py", "new/thing.c"):
        assert affected({"docs/cluster.md", changed}) == (dict.fromkeys(EVERYTHING, 0), changed)
    assert affected(set()) == ({}, None)
    assert {test for tests in READERS.values() for test in tests} <= EVERYTHING
    with pytest.raises(ValueError, match="no-such-commit"):
        changed_since("no-such-commit")


def test_every_module_of_the_product_is_reached_by_a_test():
    product = ("aligner_lib/", "cluster/", "data/", "widgets/")
    tests = EVERYTHING - READ_EVERYTHING
    known = reached(*tests) | {"data/lm_eval/forms_task.py"}  # lm_eval imports the task
    assert [path for path in sources() if path.startswith(product) and path not in known] == []
