"""A model's architecture: the numbers that Megatron, the importers and the checkpoints share."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Architecture:
    """A decoder-only transformer with RMSNorm, SwiGLU, rotary positions and grouped-query attention (Llama).

    Raises ValueError for an unknown head, or heads that the key/value heads do not divide.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_query_groups: int  # key/value heads
    ffn_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    kv_channels: int  # size of one head
    rotary_base: float = 10000.0  # rope theta
    norm_epsilon: float = 1e-5
    tied_embeddings: bool = True  # the output layer is the input embedding
    head: str = "lm"  # "lm": next-token logits; "scalar": one number a token (reward model, critic)

    def __post_init__(self):
        if self.head not in ("lm", "scalar"):
            raise ValueError(f"head is {self.head!r}; it is 'lm' or 'scalar'")
        if self.num_attention_heads % self.num_query_groups:
            raise ValueError(
                f"{self.num_attention_heads} heads don't share {self.num_query_groups} key/value heads evenly"
            )

    @property
    def num_parameters(self) -> int:
        """The number of weights, embedding and head included."""
        attention = (
            self.hidden_size * self.kv_channels * 2 * (self.num_attention_heads + self.num_query_groups)
        )
        mlp = 3 * self.hidden_size * self.ffn_hidden_size
        layers = self.num_layers * (attention + mlp + 2 * self.hidden_size)
        embedding = self.vocab_size * self.hidden_size
        head = self.hidden_size + 1 if self.head == "scalar" else (0 if self.tied_embeddings else embedding)
        return embedding + layers + self.hidden_size + head

    @staticmethod
    def from_hf(config: dict) -> Architecture:
        """The architecture of a Hugging Face `config.json`.

        Raises ValueError for another family or a feature that is not supported, KeyError for a missing
        setting.
        """
        if config.get("model_type") != "llama":
            raise ValueError(
                f"model_type is {config.get('model_type')!r}; the importer reads the Llama family"
            )
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        if rope.get("rope_type", rope.get("type", "default")) != "default":
            raise ValueError(f"rope scaling {rope} is not supported yet; models without it are")
        if config.get("attention_bias") or config.get("mlp_bias"):
            raise ValueError(
                "the model has biases (attention_bias or mlp_bias), which the importer does not read"
            )
        if config.get("hidden_act", "silu") != "silu":
            raise ValueError(f"hidden_act is {config['hidden_act']!r}; the importer reads silu (SwiGLU)")
        heads = config["num_attention_heads"]
        return Architecture(
            num_layers=config["num_hidden_layers"],
            hidden_size=config["hidden_size"],
            num_attention_heads=heads,
            num_query_groups=config.get("num_key_value_heads") or heads,
            ffn_hidden_size=config["intermediate_size"],
            vocab_size=config["vocab_size"],
            max_position_embeddings=config["max_position_embeddings"],
            kv_channels=config.get("head_dim") or config["hidden_size"] // heads,
            rotary_base=float(rope.get("rope_theta", config.get("rope_theta", 10000.0))),
            norm_epsilon=config.get("rms_norm_eps", 1e-6),
            tied_embeddings=config.get("tie_word_embeddings", False),
        )

    def save(self, folder: Path) -> None:
        """Write model.json into a model folder."""
        (Path(folder) / "model.json").write_text(json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(folder: Path) -> Architecture:
        """Read model.json from a model folder. Raises FileNotFoundError when there is none."""
        path = Path(folder) / "model.json"
        if not path.exists():
            raise FileNotFoundError(
                f"{folder} is no model folder: it has no model.json (see `aligner model import`)"
            )
        stored = json.loads(path.read_text())
        return Architecture(
            **{field.name: stored[field.name] for field in fields(Architecture) if field.name in stored}
        )
