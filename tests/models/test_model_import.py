"""Importing: every number arrives, in its dtype, and whatever does not fit is an error."""

import dataclasses
import errno
import json
import os
import resource
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import gguf
import numpy as np
import pytest
import torch
from tiny_families import stored
from tiny_llama import (
    ARCH,
    assert_same_bits,
    hf_config,
    random_weights,
    read_json,
    update_json,
    write_gguf,
    write_hf,
)

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import families, import_hf, import_model, model_hash
from aligner_lib.models.adapters import AdapterRecord
from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.convert import open_source
from aligner_lib.models.disk import DiskFull, whole_or_absent
from aligner_lib.models.export import export
from aligner_lib.models.names import weights
from aligner_lib.models.peft_folder import name_of_base
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.tensor_store import StoreReader, check_store

TIED = dataclasses.replace(ARCH, tied_embeddings=True)


def back_to_hf(folder, arch) -> dict[str, torch.Tensor]:
    """A model folder's weights under Hugging Face's names."""
    assert StoreReader(folder / "weights").names() == sorted(weight.megatron for weight in weights(arch))
    return stored(folder / "weights", arch)


def test_a_model_saved_by_transformers_is_read(tmp_path, smoke):
    """In its shards, with progress; nothing is left beside it. test_model_export: to the bit and back, also tied."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model, hf, progress_counts = LlamaForCausalLM(LlamaConfig(**hf_config(ARCH))), tmp_path / "hf", []
    write_hf(hf, ARCH, {}, smoke)
    (hf / "model.safetensors").unlink()
    model.save_pretrained(hf, max_shard_size="100KB")
    assert (hf / "model.safetensors.index.json").exists()
    out = import_hf(
        hf, tmp_path / "model", progress=lambda done, total: progress_counts.append((done, total))
    )
    assert Architecture.load(out) == ARCH
    assert_same_bits(back_to_hf(out, ARCH), model.state_dict())
    assert check_store(out / "weights") > 0
    total = len(list(weights(ARCH)))
    assert progress_counts == [(done, total) for done in range(1, total + 1)]
    assert Tokenizer(out).encode("Hello, 2024!") == Tokenizer(smoke).encode("Hello, 2024!")
    assert read_json(out / "source.json")["hash"] == model_hash(out)
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "model"}


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_1"])
def test_gguf_weights_equal_their_own_dequantisation(tmp_path, smoke, kind):
    kind = gguf.GGMLQuantizationType[kind]
    tensors = random_weights(ARCH)
    out = import_hf(write_gguf(tmp_path / "m.gguf", ARCH, tensors, smoke, kind), tmp_path / "model")
    assert Architecture.load(out) == ARCH
    for name, tensor in back_to_hf(out, ARCH).items():
        stored_kind = kind if tensor.dim() == 2 else gguf.GGMLQuantizationType.F32
        # quantisation is row by row, so that it commutes with the order of rows
        expected = gguf.dequantize(gguf.quantize(tensors[name], stored_kind), stored_kind).astype(np.float32)
        assert tensor.dtype == torch.float32
        np.testing.assert_array_equal(tensor.numpy(), expected.reshape(tensor.shape), err_msg=name)


def test_gguf_weights_equal_transformers(tmp_path, smoke):
    """transformers reads the same file by code of its own: names, q and k permutation, tying."""
    from transformers import LlamaConfig, LlamaForCausalLM, modeling_gguf_pytorch_utils

    path = write_gguf(tmp_path / "m.gguf", TIED, random_weights(TIED), smoke, gguf.GGMLQuantizationType.Q8_0)
    model = LlamaForCausalLM(LlamaConfig(**hf_config(TIED)))  # from_pretrained wants accelerate
    load = modeling_gguf_pytorch_utils.load_gguf_checkpoint
    expected = load(str(path), return_tensors=True, model_to_load=model)["tensors"]
    assert_same_bits(back_to_hf(import_hf(path, tmp_path / "model"), TIED), expected)


# ---- what does not fit is an error, and leaves nothing behind -------------------------------------------------------


UP, BIAS = "model.layers.1.mlp.up_proj.weight", "model.layers.0.self_attn.q_proj.bias"
K_PROJ, NORM = "model.layers.0.self_attn.k_proj.weight", "model.norm.weight"
ABSENT = object()


@pytest.mark.parametrize(
    ("tensors", "config", "message"),
    [
        ({UP: ABSENT}, {}, f"1 weights are missing, the first: {UP}"),
        ({BIAS: np.zeros(64, np.float32)}, {}, f"1 weights do not belong to the model, the first: {BIAS}"),
        ({}, {"intermediate_size": 100}, r"has shape \[96, 64\], but the configuration says \[100, 64\]"),
        ({}, {"vocab_size": 1000}, r"gives .* the id 1023, but .* only for the ids below 1000: take the"),
        ({NORM: np.ones(64, np.int8)}, {}, f"{NORM} is I8; only F64, F32, F16, BF16 can be read"),
        ({K_PROJ: np.zeros((32, 64), np.float16)}, {}, r"their dtypes differ: \['F16', 'F32'\]"),
        ({}, {"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ({}, {"num_attention_heads": ABSENT}, r"config\.json has no 'num_attention_heads'"),
        ({}, {"tie_word_embeddings": True}, r"ties lm_head\.weight to the embedding .* but the two differ"),
        ({}, {"num_hidden_layers": "2"}, r"config\.json: num_hidden_layers is .*, but must be an "),
        ({}, {"rope_scaling": "linear"}, r"config\.json: rope_scaling is .*, but must be a"),
        ({}, {"rope_parameters": {"rope_theta": "x"}}, r"rope_parameters: rope_theta is .*, but must be a "),
    ],
)
def test_unfit_models_are_refused(tmp_path, smoke, tensors, config, message):
    """ABSENT: a weight or a key that is not there."""
    weights, settings = (
        {name: value for name, value in (whole | changes).items() if value is not ABSENT}
        for whole, changes in ((random_weights(ARCH), tensors), (hf_config(ARCH), config))
    )
    source = write_hf(tmp_path / "hf", ARCH, weights, smoke)
    (source / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        import_hf(source, tmp_path / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf"]


NEOX = dataclasses.replace(
    ARCH,
    **{"num_query_groups": ARCH.num_attention_heads, "family": "gpt_neox", "normalization": "layer"},
    **{"activation": "gelu", "parallel_residual": True, "qkv_bias": True, "proj_and_mlp_bias": True},
    tied_embeddings=True,
)
LEFTOVERS = {
    "lm_head.weight": random_weights(TIED)["model.embed_tokens.weight"],
    "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float32),
}
# Pythia's published files hold a mask of bools for each layer, and the number that masks a score
NEOX_LEFTOVERS = {
    "gpt_neox.layers.0.attention.bias": np.tri(8, dtype=bool)[None, None],
    "gpt_neox.layers.0.attention.masked_bias": np.array(-1e9, np.float32),
    "gpt_neox.layers.0.attention.rotary_emb.inv_freq": np.ones(2, np.float32),
    "embed_out.weight": random_weights(NEOX)["gpt_neox.embed_in.weight"],
}


@pytest.mark.parametrize(
    ("arch", "leftovers"), [(TIED, LEFTOVERS), (NEOX, NEOX_LEFTOVERS)], ids=["llama", "pythia"]
)
def test_copies_and_buffers_that_are_no_weights_are_left_out(tmp_path, smoke, arch, leftovers):
    """Some writers of config.json name the quantization of a model without one."""
    tensors = random_weights(arch)
    source = write_hf(tmp_path / "hf", arch, {**tensors, **leftovers}, smoke)
    (source / "config.json").write_text(json.dumps(families.to_hf(arch) | {"quantization_config": None}))
    assert_same_bits(back_to_hf(import_hf(source, tmp_path / "model"), arch), tensors)


def test_added_tokens_for_which_the_embedding_has_no_row_are_left_out(tmp_path, smoke, hf, caplog):
    """As Gemma 3's text models have them; a stop token without a row is an error."""
    paths = hf / "tokenizer.json", hf / "tokenizer_config.json"
    stored, config = map(read_json, paths)
    image = stored["added_tokens"][0] | {"content": "<image>", "id": 1024}
    stored["added_tokens"].append(image)
    own = config | {"extra_special_tokens": {"eoi_token": config["eos_token"]}, "added_tokens_decoder": {}}
    naming = {
        "image_token": "<image>",
        "extra_special_tokens": own["extra_special_tokens"] | {"image_token": "<image>"},
        "added_tokens_decoder": {"1024": image},
    }
    paths[0].write_text(json.dumps(stored))
    paths[1].write_text(json.dumps(config | naming))
    out = import_hf(hf, tmp_path / "model")
    assert Tokenizer(out).hash == Tokenizer(smoke).hash and Tokenizer(out).config == own
    assert "the tokenizer's '<image>' can't be used in texts" in caplog.text
    paths[1].write_text(json.dumps(config | {"eos_token": "<image>"}))
    with pytest.raises(ValueError, match=r"gives '<image>' the id 1024, .* below 1024: take the tokenizer"):
        import_hf(hf, tmp_path / "other")


CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
SECOND, INDEX = "model-00002-of-00002.safetensors", "model.safetensors.index.json"
LARGE_STOP = ('"model_type"', '"eos_token_id": [2, 5000], "model_type"')
NO_SUCH_STOP = r"hf/config\.json: eos_token_id contains 5000, .* the tokenizer in .*hf: correct the id"
OTHER_NORM = ('"model.norm.weight"', '"x"')


def test_missing_and_spoilt_files_are_named(tmp_path, smoke):
    """None: no such file; a pair: a text of the file and what stands there instead."""
    source = write_hf(tmp_path / "hf", ARCH, random_weights(ARCH), smoke, shards=2)
    for name, content, message in (
        (CONFIG, None, "has no config.json"),
        (CONFIG, "[]", r"config\.json is not a JSON object: download the file again"),
        (CONFIG, "[" * 100_000, r"config\.json is not JSON"),
        (CONFIG, LARGE_STOP, NO_SUCH_STOP),
        (TOKENIZER, None, "has neither a tokenizer.json nor"),
        (TOKENIZER, "[]", r"tokenizer\.json can't be read"),
        (SETTINGS, '{"eos_token": {"id": 5}}', r"names no eos_token, .*: add the model's eos_token"),
        (SECOND, None, f"is incomplete: .* names {SECOND}"),
        (INDEX, None, "has neither model.safetensors nor"),
        (INDEX, '{"weight_map": {"w": 1}}', r"index\.json has no weight_map"),
        (INDEX, OTHER_NORM, r"disagree on 2 weights"),
    ):
        path = source / name
        whole = path.read_bytes()
        if content is None:
            path.unlink()
        else:
            path.write_text(content if isinstance(content, str) else whole.decode().replace(*content))
        with pytest.raises(ValueError, match=message):
            import_hf(source, tmp_path / "model")
        path.write_bytes(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("model.json", Architecture.load),
        ("tokenizer.json", Tokenizer),
        ("tokenizer_config.json", Tokenizer),
        ("generation_config.json", lambda folder: Tokenizer(folder).stop_ids),
        ("generation_config.json", lambda folder: export(folder, "hf", folder / "out")),
        ("source.json", lambda folder: export(folder, "hf", folder / "out")),
        ("source.json", name_of_base),
        ("reward.json", RewardScale.load),
        ("adapter.json", AdapterRecord.load),
        ("adapter.json", model_hash),
    ],
)
def test_a_slip_in_a_file_of_a_model_folder_is_named_with_its_place(tmp_path, smoke, name, read):
    folder = shutil.copytree(smoke, tmp_path / "model")
    (folder / name).write_text('{"path": "a"\n "hash": "b"}')  # without the comma
    with pytest.raises(
        UserError, match=rf"model/{name} .*line . column .*: correct the file, or import the model"
    ):
        read(folder)


