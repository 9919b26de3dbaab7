"""A GGUF file of the Llama architecture: weights, tokenizer and chat template in one file.

The weights are dequantized to float32.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from aligner_lib.models.architecture import Architecture, RopeScaling
from aligner_lib.models.gguf_tokenizer import write_tokenizer

HF_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
HF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GgufFile:
    """Reads a GGUF file one weight at a time, under Hugging Face's names.

    Raises ValueError for a damaged file and for an unsupported feature.
    """

    def __init__(self, path: Path):
        import gguf

        self.path = Path(path)
        try:
            self._reader = gguf.GGUFReader(str(self.path))
        except (ValueError, IndexError, OSError) as error:
            raise ValueError(
                f"{self.path} is not a complete GGUF file ({error}): download the file again"
            ) from None
        self._tensors = {_hf_name(tensor.name): tensor for tensor in self._reader.tensors}
        self.architecture = self._read_architecture()

    def names(self) -> set[str]:
        """The names of all weights."""
        return set(self._tensors)

    def dtype(self, name: str) -> str:
        """Always F32: quantized weights are dequantized."""
        return "F32"

    def shape(self, name: str) -> tuple[int, ...]:
        """A weight's shape, slowest dimension first."""
        # GGUF counts the fastest dimension first
        return tuple(int(n) for n in reversed(self._tensors[name].shape))

    def read(self, name: str) -> np.ndarray:
        """A weight, dequantized to float32. Raises ValueError for an unknown quantization."""
        import gguf

        tensor = self._tensors[name]
        try:
            weight = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        except NotImplementedError:
            raise ValueError(
                f"{self.path}: {tensor.name} is {tensor.tensor_type.name}, which can't be read"
            ) from None
        if name.endswith("q_proj.weight"):
            return unpermute(weight, self.architecture.num_attention_heads)
        if name.endswith("k_proj.weight"):
            return unpermute(weight, self.architecture.num_query_groups)
        return weight

    def write_tokenizer(self, out: Path) -> None:
        """Write tokenizer.json and tokenizer_config.json. Raises ValueError for an unknown pre-tokenizer."""
        write_tokenizer(self._field, self.path, out)

    def _field(self, key: str, default=None):
        """A metadata value. Raises ValueError when the value is missing and has no default."""
        field = self._reader.fields.get(key)
        if field is None and default is None:
            of_tokenizer = key.startswith("tokenizer.")
            cure = "put the model's tokenizer.json and tokenizer_config.json beside the file"
            raise ValueError(
                f"{self.path} has no {key}, which a Llama model needs: {cure if of_tokenizer else 'download the file again'}"
            )
        return default if field is None else field.contents()

    def _read_architecture(self) -> Architecture:
        if (kind := self._field("general.architecture")) != "llama":
            raise ValueError(f"{self.path}: the architecture is {kind!r}; the importer reads only 'llama'")
        if experts := self._field("llama.expert_count", 0):
            raise ValueError(f"{self.path}: a mixture of {experts} experts is not supported")
        if self._field("split.count", 1) > 1:
            raise ValueError(
                f"{self.path} is a part of several files: first join the files with llama.cpp's gguf-split"
            )
        hidden, heads = self._field("llama.embedding_length"), self._field("llama.attention.head_count")
        head_size = self._field("llama.attention.key_length", hidden // heads)
        if (rotated := self._field("llama.rope.dimension_count", head_size)) != head_size:
            raise ValueError(
                f"{self.path}: rope rotates {rotated} of a head's {head_size} values; only a rotation of all is supported"
            )
        return Architecture(
            num_layers=self._field("llama.block_count"),
            hidden_size=hidden,
            num_attention_heads=heads,
            num_query_groups=self._field("llama.attention.head_count_kv", heads),
            ffn_hidden_size=self._field("llama.feed_forward_length"),
            vocab_size=len(self._field("tokenizer.ggml.tokens", ())) or self._field("llama.vocab_size"),
            max_position_embeddings=self._field("llama.context_length"),
            kv_channels=head_size,
            rotary_base=float(self._field("llama.rope.freq_base", 10000.0)),
            rope_scaling=self._rope_scaling(),
            norm_epsilon=_decimal(self._field("llama.attention.layer_norm_rms_epsilon")),
            tied_embeddings="lm_head.weight" not in self._tensors,
        )

    def _rope_scaling(self) -> RopeScaling | None:
        """The scaling by llama.cpp's rules: linear if the file has no type, and none if the file has no factor."""
        kind = self._field("llama.rope.scaling.type", "linear")
        if "rope_freqs.weight" in self._tensors:
            kind = "llama3 (rope_freqs.weight)"
        if kind not in ("none", "linear"):
            raise ValueError(
                f"{self.path}: rope scaling {kind} is not supported in GGUF files: fetch the original weights with `aligner model "
                "fetch ORG/NAME`"
            )
        factor = self._field("llama.rope.scaling.factor", 0.0) or self._field("llama.rope.scale_linear", 0.0)
        return RopeScaling("linear", _decimal(factor)) if kind == "linear" and factor not in (0, 1) else None


def _decimal(number: float) -> float:
    """A number that the file stores as float32: seven digits restore the original, such as 1e-05."""
    return float(f"{number:.7g}")


def unpermute(weight: np.ndarray, heads: int) -> np.ndarray:
    """Restore Hugging Face's row order of a query or key projection: [heads · D, H] → the same shape.

    Rotary positions rotate pairs of a head's values. llama.cpp pairs neighbours (0, 1), (2, 3) …; Hugging Face and Megatron
    pair the halves (0, D/2), (1, D/2 + 1) …. Therefore llama.cpp's converter interleaves the rows with its `permute`.
    `unpermute` is the inverse.
    """
    rows, hidden = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)


def _hf_name(name: str) -> str:
    """Hugging Face's name of a GGUF tensor. A tensor without a counterpart in Llama keeps its name."""
    stem, _, suffix = name.rpartition(".")
    if stem in HF_NAMES:
        return f"{HF_NAMES[stem]}.{suffix}"
    if stem.startswith("blk."):
        _, layer, part = stem.split(".", 2)
        if part in HF_LAYER_NAMES:
            return f"model.layers.{layer}.{HF_LAYER_NAMES[part]}.{suffix}"
    return name
