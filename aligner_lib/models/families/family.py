"""The declaration of a family of models, and the parts of a Hugging Face `config.json` shared by all families."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from aligner_lib.models.architecture import MOST_LAYERS, Architecture, RopeScaling
from aligner_lib.models.families.settings import Settings

CLASSIFIER = "ForSequenceClassification"  # a classifier with one label is a reward model
# qkv: three matrices; stacked_qkv: all queries, then all keys, then all values; none: in Megatron's order; gate_up: two matrices
Fusion = Literal["none", "qkv", "stacked_qkv", "gate_up"]
FULL, SLIDING = "full_attention", "sliding_attention"  # values in layer_types
# Llama's names for the norms of a layer
NORMS = {"attention": "input_layernorm", "mlp": "post_attention_layernorm"}


@dataclass(frozen=True)
class Family:
    """A family of models, which share a class of transformers."""

    name: str
    """The value of Architecture.family."""
    model_type: str
    """The value in config.json."""
    classes: str
    """Prefix of the class in transformers: {classes}ForCausalLM."""
    from_hf: Callable[[Settings], Architecture]
    """Reads the architecture from config.json. Raises ValueError for an unsupported feature."""
    to_hf: Callable[[Architecture], dict]
    """The inverse of `from_hf`, without architectures and model_type."""
    norms: Mapping[str, str] = field(default_factory=dict)
    """The names of a layer's norms, if different from Llama's."""
    classifier: str = ""
    """The class of reward models, if different from {classes}ForSequenceClassification."""
    qkv_fusion: Fusion = "qkv"
    """How Megatron's matrix of query, key and value arises. With stacked_qkv and none there is one matrix, qkv_proj; with
    stacked_qkv, gate and up are one matrix, too, gate_up_proj."""
    names: Mapping[str, str] = field(default_factory=dict)
    """Parts of the names of weights, by the part's name in Llama."""

    def __post_init__(self):
        object.__setattr__(self, "norms", {**NORMS, **self.norms})
        object.__setattr__(self, "classifier", self.classifier or self.classes + CLASSIFIER)

    def name_of(self, weight: str) -> str:
        """The name of a weight whose name in Llama is `weight`."""
        for of_llama, own in self.names.items():
            weight = weight.replace(of_llama, own)
        return weight


def read_base(settings: Settings) -> dict[str, Any]:
    """Read the sizes, which have the same names in all families: arguments of `Architecture`."""
    heads, hidden_size = settings.count("num_attention_heads"), settings.count("hidden_size")
    return {
        "num_layers": settings.count("num_hidden_layers", most=MOST_LAYERS),
        "hidden_size": hidden_size,
        "num_attention_heads": heads,
        "num_query_groups": settings.count("num_key_value_heads", None) or heads,
        "ffn_hidden_size": settings.count("intermediate_size"),
        "vocab_size": settings.count("vocab_size"),
        "max_position_embeddings": settings.count("max_position_embeddings"),
        "kv_channels": settings.count("head_dim", None) or hidden_size // heads,
        "tied_embeddings": settings.flag("tie_word_embeddings"),
    }


def write_base(arch: Architecture) -> dict[str, Any]:
    """The inverse of `read_base` and `read_rope`, with names for every release of transformers."""
    return {
        "num_hidden_layers": arch.num_layers,
        "hidden_size": arch.hidden_size,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_query_groups,
        "intermediate_size": arch.ffn_hidden_size,
        "vocab_size": arch.vocab_size,
        "max_position_embeddings": arch.max_position_embeddings,
        "head_dim": arch.kv_channels,
        "tie_word_embeddings": arch.tied_embeddings,
        "rope_theta": arch.rotary_base,
        "rope_scaling": _write_scaling(arch.rope_scaling),
    }


def read_rope(
    settings: Settings,
    fraction: float | None = None,
    names: tuple[str, str] = ("rope_theta", "partial_rotary_factor"),
    parameters: Settings | None = None,
) -> dict[str, Any]:
    """Read the rotary positions: arguments of `Architecture`.

    fraction: the rotated share of a head, if config.json does not contain the share; None: the family rotates whole heads.
    names: the settings of theta and the share outside of a section. parameters: the section of transformers 5, if it is not
    rope_parameters; earlier releases have rope_scaling. Raises ValueError for an unknown scaling, for two sections that differ,
    and for a share that the family does not read.
    """
    # transformers 5 prefers this setting to the section's, except in sections for kinds of layers
    original = settings.count("original_max_position_embeddings", None) if parameters is None else None
    parameters = settings.section("rope_parameters") if parameters is None else parameters
    if FULL in parameters or SLIDING in parameters:
        raise parameters.refuse(
            f"sections for kinds of layers are not read in {settings.word('model_type')}: write rope_theta and rope_type into "
            "rope_parameters itself"
        )
    theta, share = settings.number(names[0], 10000.0), settings.number(names[1], fraction or 1.0)
    sections = [section for section in (parameters, settings.section("rope_scaling")) if len(section)]
    read, *others = [
        {
            "rotary_base": section.number("rope_theta", theta),
            "rotary_fraction": section.number("partial_rotary_factor", share),
            "rope_scaling": read_scaling(section, original),
        }
        for section in sections or [parameters]
    ]
    if any(other != read for other in others):
        raise settings.refuse(
            "rope_parameters and rope_scaling describe different rotary positions: remove one of the two sections"
        )
    if fraction is None and read["rotary_fraction"] != 1:
        raise settings.refuse(
            f"partial_rotary_factor is {read['rotary_fraction']}; only 1 can be read in {settings.word('model_type')}: take a model "
            "whose heads are rotated whole"
        )
    return read


