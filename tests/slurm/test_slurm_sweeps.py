"""Array jobs, and the check."""

import sys

from processes_help import until
from runs_help import last_step, losses, trainer, unbroken_losses

from cluster import Resources, State, check, submit_sweep
from cluster.sweep import Sweep

SHORT = Resources(time="5")


def test_a_sweep_with_one_failing_member(slurm, run):
    commands = {f"kl_{value}": trainer(run / f"kl_{value}", 3) for value in ("0.0", "0.1", "0.2")}
    commands["kl_0.1"] += ["--fail-at", "1"]
    sweep = submit_sweep(commands, run, resources=SHORT)
    assert len({job.id for job in sweep.jobs.values()}) == 3
    assert sweep.wait(180) == {"kl_0.0": State.FINISHED, "kl_0.1": State.FAILED, "kl_0.2": State.FINISHED}
    assert losses(run / "kl_0.2") == unbroken_losses(3)
    rows = [(row["member"], row["step"]) for row in sweep.table()]
    assert rows == [("kl_0.0", 3), ("kl_0.1", 1), ("kl_0.2", 3)]
    assert "loss is nan" in sweep.jobs["kl_0.1"].tail()
    assert Sweep.attach(run).states == sweep.states
    assert "<td>kl_0.1</td>" in sweep._repr_html_()


def test_a_members_cancel_leaves_the_others(slurm, run, tmp_path):
    commands = {name: trainer(run / name, 2, "--gate", tmp_path / "gate", 1) for name in ("a", "b")}
    sweep = submit_sweep(commands, run, resources=SHORT)
    until(lambda: set(sweep.states.values()) == {State.RUNNING}, "both running")
    assert sweep.jobs["a"].cancel() == State.CANCELLED
    (tmp_path / "gate").touch()
    assert sweep.wait(180) == {"a": State.CANCELLED, "b": State.FINISHED}


def test_a_members_requeue_leaves_the_others(slurm, run, tmp_path):
    """The last member shares its raw job id with the array."""
    gate = tmp_path / "gate"
    commands = {name: trainer(run / name, 2, "--gate", gate, 1) for name in ("a", "b")}
    sweep = submit_sweep(commands, run, resources=SHORT)
    until(lambda: all(last_step(run / name) == 1 for name in commands), "both at step 1")
    sweep.jobs["b"].requeue()
    logs = {name: job.folder / "batch.log" for name, job in sweep.jobs.items()}
    until(lambda: "attempt 1 of job" in logs["b"].read_text(), "b's next attempt")
    gate.touch()
    assert set(sweep.wait(180).values()) == {State.FINISHED}
    assert "attempt 1 of job" not in logs["a"].read_text()
    assert losses(run / "a") == losses(run / "b") == unbroken_losses(2)


def test_the_check_finds_a_good_cluster_good(slurm, tmp_path):
    findings = check(Resources(nodes=2, gpus_per_node=8), shared=tmp_path)
    assert all(finding.ok for finding in findings if finding.needed), [*map(str, findings)]
    said = "\n".join(map(str, findings))
    assert "is writable from n" in said
    assert "note  accounting: none" in said
    assert not list(tmp_path.iterdir())


def test_the_check_with_accounting(accounts, tmp_path):
    assert "ok    accounting: sacct answers" in map(str, check(shared=tmp_path, probe=False))


def test_the_check_names_what_is_wrong(slurm, tmp_path):
    resources = {"critic": Resources(gpus_per_node=9), "actor": Resources(partition="nope")}
    findings = check(resources, tmp_path, probe=False)
    wrong = [str(finding) for finding in findings if finding.needed and not finding.ok]
    assert len(wrong) == 2
    assert "gpu:9 on a node is more than any node offers (gpu:8)" in wrong[0]
    assert "partition 'nope' does not exist; there are debug, urgent" in wrong[1]


def test_the_check_tries_the_python_of_the_nodes(slurm, tmp_path):
    findings = check(Resources(python="/no/such/python"), tmp_path)
    (python,) = [finding for finding in findings if finding.what == "Python there"]
    assert not python.ok
    assert "/no/such/python" in python.detail and "shared file system" in python.detail


def test_the_check_sets_a_node_up_as_a_job_does_for_every_component(slurm, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$LOADED" = cuda ] || exit 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ready = Resources(python=str(python), setup=("export LOADED=cuda",))
    findings = check({"critic": ready, "actor": Resources(python=str(python))}, tmp_path)
    there = [finding for finding in findings if finding.what == "Python there"]
    assert [finding.ok for finding in there] == [True, False]
    assert "exit code 3" in there[1].detail


def test_the_check_tries_the_folder(slurm, tmp_path):
    (tmp_path / "file").touch()
    findings = check(shared=tmp_path / "file" / "runs")
    assert [finding.what for finding in findings if finding.needed and not finding.ok] == ["shared folder"]


def test_the_check_without_a_controller(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = check()
    assert not finding.ok and "login node" in finding.detail
