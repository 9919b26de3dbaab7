"""Families' config.json: read as transformers means it, written back, and refused where a feature can't be carried."""

import json
import math
from dataclasses import replace

import pytest
from tiny_families import GPT_2B

from aligner_lib.cli.model_commands import model_import
from aligner_lib.models import families
from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.names import weights
from aligner_lib.models.nemo.config_writer import nemo_config
from aligner_lib.models.reward_scale import RewardScale

SIZES = {
    **{"num_hidden_layers": 6, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 64, "vocab_size": 96, "max_position_embeddings": 8192},
}
ORIGINAL = {"original_max_position_embeddings": 8192}
LLAMA_3 = ORIGINAL | {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = ORIGINAL | {"type": "yarn", "factor": 4.0}  # Qwen's, for long texts
YARN_READ = RopeScaling("yarn", 4.0, 1.0, 32.0, 8192, 0.1 * math.log(4.0) + 1)
NULLS = dict.fromkeys(("beta_slow", "beta_fast", "attention_factor", "mscale", "mscale_all_dim"))
HALF_SLIDING = ["full_attention", "sliding_attention"] * 3
ALL_LAYERS = (0, 1, 2, 3, 4, 5)
PYTHIA = {"num_key_value_heads": None, "rotary_pct": 0.25, "rotary_emb_base": 10000}
GRANITE = {"embedding_multiplier": 12.0, "attention_multiplier": 0.015625, "residual_multiplier": 0.22}


def test_the_help_of_the_import_names_every_family():
    text = "".join(filter(str.isalpha, model_import.__doc__)).lower()
    names = {"".join(filter(str.isalpha, family.classes)).lower() for family in families.FAMILIES.values()}
    assert {name for name in names if name not in text} == set()


def read(model_type: str, **settings) -> Architecture:
    return families.from_hf({**SIZES, "model_type": model_type, **settings})


@pytest.mark.parametrize(
    ("model_type", "settings", "expected"),
    [
        ("llama", {"rope_scaling": LLAMA_3}, {"rope_scaling": RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)}),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 2}}, {"rope_scaling": RopeScaling("linear", 2.0), "tied_embeddings": False}),
        ("qwen3", {"rope_scaling": YARN}, {"rope_scaling": YARN_READ, "kv_channels": 128, "qk_norm": True}),
        ("qwen3", {"rope_scaling": YARN | NULLS}, {"rope_scaling": YARN_READ}),  # null means the default
        ("mistral", {}, {"sliding_window": 4096, "sliding_layers": ALL_LAYERS}),
        ("mistral", {"sliding_window": None}, {"sliding_window": None, "sliding_layers": ()}),
        ("mistral", {"layer_types": ["sliding_attention"] * 6}, {"sliding_layers": ALL_LAYERS}),
        ("phi3", {"sliding_window": 9, "layer_types": HALF_SLIDING}, {"sliding_layers": ALL_LAYERS}),  # no Ministral
        ("phi3", {"sliding_window": 2047, **ORIGINAL}, {"sliding_window": 2047, "sliding_layers": ALL_LAYERS}),
        ("phi3", {"num_key_value_heads": None}, {"sliding_window": None, "num_query_groups": 4, "norm_epsilon": 1e-5}),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 9}, {"sliding_window": None, "qkv_bias": True}),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 4}, {"sliding_layers": (4, 5)}),
        ("smollm3", {"no_rope_layer_interval": 4}, {"nope_layers": (3,), "tied_embeddings": True, "rotary_base": 2e6}),
        ("smollm3", {"no_rope_layers": [1, 0, 1, 0, 1, 1]}, {"nope_layers": (1, 3)}),
        ("granite", GRANITE | {"logits_scaling": 8}, {"embedding_scale": 12.0, "attention_scale": 1 / 64}),
        ("granite", {}, {"attention_scale": 1.0, "residual_scale": 1.0}),  # and not 1 / √8, as in Llama
        ("olmo2", {"num_key_value_heads": None}, {"pre_norms": False, "num_query_groups": 4, "norm_epsilon": 1e-5}),
        ("gemma", {"head_dim": 16, "hidden_act": "gelu"}, {"embedding_scale": 32**0.5, "activation": "geglu", "tied_embeddings": True}),
        ("gemma2", {"query_pre_attn_scalar": 64}, {"sliding_layers": (0, 2, 4), "attention_scale": 0.125}),
        ("gemma2", {}, {"tied_embeddings": True, "embedding_scale": 32**0.5, "kv_channels": 256, "sliding_window": 4096, "attention_softcap": 50.0, "logits_softcap": 30.0}),
        ("gpt_neox", PYTHIA, {"rotary_channels": 2, "num_query_groups": 4, "parallel_residual": True}),
        ("gpt_neox", PYTHIA | {"use_parallel_residual": False}, {"parallel_residual": False, "activation": "gelu"}),
        ("gpt_neox", PYTHIA | {"hidden_act": "gelu_fast"}, {"activation": "gelu_tanh"}),  # GPT-NeoX-20B's
        ("gpt_neox", PYTHIA | {"rotary_pct": 0.5, "partial_rotary_factor": 0.25, "rope_theta": 7}, {"rotary_channels": 4, "rotary_base": 1e4}),
        ("qwen3", {"rope_scaling": YARN, "rope_parameters": YARN | {"rope_theta": 10000}}, {"rope_scaling": YARN_READ}),
        ("qwen3", {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}, {"head": "scalar"}),
    ],
)  # fmt: skip
def test_a_published_configuration_is_read_as_transformers_means_it_and_written_back(
    model_type, settings, expected
):
    arch = read(model_type, **settings)
    assert {name: getattr(arch, name) for name in expected} == expected
    assert families.from_hf(families.to_hf(arch)) == arch


