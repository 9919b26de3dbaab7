"""model.peft: adapters (LoRA) that are trained instead of a model's weights, with NeMo's key names."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from aligner_lib.config.schema import Bound, above, at_least, one_of, setting

if TYPE_CHECKING:
    from omegaconf import DictConfig

# NeMo's names of linear layers → Megatron's names
TARGETS = {
    "attention_qkv": ("linear_qkv",),
    "attention_dense": ("linear_proj",),
    "mlp_fc1": ("linear_fc1",),
    "mlp_fc2": ("linear_fc2",),
    "attention": ("linear_qkv", "linear_proj"),
    "mlp": ("linear_fc1", "linear_fc2"),
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
}

_TARGETS = Bound(
    lambda names: len(names) > 0 and all(name in TARGETS for name in names),
    f"a list of {', '.join(TARGETS)}, as in [attention_qkv, mlp]",
)
_DROPOUT = Bound(lambda value: 0 <= value < 1, "at least 0 and below 1")
_FUSED = Bound(
    lambda value: value == "nemo",
    "nemo: queries, keys and values share an adapter's A, because they share a matrix",
)
_GLOROT = Bound(lambda value: value == "xavier", "xavier, the initial values of A")
_ZERO = Bound(
    lambda value: value == "zero", "zero, the initial values of B, so that adapters change nothing at first"
)
_ALL_LAYERS = Bound(lambda value: False, "null: all layers have adapters")
_UNTIED = Bound(lambda value: value is False, "False: every layer has adapters of its own")
_NOT_TIED = Bound(lambda value: False, "null: it belongs to weight_tying, which is not supported")


@dataclass
class LoRATuning:
    """model.peft.lora_tuning: the layers with adapters, and the adapters' size."""

    target_modules: list[str] = setting(["attention_qkv"], _TARGETS)
    adapter_dim: int = setting(32, at_least(1))
    """The rank."""
    alpha: float | None = setting(None, above(0))
    """The scale is alpha / adapter_dim; None: alpha is adapter_dim."""
    use_rslora: bool = False
    """The scale is alpha / √adapter_dim."""
    adapter_dropout: float = setting(0.0, _DROPOUT)
    """Dropout on the input of the adapters, in training."""
    variant: str = setting("nemo", _FUSED)
    column_init_method: str = setting("xavier", _GLOROT)
    row_init_method: str = setting("zero", _ZERO)
    layer_selection: Any = setting(None, _ALL_LAYERS)
    weight_tying: bool = setting(False, _UNTIED)
    position_embedding_strategy: str | None = setting(None, _NOT_TIED)


@dataclass
class Peft:
    """model.peft: parameter-efficient fine-tuning."""

    peft_scheme: str | None = setting(None, one_of("lora", "none"))
    """null or none: all weights are trained."""
    restore_from_path: str | None = None
    """Initial adapters: a run, a checkpoint or a folder of PEFT's; null: new adapters."""
    lora_tuning: LoRATuning = field(default_factory=LoRATuning)


def is_lora(peft: DictConfig) -> bool:
    """Whether the job trains adapters. peft: a `Peft`."""
    return peft.peft_scheme == "lora"


def target_layers(peft: DictConfig) -> list[str]:
    """The linear layers in each transformer layer that get adapters, by Megatron's names, without duplicates."""
    return list(dict.fromkeys(layer for name in peft.lora_tuning.target_modules for layer in TARGETS[name]))


def without_effect(peft: DictConfig) -> dict[str, str]:
    """The settings below model.peft that have no effect, with the reasons."""
    if not is_lora(peft):
        names = ("restore_from_path", *(f"lora_tuning.{entry.name}" for entry in fields(LoRATuning)))
        return dict.fromkeys(
            names, "peft_scheme is not lora: there are no adapters, and all weights are trained."
        )
    if peft.restore_from_path is not None:
        own = ("target_modules", "adapter_dim", "alpha", "use_rslora")
        return {
            f"lora_tuning.{name}": "adapters that are restored have their own layers, rank and scale."
            for name in own
        }
    return {}
