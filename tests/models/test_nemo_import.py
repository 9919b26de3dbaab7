"""NeMo's archives: every number arrives, from any layout, and whatever does not fit is an error."""

import json
import math
import re
import shutil
import tarfile
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from tiny_llama import assert_same_bits, read_json, update_json
from tiny_nemo import (
    APEX,
    CONFIG,
    GPT_2B,
    LLAMA,
    LLAMA_CONFIG,
    TRANSFORMER_ENGINE,
    old_name,
    pack,
    put_tokenizer,
    random_weights,
    write_old,
)
from tiny_tokenizers import LINES
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.kinds.inputs import model_folder
from aligner_lib.models import import_model, resolve
from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.export import export
from aligner_lib.models.nemo.config import NemoConfig
from aligner_lib.models.nemo.config_writer import nemo_config
from aligner_lib.models.nemo.source import import_nemo
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.tensor_store import StoreReader


@pytest.fixture
def place(tmp_path, smoke):
    """A folder with a tokenizer in it, for the archives that only name one."""
    put_tokenizer(smoke, tmp_path)
    return tmp_path


def assert_holds(folder, arch: Architecture, tensors: dict[str, torch.Tensor]) -> None:
    """A model folder is that model: to the bit, in those dtypes."""
    assert Architecture.load(folder) == arch
    assert_same_bits(whole(folder), tensors)


def whole(folder) -> dict[str, torch.Tensor]:
    store = StoreReader(folder / "weights")
    return {name: store.read_whole(name) for name in store.names()}


