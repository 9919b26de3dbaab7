"""Exporting: what a model folder holds arrives in transformers to the bit, or nothing is there."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_llama import ARCH, assert_same_bits, random_weights, read_json, update_json, write_hf
from tiny_tokenizers import STYLES

from aligner_lib.datasets.chat_template import (
    SCORED_END,
    encode,
    own_template,
    plain_template,
    recorded_template,
    render,
    save_tokenizer,
    use_template,
)
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import import_hf, import_model, model_hash
from aligner_lib.models.adapters import Adapter, AdapterRecord
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export import Options, export
from aligner_lib.models.export.trained import Trained
from aligner_lib.models.merge import merge
from aligner_lib.models.peft_folder import name_of_base
from aligner_lib.models.resolve import resolve
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.stream import StoredArrays
from aligner_lib.models.tensor_store import Block, StoreReader, StoreWriter, read_header

TIED = dataclasses.replace(ARCH, tied_embeddings=True)
SCALAR = dataclasses.replace(ARCH, head="scalar")


@pytest.fixture
def model(hf, tmp_path):
    return import_hf(hf, tmp_path / "model")


def tensors_of(folder) -> dict[str, torch.Tensor]:
    """The tensors of a folder's files."""
    return {name: t for path in folder.glob("*.safetensors") for name, t in load_file(path).items()}


def rewrite_weight(model, name: str, change) -> None:
    store = StoreReader(model / "weights")
    weights = {each: store.read_whole(each) for each in store.names()}
    weights[name] = change(weights[name])
    next((model / "weights").iterdir()).unlink()
    write_store(model / "weights", weights)


def write_store(folder, weights: dict[str, torch.Tensor]) -> None:
    writer = StoreWriter(folder)
    for name, tensor in weights.items():
        writer.add(Block.whole(name, tensor), tensor)
    writer.flush()


