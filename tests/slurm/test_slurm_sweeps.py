"""Array jobs, and the check."""

import sys

from processes_help import until
from runs_help import SHORT, batch_log, gate, gated, last_step, losses, trainer, unbroken_losses

from cluster import Resources, State, check, submit_sweep
from cluster.sweep import Sweep


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


def test_one_member_s_cancel_and_another_s_requeue_leave_the_rest(slurm, run):
    """The last member shares its raw job id with the array."""
    commands = {name: gated(run / name, 2, 1) for name in ("cancelled", "left alone", "requeued")}
    jobs = submit_sweep(commands, run, resources=SHORT).jobs
    until(lambda: all(last_step(run / name) == 1 for name in commands), "all at step 1")
    assert jobs["cancelled"].cancel() == State.CANCELLED
    jobs["requeued"].requeue()
    until(lambda: "attempt 1 of job" in batch_log(jobs["requeued"]), "the next attempt")
    gate(run / "requeued").touch()
    assert {name: job.wait(180) for name, job in jobs.items()} == {
        "cancelled": State.CANCELLED,
        "left alone": State.FINISHED,
        "requeued": State.FINISHED,
    }
    assert "attempt 1 of job" not in batch_log(jobs["left alone"])
    assert losses(run / "left alone") == losses(run / "requeued") == unbroken_losses(2)


def test_the_check_finds_a_good_cluster_good(slurm, tmp_path):
    findings = check(Resources(nodes=2, gpus_per_node=8), shared=tmp_path)
    assert all(finding.ok for finding in findings if finding.needed), [*map(str, findings)]
    text = "\n".join(map(str, findings))
    assert "is writable from n" in text
    assert "note  accounting: none" in text
    assert not list(tmp_path.iterdir())


def test_the_check_names_what_is_wrong(slurm, tmp_path):
    resources = {"critic": Resources(gpus_per_node=9), "actor": Resources(partition="nope")}
    findings = check(resources, tmp_path, probe=False)
    wrong = [str(finding) for finding in findings if finding.needed and not finding.ok]
    assert len(wrong) == 2
    assert "gpu:9 on a node is more than any node offers (gpu:8)" in wrong[0]
    assert "partition 'nope' does not exist; there are debug, urgent" in wrong[1]


def test_the_check_sets_a_node_up_as_a_job_does_and_tries_its_python(slurm, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "$LOADED" = cuda ] || exit 3\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ready = Resources(python=str(python), setup=("export LOADED=cuda",))
    findings = check({"critic": ready, "actor": Resources(python="/no/such/python")}, tmp_path)
    critic, actor = [finding for finding in findings if finding.what == "Python there"]
    assert critic.ok and not actor.ok
    assert "/no/such/python" in actor.detail and "shared file system" in actor.detail


def test_the_check_tries_the_folder(slurm, tmp_path):
    (tmp_path / "file").touch()
    findings = check(shared=tmp_path / "file" / "runs")
    assert [finding.what for finding in findings if finding.needed and not finding.ok] == ["shared folder"]


def test_the_check_without_a_controller(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = check()
    assert not finding.ok and "login node" in finding.detail
