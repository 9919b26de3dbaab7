"""`python -m benchmarks.gpu` on the simulated accelerator: the part that compares figures, at smoke size."""

import json
import sys
from contextlib import nullcontext
from dataclasses import replace

import forks
import pytest
from simulated_accelerator import simulated_accelerator

from benchmarks import gpu


def run_command(arguments: list[str], on_device: bool) -> None:
    from aligner_lib.cli.main import main

    sys.argv = ["aligner", *arguments]
    with simulated_accelerator() if on_device else nullcontext() as copies:
        try:
            main()
        finally:
            assert copies is None or copies.seen


@pytest.fixture
def simulated(monkeypatch):
    """Jobs run on the simulated accelerator unless the benchmark hides GPUs from them."""

    def execute(command, log, environment):
        process = forks.start(run_command, command[3:], environment != gpu.NO_GPU, log=log)
        process.join(forks.BOUND_S)
        return process.exitcode

    monkeypatch.setattr(gpu, "execute", execute)


def test_figures_of_the_device_are_beside_the_cpu_s(simulated, tmp_path, capsys):
    gpu.main(gpu.parse(["--only", "figures", "--kinds", "sft", "--quick", "--out", str(tmp_path)]))
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]["figures"]
    assert [row["figure"] for row in rows] == ["train/loss", "validation/loss"]
    for row in rows:
        assert len(row["pairs"]) >= 2 and row["apart"] <= row["bound"]
        assert all(here > 1 and there > 1 for here, there in row["pairs"])
    assert "train/loss" in capsys.readouterr().out


def test_generation_with_a_recorded_step_is_beside_generation_without(tmp_path, monkeypatch):
    """On a CPU, which records nothing, both are the same generation."""
    tiny = replace(gpu.architecture_of(gpu.SMALL), num_layers=1, vocab_size=512)
    monkeypatch.setattr(gpu, "architecture_of", lambda _: tiny)
    monkeypatch.setattr(gpu, "NEW_TOKENS", 8)
    gpu.main(gpu.parse(["--only", "capture", "--quick", "--out", str(tmp_path)]))
    rows = json.loads((tmp_path / "gpu.json").read_text())["parts"]["capture"]
    assert [(row["precision"], row["rows"], row["common"]) for row in rows] == [
        ("32", 1, 1.0),
        ("32", 64, 1.0),
        ("bf16", 1, 1.0),
        ("bf16", 64, 1.0),
    ]
    assert all(row["ratio"] == row["captured"] / row["eager"] for row in rows)


def test_figures_that_are_too_far_apart_end_the_command(tmp_path, monkeypatch):
    rows = [
        {"kind": kind, "figure": "train/loss", "apart": apart, "bound": 1e-3, "pairs": []}
        for kind, apart in (("sft", 1e-3), ("rm", 1.1e-3), ("dpo", float("nan")))
    ]
    monkeypatch.setitem(gpu.PARTS, "figures", lambda *_: rows)
    with pytest.raises(SystemExit, match=r"than allowed: rm train/loss, dpo train/loss$"):
        gpu.main(gpu.parse(["--only", "figures", "--out", str(tmp_path)]))


@pytest.mark.parametrize("options", [["--only", "figure"], ["--kinds", "sft,pppo"]])
def test_unknown_names_are_refused_with_the_known_ones(options, capsys):
    with pytest.raises(SystemExit):
        gpu.parse(options)
    assert ": there are " in capsys.readouterr().err


def test_the_shape_of_the_sizing_table_becomes_an_architecture():
    parameters = gpu.architecture_of(gpu.LARGE).num_parameters
    assert parameters == gpu.MODELS[gpu.LARGE].parameters
