"""Megatron's own distributed checkpoints: what it writes is read, and what is exported it reads."""

import json
import re
import tarfile
from dataclasses import replace
from pathlib import Path

import forks
import pytest
import tiny
import torch
import yaml
from layouts import in_each_layout
from tiny import MODELS

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models.export.trained import Trained
from aligner_lib.models.nemo.config_writer import nemo_config
from aligner_lib.models.nemo.export import write_nemo
from aligner_lib.models.nemo.source import import_nemo
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.tensor_store import StoreReader

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
# how Megatron may name its blocks: layers stacked (NeMo's way), a key for each layer, gate and up apart, too
NAMING = {
    "stacked": {},
    "by_layer": {"non_homogeneous_layers": True},
    "halves": {"non_homogeneous_layers": True, "singleton_local_shards": True},
}
NAMINGS_OF = {"untied": [*NAMING], "tied": ["stacked"]}


@pytest.fixture(scope="module")
def models(smoke, tmp_path_factory) -> Path:
    """tiny.MODELS with the smoke model's tokenizer, whose vocabulary is larger than theirs."""
    folder = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(MODELS):
        engine = engine_of(name)
        tiny.randomize(engine.module, seed)
        engine.save(folder / name, with_optimizer=False)
        Tokenizer(smoke).save(folder / name)
    return folder


def engine_of(name: str, start: Path | None = None):
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    engine = Engine(replace(MODELS[name], vocab_size=1024), Numerics())
    if start is not None:
        engine.load(start)
    return engine


def sharded(module, metadata: dict) -> dict:
    """GPTModel's own sharded state dict, with NeMo's prefix; ours has a key for each layer."""
    from megatron.core.models.gpt.gpt_model import GPTModel

    return GPTModel.sharded_state_dict(module, prefix="model.", metadata=metadata)


LAYOUTS = ("tp2", "pp2")


def write_and_load(models: Path, exported: Path, out: Path) -> None:
    """Megatron's writer, for each naming; and its reader fills a model that has other weights with what is exported."""
    from megatron.core import dist_checkpointing

    from aligner_lib.megatron import parallel

    for layout in in_each_layout(*LAYOUTS):
        for name in NAMINGS_OF:
            module = engine_of(name, models / name).module
            for naming in NAMINGS_OF[name]:
                folder = out / layout / f"{name}_{naming}" / "model_weights"
                if parallel.is_first_rank():
                    folder.mkdir(parents=True)
                parallel.barrier()
                dist_checkpointing.save(sharded(module, NAMING[naming]), str(folder))
            expected, other = module.state_dict(), engine_of(name).module
            tiny.randomize(other, 99)
            loaded = dist_checkpointing.load(sharded(other, {}), str(exported / name / "model_weights"))
            differing = [
                key
                for key, tensor in expected.items()
                if isinstance(tensor, torch.Tensor)
                and not key.endswith("_extra_state")
                and not torch.equal(loaded["model." + key], tensor)
            ]
            forks.write_json(out / layout / f"{name}_differing_{parallel.rank()}.json", differing)


@pytest.fixture(scope="module")
def written(models, exported, tmp_path_factory) -> Path:
    """Where Megatron left, for every layout, its checkpoints and the names of weights that it read otherwise."""
    out = tmp_path_factory.mktemp("written")
    forks.run_ranks(2, write_and_load, models, exported, out, folder=out)
    return out


def assert_same_weights(imported: Path, model: Path) -> None:
    ours, expected = StoreReader(imported / "weights"), StoreReader(model / "weights")
    assert ours.names() == expected.names()
    for name in expected.names():
        assert torch.equal(ours.read_whole(name), expected.read_whole(name)), name


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", NAMINGS_OF)
def test_what_megatron_writes_is_read(written, models, smoke, tmp_path, name, layout):
    """And Megatron reads what is exported."""
    config = nemo_config(replace(MODELS[name], vocab_size=1024), {}, "F32", RewardScale())
    for naming in NAMINGS_OF[name]:
        folder = written / layout / f"{name}_{naming}"
        (folder / "model_config.yaml").write_text(yaml.safe_dump(config))
        Tokenizer(smoke).save(folder)
        keys = json.dumps(sorted(metadata_keys(folder / "model_weights")))
        assert bool(re.search(r"layers\.\d+\.", keys)) == (naming != "stacked"), (
            "Megatron named them otherwise"
        )
        assert ("weight_w" in keys) == (naming == "halves")
        assert_same_weights(import_nemo(folder, tmp_path / naming), models / name)
    paths = [written / layout / f"{name}_differing_{rank}.json" for rank in (0, 1)]
    assert [json.loads(path.read_text()) for path in paths] == [[], []]


def metadata_keys(folder: Path) -> set[str]:
    from torch.distributed.checkpoint import FileSystemReader

    return set(FileSystemReader(folder).read_metadata().state_dict_metadata)


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory) -> Path:
    """Each model as NAME.nemo, and unpacked as NAME/."""
    out = tmp_path_factory.mktemp("exported")
    for name in MODELS:
        trained = Trained(models / name)
        write_nemo(trained.folder, trained.weights, out / f"{name}.nemo")
        with tarfile.open(out / f"{name}.nemo") as tar:
            tar.extractall(out / name, filter="data")
    return out


def test_a_reward_model_has_what_nemo_s_asks_for(exported, models):
    """NeMo's reward model: GPTModel's keys, output layer included, and rm_head."""
    keys = metadata_keys(exported / "scalar" / "model_weights")
    head = {"model.rm_head.weight", "model.rm_head.bias"}
    assert keys == metadata_keys(exported / "untied" / "model_weights") | head
    config = yaml.safe_load((exported / "scalar" / "model_config.yaml").read_text())
    assert config["target"].endswith("MegatronGPTRewardModel")
    assert config["share_embeddings_and_output_weights"] is False


@pytest.mark.parametrize("name", MODELS)
def test_the_same_weights_after_a_round_trip(exported, models, tmp_path, name):
    assert_same_weights(import_nemo(exported / f"{name}.nemo", tmp_path / "model"), models / name)