def refuse(source, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        import_nemo(source, source.parent / "model")
    assert not list(source.parent.glob("model*"))


# ---- NeMo's old checkpoints ------------------------------------------------------------------------------------------


def nemo_s(layers: dict, prefix: str):
    """O2 puts `model.module.` before the names."""
    return lambda name: old_name(name, layers).replace("model.", prefix, 1)


# what follows from the settings and is left out
DERIVED = {
    "rotary_pos_emb.inv_freq": "model.language_model.rotary_pos_emb.inv_freq",
    "decoder.layers.0.extra": "model.language_model.encoder.layers.0.layernorm_mlp._extra_state",
}


@pytest.mark.parametrize(
    ("rename", "arch", "config", "tp", "pp"),
    [
        (nemo_s(APEX, "model."), GPT_2B, CONFIG, 1, 1),
        (nemo_s(APEX, "model.module."), GPT_2B, CONFIG, 4, 1),
        (nemo_s(TRANSFORMER_ENGINE, "model."), GPT_2B, CONFIG, 2, 2),
        # Megatron Core's names, which NeMo wrote between the two layouts
        ("model.{}".format, LLAMA, LLAMA_CONFIG, 2, 2),
    ],
)
def test_gpt_2b_s_layouts_and_names(place, rename, arch, config, tp, pp):
    """layernorm1p or grouped queries, SwiGLU, a rotary share, bfloat16: a file for each rank."""
    tensors = random_weights(arch)
    stored = tensors | dict.fromkeys(DERIVED, torch.ones(4))
    write_old(place / "folder", stored, config, tp, pp, lambda name: DERIVED.get(name) or rename(name))
    assert_holds(import_nemo(place / "folder", place / "model"), arch, tensors)


def test_a_tar_is_imported_with_progress_and_nothing_is_left_beside_the_model(place):
    tensors, progress_counts = random_weights(GPT_2B), []
    archive = pack(write_old(place / "folder", tensors, tp=2), place / "GPT-2B-001_bf16_tp2.nemo", "w:gz")
    out = import_nemo(archive, place / "model", progress=lambda *counts: progress_counts.append(counts))
    assert_holds(out, GPT_2B, tensors)
    assert progress_counts == [(done, len(tensors)) for done in range(1, len(tensors) + 1)]
    assert read_json(out / "source.json")["imported_from"] == str(archive)
    names = {"folder", archive.name, "model", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in place.iterdir()} == names


def test_gate_and_up_stored_apart(place):
    """`activation: swiglu`, without fast: dense_h_to_4h_2 is the up projection."""
    tensors = random_weights(GPT_2B)
    apart = dict(tensors)
    for name in [name for name in tensors if name.endswith("linear_fc1.weight")]:
        gate, up = tensors[name].chunk(2)
        apart |= {name: gate.clone(), name.replace("fc1", "fc1_2"): up.clone()}

    def rename(name: str) -> str:
        return old_name(name.replace("fc1_2", "fc1")).replace("4h.", "4h_2." if "fc1_2" in name else "4h.")

    write_old(place / "folder", apart, {**CONFIG, "activation": "swiglu"}, tp=2, rename=rename, gated=False)
    assert_holds(import_nemo(place / "folder", place / "model"), GPT_2B, tensors)


def test_a_tied_model_s_copy_on_the_last_stage(place):
    arch = replace(GPT_2B, tied_embeddings=True)
    config = {**CONFIG, "share_embeddings_and_output_weights": True}
    tensors = random_weights(arch)
    copy = tensors | {"output_layer.weight": tensors["embedding.word_embeddings.weight"].clone()}

    def rename(name):
        return "model.word_embeddings.weight" if name == "output_layer.weight" else old_name(name)

    write_old(place / "folder", copy, config, tp=2, pp=2, rename=rename)
    assert_holds(import_nemo(place / "folder", place / "right"), arch, tensors)
    copy["output_layer.weight"][5] += 1
    write_old(place / "other", copy, config, tp=2, pp=2, rename=rename)
    refuse(place / "other", r"ties .*word_embeddings.* to the embedding .*, but the two differ")


def test_a_reward_model_with_its_scale(place):
    arch = replace(LLAMA, head="scalar")
    config = LLAMA_CONFIG | {"reward_standardization": {"enable": True, "mean": -1.5, "std": 2.0}}
    tensors = random_weights(arch)
    tensors["value_head.weight"], tensors["value_head.bias"] = torch.randn(1, 64), torch.ones(1)
    unused = {"output_layer.weight": torch.zeros(1024, 64)}  # NeMo's reward model has one that it never uses

    def rename(name):
        return "model." + name.replace("value_head", "rm_head")

    write_old(place / "folder", tensors | unused, config, tp=2, rename=rename)
    out = import_nemo(place / "folder", place / "model")
    assert_holds(out, arch, tensors)
    assert RewardScale.load(out) == RewardScale(-1.5, 2.0)


# ---- Megatron Core's distributed checkpoints: zarr (torch_dist: tests/megatron/test_nemo.py) -----------------------


def only_settings(folder, config: dict):
    folder.mkdir()
    (folder / "model_config.yaml").write_text(yaml.safe_dump(config))
    return folder


def write_zarr(folder, name: str, tensor: torch.Tensor, chunks: tuple[int, ...]) -> None:
    """zarr's version 2: .zarray, and a file a chunk, filled up to its whole size."""
    out = folder / "model_weights" / name
    out.mkdir(parents=True)
    dtype = {torch.float32: "<f4", torch.bfloat16: "bfloat16"}[tensor.dtype]
    header = {"zarr_format": 2, "shape": list(tensor.shape), "chunks": list(chunks), "dtype": dtype}
    header |= {"compressor": None, "fill_value": None, "order": "C", "filters": None}
    (out / ".zarray").write_text(json.dumps(header))
    bits = tensor.view(torch.int16 if dtype == "bfloat16" else torch.int32).numpy()
    for place in np.ndindex(*(math.ceil(size / step) for size, step in zip(tensor.shape, chunks))):
        chunk = np.zeros(chunks, bits.dtype)
        part = bits[tuple(slice(i * step, (i + 1) * step) for i, step in zip(place, chunks))]
        chunk[tuple(slice(size) for size in part.shape)] = part
        chunk.tofile(out / ".".join(map(str, place)))


def stacks(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """All layers of a weight as one tensor, as Megatron stores the layers of a GPT."""
    groups: dict[str, list] = {}
    for name, tensor in tensors.items():
        groups.setdefault(re.sub(r"layers\.\d+\.", "layers.", name), []).append(tensor)
    return {name: torch.stack(group) if ".layers." in name else group[0] for name, group in groups.items()}


def test_zarr_with_stacked_layers(place):
    """Chunks of a rank's shape; with three ranks the last ones reach beyond the tensor."""
    tensors = random_weights(LLAMA)
    tensors["decoder.final_layernorm.weight"] = tensors["decoder.final_layernorm.weight"].float()
    folder = only_settings(place / "folder", LLAMA_CONFIG)
    for name, tensor in stacks(tensors).items():
        stacked = name.startswith("decoder.layers")
        inside = [math.ceil(tensor.shape[stacked] / 3), *tensor.shape[1 + stacked :]]
        write_zarr(folder, "model." + name, tensor, (1, *inside) if stacked else tuple(inside))
    (folder / "model_weights/metadata.json").write_text('{"sharded_backend": "zarr"}')
    (folder / "model_weights/common.pt").write_bytes(b"not read")
    assert_holds(import_nemo(pack(folder, place / "x.nemo"), place / "right"), LLAMA, tensors)
    # arrays that Megatron did not write
    header = folder / "model_weights/model.embedding.word_embeddings.weight/.zarray"
    whole_header = read_json(header)
    for change, message in (
        ({"compressor": {"id": "blosc"}}, "is compressed, or not in C order"),
        ({"order": "F"}, "is compressed, or not in C order"),
        ({"chunks": [2048, 64]}, r"has \d+ bytes: the file is damaged, or compressed"),
        ({"shape": [1 << 40, 64]}, "has more than 65536 chunks"),
        ({"dtype": "|O"}, "weights must be F64, F32, F16, BF16"),
    ):
        header.write_text(json.dumps(whole_header | change))
        refuse(folder, message)


# ---- what does not fit is an error, and leaves nothing behind -------------------------------------------------------

NORM, EMBEDDING = "decoder.final_layernorm.weight", "embedding.word_embeddings.weight"
FC2, BIAS = "decoder.layers.1.mlp.linear_fc2.weight", "decoder.layers.0.self_attention.linear_qkv.bias"


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (FC2, None, rf"1 weights are missing, the first: {FC2}"),
        (BIAS, torch.zeros(192), rf"1 weights do not belong to the model, the first: {BIAS}"),
        (FC2, torch.zeros(64, 90), r"has shape \[64, 90\]; model_config\.yaml says \[64, 88\]"),
        (NORM, torch.ones(64, dtype=torch.int8), r"final_layernorm\.weight is I8; weights must be F64, F32"),
        (EMBEDDING, None, "contains no GPT model"),
    ],
)
def test_unfit_weights_are_refused(place, name, tensor, message):
    changed = {**random_weights(GPT_2B), name: tensor}
    write_old(place / "folder", {name: tensor for name, tensor in changed.items() if tensor is not None})
    refuse(place / "folder", message)


