"""The sizing table against what Megatron allocates: weights, gradients and optimizer state of every role, bf16."""

import json
from dataclasses import replace
from pathlib import Path

import forks
import pytest
import tiny
from layouts import in_each_layout

from cluster.sizing import GIB, Adapters, ModelShape, Parallelism, memory

pytestmark = pytest.mark.megatron

LAYOUTS = {"tp2": Parallelism(2, 1, 1), "pp2": Parallelism(1, 2, 1), "dp2": Parallelism(1, 1, 2)}
SIZES = {"hidden_size": 128, "ffn_hidden_size": 256, "vocab_size": 512, "kv_channels": 32}
ARCHITECTURE = replace(tiny.ARCHITECTURE, **SIZES)
MODELS = {
    "sft": ARCHITECTURE,
    "tied": replace(ARCHITECTURE, tied_embeddings=True),
    "critic": replace(ARCHITECTURE, head="scalar"),
    "adapters": ARCHITECTURE,
    "critic's adapters": replace(ARCHITECTURE, head="scalar"),
}
ADAPTERS = Adapters(8, ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"))


def allocate(out: Path) -> None:
    """Of every layout of two processes, what this rank holds of each model: bytes, in OUT/LAYOUT-RANK.json."""
    from aligner_lib.megatron import parallel
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.lora import LoRA
    from aligner_lib.megatron.model import Numerics
    from aligner_lib.models.adapters import Adapter

    lora = LoRA(dict.fromkeys(ADAPTERS.layers, Adapter(ADAPTERS.rank, scale=1.0)))
    for name in in_each_layout(*LAYOUTS):
        engines = {
            role: Engine(
                arch, Numerics(bf16=True), tiny.OPTIM, tiny.CLIP, lora if "adapters" in role else None
            )
            for role, arch in MODELS.items()
        }
        bytes_of_roles = {role: bytes_of(engine) for role, engine in engines.items()}
        forks.write_json(out / f"{name}-{parallel.rank()}.json", bytes_of_roles)


def bytes_of(engine) -> dict[str, int]:
    adam = engine.optimizer.optimizer
    masters = [parameter for group in adam.param_groups for parameter in group["params"]]
    moments = [adam.state[parameter][name] for parameter in masters for name in ("exp_avg", "exp_avg_sq")]
    buffers = [*engine._wrapped.buffers, *engine._wrapped.expert_parallel_buffers]
    return {
        "weights": sum(p.nbytes for p in engine.module.parameters()),
        "gradients": sum(buffer.grad_data.nbytes for buffer in buffers),
        "optimizer": sum(tensor.nbytes for tensor in [*masters, *moments]),
    }


@pytest.fixture(scope="module")
def allocated(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("allocated")
    forks.run_ranks(2, allocate, out, folder=out)
    return out


@pytest.mark.parametrize("role", MODELS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_s_bytes_are_those_of_the_rank_that_holds_most(allocated, layout, role):
    model = ModelShape("small", 4, 128, 256, 4, 2, 512, tied=MODELS[role].tied_embeddings)
    scalar = MODELS[role].head == "scalar"
    if not scalar:
        assert model.parameters == MODELS[role].num_parameters
    adapters = ADAPTERS if "adapters" in role else None
    expected = memory(model, LAYOUTS[layout], "critic" if scalar else "sft", adapters=adapters)
    ranks = [json.loads((allocated / f"{layout}-{rank}.json").read_text())[role] for rank in (0, 1)]
    for kind in ranks[0]:
        fullest = max(rank[kind] for rank in ranks)
        # buffers are padded, which shows in the small ones of adapters
        assert fullest == pytest.approx(getattr(expected, kind) * GIB, rel=2e-3, abs=1024), kind
