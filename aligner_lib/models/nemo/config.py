"""NeMo's model_config.yaml as an `Architecture`.

NeMo's defaults apply to missing settings (megatron_gpt_model.py and megatron_base_model.py of NeMo 1), such as learned
positions, GELU and biases. Therefore a file with few settings is refused instead of misread.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from aligner_lib.models.architecture import MOST_LAYERS, Architecture, RopeScaling
from aligner_lib.models.reward_scale import RewardScale

logger = logging.getLogger(__name__)

# normalization → (Architecture.normalization, zero_centered_norm)
NORMALIZATIONS = {
    "rmsnorm": ("rms", False),
    "layernorm": ("layer", False),
    "low_precision_layernorm": ("layer", False),
    "layernorm1p": ("layer", True),
}
# the fast variants are stored as a single matrix, gate above up
ACTIVATIONS = {
    "fast-swiglu": "swiglu",
    "swiglu": "swiglu",
    "fast-geglu": "geglu",
    "geglu": "geglu",
    "squared-relu": "squared_relu",
}
# settings that change the computation, each with its only supported value, which is NeMo's default
ONLY = {
    "transformer_block_type": "pre_ln",
    "headscale": False,
    "megatron_legacy": False,
    "normalize_attention_scores": True,
    "rotary_interleaved": False,
    "attention_type": "multihead",
    "num_moe_experts": None,
    "use_emha": False,
    "drop_layers": None,
    "use_avg_pool": False,
}
GEMMA2 = "megatron_gemma2"
MAX_DEPTH = 32
NEEDED = object()  # no default: the key is required


class NemoConfig:
    """A parsed model_config.yaml. where: the file, for error messages.

    Raises ValueError with the key for an unsupported value and for a value of the wrong type.
    """

    def __init__(self, values: Any, where: str):
        if not isinstance(values, dict):
            raise ValueError(f"{where} contains no settings")
        self.where = where
        inside = values.get("model")  # a training's hparams.yaml has the settings one level down
        self.values = inside if isinstance(inside, dict) and "num_layers" not in values else values

    @staticmethod
    def parse(text: bytes, where: str) -> NemoConfig:
        """Parse a file's text. Raises ValueError unless the text is YAML with plain values only."""
        import yaml

        try:
            _check_events(yaml.parse(text, yaml.SafeLoader), where)
            _check_keys(yaml.compose(text, yaml.SafeLoader), where)
            return NemoConfig(yaml.safe_load(text), where)
        except (yaml.YAMLError, RecursionError, UnicodeDecodeError) as error:
            raise ValueError(f"{where} is not plain YAML ({ascii(str(error))[:120]})") from None

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate."""
        return self._activation() != "squared_relu"

    @property
    def num_layers(self) -> int:
        """The number of layers of the whole model."""
        layers = self._count("num_layers")
        if layers > MOST_LAYERS:
            raise ValueError(f"{self.where}: num_layers is {layers}; at most {MOST_LAYERS} are supported")
        return layers

    def architecture(self, vocab_size: int, head: str) -> Architecture:
        """Read the architecture. vocab_size: rows of the stored embedding, padding included; head: "lm" or "scalar"."""
        self._refuse_what_is_not_computed()
        hidden, heads = self._count("hidden_size"), self._count("num_attention_heads")
        norm, zero_centered = self._one_of("normalization", NORMALIZATIONS, "layernorm")
        arch = Architecture(
            num_layers=self.num_layers,
            hidden_size=hidden,
            num_attention_heads=heads,
            num_query_groups=self._count("num_query_groups", heads),
            ffn_hidden_size=self._count("ffn_hidden_size", 4 * hidden),
            vocab_size=vocab_size,
            max_position_embeddings=self._count("max_position_embeddings", None)
            or self._count("encoder_seq_length"),
            kv_channels=self._count("kv_channels", hidden // heads),
            rotary_base=self._number("rotary_base", 10000.0),
            norm_epsilon=self._number("layernorm_epsilon", 1e-5),
            tied_embeddings=self._flag("share_embeddings_and_output_weights", True),
            head=head,
            normalization=norm,
            zero_centered_norm=zero_centered or self._flag("layernorm_zero_centered_gamma", False),
            qk_norm=self._flag("qk_layernorm", False),
            activation=self._activation(),
            qkv_bias=self._flag("qkv_bias", False),
            embedding_scale=math.sqrt(hidden) if self._is_applied("apply_embedding_scaling", head) else 1.0,
            rotary_fraction=self._number("rotary_percentage", 1.0),
            rope_scaling=self._rope_scaling(head),
            **self._attention(),
        )
        if arch.qk_norm and arch.normalization != "rms":
            raise ValueError(
                f"{self.where}: qk_layernorm is true, which is only supported with normalization: rmsnorm"
            )
        return replace(arch, family=_family(arch))

    def reward_scale(self) -> RewardScale:
        """A reward model's scale from `reward_standardization`; without the setting, rewards are unchanged."""
        scale = self.get("reward_standardization")
        if not isinstance(scale, dict) or not scale.get("enable"):
            return RewardScale()
        section = NemoConfig(scale, f"{self.where}: reward_standardization")
        return RewardScale(section._number("mean"), section._positive("std"))

    def get(self, key: str, default: Any = None) -> Any:
        """A value, with references to other keys (`${.hidden_size}`) resolved; `default` for a missing value."""
        value = self.values.get(key)
        if isinstance(value, str) and "${" in value:
            value = self._referenced(key, value)
        return default if value is None else value

    # -- values and their checks ----------------------------------------------------------------------------------

    def _referenced(self, key: str, value: str) -> Any:
        """The value of an OmegaConf reference, for the kinds of references in NeMo's own configurations."""
        if match := re.fullmatch(r"\$\{(?:\.|model\.)(\w+)\}", value):
            referred = self.values.get(match[1])
            if not isinstance(referred, str) or "${" not in referred:
                return referred
        if match := re.fullmatch(r"\$\{multiply: ?(\d+), ?\$\{\.(\w+)\}\}", value):
            return int(match[1]) * self._count(match[2])
        raise ValueError(
            f"{self.where}: {key} is {ascii(value)[:80]}, an unknown reference; write the value instead"
        )

    def _checked(self, key: str, default: Any, kind: str, fits: Callable[[Any], bool]) -> Any:
        """A checked value. A missing value or null becomes `default`, unless the default is NEEDED."""
        value = self.get(key)
        if value is None and default is not NEEDED:
            return default
        if not fits(value):
            raise ValueError(f"{self.where}: {key} is {ascii(value)[:80]}, but must be {kind}")
        return value

    def _count(self, key: str, default: Any = NEEDED) -> int:
        return self._checked(
            key, default, "an integer above 0", lambda value: type(value) is int and 0 < value < 1 << 31
        )

    def _number(self, key: str, default: Any = NEEDED) -> float:
        def fits(value: Any) -> bool:
            try:
                return type(value) in (int, float, str) and math.isfinite(float(value))
            except (ValueError, OverflowError):
                return False

        value = self._checked(key, default, "a number", fits)
        return None if value is None else float(value)  # YAML reads 1e-5 as a text

    def _positive(self, key: str) -> float:
        if (value := self._number(key)) <= 0:
            raise ValueError(f"{self.where}: {key} is {value}, but must be above 0")
        return value

    def _flag(self, key: str, default: bool) -> bool:
        return self._checked(key, default, "true or false", lambda value: type(value) is bool)

    def _one_of(self, key: str, known: dict, default: str) -> Any:
        value = self._checked(
            key, default, "one of " + ", ".join(known), lambda v: isinstance(v, str) and v in known
        )
        return known[value]

    # -- parts of an architecture ---------------------------------------------------------------------------------

    def _activation(self) -> str:
        if self.get("activation") is None:  # NeMo's default is GELU, which is not supported
            raise ValueError(
                f"{self.where} has no activation; the supported ones are {', '.join(ACTIVATIONS)}"
            )
        return self._one_of("activation", ACTIVATIONS, "")

    def _refuse_what_is_not_computed(self) -> None:
        if (kind := self.get("position_embedding_type", "learned_absolute")) != "rope":
            raise ValueError(
                f"{self.where}: position_embedding_type is {ascii(kind)[:80]}; only rope is supported"
            )
        if self._flag("bias", True):
            raise ValueError(
                f"{self.where}: bias is true, for all linear layers; only models without biases are supported"
            )
        for key, value in ONLY.items():
            if (setting := self.get(key, value)) != value:
                raise ValueError(f"{self.where}: {key} is {ascii(setting)[:80]}; only {value} is supported")
        if self.get("activation") in ("geglu", "fast-geglu") and not self._flag("openai_gelu", False):
            raise ValueError(
                f"{self.where}: activation geglu is supported only with openai_gelu: true, the tanh approximation of "
                "GELU"
            )
        regression = self.get("regression")
        if isinstance(regression, dict) and regression.get("num_attributes", 1) != 1:
            raise ValueError(
                f"{self.where}: regression.num_attributes is not 1: only reward models with a single reward are "
                "supported"
            )

    def _is_applied(self, key: str, head: str) -> bool:
        """Whether a flag is set and the model's class in NeMo reads the flag."""
        is_set = self._flag(key, False)
        if is_set and head == "scalar":
            logger.warning(
                "%s: %s is true, but NeMo-Aligner's reward models ignore the setting, so the model is imported without. Import the "
                "model's Hugging Face folder instead if the model was trained elsewhere",
                self.where,
                key,
            )
        return is_set and head != "scalar"

    def _rope_scaling(self, head: str) -> RopeScaling | None:
        is_scaled = self._is_applied("scale_positional_embedding", head)
        if factor := self._number("seq_len_interpolation_factor", None):
            if is_scaled:
                raise ValueError(
                    f"{self.where}: seq_len_interpolation_factor is {factor} and scale_positional_embedding is true; only one "
                    "scaling of positions is supported"
                )
            return RopeScaling("linear", factor)
        if not is_scaled:
            return None
        return RopeScaling(
            "llama3",
            self._number("scale_factor", 8.0),
            self._number("low_freq_factor", 1.0),
            self._number("high_freq_factor", 4.0),
            self._count("old_context_len", 8192),
        )

    def _attention(self) -> dict[str, Any]:
        """Windows and caps. Megatron's window (w, 0) covers a token and the w tokens before the token.

        For Gemma 2, NeMo's converter writes Google's window, which includes the token itself. The import follows Google's model.
        """
        window = self._checked("window_size", None, "two integers", _is_window)
        windowed = window is not None and window[0] >= 0
        more = self._checked(
            "mcore_customization_config", {}, "a section", lambda value: isinstance(value, dict)
        )
        caps = NemoConfig(more, f"{self.where}: mcore_customization_config")
        is_gemma2 = self.get("name") == GEMMA2
        if more and not is_gemma2:
            raise ValueError(f"{caps.where} is only supported for name: {GEMMA2}")
        layers = range(0, self.num_layers, 2 if is_gemma2 else 1)
        values = (
            {"sliding_window": window[0] + (not is_gemma2), "sliding_layers": tuple(layers)}
            if windowed
            else {}
        )
        if is_gemma2:
            values |= {
                "post_norms": True,
                "attention_scale": caps._positive("query_pre_attn_scalar") ** -0.5,
                # NeMo computes no cap for 0 either
                "attention_softcap": caps._number("attn_logit_softcapping", None) or None,
                "logits_softcap": caps._number("final_logit_softcapping", None) or None,
            }
        return values