_LONGROPE = (
    "it has a list of factors for short texts and another for long ones, so keys in the cache of generation would be wrong after "
    "the change, and a factor of the rotated values. Take a version of the model without longrope"
)
# rope_type: the reason why the scaling is not read; more in docs/decisions/families.md
REFUSED_SCALINGS = {
    "dynamic": "its frequencies change with the length of the text, but keys in the cache of generation keep the frequencies of "
    "their time. Leave the section out of config.json, and keep texts within the model's own length",
    **dict.fromkeys(("longrope", "su"), _LONGROPE),
}


def read_scaling(section: Settings, original: int | None = None) -> RopeScaling | None:
    """The scaling described by a section; None without scaling.

    original: the positions before the scaling, in tokens; None: the section's. Raises ValueError for an unknown kind.
    """
    kind = section.word("rope_type", None) or section.word("type", "default")
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling(kind, section.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            kind,
            section.number("factor"),
            section.number("low_freq_factor"),
            section.number("high_freq_factor"),
            original or section.count("original_max_position_embeddings"),
        )
    if kind == "yarn":
        return _read_yarn(section, original)
    reason = f": {REFUSED_SCALINGS[kind]}" if kind in REFUSED_SCALINGS else ""
    raise section.refuse(
        f"rope_type {kind!r} is not supported; only 'default', 'linear', 'llama3' and 'yarn' are{reason}"
    )


def _read_yarn(section: Settings, original: int | None) -> RopeScaling:
    if "truncate" in section and not section.flag("truncate"):
        raise section.refuse("truncate is false, which the importer does not support for yarn")
    factor = section.number("factor")
    if factor < 1:
        raise section.refuse(f"factor is {factor}, but must be at least 1")
    given = section.number("mscale", None), section.number("mscale_all_dim", None)
    numerator, denominator = given if all(given) else (1.0, 0.0)
    attention_factor = section.number("attention_factor", None)
    usual = (0.1 * numerator * math.log(factor) + 1) / (0.1 * denominator * math.log(factor) + 1)
    return RopeScaling(
        "yarn",
        factor,
        section.number("beta_slow", None) or 1.0,
        section.number("beta_fast", None) or 32.0,
        original or section.count("original_max_position_embeddings"),
        usual if attention_factor is None else attention_factor,
    )


def _write_scaling(scaling: RopeScaling | None) -> dict | None:
    if scaling is None:
        return None
    if scaling.kind == "linear":
        return {"rope_type": "linear", "factor": scaling.factor}
    if scaling.kind == "yarn":
        return {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "beta_slow": scaling.low_frequency_factor,
            "beta_fast": scaling.high_frequency_factor,
            "original_max_position_embeddings": scaling.original_positions,
            "attention_factor": scaling.attention_factor,
        }
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }


def read_window(settings: Settings, window: int | None, layers: Iterable[int]) -> dict[str, Any]:
    """Read the sliding window: arguments of `Architecture`.

    layers: the layers with the window, if config.json has no layer_types. Raises ValueError for layers of another kind.
    """
    if types := settings.listed("layer_types", settings.count("num_hidden_layers", most=MOST_LAYERS)):
        if other := set(types) - {FULL, SLIDING}:
            raise settings.refuse(
                f"layer_types has {', '.join(sorted(map(str, other)))}; only {FULL} and {SLIDING} can be read"
            )
        layers = [layer for layer, kind in enumerate(types) if kind == SLIDING]
    layers = tuple(layers)
    return {"sliding_window": window, "sliding_layers": layers} if window and layers else {}


def write_window(arch: Architecture) -> dict[str, Any]:
    """The inverse of `read_window`."""
    types = [SLIDING if layer in arch.sliding_layers else FULL for layer in range(arch.num_layers)]
    return {"sliding_window": arch.sliding_window, "layer_types": types}


def check_activation(settings: Settings, name: str, *known: str) -> None:
    """Raises ValueError unless the setting `name` is a known activation. The first activation is the setting's default."""
    if (activation := settings.word(name, known[0])) not in known:
        raise settings.refuse(f"{name} is {activation!r}; only {' and '.join(known)} can be read here")