# ---- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "shard_bytes"), [(ARCH, 150_000), (TIED, 10**9)], ids=["untied", "tied"])
def test_import_export_import_gives_the_same_bits(tmp_path, smoke, arch, shard_bytes):
    """Shards are bounded, indexed and named as transformers names them."""
    hf = write_hf(tmp_path / "hf", arch, random_weights(arch), smoke, shards=1 if arch == TIED else 3)
    first, out = import_hf(hf, tmp_path / "first"), tmp_path / "out"
    assert Architecture.load(first) == arch
    export(first, "hf", out, Options(shard_bytes=shard_bytes))
    assert_same_bits(tensors_of(out), tensors_of(hf))
    assert model_hash(import_hf(out, tmp_path / "second")) == model_hash(first)
    if arch == TIED:
        return
    files = sorted(out.glob("*.safetensors"))
    names = [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    assert [path.name for path in files] == names and len(files) > 3
    embedding = 4 * ARCH.vocab_size * ARCH.hidden_size  # larger than a shard: it has a file of its own
    sizes = sorted(sum(tensor.nbytes for tensor in load_file(path).values()) for path in files)
    assert sizes[-2:] == [embedding, embedding] and sizes[-3] <= 150_000
    index = read_json(out / "model.safetensors.index.json")
    assert index["weight_map"] == {name: path.name for path in files for name in load_file(path)}
    assert index["metadata"]["total_size"] == 4 * ARCH.num_parameters > 2 * embedding


@pytest.mark.parametrize(
    ("wide", "config_dtype"), [("norm", "bfloat16"), ("layers.1.mlp.down_proj", "float32")]
)
def test_dtypes_are_kept_weight_by_weight(tmp_path, smoke, wide, config_dtype):
    """Some weights in float32 among others in bfloat16, which have an odd size: the wider stay aligned. transformers loads a
    model with some matrices in float32, as a run in bf16 with frozen layers stores it, in float32: in bfloat16 the trained
    layers would lose what they learnt."""
    arch = dataclasses.replace(ARCH, vocab_size=1025, hidden_size=63)
    mixed = {
        name: torch.from_numpy(array).to(torch.float32 if wide in name else torch.bfloat16)
        for name, array in random_weights(arch).items()
    }
    save_file(mixed, write_hf(tmp_path / "hf", arch, {}, smoke) / "model.safetensors")
    model = import_hf(tmp_path / "hf", tmp_path / "model")
    header = read_header(next((model / "weights").iterdir()))
    header.pop("__metadata__")
    width = {"F32": 4, "BF16": 2}
    assert all(entry["data_offsets"][0] % width[entry["dtype"]] == 0 for entry in header.values())
    export(model, "hf", tmp_path / "out")
    assert_same_bits(tensors_of(tmp_path / "out"), mixed)
    assert read_json(tmp_path / "out/config.json")["torch_dtype"] == config_dtype


def test_another_dtype_is_torch_s_rounding(tmp_path, model, hf):
    export(model, "hf", tmp_path / "out", Options(dtype="float16"))
    expected = {name: tensor.half() for name, tensor in tensors_of(hf).items()}
    assert_same_bits(tensors_of(tmp_path / "out"), expected)
    assert read_json(tmp_path / "out/config.json")["torch_dtype"] == "float16"


def test_blocks_of_several_ranks_are_read_as_whole_tensors(tmp_path):
    values = torch.arange(24, dtype=torch.float32).view(4, 6).bfloat16()
    for rank, columns in enumerate((slice(0, 4), slice(4, 6))):
        writer, part = StoreWriter(tmp_path, rank), values[:, columns]
        writer.add(Block("w", (4, 6), (0, columns.start), tuple(part.shape)), part)
        writer.flush()
    store = StoredArrays(tmp_path)
    assert store.dtype("w") == "BF16"
    assert np.array_equal(store.read("w"), values.view(torch.uint16).numpy())
    (tmp_path / "rank00001_00000.safetensors").unlink()
    with pytest.raises(ValueError, match=r"w in .* is incomplete: 16 of 24 values"):
        StoredArrays(tmp_path).read("w")


def test_adapters_are_merged_into_their_base_or_exported_for_peft(tmp_path, hf, model):
    """A checkpoint of adapters to one layer's matrices, on the model."""
    adapted, layers = tmp_path / "adapted", {"linear_qkv": Adapter(4, 0.5), "linear_fc1": Adapter(2, 2.0)}
    adapted.mkdir()
    Architecture.load(model).save(adapted)
    Tokenizer(model).save(adapted)
    AdapterRecord(model, model_hash(model), layers).save(adapted)
    random, at = torch.Generator().manual_seed(3), "decoder.layers.1."
    shapes = {
        **{"self_attention.linear_qkv.lora_a": (4, 64), "self_attention.linear_qkv.lora_b": (128, 4)},
        **{"mlp.linear_fc1.lora_a": (2, 64), "mlp.linear_fc1.lora_b": (192, 2)},
    }
    tensors = {at + name: torch.randn(shape, generator=random) for name, shape in shapes.items()}
    write_store(adapted / "weights", tensors)

    export(adapted, "hf", tmp_path / "out")
    update_json(model / "source.json", **HUB)
    export(merge(adapted, tmp_path / "merged"), "hf", tmp_path / "expected")
    assert_licensed(tmp_path / "expected")
    card = (tmp_path / "expected/README.md").read_text()
    assert "\n# merged\n" in card and "Adapters are merged into the weights of " in card
    assert name_of_base(tmp_path / "merged") is None, "its adapters would not be the hub's model's"
    exported, expected, base = (
        tensors_of(folder) for folder in (tmp_path / "out", tmp_path / "expected", hf)
    )
    torch.testing.assert_close(exported, expected, atol=1e-6, rtol=0)
    names = [name for name in base if not torch.equal(exported[name], base[name])]
    changed = {name.removeprefix("model.layers.1.") for name in names}
    parts = {f"self_attn.{part}_proj.weight" for part in "qkv"}
    assert changed == parts | {f"mlp.{part}_proj.weight" for part in ("gate", "up")}

    save_tokenizer(use_template(Tokenizer(adapted), "plain"), adapted)
    update_json(model / "source.json", origin="here")  # the hub does not have the base
    export(adapted, "peft", tmp_path / "peft")
    for folder in (tmp_path / "peft", tmp_path / "peft/base"):
        assert own_template(Tokenizer(folder)) == plain_template(Tokenizer(adapted)), folder
    adapters = load_file(tmp_path / "peft/adapter_model.safetensors")
    assert adapters["base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"].shape == (4, 64)


# ---- what goes with them --------------------------------------------------------------------------------------------

TURNS = [
    {"role": "user", "content": "Hi."},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Why?"},
]


@pytest.mark.parametrize("changes", [{}, {"add_bos_token": True}, {"add_bos_token": False}], ids=str)
def test_transformers_tokenises_as_here(tmp_path, model, changes):
    from transformers import AutoTokenizer

    for name, make_style in STYLES.items():
        make_style(model)
        update_json(model / "tokenizer_config.json", **changes)
        export(model, "hf", tmp_path / name)
        theirs, ours = AutoTokenizer.from_pretrained(tmp_path / name), Tokenizer(model)
        for text in ("User: How are you?\n\nAssistant:", " I am well, 北京 😀.", "a  b"):
            assert theirs(text).input_ids == ours.encode(text), name


@pytest.mark.parametrize(
    ("trained_on", "style", "bos", "expected"),
    [
        (None, None, "", "<|im_start|>user\nHi."),
        ("plain", None, "", "User: Hi.\n\nAssistant: Hello.\n\nUser: Why?\n\nAssistant:"),
        ("plain", "llama_3", "<s>", "User: Hi."),  # only the post-processor names the BOS token
    ],
)
def test_the_template_that_a_model_has_learnt_from_goes_along(
    tmp_path, model, trained_on, style, bos, expected
):
    """The tokenizer's own; or plain texts, where its own would ask the model in a form that it has not learnt."""
    from transformers import AutoTokenizer

    if style:
        STYLES[style](model)
        update_json(model / "tokenizer_config.json", bos_token=None)
    ours = Tokenizer(model)
    if trained_on:
        (model / "template.json").write_text(json.dumps({"chat_template": trained_on}))
        ours = use_template(ours, trained_on)
    export(model, "hf", tmp_path / "out")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = theirs.apply_chat_template(TURNS, add_generation_prompt=True, tokenize=False)
    assert text == bos + render(ours, TURNS) and expected in text
    assert theirs(text, add_special_tokens=False).input_ids == encode(ours, TURNS)
    assert recorded_template(import_hf(tmp_path / "out", tmp_path / "again")) == trained_on


DATED = "{% set form = '%d/%m' %}{% if strftime_now is defined %}{{ strftime_now(FORM) }}{% endif %}"


@pytest.mark.parametrize(("form", "note"), [("'%d/%m'", "writes 2026-07-04"), ("form", "writes today's")])
def test_the_date_of_the_training_conversations_stays_in_an_export(tmp_path, model, form, note):
    own = DATED.replace("FORM", form)
    update_json(model / "tokenizer_config.json", chat_template=own)
    (model / "template.json").write_text('{"chat_template": "tokenizer", "date": "2026-07-04"}')
    notes = [*export(model, "hf", tmp_path / "out"), *export(model, "nemo", tmp_path / "out.nemo")]
    assert [note in line for line in notes] == [True, True, False]  # the last is NeMo's tokenizer
    exported = [tmp_path / "out", import_model(tmp_path / "out.nemo", tmp_path / "again")]
    expected = own.replace("strftime_now('%d/%m')", '"04/07"')
    assert [own_template(Tokenizer(folder)) for folder in exported] == [expected] * 2


def test_generation_settings_go_in_and_out_and_the_stop_token_is_the_first(tmp_path, hf):
    """The settings are the model's own; after a run with rollouts, those of the rollouts."""
    from transformers import GenerationConfig

    came_with = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "eos_token_id": [0, 1]}
    settings = hf / "generation_config.json"
    settings.write_text(json.dumps({**came_with, "transformers_version": "4.40"}))
    model = import_hf(hf, tmp_path / "model")
    export(model, "hf", tmp_path / "out")
    written = read_json(tmp_path / "out/generation_config.json")
    assert written == came_with | {"eos_token_id": [2, 0, 1], "pad_token_id": 2, "bos_token_id": 0}
    assert Tokenizer(model).eos_id == 2 and Tokenizer(model).stop_ids == (2, 0, 1)
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == [2, 0, 1]
    update_json(model / "generation_config.json", repetition_penalty=1.1)
    sampling = {"use_greedy": False, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    rollouts = {"sampling_params": sampling, "length_params": {"max_length": 12}}
    export(started_from(model, model, {"grpo": rollouts}).folder, "hf", tmp_path / "run")
    of_rollouts = {"do_sample": True, "max_new_tokens": 12, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    ids = {"eos_token_id": [2, 0, 1], "pad_token_id": 2, "bos_token_id": 0}
    assert read_json(tmp_path / "run/generation_config.json") == of_rollouts | ids
    update_json(settings, eos_token_id=[2, 5000])
    with pytest.raises(ValueError, match=r"hf/generation_config\.json: eos_token_id contains 5000"):
        import_hf(hf, tmp_path / "other")


def test_a_card_tells_what_is_known_and_leaves_the_rest_open(tmp_path, model):
    trained = started_from(model, model, reward_model="a", **{"model_answers.jsonl": "b"})
    export(trained.folder, "hf", tmp_path / "out")
    card = (tmp_path / "out/README.md").read_text()
    assert f"{ARCH.num_parameters:,} parameters" in card
    assert "# license: not known" in card and "Fill in the licence" in card
    assert str(tmp_path) not in card
    assert "| --- | --- |\n| model_answers.jsonl | `b` |\n\n" in card, "each data file of the run"


HUB = {"origin": "hub someone/their-model c0ffee", "license": "apache-2.0"}


def assert_licensed(out) -> None:
    card = (out / "README.md").read_text()
    assert "base_model: someone/their-model\n" in card and "license: apache-2.0\n" in card


@pytest.fixture
def sft(tmp_path, model):
    """A run whose best checkpoint is not its newest."""
    folder = tmp_path / "sft"
    for step, length in (("step_000010", 10), ("step_000020", 20)):
        checkpoint = shutil.copytree(model, folder / "checkpoints" / step)
        update_json(checkpoint / "tokenizer_config.json", model_max_length=length)
    records = [{"step": 10, "validation/loss": 1}, {"step": 20, "validation/loss": 2}]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    saving = {"checkpoint_callback_params": {"save_best": "validation/loss"}}
    return write_run(folder, "sft", {"exp_manager": saving}, {})


def write_run(folder, kind: str, config: dict, hashes: dict):
    folder.mkdir(exist_ok=True)
    known = {"versions": {}, "seed": 1, "git_commit": None}
    (folder / "run.json").write_text(json.dumps({"kind": kind, "config": config, "hashes": hashes, **known}))
    return folder


def started_from(start, expected, settings=(), **hashes: str) -> Trained:
    """A checkpoint of a GRPO run. start: the setting; expected: the folder from which the run started."""
    config = {"model": {"restore_from_path": str(start), **dict(settings)}}
    folder = write_run(expected.parent / "grpo", "grpo", config, {"model": model_hash(expected), **hashes})
    checkpoint = folder / "checkpoints/step_000005"
    if not checkpoint.exists():
        shutil.copytree(expected, checkpoint)
    return Trained.find(checkpoint)


def test_a_run_s_origin_is_the_checkpoint_from_which_it_started(tmp_path, sft, model, monkeypatch):
    """The starting run went on, so its folder now stands for another checkpoint."""
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    first, second = (sft / "checkpoints" / step for step in ("step_000010", "step_000020"))
    archive = tmp_path / "start.nemo"
    export(model, "nemo", archive)
    of_archive = resolve(archive)
    starts = ((sft, first), (sft, second), (f"{sft}@best", first), (archive, of_archive))
    for start, expected in starts:
        assert started_from(start, expected).origin().folder == expected
    other = started_from(sft, model)
    assert other.origin() == "sft", "no checkpoint has the hash of this starting model"
    assert started_from("smoke", first).origin() == "smoke", "an export creates and downloads no model"


# ---- reward models --------------------------------------------------------------------------------------------------


@pytest.fixture
def reward_model(tmp_path, smoke):
    """A classifier's weights, imported; then with a bias and a scale as training gives them."""
    source = write_hf(tmp_path / "hf", SCALAR, random_weights(SCALAR), smoke)
    update_json(source / "config.json", architectures=["LlamaForSequenceClassification"], num_labels=1)
    folder = import_hf(source, tmp_path / "model")
    rewrite_weight(folder, "value_head.bias", lambda bias: bias + 0.25)
    RewardScale(mean=1.5, std=0.5).save(folder)
    return folder


def test_a_reward_s_scale_is_in_head_and_constant_and_rewards_come_back_the_same(tmp_path, reward_model):
    """(w·h + 0.25 − 1.5) / 0.5 = 2 w·h − 2.5"""
    notes = export(reward_model, "hf", tmp_path / "out", Options(dtype="bfloat16"))
    head = StoreReader(reward_model / "weights").read_whole("value_head.weight")
    assert torch.equal(tensors_of(tmp_path / "out")["score.weight"], 2 * head)
    assert read_json(tmp_path / "out/config.json")["reward_constant"] == -2.5
    assert "every reward is lower by -2.5" in notes[0]
    again = import_hf(tmp_path / "out", tmp_path / "again")
    store, scale = StoreReader(again / "weights"), RewardScale.load(again)
    hidden = torch.linspace(-1, 1, ARCH.hidden_size)
    assert store.read_whole("value_head.weight").dtype == torch.float32, "the head is not rounded"
    raw = store.read_whole("value_head.weight") @ hidden + store.read_whole("value_head.bias")
    torch.testing.assert_close(scale(raw), (head @ hidden + 0.25 - 1.5) / 0.5, atol=1e-6, rtol=0)


@pytest.mark.parametrize("to", ["hf", "nemo"])
def test_a_reward_model_of_plain_texts_comes_back_as_one(tmp_path, reward_model, to):
    (reward_model / "template.json").write_text('{"chat_template": "plain"}')
    out = tmp_path / f"out.{to}"
    export(reward_model, to, out)
    again = import_model(out, tmp_path / "again")
    assert own_template(Tokenizer(again)).endswith(SCORED_END) and recorded_template(again) == "plain"


def test_scores_are_read_before_a_padding_that_is_no_stop_token(tmp_path, reward_model):
    from transformers import AutoTokenizer

    path, whole = reward_model / "tokenizer_config.json", read_json(reward_model / "tokenizer_config.json")
    cases = (
        ({"pad_token": "<|im_end|>", "unk_token": "<|endoftext|>"}, 2, 0),  # the stop token would be hidden
        ({"pad_token": "<|endoftext|>"}, [2, 0], 1),  # and so would be the second stop token, as in Qwen 2.5
        ({"pad_token": "<|im_start|>"}, 2, 1),
        ({"bos_token": None}, 2, 0),  # no name at all: the first special token that does not stop
    )
    for number, (names, stop_ids, expected) in enumerate(cases):
        path.write_text(json.dumps(whole | names))
        (reward_model / "generation_config.json").write_text(json.dumps({"eos_token_id": stop_ids}))
        out = tmp_path / f"out{number}"
        export(reward_model, "hf", out)
        config = read_json(out / "config.json")
        assert config["pad_token_id"] == expected != config["eos_token_id"]
        assert AutoTokenizer.from_pretrained(out).pad_token_id == expected
    added = read_json(reward_model / "tokenizer.json")["added_tokens"]
    stop = [token for token in added if token["content"] == "<|im_end|>"]
    update_json(reward_model / "tokenizer.json", added_tokens=stop)
    update_json(path, bos_token="<|im_end|>", pad_token=None)
    notes = export(reward_model, "hf", tmp_path / "without")
    assert read_json(tmp_path / "without/config.json")["pad_token_id"] is None
    assert "score one text at a time" in notes[1]


# ---- whole or not at all --------------------------------------------------------------------------------------------


def too_large(model):
    norm = torch.ones(ARCH.hidden_size)
    norm[3] = 70_000
    rewrite_weight(model, "decoder.final_layernorm.weight", lambda _: norm)


def other_shapes(model):
    update_json(model / "model.json", ffn_hidden_size=100)


def no_weights(model):
    next((model / "weights").iterdir()).unlink()


TOO_LARGE = r"model\.norm\.weight: values up to 70000 are too large for F16; choose"
SHAPES = r"linear_fc1\.weight in .* has shape \[192, 64\]; model\.json says \[200, 64\]"


@pytest.mark.parametrize(
    ("spoil", "to", "dtype", "message"),
    [
        (too_large, "hf", "float16", TOO_LARGE),
        (no_weights, "hf", None, "no weights in"),
        (other_shapes, "hf", None, SHAPES),
        (None, "peft", None, "has no adapters: .*--to hf"),
        (
            None,
            "nemo",
            None,
            r"--out /\S+/out: an archive's name must end in \.nemo: give --out /\S+/out\.nemo",
        ),
        (None, "hf", "int8", "--dtype int8 is unknown: give any of float64, float32, float16, bfloat16"),
        (None, "onnx", None, "there is no export target 'onnx'; the targets are hf, nemo, peft"),
    ],
)
def test_what_can_t_be_exported_leaves_nothing(tmp_path, model, spoil, to, dtype, message):
    if spoil:
        spoil(model)
    with pytest.raises((ValueError, UserError, FileNotFoundError), match=message):
        export(model, to, tmp_path / "out", Options(dtype=dtype))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "model"]
