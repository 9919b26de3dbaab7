"""What one process and every layout of two must agree on, adapters included; each rank runs `measure_all`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from forks import write_json
from tiny import Samples, loss_of, new_engine

from aligner_lib.megatron import parallel
from aligner_lib.megatron.generate import Sampling, generate
from aligner_lib.megatron.logprobs import token_logprobs
from aligner_lib.megatron.lora import LoRA
from aligner_lib.models.adapters import Adapter
from aligner_lib.rollouts.policy import hf_weights
from benchmarks.activations import kept_bytes

# tensor and pipeline size of two processes
LAYOUTS = {"tp2": (2, 1), "tp2_sequence": (2, 1), "pp2": (1, 2), "dp2": (1, 1)}
SEQUENCE_PARALLEL = "tp2_sequence"
STEPS, MORE_STEPS = 2, 2  # the second step after a checkpoint shows the optimizer's state in its loss
GLOBAL_BATCH, MICRO_BATCH = 5, 4  # two micro batches; a replica's are half as large
# other ranks and scales everywhere, so that none can be taken for another's
LAYERS = {
    "linear_qkv": Adapter(4, 2.0),
    "linear_proj": Adapter(3, 1.5),
    "linear_fc1": Adapter(2, 3.0),
    "linear_fc2": Adapter(5, 0.5),
}
LORA = LoRA(LAYERS, seed=7)
RUNS = ("untied", "tied", "scalar", "tied_lora", "scalar_lora")  # one of tiny.MODELS, or adapters to it
UNFROZEN = 3  # of 4 layers: the fewest of which each of two pipeline stages has one
BF16_RATE = 1e-4  # a fifth of half a step of bf16's grid between 1/8 and 1/4, in which a weight of N(0, 0.15) often lies
MAPPED = 102  # seed of the batch that is not trained on
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13, 14], [15, 16], [17]]
SAMPLING = {
    "greedy": Sampling(max_length=5, greedy=True),
    "sampled": Sampling(max_length=5, temperature=1.3, top_k=40),
}
STOP = 3


def in_each_layout(*names: str) -> Iterator[str]:
    """In a rank of two: sets up one layout after the other, all by default, and gives its name."""
    for name in names or LAYOUTS:
        parallel.initialize(*LAYOUTS[name])
        yield name
        parallel.barrier()
        parallel.parallel_state.destroy_model_parallel()


def measure_all(starts: Path, saved: Path, out: Path) -> None:
    """Every layout. saved: the checkpoints of one process after STEPS."""
    for layout in in_each_layout():
        shared = layout == SEQUENCE_PARALLEL
        figures = {
            run: measure(run, starts, saved / run, out / layout / run, sequence_parallel=shared)
            for run in RUNS
        }
        step_in_bf16(starts, out / layout / "bf16", sequence_parallel=shared)
        if parallel.is_first_rank():
            write_json(out / f"{layout}.json", figures)


def measure(run: str, starts: Path, saved: Path | None, out: Path, **numerics) -> dict:
    """Training from a start, saved to `out` after STEPS; the steps after that, also from the checkpoint `saved`."""
    name, lora = model_and_adapters(run)
    engine = new_engine(name, starts / name, lora=lora, **numerics)
    evaluated = engine.evaluate(_batches_of_rank(MAPPED, MICRO_BATCH), loss_of(name))
    figures = {"evaluated": evaluated, "mapped": mapped(engine, name)}
    if name == "untied":
        batch = Samples.draw(GLOBAL_BATCH, MAPPED)
        figures["kept"] = (
            kept_bytes(engine.module, batch.tokens, batch.lengths) if parallel.pp_size() == 1 else None
        )
    figures["steps"] = train(engine, name, range(STEPS))
    engine.save(out)
    parallel.barrier()
    figures["learnt"] = mapped(engine, name)
    if name != "scalar":
        figures |= {kind: generated(engine.module, sampling) for kind, sampling in SAMPLING.items()}
        whole = {key: part.clone() for key, part in hf_weights(engine)}
        torch.save(whole, out.with_name(f"{run}-{parallel.rank()}.pt"))
    figures["more_steps"] = train(engine, name, range(STEPS, STEPS + MORE_STEPS))
    if run == "scalar":
        top = new_engine(name, starts / name, num_layers_unfrozen=UNFROZEN, **numerics)
        figures["top_layers"] = train(top, name, range(STEPS))
        top.save(out / "top_layers")
        parallel.barrier()
    figures["after_loading"] = continued(run, saved or out, starts, **numerics)
    return figures


def step_in_bf16(starts: Path, out: Path, **numerics) -> None:
    engine = new_engine("tied", starts / "tied", bf16=True, **numerics)
    engine.train_step(_batches_of_rank(0, 3), loss_of("tied"), BF16_RATE)
    engine.save(out)


def model_and_adapters(run: str) -> tuple[str, LoRA | None]:
    name, _, adapters = run.partition("_")
    return name, LORA if adapters else None


def continued(run: str, saved: Path, starts: Path, **numerics) -> list[dict]:
    """The steps after a checkpoint of some layout, weights and optimizer loaded; adapters have their base from `starts`."""
    name, lora = model_and_adapters(run)
    engine = new_engine(name, starts / name if lora else None, lora=lora, **numerics)
    engine.load(saved, with_optimizer=True)
    assert engine.steps == STEPS
    return train(engine, name, range(STEPS, STEPS + MORE_STEPS))


def train(engine, name: str, steps: range, micro_batch: int = MICRO_BATCH) -> list[dict]:
    return [
        engine.train_step(_batches_of_rank(step, micro_batch), loss_of(name), lr=1e-3 / (step + 1))
        for step in steps
    ]


def mapped(engine, name: str) -> list:
    """A number for each prediction of each sample, of all ranks in the samples' order."""

    def function(model, batch, hidden):
        if name == "scalar":
            return model.values(hidden[:-1]).t()
        logits = model.logits(hidden[:-1]).transpose(0, 1)  # [B, S-1, V]
        targets = batch.tokens[:, 1:]
        logprobs = token_logprobs(logits.flatten(0, 1), targets.flatten(), parallel.tp_group())
        return logprobs.view(targets.shape)

    own = range(GLOBAL_BATCH)[parallel.dp_rank() :: parallel.dp_size()]
    batch = Samples.draw(GLOBAL_BATCH, MAPPED).rows(own)
    [results] = engine.map([batch], function)
    rows = [row[: length - 1] for row, length in zip(results.tolist(), batch.lengths.tolist())]
    return _in_order(parallel.gather_over_dp(rows))


def generated(module, sampling: Sampling) -> list:
    """In fewer rows than prompts, so that some take the rows of others."""
    numbers = range(len(PROMPTS))[parallel.dp_rank() :: parallel.dp_size()]
    prompts, seeds = [PROMPTS[i] for i in numbers], [1000 + i for i in numbers]
    responses = generate(module, prompts, seeds, sampling, stop_ids=[STOP], rows=3)
    return _in_order(parallel.gather_over_dp([[r.tokens, r.finished] for r in responses]))


def _batches_of_rank(step: int, micro_batch: int) -> list[Samples]:
    replicas = parallel.dp_size()
    return Samples.draw(GLOBAL_BATCH, step).micro_batches(
        micro_batch // replicas, parallel.dp_rank(), replicas
    )


def _in_order(shares: list[list]) -> list:
    """Every rank's items, back in the order that they were dealt in."""
    total = sum(map(len, shares))
    return [shares[i % len(shares)][i // len(shares)] for i in range(total)]
