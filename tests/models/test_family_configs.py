"""Families' config.json: read as transformers means it, and refused where a feature can't be carried. test_families writes
them back."""

import json
import math
from dataclasses import replace

import pytest
from tiny_families import GPT_2B

from aligner_lib.models import families
from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.names import weights
from aligner_lib.models.nemo.config_writer import nemo_config
from aligner_lib.models.reward_scale import RewardScale

SIZES = {
    "num_hidden_layers": 6,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 96,
    "max_position_embeddings": 8192,
}


def read(model_type: str, **settings) -> Architecture:
    return families.from_hf({**SIZES, "model_type": model_type, **settings})


def test_llama_3_1():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    arch = read("llama", rope_theta=500000.0, rope_scaling=scaling, rms_norm_eps=1e-5)
    assert (arch.rotary_base, arch.norm_epsilon, arch.tied_embeddings) == (500000.0, 1e-5, False)
    assert arch.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)


def test_the_scaling_of_older_files():
    arch = read("llama", rope_scaling={"type": "linear", "factor": 2})
    assert arch.rope_scaling == RopeScaling("linear", 2.0)


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}  # Qwen's, for long texts


def test_qwens_yarn():
    arch = read("qwen3", rope_scaling=YARN)
    assert arch.rope_scaling == RopeScaling("yarn", 4.0, 1.0, 32.0, 32768, 0.1 * math.log(4.0) + 1)
    nulls = dict.fromkeys(("beta_slow", "beta_fast", "attention_factor", "mscale", "mscale_all_dim"))
    assert read("qwen3", rope_scaling=YARN | nulls) == arch, "null means the default"


def test_mistrals_window_is_in_all_layers_where_there_is_one():
    assert read("mistral").sliding_layers == (0, 1, 2, 3, 4, 5)
    assert read("mistral").sliding_window == 4096
    assert read("mistral", sliding_window=None).sliding_layers == ()


def test_phi_3_of_4096_tokens_has_a_window_in_all_layers_and_phi_4_none():
    old = {"rope_scaling": None, "original_max_position_embeddings": 4096, "attention_bias": False}
    phi3 = read("phi3", **old, rope_theta=10000.0, sliding_window=2047)
    assert (phi3.family, phi3.sliding_window, phi3.sliding_layers) == ("phi3", 2047, (0, 1, 2, 3, 4, 5))
    phi4 = read("phi3", **old, rope_theta=250000, sliding_window=None, partial_rotary_factor=1.0)
    assert (phi4.rotary_base, phi4.sliding_window, phi4.sliding_layers) == (250000.0, None, ())
    assert read("phi3", num_key_value_heads=None).num_query_groups == 4
    assert read("phi3").sliding_window is None, "and not 4096, as in Mistral"
    assert read("phi3").norm_epsilon == 1e-5, "and not 1e-6, as in Mistral"
    assert families.from_hf(families.to_hf(phi3)) == phi3
    with pytest.raises(ValueError, match="rope_type is 'linear', but transformers' Phi-3"):
        families.to_hf(replace(phi3, rope_scaling=RopeScaling("linear", 2.0)))


def test_qwen_2_5_has_biases_and_a_window_that_is_switched_off():
    arch = read("qwen2", use_sliding_window=False, sliding_window=32768, max_window_layers=4)
    assert (arch.qkv_bias, arch.sliding_window) == (True, None)
    assert read("qwen2", use_sliding_window=True, max_window_layers=4).sliding_layers == (4, 5)


def test_qwen_3_has_norms_and_heads_of_128():
    arch = read("qwen3")
    assert (arch.qk_norm, arch.qkv_bias, arch.kv_channels) == (True, False, 128)


def test_smollm3_leaves_every_fourth_layer_without_positions():
    arch = read("smollm3", no_rope_layer_interval=4)
    assert (arch.nope_layers, arch.tied_embeddings, arch.rotary_base) == ((3,), True, 2e6)
    assert read("smollm3", no_rope_layers=[1, 0, 1, 0, 1, 1]).nope_layers == (1, 3)