def test_ranks_that_are_missing_or_disagree_are_refused(place):
    folder = write_old(place / "four", random_weights(GPT_2B), tp=2, pp=2)
    (folder / "tp_rank_01_pp_rank_001" / "model_weights.ckpt").unlink()
    refuse(folder, "weights of 3 ranks; 2 tensor- times 2 pipeline-parallel ranks are needed")
    folder = write_old(place / "two", random_weights(GPT_2B), tp=2)
    path = folder / "mp_rank_01" / "model_weights.ckpt"
    state, norm = torch.load(path), "model.language_model.encoder.final_layernorm.weight"
    for changed, message in (
        (state | {norm: state[norm] + 1}, r"final_layernorm\.weight differs between tensor-parallel ranks"),
        (state | {norm: state[norm][1:]}, "the tensor-parallel ranks have shards of different shapes"),
        ({name: state[name] for name in state if name != norm}, "ranks have different weights"),
    ):
        torch.save(changed, path)
        refuse(folder, message)


def test_code_in_the_weights_is_not_run_and_no_weights_are_no_model(place):
    class Evil:
        def __reduce__(self):
            return open, (str(place / "owned"), "w")

    folder = only_settings(place / "folder", CONFIG)
    refuse(folder, r"has no weights: neither model_weights.ckpt")
    torch.save({"model.x": Evil()}, folder / "model_weights.ckpt")
    refuse(folder, r"contains '_?io\.open', which weights do not need: nothing of the pickle was run")
    assert not (place / "owned").exists()


