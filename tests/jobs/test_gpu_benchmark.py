"""`python -m benchmarks.gpu` without a GPU: what it compares and reports. Jobs on a device: test_simulated_accelerator.py."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import gpu, jobs


def compared_figures(tmp_path, monkeypatch, *losses_on_device: float) -> list[dict]:
    """The part `figures` of a benchmark whose SFT jobs have a loss of 7 on the CPU. The last loss on the device stays."""

    def execute(command, log, environment):
        losses = [7.0] if environment == gpu.NO_GPU else list(losses_on_device)
        losses += losses[-1:] * (4 - len(losses))
        run = Path(command[command.index("--run") + 1])
        run.mkdir(parents=True)
        records = [{"step": n, "train/loss": loss, "validation/loss": loss} for n, loss in enumerate(losses)]
        (run / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return 0

    monkeypatch.setattr(jobs, "execute", execute)
    gpu.main(gpu.parse(["--only", "figures", "--kinds", "sft", "--quick", "--out", str(tmp_path)]))
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert report["command"].startswith("python -m benchmarks.gpu --only figures --kinds sft ")
    return report["parts"]["figures"]


def test_figures_of_the_device_are_beside_the_cpu_s(tmp_path, monkeypatch, capsys):
    rows = compared_figures(tmp_path, monkeypatch, 7.0035)
    assert [row["figure"] for row in rows] == ["train/loss", "validation/loss"]
    for row in rows:
        assert row["pairs"] == [[7.0035, 7.0]] * 4
        assert row["apart"] == pytest.approx(0.0005) and row["bound"] == 1e-3
    assert "train/loss" in capsys.readouterr().out


@pytest.mark.parametrize("losses", [(7.0077,), (float("nan"),), (7.0, 7.0, float("nan"))])
def test_figures_that_are_too_far_apart_end_the_command(tmp_path, monkeypatch, losses):
    with pytest.raises(SystemExit, match=r"than allowed: sft train/loss, sft validation/loss$"):
        compared_figures(tmp_path, monkeypatch, *losses)


def test_generation_with_a_recorded_step_is_beside_generation_without(tmp_path, monkeypatch):
    """On a CPU, which records nothing, both are the same generation."""
    tiny = replace(gpu.architecture_of(gpu.SMALL), num_layers=1, vocab_size=512)
    monkeypatch.setattr(gpu, "architecture_of", lambda _: tiny)
    monkeypatch.setattr(gpu, "NEW_TOKENS", 4)
    monkeypatch.setattr(gpu, "ROWS", (1, 4))
    gpu.main(gpu.parse(["--only", "capture", "--quick", "--out", str(tmp_path)]))
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]["capture"]
    cases = [(row["precision"], row["rows"], row["common"]) for row in rows]
    assert cases == [("32", 1, 1.0), ("32", 4, 1.0), ("bf16", 1, 1.0), ("bf16", 4, 1.0)]
    assert all(row["ratio"] == row["captured"] / row["eager"] for row in rows)


@pytest.mark.parametrize("options", [["--only", "figure"], ["--kinds", "sft,pppo"]])
def test_unknown_names_are_refused_with_the_known_ones(options, capsys):
    with pytest.raises(SystemExit):
        gpu.parse(options)
    assert ": there are " in capsys.readouterr().err
