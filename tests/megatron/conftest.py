import json
from pathlib import Path

import forks
import pytest
import tiny


@pytest.fixture(scope="session")
def one_process():
    """This process as a layout of its own."""
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)  # on a busy machine two threads wait for each other at every tiny product
    parallel.initialize()
    yield
    parallel.shutdown()


@pytest.fixture(scope="session")
def starts(one_process, tmp_path_factory) -> Path:
    """A folder with a checkpoint of random weights for each of tiny.MODELS."""
    folder = tmp_path_factory.mktemp("starts")
    for seed, name in enumerate(tiny.MODELS):
        engine = tiny.new_engine(name)
        tiny.randomize(engine.module, seed)
        engine.save(folder / name, with_optimizer=False)
    return folder


@pytest.fixture(scope="session")
def measured(starts, tmp_path_factory) -> Path:
    """Where one process (`one`) and every layout left their figures (NAME.json) and checkpoints (NAME/RUN)."""
    import layouts

    out = tmp_path_factory.mktemp("layouts")
    figures = {run: layouts.measure(run, starts, None, out / "one" / run) for run in layouts.RUNS}
    layouts.step_in_bf16(starts, out / "one" / "bf16")
    forks.write_json(out / "one.json", figures)
    forks.run_ranks(2, layouts.measure_all, starts, out / "one", out, folder=out)
    return out


@pytest.fixture(scope="session")
def figures(measured) -> dict[str, dict]:
    """By layout, what layouts.measure found."""
    return {path.stem: json.loads(path.read_text()) for path in measured.glob("*.json")}
