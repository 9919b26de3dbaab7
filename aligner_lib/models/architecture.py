"""A model's architecture: the numbers shared by Megatron, the importers and the checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal, get_args

from aligner_lib.datasets.json_file import key_errors_in, read_object

Normalization = Literal["rms", "layer"]
Activation = Literal["swiglu", "geglu", "squared_relu", "gelu", "gelu_tanh"]


MOST_LAYERS = 10_000  # more than any model has; bounds the memory for reading a model's configuration
MOST_VALUES = 1 << 27  # limit of a size: hidden values, tokens of a vocabulary, positions
SIZES = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "ffn_hidden_size", "vocab_size",
         "max_position_embeddings", "kv_channels")  # fmt: skip


@dataclass(frozen=True)
class RopeScaling:
    """How the frequencies of rotary positions are lowered for texts longer than in the first training.

    linear: all frequencies are divided by `factor` (Chen et al. 2023, arXiv:2306.15595). llama3: frequencies with fewer than
    low_frequency_factor turns within original_positions are divided by `factor`, frequencies with more than
    high_frequency_factor turns stay unchanged, and frequencies in between get an interpolated factor. yarn: the same, with an
    interpolation over the number of the pair, and rotated values are multiplied by attention_factor (Peng et al. 2023,
    arXiv:2309.00071). Raises ValueError for another kind, or for factors out of order.
    """

    kind: str
    """linear, llama3 or yarn."""
    factor: float
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_positions: int = 8192
    attention_factor: float = 1.0

    def __post_init__(self):
        if self.kind not in ("linear", "llama3", "yarn"):
            raise ValueError(f"rope scaling is {self.kind!r}, but must be 'linear', 'llama3' or 'yarn'")
        if self.factor < 1 or not 0 < self.low_frequency_factor < self.high_frequency_factor:
            raise ValueError(
                f"{self} is not a rope scaling: factor must be at least 1, and 0 < low < high frequency"
            )
        if self.attention_factor <= 0:
            raise ValueError(f"attention_factor is {self.attention_factor}, but must be above 0")


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer with rotary positions and grouped-query attention.

    The defaults of the switches are Llama's; the modules of `models/families/` set the switches for other families. Raises
    ValueError for an unknown value, for a number of key/value heads that does not divide the number of heads, and for layers
    that do not exist.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    """The number of key/value heads."""
    ffn_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    kv_channels: int
    """The size of a head."""
    rotary_base: float = 10000.0
    """Rope theta."""
    norm_epsilon: float = 1e-5
    tied_embeddings: bool = True
    """The output layer is the input embedding."""
    head: str = "lm"
    """lm: next-token logits; scalar: a single number for each token (reward model, critic)."""
    family: str = "llama"
    """The model's family, which determines config.json and the names of weights in a Hugging Face folder."""

    # norms
    normalization: Normalization = "rms"
    """layer: LayerNorm with a bias."""
    zero_centered_norm: bool = False
    """Norms multiply by 1 + weight."""
    pre_norms: bool = True
    """The inputs of attention and MLP pass through norms."""
    post_norms: bool = False
    """The outputs of attention and MLP pass through norms before they are added to the residual stream."""
    qk_norm: bool = False
    """Each head's query and key pass through a norm before rotary positions are applied."""
    qk_norm_over_heads: bool = False
    """With `qk_norm`: one norm for the queries of all heads together, and one for the keys."""

    # layers
    activation: Activation = "swiglu"
    """geglu: with GELU's tanh approximation; squared_relu, gelu (the exact function), gelu_tanh: without a gate."""
    qkv_bias: bool = False
    """Query, key and value have biases."""
    proj_and_mlp_bias: bool = False
    """The attention's output projection and the matrices of the MLP have biases."""
    parallel_residual: bool = False
    """The MLP reads the input of the layer, as the attention does, and not the attention's result."""
    embedding_scale: float = 1.0
    """Factor of the input embeddings."""
    logits_softcap: float | None = None
    """Logits z become c · tanh(z / c)."""
    residual_scale: float = 1.0
    """Factor of the outputs of attention and MLP before they are added to the residual stream."""
    logits_divisor: float = 1.0
    """Logits are divided by this number."""

    # attention
    attention_scale: float | None = None
    """Factor of the scores; None: 1 / √kv_channels."""
    attention_softcap: float | None = None
    """Scores s become c · tanh(s / c)."""
    sliding_window: int | None = None
    """The number of tokens to which a token of a sliding layer attends, itself included."""
    sliding_layers: tuple[int, ...] = ()
    """Layers with the sliding window, counted from 0."""

    # positions
    rotary_fraction: float = 1.0
    """The rotated share of a head's values, counted from the head's beginning."""
    rope_scaling: RopeScaling | None = None
    local_rotary_base: float | None = None
    """Rope theta of sliding layers, to which rope_scaling does not apply."""
    nope_layers: tuple[int, ...] = ()
    """Layers without rotary positions, counted from 0."""

    def __post_init__(self):
        for name, known in (
            ("head", ("lm", "scalar")),
            ("normalization", get_args(Normalization)),
            ("activation", get_args(Activation)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}, but must be {' or '.join(map(repr, known))}"
                )
        for name in SIZES:
            most = MOST_LAYERS if name == "num_layers" else MOST_VALUES
            if type(value := getattr(self, name)) is not int or not 0 < value <= most:
                raise ValueError(f"{name} is {str(value)[:100]}, but must be an integer from 1 to {most}")
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"{self.num_attention_heads} heads cannot share {self.num_query_groups} key/value heads evenly"
            )
        if not 0 < self.rotary_fraction <= 1 or self.rotary_channels % 2 or not self.rotary_channels:
            raise ValueError(
                f"rotary_fraction={self.rotary_fraction} of a head's {self.kv_channels} values is no even number above 0"
            )
        if bool(self.sliding_layers) != bool(self.sliding_window):
            raise ValueError(
                f"sliding_window={self.sliding_window} and sliding_layers={self.sliding_layers} must be set together"
            )
        if absent := {*self.sliding_layers, *self.nope_layers} - set(range(self.num_layers)):
            raise ValueError(f"there are no layers {sorted(absent)} in a model of {self.num_layers} layers")

    @property
    def gated(self) -> bool:
        """Whether the first projection of the MLP has two parts, the gate and the gated values."""
        return self.activation in ("swiglu", "geglu")

    @property
    def rotary_channels(self) -> int:
        """The number of rotated values at the beginning of a head."""
        return int(self.kv_channels * self.rotary_fraction)

    @property
    def num_parameters(self) -> int:
        """The number of weights, embedding and head included."""
        norms = 2 if self.normalization == "layer" else 1  # weights of a norm for each normalised value
        heads = self.num_attention_heads + 2 * self.num_query_groups
        normed_heads = self.num_attention_heads + self.num_query_groups if self.qk_norm_over_heads else 2
        attention = self.hidden_size * self.kv_channels * (heads + self.num_attention_heads)
        attention += heads * self.kv_channels * self.qkv_bias
        attention += normed_heads * self.kv_channels * norms * self.qk_norm
        mlp = (3 if self.gated else 2) * self.hidden_size * self.ffn_hidden_size
        mlp += self.proj_and_mlp_bias * (2 * self.hidden_size + self.ffn_hidden_size)
        norm = self.hidden_size * norms
        layers = self.num_layers * (attention + mlp + 2 * norm * (self.pre_norms + self.post_norms))
        embedding = self.vocab_size * self.hidden_size
        head = self.hidden_size + 1 if self.head == "scalar" else (0 if self.tied_embeddings else embedding)
        return embedding + layers + norm + head

    def save(self, folder: Path) -> None:
        """Write model.json into a model folder."""
        (Path(folder) / "model.json").write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> Architecture:
        """Read model.json from a model folder. Raises FileNotFoundError without the file, DamagedFileError for a slip in it."""
        path = Path(folder) / "model.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is not a model folder, because model.json is missing (see `aligner model import`)"
            )
        stored = read_object(path)
        values = {field.name: stored[field.name] for field in fields(Architecture) if field.name in stored}
        values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
        with key_errors_in(path):
            if values.get("rope_scaling"):
                values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
            return Architecture(**values)