def test_granites_factors():
    factors = {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22}
    arch = read("granite", **factors, logits_scaling=8)
    assert (arch.embedding_scale, arch.attention_scale) == (12.0, 1 / 64)
    assert (arch.residual_scale, arch.logits_divisor) == (0.22, 8.0)
    assert read("granite").attention_scale == 1.0, "and not 1 / √8, as in Llama"
    with pytest.raises(ValueError, match="transformers has no class for reward models of Granite"):
        families.to_hf(replace(arch, head="scalar"))


def test_olmo_2_has_norms_behind_its_layers_alone_and_a_norm_of_all_heads():
    arch = read("olmo2", rope_theta=500000, num_key_value_heads=None)
    assert (arch.pre_norms, arch.post_norms, arch.qk_norm, arch.qk_norm_over_heads) == (
        False,
        True,
        True,
        True,
    )
    assert (arch.num_query_groups, arch.rotary_base, arch.norm_epsilon) == (4, 500000.0, 1e-5)
    assert arch.tied_embeddings is False
    names = {name: weight.shape for weight in weights(arch) for name in weight.hf if ".layers.0." in name}
    assert names["model.layers.0.self_attn.q_norm.weight"] == (32,)
    assert "model.layers.0.input_layernorm.weight" not in names
    with pytest.raises(ValueError, match="attention_bias is true"):
        read("olmo2", attention_bias=True)
    with pytest.raises(ValueError, match=r"no key for pre_norms=False.*: export the model with --to hf"):
        nemo_config(arch, {}, "F32", RewardScale())


def test_gemma_1():
    arch = read("gemma", head_dim=16, hidden_act="gelu")
    assert (arch.embedding_scale, arch.activation, arch.tied_embeddings) == (32**0.5, "geglu", True)
    assert (arch.zero_centered_norm, arch.post_norms, arch.attention_scale) == (True, False, None)


def test_gemma_2():
    arch = read("gemma2", head_dim=16, query_pre_attn_scalar=64)
    assert (arch.sliding_window, arch.sliding_layers) == (4096, (0, 2, 4))
    assert (arch.attention_softcap, arch.logits_softcap, arch.attention_scale) == (50.0, 30.0, 0.125)
    assert (arch.embedding_scale, arch.activation, arch.tied_embeddings) == (32**0.5, "geglu", True)
    assert (arch.zero_centered_norm, arch.post_norms, arch.qk_norm) == (True, True, False)


def test_gemma_3_as_of_transformers_4_and_of_5():
    old = read("gemma3_text", rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=3)
    sections = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    kinds = (["sliding_attention"] * 2 + ["full_attention"]) * 2
    assert read("gemma3_text", rope_parameters=sections, layer_types=kinds) == old
    assert (old.rotary_base, old.local_rotary_base, old.sliding_layers) == (1e6, 1e4, (0, 1, 3, 4))
    assert (old.qk_norm, old.attention_softcap, old.logits_softcap) == (True, None, None)


PYTHIA = {"num_key_value_heads": None, "rotary_pct": 0.25, "rotary_emb_base": 10000}


def test_pythia():
    arch = read("gpt_neox", **PYTHIA, hidden_act="gelu", layer_norm_eps=1e-5, use_parallel_residual=True)
    assert (arch.family, arch.normalization, arch.zero_centered_norm) == ("gpt_neox", "layer", False)
    assert (arch.rotary_channels, arch.rotary_base, arch.num_query_groups) == (2, 10000.0, 4)
    assert (arch.activation, arch.gated, arch.tied_embeddings) == ("gelu", False, False)
    assert (arch.qkv_bias, arch.proj_and_mlp_bias, arch.parallel_residual) == (True, True, True)
    assert read("gpt_neox", **PYTHIA, use_parallel_residual=False).parallel_residual is False
    tanh = read("gpt_neox", **PYTHIA, hidden_act="gelu_fast")  # GPT-NeoX-20B's
    assert tanh == replace(arch, activation="gelu_tanh")
    for model, hidden_act in ((arch, "gelu"), (tanh, "gelu_fast")):
        assert families.to_hf(model)["hidden_act"] == hidden_act
        assert families.from_hf(families.to_hf(model)) == model
        with pytest.raises(ValueError, match=f"have no {model.activation}: export the model with --to hf"):
            nemo_config(model, {}, "F32", RewardScale())