# ---- settings -------------------------------------------------------------------------------------------------------

RMS = {"normalization": "rms", "zero_centered_norm": False}


GEMMA_2 = {
    **{"family": "gemma2", "zero_centered_norm": True, "post_norms": True, "activation": "geglu"},
    **{"embedding_scale": 8.0, "attention_scale": 24**-0.5, "attention_softcap": 50.0},
    **{"logits_softcap": 30.0, "sliding_window": 16, "sliding_layers": (0, 2), "tied_embeddings": True},
}
# as NeMo's converter writes Google's model, whose windows have 16 tokens; a cap of 0 is none
GEMMA_2_CONFIG = {
    **{"name": "megatron_gemma2", "normalization": "rmsnorm", "layernorm_zero_centered_gamma": True},
    **{"activation": "fast-geglu", "openai_gelu": True, "apply_embedding_scaling": True},
    **{"window_size": [16, 0], "share_embeddings_and_output_weights": True},
    "mcore_customization_config": {
        **{"query_pre_attn_scalar": 24, "attn_logit_softcapping": 0.0, "final_logit_softcapping": 30.0}
    },
}


def architecture_of(config: dict) -> Architecture:
    return NemoConfig(config, "model_config.yaml").architecture(1024, "lm")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, {}),
        ({"rotary_percentage": None}, {"rotary_fraction": 1.0}),
        ({"ffn_hidden_size": "${multiply:4, ${.hidden_size}}"}, {"ffn_hidden_size": 256}),
        ({"activation": "squared-relu"}, {"activation": "squared_relu"}),
        ({"normalization": "layernorm"}, {"zero_centered_norm": False}),
        ({"normalization": "rmsnorm", "qkv_bias": True}, {**RMS, "family": "qwen2", "qkv_bias": True}),
        ({"seq_len_interpolation_factor": 2}, {"rope_scaling": RopeScaling("linear", 2.0)}),
        ({"scale_positional_embedding": True}, {"rope_scaling": RopeScaling("llama3", 8.0)}),
        ({"window_size": [15, 0]}, {"sliding_window": 16, "sliding_layers": (0, 1, 2, 3)}),
        ({"window_size": [-1, -1]}, {}),
        (GEMMA_2_CONFIG, RMS | GEMMA_2 | {"attention_softcap": None}),
    ],
)
def test_settings_become_an_architecture(change, expected):
    assert architecture_of(CONFIG | change) == replace(GPT_2B, **expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qk_layernorm": True}, "qk_layernorm is true, which is only supported with normalization: rmsnorm"),
        ({"bias": True}, "bias is true, for all linear layers"),
        ({"bias": None}, "bias is true"),  # NeMo's default
        ({"activation": "gelu"}, "activation is 'gelu', but must be one of fast-swiglu"),
        ({"activation": None}, "has no activation"),
        ({"activation": "geglu"}, "activation geglu is supported only with openai_gelu"),
        ({"position_embedding_type": None}, "position_embedding_type is 'learned_absolute'; only rope"),
        ({"num_moe_experts": 8}, "num_moe_experts is 8; only None"),
        ({"num_layers": 1 << 30}, "num_layers is 1073741824; at most 10000 are supported"),
        ({"hidden_size": True}, "hidden_size is True, but must be an integer above 0"),
        ({"layernorm_epsilon": "nan"}, "layernorm_epsilon is 'nan', but must be a number"),
        ({"ffn_hidden_size": "${oc.env:HOME}"}, r"is '\$\{oc\.env:HOME\}', an unknown reference"),
        ({"mcore_customization_config": {"x": 1}}, "is only supported for name: megatron_gemma2"),
        ({"share_embeddings_and_output_weights": "yes"}, "must be true or false"),
        (
            GEMMA_2_CONFIG | {"mcore_customization_config": {"query_pre_attn_scalar": 0}},
            r"pre_attn_scalar is 0\.0, but must be above 0",
        ),
        (
            {"seq_len_interpolation_factor": 4, "scale_positional_embedding": True},
            "is 4.0 and scale_.* only one scaling",
        ),
        ({"window_size": 16}, "window_size is 16, but must be two integers"),
    ],
)
def test_settings_that_are_not_computed_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        architecture_of(CONFIG | change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "contains no settings"),
        ("!!python/object/apply:os.system ['true']", "is not plain YAML"),
        ("a: &a [x]\nb: [*a, *a]", "has YAML aliases"),
        ("model:\n  a: 1\n  b: 2\n  a: 3", "has the key 'a' twice in a section"),
        ("[" * 10_000, "or is nested too deep"),
    ],
)
def test_a_file_that_is_no_settings(text, message):
    with pytest.raises(ValueError, match=message):
        NemoConfig.parse(text.encode(), "model_config.yaml")