@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gpt_neox"])
@pytest.mark.parametrize("section", [LLAMA_3, {"rope_type": "yarn", "factor": 4.0}])
def test_the_original_length_outside_of_the_section_has_transformers_priority(model_type, section):
    from transformers import AutoConfig

    settings = {"rope_parameters": section | {"rope_theta": 1e4}, "original_max_position_embeddings": 64}
    ours = read(model_type, **PYTHIA | settings).rope_scaling.original_positions
    theirs = AutoConfig.for_model(model_type, **settings)
    theirs.standardize_rope_params()  # as every model does
    assert ours == theirs.rope_parameters["original_max_position_embeddings"] == 64


def test_gemma_3_is_the_same_as_of_transformers_4_and_of_5():
    old = read("gemma3_text", rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=3)
    sections = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    kinds = (["sliding_attention"] * 2 + ["full_attention"]) * 2
    assert read("gemma3_text", rope_parameters=sections, layer_types=kinds) == old
    assert (old.rotary_base, old.local_rotary_base, old.sliding_layers) == (1e6, 1e4, (0, 1, 3, 4))
    assert (old.qk_norm, old.attention_softcap, old.logits_softcap) == (True, None, None)


def test_olmo_2_has_norms_behind_its_layers_alone_and_a_norm_of_all_heads():
    shapes = {name: weight.shape for weight in weights(read("olmo2")) for name in weight.hf}
    assert shapes["model.layers.0.self_attn.q_norm.weight"] == (32,)
    assert "model.layers.0.input_layernorm.weight" not in shapes


def test_a_model_json_of_earlier_days_is_a_llamas(tmp_path):
    sizes = [name for name in Architecture.__dataclass_fields__][:8]
    (tmp_path / "model.json").write_text(json.dumps(dict.fromkeys(sizes, 2)))
    assert Architecture.load(tmp_path) == Architecture(*[2] * 8)


