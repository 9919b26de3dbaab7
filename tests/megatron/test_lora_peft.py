"""Adapters here and in Hugging Face's `peft`: the same logits and gradients, and each reads what the other wrote."""

import copy
import json
import shutil

import pytest
import tiny_families
import torch
from layouts import LAYERS, LORA
from safetensors.torch import load_file, save_file
from twins import random_twins

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.lora import LoRA
from aligner_lib.megatron.model import Numerics
from aligner_lib.models.adapters import Adapter, AdapterRecord
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export import export
from aligner_lib.models.peft_folder import adapter_layers, check_peft_base, export_peft, open_adapters

pytestmark = pytest.mark.usefixtures("one_process")


@pytest.fixture(scope="module")
def twins(smoke, one_process, tmp_path_factory):
    """A model folder, and transformers' model with its weights."""
    return random_twins(smoke, tmp_path_factory.mktemp("twins"), seed=11)


@pytest.fixture
def twin(twins):
    """transformers' model; peft changes the one that it is given."""
    return copy.deepcopy(twins[1])


@pytest.fixture(scope="module")
def tokens() -> torch.Tensor:
    return torch.randint(0, 96, (2, 20), generator=torch.Generator().manual_seed(0))


def engine_of(folder, lora: LoRA | None = None) -> Engine:
    engine = Engine(Architecture.load(folder), Numerics(), lora=lora)
    engine.load(folder)
    return engine


def engine_with(folder, adapters) -> Engine:
    """An engine of a model folder with adapters in peft's format."""
    return engine_of(folder, LoRA(adapter_layers(adapters, Architecture.load(folder)), start=adapters))


def logits(engine: Engine, tokens: torch.Tensor) -> torch.Tensor:
    """float32 [B, S, V]"""
    hidden = engine.module.eval()(tokens)
    return engine.module.logits(hidden.transpose(0, 1).flatten(0, 1)).view(*tokens.shape, -1)


def assert_logits(ours: torch.Tensor, expected: torch.Tensor, atol: float = 1e-4) -> None:
    torch.testing.assert_close(ours, expected, atol=atol, rtol=0)