WRITTEN = {
    "llama 3": replace(LLAMA, rope_scaling=RopeScaling("llama3", 8.0), kv_channels=32),
    "long llama": replace(LLAMA, rope_scaling=RopeScaling("linear", 4.0), tied_embeddings=True),
    "mistral": replace(LLAMA, family="mistral", sliding_window=16, sliding_layers=(0, 1, 2, 3)),
    "qwen2": replace(LLAMA, family="qwen2", qkv_bias=True),
    "qwen3": replace(LLAMA, family="qwen3", qk_norm=True),
    "gemma": replace(LLAMA, family="gemma", zero_centered_norm=True, activation="geglu", embedding_scale=8.0),
    "gemma2": replace(LLAMA, **GEMMA_2),
    "nemotron": replace(GPT_2B, activation="squared_relu"),
    "reward model": replace(LLAMA, head="scalar", tied_embeddings=True),
}


def test_an_export_tells_of_scalings_that_an_early_nemo_does_not_read(tmp_path, smoke):
    folder = shutil.copytree(smoke, tmp_path / "model")
    for factor, noted in ((32.0, True), (8.0, False)):
        update_json(folder / "model.json", rope_scaling={"kind": "llama3", "factor": factor})
        notes = export(str(folder), "nemo", tmp_path / f"{factor}.nemo")
        assert any("ignores the archive's" in note for note in notes) == noted


@pytest.mark.parametrize("name", WRITTEN)
def test_settings_are_written_and_read_back(name):
    arch = WRITTEN[name]
    config = nemo_config(arch, {}, "BF16", RewardScale(1.0, 2.0))
    read = NemoConfig.parse(yaml.safe_dump(config).encode(), "model_config.yaml")
    assert read.architecture(arch.vocab_size, arch.head) == arch
    assert read.reward_scale() == (RewardScale(1.0, 2.0) if arch.head == "scalar" else RewardScale())


def test_a_reward_model_is_read_without_the_settings_that_nemo_aligner_ignores(caplog):
    flags = {"scale_positional_embedding": True, "apply_embedding_scaling": True}
    arch = NemoConfig(LLAMA_CONFIG | flags, "model_config.yaml").architecture(1024, "scalar")
    assert (arch.rope_scaling, arch.embedding_scale) == (None, 1.0)
    for flag in flags:
        assert f"{flag} is true, but NeMo-Aligner's reward models ignore the setting" in caplog.text


def test_a_reward_model_without_a_spread_is_refused():
    scale = {"reward_standardization": {"enable": True, "mean": 0.0, "std": 0.0}}
    with pytest.raises(ValueError, match=r"reward_standardization: std is 0\.0, but must be above 0"):
        NemoConfig(CONFIG | scale, "model_config.yaml").reward_scale()


# ---- tokenizers -----------------------------------------------------------------------------------------------------


def with_tokenizer(folder, **section):
    return write_old(folder, random_weights(GPT_2B), {**CONFIG, "tokenizer": section})


def test_a_tokenizer_that_the_archive_only_names(tmp_path):
    huggingface = with_tokenizer(tmp_path / "huggingface", **CONFIG["tokenizer"])
    refuse(huggingface, r"library='huggingface', type='nobody/knows'\. Put the model's tokenizer\.json")
    absent = with_tokenizer(tmp_path / "absent", library="sentencepiece", model=f"nemo:{'a' * 32}_x.model")
    refuse(absent, "but the archive has no such file")


