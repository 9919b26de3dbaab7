"""model.peft: NeMo's keys, and which of their values have no meaning here."""

import pytest

from aligner_lib.config.compose import compose, notices
from aligner_lib.config.peft import TARGETS, is_lora, target_layers
from aligner_lib.errors import ConfigError

LORA = "model.peft.peft_scheme=lora"
NEMO = """
target_modules=[attention_qkv,mlp_fc2] adapter_dim=8 alpha=16 adapter_dropout=0.1 variant=nemo
column_init_method=xavier row_init_method=zero layer_selection=null weight_tying=False
"""


def test_nemo_s_keys_are_taken():
    """Of all kinds that train see jobs/test_lora_jobs.py."""
    tuning = [f"model.peft.lora_tuning.{setting}" for setting in NEMO.split()]
    peft = compose("critic", [LORA, "model.peft.restore_from_path=null", *tuning]).model.peft
    assert is_lora(peft) and target_layers(peft) == ["linear_qkv", "linear_fc2"]
    assert not is_lora(compose("critic", ["model.peft.peft_scheme=none"]).model.peft)


def test_groups_of_layers_are_the_sums_of_their_parts_and_have_each_layer_once():
    groups = {"attention": "attention_qkv attention_dense", "mlp": "mlp_fc1 mlp_fc2", "all": "attention mlp"}
    for group, parts in groups.items():
        assert TARGETS[group] == sum((TARGETS[part] for part in parts.split()), ())
    peft = compose("sft", ["model.peft.lora_tuning.target_modules=[mlp,mlp_fc1,all]"]).model.peft
    assert sorted(target_layers(peft)) == sorted(TARGETS["all"])


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("peft_scheme=ptuning", "lora or none"),
        ("lora_tuning.target_modules=[q_proj]", r"a list of attention_qkv, .*, all"),
        ("lora_tuning.target_modules=[]", r"a list of attention_qkv"),
        ("lora_tuning.adapter_dim=0", "at least 1"),
        ("lora_tuning.adapter_dropout=1.0", "at least 0 and below 1"),
        ("lora_tuning.variant=canonical", "nemo"),
        ("lora_tuning.layer_selection=[1,2]", "null: all layers have adapters"),
        ("lora_tuning.weight_tying=True", "False: every layer has adapters of its own"),
    ],
)
def test_what_makes_no_sense_is_refused(setting, words):
    with pytest.raises(ConfigError, match=rf"model\.peft\.{setting.partition('=')[0]}=.*must be {words}"):
        compose("sft", [f"model.peft.{setting}"])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ([], "peft_scheme is not lora"),
        ([LORA, "model.peft.restore_from_path=runs/sft"], "adapters that are restored have their own"),
        ([LORA], None),
    ],
)
def test_settings_of_adapters_without_an_effect_are_named(settings, reason):
    lines = notices("sft", compose("sft", [*settings, "model.peft.lora_tuning.adapter_dim=8"]))
    assert len(lines) == (reason is not None)
    assert all(f"adapter_dim=8: {reason}" in line for line in lines)


@pytest.mark.parametrize("setting", [LORA, f"critic.{LORA}"])
def test_an_evaluation_has_no_adapters_of_its_own(setting):
    with pytest.raises(ConfigError, match="there is no setting"):
        compose("evaluate", [setting])