def draw_b(model: torch.nn.Module, half: str, seed: int) -> None:
    """Adapters that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if half in name:
            parameter.data.copy_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture(scope="module")
def adapted(twins, tmp_path_factory):
    """An engine whose adapters are not zero, and its checkpoint."""
    engine, checkpoint = engine_of(twins[0], LORA), tmp_path_factory.mktemp("adapted") / "checkpoint"
    draw_b(engine.module, "lora_b", 3)
    engine.save(checkpoint)
    Tokenizer(twins[0]).save(checkpoint)
    return engine, checkpoint


@pytest.fixture(scope="module")
def exported(adapted, tmp_path_factory):
    return export_peft(adapted[1], tmp_path_factory.mktemp("exported") / "peft")


# ---- in the presence of peft ----------------------------------------------------------------------------------------


def test_peft_has_the_logits_and_gradients_of_what_is_exported(adapted, twins, tokens, tmp_path, monkeypatch):
    """The export names its base, so that peft loads it by itself."""
    peft = pytest.importorskip("peft")
    export(adapted[1], "peft", tmp_path / "out")
    monkeypatch.chdir(tmp_path)
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained("out", is_trainable=True).eval()
    engine, expected = adapted[0], theirs(tokens).logits
    ours = logits(engine, tokens)
    assert (expected - twins[1](tokens).logits).abs().max() > 0.1
    assert_logits(ours, expected)

    weights = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    engine.module.zero_grad()
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    grads = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
    assert all("lora_" in name for name in grads)

    def grad(part: str, half: str) -> torch.Tensor:
        return grads[f"base_model.model.model.layers.2.{part}.lora_{half}.default.weight"]

    layer = engine.module.decoder.layers[2]
    for linear, parts in (
        (layer.self_attention.linear_qkv, [f"self_attn.{x}_proj" for x in "qkv"]),
        (layer.self_attention.linear_proj, ["self_attn.o_proj"]),
        (layer.mlp.linear_fc1, ["mlp.gate_proj", "mlp.up_proj"]),
        (layer.mlp.linear_fc2, ["mlp.down_proj"]),
    ):
        shared = sum(grad(part, "A") for part in parts)  # theirs has one each
        torch.testing.assert_close(linear.lora_a.grad, shared, atol=1e-4, rtol=1e-4)
        rows = torch.cat([grad(part, "B") for part in parts])
        assert rows.shape == linear.lora_b.grad.shape
        # in another order, where queries, keys and values stand by group
        ours, expected = (grads[grads[:, 0].argsort()] for grads in (linear.lora_b.grad, rows))
        torch.testing.assert_close(ours, expected, atol=1e-4, rtol=1e-4)


ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
UNEVEN = {"rank_pattern": {"k_proj": 2}, "alpha_pattern": {"k_proj": 16}, "use_rslora": True}


@pytest.mark.parametrize(
    ("targets", "more"), [(ALL, {}), (["q_proj", "k_proj", "up_proj"], UNEVEN)], ids=["all", "uneven"]
)
def test_peft_s_adapters_say_the_same_here(twins, twin, tokens, targets, more, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=3, lora_alpha=12, target_modules=targets, task_type="CAUSAL_LM", **more)
    theirs = peft.get_peft_model(twin, config).eval()
    draw_b(theirs, "lora_B", 4)
    theirs.save_pretrained(tmp_path / "peft")
    engine, expected = engine_with(twins[0], tmp_path / "peft"), theirs(tokens).logits
    assert (expected - twins[1](tokens).logits).abs().max() > 0.1
    assert_logits(logits(engine, tokens), expected)
    engine.save(tmp_path / "checkpoint")  # and as weights, from a checkpoint
    assert_logits(logits(engine_of(tmp_path / "checkpoint"), tokens), expected)
    export_peft(tmp_path / "checkpoint", tmp_path / "back")  # and from there to peft again
    back = peft.PeftModel.from_pretrained(copy.deepcopy(twins[1]), tmp_path / "back").eval()
    assert_logits(back(tokens).logits, expected)


STACKED = {
    "phi3": ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"],
    "gpt_neox": ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
}


@pytest.mark.parametrize("family", STACKED)
def test_adapters_of_stacked_matrices_go_back_as_they_came(family, smoke, tokens, tmp_path):
    """An adapter of qkv_proj is a single product here, too: at most the rows of B change places."""
    peft = pytest.importorskip("peft")
    model, targets = tiny_families.make(family, smoke, tmp_path), STACKED[family]
    plain = model(tokens).logits
    config = peft.LoraConfig(r=3, lora_alpha=12, target_modules=targets, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(model, config).eval()
    draw_b(theirs, "lora_B", 4)
    theirs.save_pretrained(tmp_path / "peft")
    engine, expected = engine_with(tmp_path / "imported", tmp_path / "peft"), theirs(tokens).logits
    assert (expected - plain).abs().max() > 0.1
    assert_logits(logits(engine, tokens), expected)
    engine.save(tmp_path / "checkpoint")
    export_peft(tmp_path / "checkpoint", tmp_path / "back")
    before, after = (
        load_file(tmp_path / folder / "adapter_model.safetensors") for folder in ("peft", "back")
    )
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert json.loads((tmp_path / "back/adapter_config.json").read_text())["target_modules"] == sorted(
        targets
    )


def test_adapters_that_changed_their_base_are_read_once_peft_has_made_them_plain(
    twins, twin, tokens, tmp_path
):
    """As peft writes them they belong to another base, and are refused."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(
        r=3, lora_alpha=6, target_modules=["q_proj", "v_proj"], init_lora_weights="pissa"
    )
    theirs, initial = peft.get_peft_model(twin, config).eval(), str(tmp_path / "initial")
    theirs.peft_config["default"].init_lora_weights = True  # which of them is the start, as peft's guide says
    theirs.save_pretrained(initial)
    theirs.peft_config["default"].init_lora_weights = "pissa"
    for key, parameter in theirs.named_parameters():
        if "lora_B" in key:
            parameter.data.add_(0.1)
    expected = theirs(tokens).logits
    theirs.save_pretrained(tmp_path / "as_it_is")
    with pytest.raises(ValueError, match="init_lora_weights=pissa"):
        engine_with(twins[0], tmp_path / "as_it_is")
    theirs.save_pretrained(tmp_path / "plain", path_initial_model_for_weight_conversion=initial)
    assert_logits(logits(engine_with(twins[0], tmp_path / "plain"), tokens), expected, atol=1e-3)