def test_gpt_2_s_vocabulary_and_merges(tmp_path, smoke):
    """library: megatron, with two artifacts under NeMo's names."""
    stored = read_json(smoke / "tokenizer.json")["model"]
    files = {"vocab_file": f"{'a' * 32}_vocab.json", "merge_file": f"{'b' * 32}_merges.txt"}
    section = {key: f"nemo:{name}" for key, name in files.items()}
    folder = with_tokenizer(tmp_path / "folder", library="megatron", type="GPT2BPETokenizer", **section)
    (folder / files["vocab_file"]).write_text(json.dumps(stored["vocab"]))
    merges = [" ".join(merge) for merge in stored["merges"]]
    (folder / files["merge_file"]).write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    tokenizer = Tokenizer(import_nemo(pack(folder, tmp_path / "x.nemo"), tmp_path / "model"))
    text = "Hello, dear people<|endoftext|>"
    assert tokenizer.decode(tokenizer.encode(text), special_tokens=True) == text
    assert tokenizer.encode(text)[-1] == tokenizer.eos_id == stored["vocab"]["<|endoftext|>"]
    assert tokenizer.encode("Hello, dear people") == Tokenizer(smoke).encode("Hello, dear people")


def test_a_sentencepiece_model(tmp_path):
    """As GPT-2B-001 has it; an export names it in the same way again."""
    sentencepiece = pytest.importorskip("sentencepiece")
    name = f"{'2' * 32}_mt_nlg_256k.model"
    section = {"library": "sentencepiece", "type": None, "sentencepiece_legacy": False}
    folder = with_tokenizer(tmp_path / "folder", model=f"nemo:{name}", **section)
    options = {"vocab_size": 300, "hard_vocab_limit": False, "byte_fallback": True, "minloglevel": 2}
    with (folder / name).open("wb") as file:
        lines = iter(LINES * 4)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=file, **options)
    out = import_nemo(pack(folder, tmp_path / "x.nemo"), tmp_path / "model")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
    assert Tokenizer(out).encode(LINES[0]) == theirs.encode(LINES[0])
    assert export(str(out), "nemo", tmp_path / "back.nemo") == []
    again = import_nemo(tmp_path / "back.nemo", tmp_path / "again")
    assert (again / "tokenizer.model").read_bytes() == (folder / name).read_bytes()
    assert Tokenizer(again).hash == Tokenizer(out).hash


# ---- as a start of training, and on the command line ----------------------------------------------------------------


def test_another_tokenizer_beside_an_archive_is_read_with_a_warning(place, caplog):
    folder = write_old(place / "folder", random_weights(GPT_2B))
    put_tokenizer(place, folder)
    (place / "download").mkdir()
    archive = pack(folder, place / "download/own.nemo")
    for end, warnings in (("", 0), ("\n", 1)):
        put_tokenizer(place, archive.parent)
        beside = archive.with_name("tokenizer.json")
        beside.write_text(beside.read_text() + end)
        import_nemo(archive, place / f"out{warnings}")
        warned = [record for record in caplog.messages if "has a tokenizer, but the tokenizer in" in record]
        assert len(warned) == warnings