@pytest.mark.parametrize(
    ("name", "text", "read", "slip"),
    [
        ("model.json", "{}", Architecture.load, r": missing .* 'num_layers'"),
        ("reward.json", '{"meen": 1}', RewardScale.load, ": got an unexpected keyword argument 'meen'"),
        ("adapter.json", "{}", AdapterRecord.load, " has no 'layers'"),
        ("adapter.json", '{"layers": []}', AdapterRecord.load, ": 'list' object has no attribute 'items'"),
        ("adapter.json", "{}", model_hash, " has no 'base'"),
    ],
)
def test_a_slip_in_a_key_of_a_model_folder_s_file_is_named(tmp_path, name, text, read, slip):
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"{name}{slip}.*: correct the file, or import the model again"):
        read(tmp_path)


def header_of(entries: object, data: bytes = bytes(16)) -> bytes:
    text = json.dumps(entries).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(start: object, end: object, shape: object = (2,), dtype: object = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE_HEADERS = {
    "overlap": header_of({"a": tensor(0, 8), "b": tensor(0, 8), "c": tensor(8, 16)}),
    "hole": header_of({"a": tensor(0, 4, [1]), "b": tensor(8, 16)}),
    "backwards": header_of({"a": tensor(16, 0), "b": tensor(0, 16, [4])}),
    "beyond the file": header_of({"a": tensor(0, 1 << 40, [1 << 38])}),
    "no dtype": header_of({"a": {"shape": [4], "data_offsets": [0, 16]}}),
    "fractions": header_of({"a": tensor(0.0, 16.0, [4])}),
    "negative shape": header_of({"a": tensor(0, 16, [-2, -2])}),
    "another shape": header_of({"a": tensor(0, 16, [1 << 40, 1 << 40])}),
    "no object": header_of({"a": [0, 16]}),
    "nested": (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "a long header": (1 << 26).to_bytes(8, "little") + b"[" + b"[]," * ((1 << 26) // 3) + b"0",
}
SIZES = (
    "num_hidden_layers hidden_size num_attention_heads num_key_value_heads intermediate_size vocab_size "
    "max_position_embeddings head_dim"
).split()
HOSTILE_SIZES = [(name, 10**9) for name in SIZES]
HOSTILE_SIZES += [("hidden_size", value) for value in (10**30, -1, 0, True, 2.0, "2")]


def refuse_within_100_mb(folder, words: str = "") -> None:
    """The import ends with one sentence, in little more memory than this process has."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 100_000_000, before[1]))
    try:
        with pytest.raises(ValueError, match=rf"^(?=.*({words})).{{20,500}}$"):
            import_hf(folder, folder / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process's size from /proc")
def test_hostile_headers_and_sizes_are_refused_in_a_sentence_within_100_mb(tmp_path, hf):
    for name, header in HOSTILE_HEADERS.items():
        folder = shutil.copytree(hf, tmp_path / f"header {name}")
        (folder / "model.safetensors").write_bytes(header)
        refuse_within_100_mb(folder, r"is damaged|at most \d+ can be read")
    for key, value in HOSTILE_SIZES:
        folder = shutil.copytree(hf, tmp_path / f"{key} {value}")
        update_json(folder / "config.json", **{key: value})
        refuse_within_100_mb(folder)


def test_a_cut_file_is_damaged(tmp_path, smoke, hf):
    for source, path, message in (
        (hf, hf / "model.safetensors", "is damaged"),
        (tmp_path / "m.gguf", tmp_path / "m.gguf", "is not a complete GGUF file"),
    ):
        write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH), smoke)
        whole = path.read_bytes()
        for length in (3, 1000, -1000):
            path.write_bytes(whole[:length])
            with pytest.raises(ValueError, match=message):
                import_hf(source, tmp_path / "model")


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"factor": 2.5}, 2.5),  # llama.cpp's default type is linear
        ({"factor": 2.5, "type": "none"}, None),
        ({"type": "linear"}, None),
    ],
)
def test_a_gguf_file_s_linear_scaling_is_read(tmp_path, smoke, fields, factor):
    expected = dataclasses.replace(ARCH, rope_scaling=factor and RopeScaling("linear", factor))
    for name in ("llama.rope.scaling.factor", "llama.rope.scale_linear"):  # the second is the older one
        keys = {f"llama.rope.scaling.{key}": value for key, value in fields.items()}
        if "factor" in fields:
            keys[name] = keys.pop("llama.rope.scaling.factor")
        path = write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH), smoke, fields=keys)
        assert open_source(path).architecture == expected


EXTRA = "model.layers.2.mlp.up_proj.weight"
SCALED = {"rope_freqs.weight": np.ones(8, np.float32)}


@pytest.mark.parametrize(
    ("tensors", "fields", "message"),
    [
        ({}, {"llama.rope.scaling.type": "yarn"}, "yarn is not supported in GGUF files: fetch the"),
        (SCALED, {}, r"rope scaling llama3 \(rope_freqs\.weight\) is not"),
        ({EXTRA: np.zeros((96, 64), np.float32)}, {}, f"1 weights do not belong .*, the first: {EXTRA}"),
    ],
)
def test_unfit_gguf_files_are_refused(tmp_path, smoke, tensors, fields, message):
    path = write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH) | tensors, smoke, fields=fields)
    with pytest.raises(ValueError, match=message):
        import_hf(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_an_unknown_pre_tokenizer_is_refused_and_cured_by_the_models_own_tokenizer(tmp_path, smoke):
    path = write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH), smoke, pre="llama-bpe")
    with pytest.raises(ValueError, match=r"pre-tokenizer 'llama-bpe'.*Put the model's tokenizer\.json"):
        import_hf(path, tmp_path / "model")
    shutil.copy(smoke / "tokenizer.json", tmp_path)
    with pytest.raises(ValueError, match=r"put the model's tokenizer_config\.json there"):
        import_hf(path, tmp_path / "model")
    shutil.copy(smoke / "tokenizer_config.json", tmp_path)
    out = import_hf(path, tmp_path / "model")
    assert (out / "tokenizer.json").read_bytes() == (smoke / "tokenizer.json").read_bytes()


def test_a_gguf_file_without_a_tokenizer_needs_the_models_own_beside_it(tmp_path, smoke):
    path = write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH), smoke)
    source = open_source(path)
    fields = source._reader.fields
    fields["llama.vocab_size"] = fields["llama.embedding_length"]
    del fields["tokenizer.ggml.tokens"]
    with pytest.raises(
        ValueError, match=r"has no tokenizer\.ggml\.tokens, .*: put the model's tokenizer\.json and"
    ):
        source.write_tokenizer(tmp_path)
    assert source._read_architecture().vocab_size == ARCH.hidden_size


def test_what_exists_is_left_alone_and_what_is_no_model_is_refused(tmp_path, smoke, hf):
    with pytest.raises(ValueError, match=r"exists already: remove .*, or choose another name"):
        import_hf(hf, smoke)
    out = tmp_path / "new" / "model.nemo"
    out.parent.mkdir()
    with pytest.raises(ValueError, match="exists already"), whole_or_absent(out, "--out") as path:
        path.write_text("new")
        out.write_text("mine")  # which appears while the model is written
    assert [path.read_text() for path in out.parent.iterdir()] == ["mine"]
    with pytest.raises(
        UserError, match=r"model can't be written \(File exists: .*config\.json\): choose .*--out"
    ):
        import_hf(hf, hf / "config.json" / "model")
    with pytest.raises(ValueError, match="does not exist"):
        open_source(tmp_path / "nothing")
    (tmp_path / "weights.bin").touch()
    with pytest.raises(ValueError, match=r"is neither a Hugging Face model folder nor a .* ends in \.nemo"):
        open_source(tmp_path / "weights.bin")


def test_a_killed_import_is_named_and_an_unreadable_source_is_refused(tmp_path, hf, monkeypatch, caplog):
    for name in (".model.abcd1234.partial", ".model.v2.abcd1234.partial"):
        (tmp_path / name).mkdir()
    import_model(hf, tmp_path / "model")
    (warning,) = caplog.messages
    assert warning.startswith(f"{tmp_path / '.model.abcd1234.partial'}: left by a process that wrote ")
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{hf}/config.json")
    monkeypatch.setattr("aligner_lib.models.hf_folder.read_object", Mock(side_effect=denied))
    with pytest.raises(UserError, match=r"hf/config\.json can't be read \(Permission denied\): ask"):
        import_model(hf, tmp_path / "again")


def test_a_failed_import_leaves_nothing_of_its_own(tmp_path, hf):
    notes = tmp_path / "model.partial" / "notes.txt"  # the user's
    notes.parent.mkdir()
    notes.write_text("kept")
    full = r"disk is full: free space for .*/model, or .* \(--out;"
    for error, expected, message in (
        (KeyboardInterrupt(), KeyboardInterrupt, ""),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), DiskFull, full),
    ):

        def progress(done, total, error=error):
            if done == 5:
                raise error

        with pytest.raises(expected, match=message):
            import_hf(hf, tmp_path / "model", progress=progress)
        assert {path.name for path in tmp_path.iterdir()} == {"hf", "model.partial"}
    import_hf(hf, tmp_path / "model")
    assert notes.read_text() == "kept"
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "model.partial", "model"}
