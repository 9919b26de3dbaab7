"""What adapters do in one process and in every layout of two; each rank runs `measure_all`."""

from __future__ import annotations

from pathlib import Path

from forks import write_json
from layouts import (
    MORE_STEPS,
    SAMPLING,
    SEQUENCE_PARALLEL,
    STEPS,
    continued,
    generated,
    in_each_layout,
    mapped,
    train,
)
from tiny import new_engine

from aligner_lib.megatron import parallel
from aligner_lib.megatron.lora import LoRA
from aligner_lib.models.adapters import Adapter

# other ranks and scales everywhere, so that none can be taken for another's
LAYERS = {
    "linear_qkv": Adapter(4, 2.0),
    "linear_proj": Adapter(3, 1.5),
    "linear_fc1": Adapter(2, 3.0),
    "linear_fc2": Adapter(5, 0.5),
}
LORA = LoRA(LAYERS, seed=7)
NAMES = ("tied", "scalar")  # of tiny.MODELS: the untied one is left to one process


def measure_all(starts: Path, saved: Path, out: Path) -> None:
    """Every layout. saved: the checkpoints of one process after STEPS."""
    for layout in in_each_layout():
        shared = layout == SEQUENCE_PARALLEL
        figures = {
            name: measure(name, starts / name, saved / name, out / layout / name, sequence_parallel=shared)
            for name in NAMES
        }
        if parallel.is_first_rank():
            write_json(out / f"{layout}.json", figures)


def measure(name: str, start: Path, saved: Path | None, out: Path, **numerics) -> dict:
    """Training adapters from `start`, saved to `out` after STEPS; the steps after that, also from `saved`."""
    engine = new_engine(name, start, lora=LORA, **numerics)
    figures = {"untrained": mapped(engine, name), "steps": train(engine, name, range(STEPS))}
    engine.save(out)
    parallel.barrier()
    figures["mapped"] = mapped(engine, name)
    if name != "scalar":
        figures["greedy"] = generated(engine.module, SAMPLING["greedy"])
    figures["more_steps"] = train(engine, name, range(STEPS, STEPS + MORE_STEPS))
    figures["after_loading"] = continued(name, saved or out, start, lora=LORA, **numerics)
    return figures