def _is_window(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(tokens) is int for tokens in value)


def _check_events(events: Iterable, where: str) -> None:
    """Raises ValueError for aliases, which can expand to any amount of text, and for nesting that takes the parser hours."""
    depth = 0
    for event in events:
        name = type(event).__name__
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if name == "AliasEvent" or depth > MAX_DEPTH:
            raise ValueError(
                f"{where} has YAML aliases (*name), or is nested too deep: write plain values in their place"
            )


def _check_keys(node: Any, where: str) -> None:
    """Raises ValueError for a key that stands twice in a section, because YAML's readers take the last value silently."""
    if node is None or isinstance(node.value, str):
        return
    if node.id == "mapping":
        counts = Counter(key.value for key, _ in node.value if isinstance(key.value, str))
        if counts and (most := counts.most_common(1)[0])[1] > 1:
            raise ValueError(
                f"{where} has the key {ascii(most[0])[:80]} twice in a section: remove one of them"
            )
    for child in node.value:
        for part in child if isinstance(child, tuple) else [child]:
            _check_keys(part, where)


def _family(arch: Architecture) -> str:
    """The first family whose Hugging Face folder can hold the model."""
    if arch.normalization == "layer":
        return "nemo_gpt"
    if arch.post_norms:
        return "gemma2"
    if arch.zero_centered_norm and arch.activation == "geglu":
        return "gemma"
    if arch.qk_norm:
        return "qwen3"
    if arch.qkv_bias:
        return "qwen2"
    return "mistral" if arch.sliding_window else "llama"