def test_restore_from_path_imports_an_archive_once(place, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(place / "cache"))
    archive = pack(write_old(place / "folder", random_weights(GPT_2B)), place / "mcore_gpt.nemo")
    first = resolve(archive)
    assert first.parent == place / "cache/nemo" and first.name.startswith("mcore_gpt-")
    assert Architecture.load(first) == GPT_2B
    made = (first / "source.json").stat().st_mtime_ns
    again = place / "elsewhere/mcore_gpt.nemo"
    again.parent.mkdir()
    shutil.copy(archive, again)
    put_tokenizer(place, again.parent)
    assert resolve(str(archive)) == resolve(again) == first
    assert (first / "source.json").stat().st_mtime_ns == made
    update_json(again.with_name("tokenizer_config.json"), model_max_length=7)
    assert Tokenizer(resolve(again)).config["model_max_length"] == 7, "the files beside the archive count"
    (first / "weights").joinpath("rank00000_00000.safetensors").write_bytes(b"")
    assert resolve(archive) == first, "one that is damaged is made anew"
    StoreReader(first / "weights")
    write_old(place / "other", random_weights(GPT_2B, seed=1))
    assert resolve(pack(place / "other", archive)) != first
    assert resolve(place / "folder") != first
    # all kinds of job ask `model_folder` for the models that they start from
    model = {"restore_from_path": str(again), "encoder_seq_length": 128}
    config = OmegaConf.create({"model": model, "exp_manager": {"explicit_log_dir": None}})
    assert model_folder(config, "model.restore_from_path", "lm") == resolve(again)
    with pytest.raises(UserError, match=r"restore_from_path=.*mcore_gpt\.nemo is a language model"):
        model_folder(config, "model.restore_from_path", "scalar")


def test_export_gives_back_the_same_model_from_an_archive_and_from_its_folder(tmp_path, smoke):
    notes = export(str(smoke), "nemo", tmp_path / "sft.nemo")
    assert "model.tokenizer.type=FOLDER" in notes[0]
    with tarfile.open(tmp_path / "sft.nemo") as tar:
        tar.extractall(tmp_path / "folder", filter="data")
    for source in (tmp_path / "sft.nemo", tmp_path / "folder"):
        out = import_model(source, tmp_path / f"{source.stem}_model")
        assert_holds(out, Architecture.load(smoke), whole(smoke))
        assert Tokenizer(out).hash == Tokenizer(smoke).hash
        assert (out / "tokenizer_config.json").read_text() == (smoke / "tokenizer_config.json").read_text()
    export(str(smoke), "nemo", tmp_path / "again.nemo")
    assert (tmp_path / "again.nemo").read_bytes() == (tmp_path / "sft.nemo").read_bytes()
    two = shutil.copytree(smoke, tmp_path / "two_stops")
    (two / "generation_config.json").write_text('{"eos_token_id": [2, 0]}')
    export(two, "nemo", tmp_path / "two.nemo")
    assert Tokenizer(import_model(tmp_path / "two.nemo", tmp_path / "two_model")).stop_ids == (2, 0)


def test_the_commands_export_in_another_dtype_and_import(tmp_path, smoke):
    archive, model = str(tmp_path / "x.nemo"), str(tmp_path / "model")
    for arguments in (
        ["export", str(smoke), "--to", "nemo", "--dtype", "bfloat16", "--out", archive],
        ["import", archive, "--out", model],
    ):
        done = CliRunner().invoke(app, ["model", *arguments])
        assert done.exit_code == 0, done.output
    tensors = {name: tensor.bfloat16() for name, tensor in whole(smoke).items()}
    assert_holds(tmp_path / "model", Architecture.load(smoke), tensors)


def test_the_same_bytes_as_many_weights(place):
    """A file that unfolds: every layer of fifty is the first one's storage."""
    tensors = random_weights(GPT_2B)
    layer = {name: tensor for name, tensor in tensors.items() if ".layers.0." in name}
    for number in range(50):
        tensors |= {name.replace(".0.", f".{number}.", 1): tensor for name, tensor in layer.items()}
    folder = write_old(place / "folder", tensors, {**CONFIG, "num_layers": 50}, layers=50)
    assert (folder / "model_weights.ckpt").stat().st_size < 1 << 20
    refuse(folder, r"its weights would take .*: the archive is made to fill a disk")


@pytest.mark.parametrize(
    "change",
    [
        {"nope_layers": (3,)},
        {"logits_softcap": 30.0},
        {"sliding_window": 8, "sliding_layers": (1,)},
        {"embedding_scale": 3.0},
        {"attention_scale": 0.5},
    ],
)
def test_what_nemo_has_no_key_for_is_not_written(change):
    message = f"has no key for .*{[*change][-1]}=.*: export the model with --to hf"
    with pytest.raises(ValueError, match=message):
        nemo_config(replace(LLAMA, **change), {}, "F32", RewardScale())