def test_a_model_json_of_earlier_days_is_a_llamas(tmp_path):
    sizes = [name for name in Architecture.__dataclass_fields__][:8]
    (tmp_path / "model.json").write_text(json.dumps(dict.fromkeys(sizes, 2)))
    assert Architecture.load(tmp_path) == Architecture(*[2] * 8)


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        (
            "mixtral",
            {"num_local_experts": 8},
            "model_type is 'mixtral', but the importer reads only llama, mistral, .*: take a model of one of these families "
            r"\(mixtral: each layer has a router and experts",
        ),
        ("qwen3_next", {"num_experts": 512}, r"\(qwen3_next: each layer has a router and experts"),
        (
            "gemma3",
            {"vision_config": {"hidden_size": 8}},
            r"gemma3_text.*\(gemma3: it reads pictures or sound",
        ),
        ("gpt2", {}, r"\(gpt2: it has learned positions.*; Pythia is a gpt_neox of similar sizes\)"),
        ("phi", {}, r"\(phi: attention and MLP share a norm.*; Phi-3 is read\)"),
        (
            "gpt_neox",
            {**PYTHIA, "attention_bias": False},
            "attention_bias is false, but the importer reads only",
        ),
        ("gpt_neox", {**PYTHIA, "hidden_act": "silu"}, "hidden_act is 'silu'; only gelu and gelu_fast and"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0]}}, "'su' .*factors for short texts"),
        (
            "phi3",
            {"rope_scaling": YARN},
            "'yarn', but transformers' Phi-3 has only 'default', and 'longrope'",
        ),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75; only 1 can be read"),
        ("bloom", {}, "take a model of one of these families$"),
        ("llama", {"attention_bias": True}, "attention_bias is true, which the importer does not support"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu can be read here"),
        ("qwen3", {"rope_scaling": {**YARN, "truncate": False}}, "truncate is false"),
        ("qwen3", {"rope_scaling": {**YARN, "factor": 0}}, "factor is 0.0, but must be at least 1"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "longrope"}},
            "a list of factors for short texts and another for long",
        ),
        (
            "llama",
            {"rope_scaling": {"rope_type": "dynamic"}},
            "its frequencies change with the length of the text",
        ),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no 'low_freq_factor'"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("qwen3", {"layer_types": ["linear_attention"] * 6}, "layer_types has linear_attention"),
        ("qwen3", {"layer_types": ["full_attention"]}, "must be a list of 6"),
        (
            "gemma3_text",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "scaled rotary positions in sliding layers are not supported",
        ),
        ("mistral", {"sliding_window": "4096"}, "sliding_window is '4096', but must be an integer"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "a classifier with 2 labels"),
    ],
)
def test_what_cannot_be_carried_is_refused(model_type, settings, message):
    with pytest.raises(ValueError, match=f"config.json.*{message}"):
        read(model_type, **settings)


def test_a_classifier_of_one_label_is_a_reward_model():
    labels = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    arch = read("qwen3", **labels)
    assert arch.head == "scalar"
    assert families.from_hf(families.to_hf(arch)) == arch


def test_what_no_class_of_transformers_computes_is_not_written():
    with pytest.raises(
        ValueError, match=r"layernorm1p and swiglu, such as GPT-2B-001: export with --to nemo"
    ):
        families.to_hf(GPT_2B)
    arch = Architecture(2, 8, 2, 2, 8, 8, 8, 4, qk_norm=True)
    with pytest.raises(ValueError, match=r"transformers' Llama can't represent qk_norm=True"):
        families.to_hf(arch)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"activation": "relu"}, "activation is 'relu', but must be 'swiglu' or"),
        ({"rotary_fraction": 0.25}, "rotary_fraction=0.25 of a head's 4 values is not an even number"),
        ({"sliding_window": 5}, "must be set together"),
        ({"nope_layers": (2,)}, r"there are no layers \[2\] in a model of 2"),
        ({"num_query_groups": 3}, "2 heads cannot share 3"),
    ],
)
def test_switches_that_do_not_fit(switches, message):
    sizes = {"num_query_groups": 2, **switches}
    with pytest.raises(ValueError, match=message):
        Architecture(
            2, 8, 2, ffn_hidden_size=8, vocab_size=8, max_position_embeddings=8, kv_channels=4, **sizes
        )