@pytest.mark.parametrize(
    ("model_type", "settings", "message"),
    [
        ("mixtral", {"num_local_experts": 8}, "reads only llama, mistral, .*: take a model of .*a router and experts"),
        ("gemma3", {"vision_config": {"hidden_size": 8}}, r"gemma3_text.*\(gemma3: it reads pictures or sound"),
        ("gpt2", {}, r"\(gpt2: it has learned positions.*; Pythia is a gpt_neox of similar sizes\)"),
        ("bloom", {}, "take a model of one of these families$"),
        ("gpt_neox", PYTHIA | {"attention_bias": False}, "attention_bias is false, but the importer reads only"),
        ("gpt_neox", PYTHIA | {"hidden_act": "silu"}, "hidden_act is 'silu'; only gelu and gelu_fast and"),
        ("phi3", {"rope_scaling": {"type": "su", "short_factor": [1.0]}}, "'su' .*factors for short texts"),
        ("phi3", {"rope_scaling": YARN}, "'yarn', but transformers' Phi-3 has only 'default', and 'longrope'"),
        ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor is 0.75; only 1 can be read in phi3"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "factor is 0.5; only 1 can be read in llama: take"),
        ("llama", {"rope_parameters": {"rope_theta": 1e4}, "rope_scaling": YARN}, "describe different .*: remove one"),
        ("qwen3", {"rope_parameters": {"full_attention": {"rope_theta": 7.0}}}, "are not read in qwen3: write rope_theta"),
        ("mistral", {"layer_types": HALF_SLIDING}, "has full_.*; with sliding_window=4096, only sliding_attention"),
        ("mistral", {"sliding_window": None, "layer_types": HALF_SLIDING}, "sliding_window=None, only full_attention"),
        ("smollm3", {"sliding_window": 9, "layer_types": HALF_SLIDING}, "sliding_attention, which needs use_sliding_window true"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act is 'gelu'; only silu can be read here"),
        ("olmo2", {"attention_bias": True}, "attention_bias is true, which the importer does not support"),
        ("qwen3", {"rope_scaling": YARN | {"truncate": False}}, "truncate is false"),
        ("qwen3", {"rope_scaling": YARN | {"factor": 0}}, "factor is 0.0, but must be at least 1"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic"}}, "its frequencies change with the length of the text"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "has no 'low_freq_factor'"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention is true"),
        ("qwen3", {"layer_types": ["linear_attention"] * 6}, "layer_types has linear_attention"),
        ("qwen3", {"layer_types": ["full_attention"]}, "must be a list of 6"),
        ("gemma3_text", {"rope_parameters": {"sliding_attention": YARN}}, "positions in sliding layers are not supp"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 7.0}}, "neither full_attention nor sliding_attention is there"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0, .*: set it to null"),
        ("mistral", {"sliding_window": "4096"}, "sliding_window is '4096', but must be an integer"),
        ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "a classifier with 2 labels"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_refused(model_type, settings, message):
    with pytest.raises(ValueError, match=f"config.json.*{message}"):
        read(model_type, **settings)


def to_nemo(arch: Architecture) -> dict:
    return nemo_config(arch, {}, "F32", RewardScale())


@pytest.mark.parametrize(
    ("write", "arch", "message"),
    [
        (families.to_hf, GPT_2B, "layernorm1p and swiglu, such as GPT-2B-001: export with --to nemo"),
        (families.to_hf, replace(read("llama"), qk_norm=True), "transformers' Llama can't represent qk_norm"),
        (families.to_hf, replace(read("granite"), head="scalar"), "no class for reward models of Granite"),
        (families.to_hf, replace(read("phi3"), rope_scaling=YARN_READ), "but transformers' Phi-3"),
        (to_nemo, read("olmo2"), "no key for pre_norms=False.*: export the model with --to hf"),
        (to_nemo, replace(read("llama"), nope_layers=(3,)), r"no key for nope_layers=\(3,\)"),
        (to_nemo, replace(read("llama"), sliding_window=8, sliding_layers=(1,)), "no key for sliding_layers"),
        (to_nemo, replace(read("llama"), embedding_scale=3.0), r"no key for embedding_scale=3\.0"),
        (
            to_nemo,
            replace(read("gemma"), head="scalar"),
            "reward models have neither Gemma's .*: export the model with --to hf",
        ),
        (
            to_nemo,
            replace(read("llama", rope_scaling=LLAMA_3), head="scalar"),
            "nor Llama 3's scaled positions",
        ),
        (to_nemo, read("gpt_neox", **PYTHIA), "have no gelu: export the model with --to hf"),
    ],
)
def test_what_the_other_library_does_not_compute_is_not_written(write, arch, message):
    with pytest.raises(ValueError, match=message):
        write(arch)


@pytest.mark.parametrize(
    ("switches", "message"),
    [
        ({"activation": "relu"}, "activation is 'relu', but must be 'swiglu' or"),
        ({"rotary_fraction": 0.375}, "rotary_fraction=0.375 of a head's 8 values is no even number above 0"),
        ({"rotary_fraction": 0.1}, "rotary_fraction=0.1 of a head's 8 values is no even number above 0"),
        ({"sliding_window": 5}, "must be set together"),
        ({"nope_layers": (6,)}, r"there are no layers \[6\] in a model of 6"),
        ({"num_query_groups": 3}, "4 heads cannot share 3"),
    ],
)
def test_switches_that_do_not_fit(switches, message):
    with pytest.raises(ValueError, match=message):
        replace(read("llama"), **switches)