@pytest.mark.parametrize(("base", "revision"), [(None, "abc"), ("mine", None)])
def test_an_export_pins_the_revision_of_its_base_on_the_hub(adapted, tmp_path, base, revision):
    folder = shutil.copytree(adapted[1], tmp_path / "checkpoint")
    record = json.loads((folder / "adapter.json").read_text())
    record["base"]["path"] = str(tmp_path)
    (folder / "adapter.json").write_text(json.dumps(record))
    (tmp_path / "source.json").write_text(json.dumps({"origin": "hub org/one abc"}))
    config = json.loads((export_peft(folder, tmp_path / "out", base) / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config.get("revision")) == (base or "org/one", revision)


def test_adapters_of_another_model_of_the_hub_are_refused(exported, tmp_path):
    folder = changed(exported, tmp_path / "peft", {"base_model_name_or_path": "org/one"})
    (tmp_path / "source.json").write_text(json.dumps({"origin": "hub org/two abc"}))
    with pytest.raises(ValueError, match=r"adapters of org/one .*, but the model is org/two"):
        check_peft_base(folder, tmp_path)
    (tmp_path / "source.json").write_text(json.dumps({"origin": "hub Org/One abc"}))
    check_peft_base(folder, tmp_path)


# ---- in its absence -------------------------------------------------------------------------------------------------


def test_what_is_exported_comes_back_as_it_was(adapted, exported, twins):
    """Parts with one A are an adapter with that A: no rank is added."""
    arch, record = Architecture.load(twins[0]), AdapterRecord.load(adapted[1])
    assert adapter_layers(exported, arch) == record.layers == LAYERS
    ours, back = (open_adapters(folder, arch) for folder in (adapted[1], exported))
    assert ours.names() == back.names()
    for name in ours.names():
        assert torch.equal(ours.read_whole(name), back.read_whole(name))


def test_parts_with_an_a_each_become_blocks(exported, twins, tmp_path):
    """Queries and values alone: twice the rank, and keys are left as they are."""
    kept = {}

    def change(tensors: dict) -> dict:
        for name, tensor in tensors.items():
            if "q_proj" in name or "v_proj" in name:
                kept[name] = tensor + 1 if "v_proj.lora_A" in name else tensor.clone()
        return kept

    folder, arch = changed(exported, tmp_path / "peft", tensors=change), Architecture.load(twins[0])
    store, adapter = open_adapters(folder, arch), LAYERS["linear_qkv"]
    assert store.layers == {"linear_qkv": Adapter(2 * adapter.rank, adapter.scale)}
    a, b = (store.read_whole(f"decoder.layers.1.self_attention.linear_qkv.lora_{half}") for half in "ab")
    product = (b @ a).view(arch.num_query_groups, -1, arch.kv_channels, arch.hidden_size)
    at = "base_model.model.model.layers.1.self_attn."
    q, v = (kept[f"{at}{x}_proj.lora_B.weight"] @ kept[f"{at}{x}_proj.lora_A.weight"] for x in "qv")
    torch.testing.assert_close(product[:, :2].reshape(q.shape), q)
    assert not product[:, 2].any()
    torch.testing.assert_close(product[:, 3].reshape(v.shape), v)


def changed(exported, folder, config: dict | None = None, tensors=None):
    """A copy with other settings or tensors."""
    shutil.copytree(exported, folder)
    if config:
        stored = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(stored | config))
    if tensors:
        path = folder / "adapter_model.safetensors"
        save_file(tensors(load_file(path)), path)
    return folder


@pytest.mark.parametrize(
    ("config", "change", "message"),
    [
        ({"use_dora": True}, None, "use_dora=True, but only use_dora=False can be read"),
        ({"lora_alpha": 0}, None, r"adapter_config\.json gives the adapter of .* lora_alpha=0, .*: write the lora_alpha"),
        ({"lora_alpha": None}, None, r"lora_alpha=None, but .* a number other than 0: write the lora_alpha"),
        ({"alpha_pattern": {"q_proj(": 3}}, None, r"alpha_pattern is .*q_proj\(.*, but must map regular expressions to numbers"),
        ({"peft_type": "IA3"}, None, "peft_type=IA3; only LORA can be read"),
        (None, lambda t: {k: v for k, v in t.items() if "0.self_attn.q_proj.lora_B" not in k}, "without a lora_B of the same rank"),
        (None, lambda t: t | {"base_model.model.lm_head.weight": torch.zeros(2)}, "not a part of a linear layer's adapter"),
        (None, lambda t: {k.replace("q_proj", "query"): v for k, v in t.items()}, r"adapts model\.layers\.0\.self_attn\.query"),
        (None, lambda t: {k: v for k, v in t.items() if "layers.3" not in k}, "in 3 of 4 layers"),
        (None, lambda t: {k: v[:, :-1].contiguous() if "q_proj.lora_A" in k else v for k, v in t.items()}, "another model"),
    ],
    ids=["dora", "alpha 0", "no alpha", "a pattern", "ia3", "no B", "a head", "another name", "some layers", "another shape"],
)  # fmt: skip
def test_what_can_t_be_read_is_refused(exported, twins, tmp_path, config, change, message):
    with pytest.raises(ValueError, match=message):
        adapter_layers(changed(exported, tmp_path / "peft", config, change), Architecture.load(twins[0]))


def test_a_truncated_file_is_refused(exported, twins, tmp_path):
    path = changed(exported, tmp_path / "peft") / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors is damaged, with \d+ bytes instead of"):
        adapter_layers(path.parent, Architecture.load(twins[0]))


def test_what_has_no_adapters_is_not_exported(twins, adapted, tmp_path):
    with pytest.raises(ValueError, match="has no adapters: the folder holds all weights itself"):
        export_peft(twins[0], tmp_path / "peft")
    folder = shutil.copytree(adapted[1], tmp_path / "scalar")
    shape = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(shape | {"head": "scalar"}))
    with pytest.raises(ValueError, match="a reward model or a critic, whose head PEFT's format can't hold"):
        export_peft(folder, tmp_path / "peft")
    with pytest.raises(ValueError, match="holds no adapters: the folder has neither"):
        adapter_layers(twins[0], Architecture.load(twins[0]))
