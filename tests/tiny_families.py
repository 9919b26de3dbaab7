"""A tiny model of each family, as transformers makes it: random weights, and every feature small enough to matter."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import import_hf
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import hf_shapes, to_hf, to_megatron, weights
from aligner_lib.models.tensor_store import Block, StoreReader, StoreWriter

SIZES = {
    # two layers: of two pipeline stages each has one, so that a stage must count the layers before it
    **{"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 64, "vocab_size": 1024},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256},
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}
LLAMA_3 = {
    **{"rope_type": "llama3", "rope_theta": 50.0, "original_max_position_embeddings": 64},
    **{"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
}
YARN = {
    **{"rope_type": "yarn", "rope_theta": 50.0, "original_max_position_embeddings": 64},
    **{"factor": 4.0, "beta_fast": 4.0, "mscale": 2.0, "mscale_all_dim": 0.5},
}
GEMMA = {"sliding_window": 5, "query_pre_attn_scalar": 24}
# model_type and settings
CONFIGS = {
    "llama": ("llama", {"rope_parameters": LLAMA_3, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 6}),
    "phi3": ("phi3", {"sliding_window": 6}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "granite": (
        "granite",
        {
            **{"embedding_multiplier": 3.0, "attention_multiplier": 0.4, "residual_multiplier": 0.6},
            **{"logits_scaling": 1.5, "tie_word_embeddings": True},
        },
    ),
    "olmo2": ("olmo2", {"rope_parameters": LLAMA_3}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {**GEMMA, "attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0}),
    "gemma3": (
        "gemma3_text",
        {
            **GEMMA,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1e4, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            },
        },
    ),
    "nemotron": ("nemotron", {}),
    "gpt_neox": (
        "gpt_neox",
        {
            **{"num_key_value_heads": None, "head_dim": None},  # settings that GPT-NeoX does not have
            "rope_parameters": {"rope_theta": 50.0, "partial_rotary_factor": 0.5},
        },
    ),
}
CONFIGS["gpt_neox_20b"] = ("gpt_neox", CONFIGS["gpt_neox"][1] | {"hidden_act": "gelu_fast"})
PLAIN = "gpt_2b"  # no class of transformers: its reference is the formula below
NAMES = [*CONFIGS, PLAIN]


def make(name: str, smoke: Path, folder: Path):
    """The reference model, and its import as folder/imported. smoke: whose tokenizer it has."""
    reference = make_plain(folder) if name == PLAIN else make_transformers(name, folder)
    Tokenizer(smoke).save(folder / ("imported" if name == PLAIN else "hf"))
    if name != PLAIN:
        import_hf(folder / "hf", folder / "imported")
    return reference


def make_transformers(name: str, folder: Path):
    """transformers' model, written to folder/hf."""
    from transformers import AutoModelForCausalLM

    model = randomized(AutoModelForCausalLM.from_config(hf_config(name), attn_implementation="eager"), name)
    model.save_pretrained(folder / "hf")
    return model


def hf_config(name: str, **more):
    from transformers import AutoConfig

    model_type, settings = CONFIGS[name]
    return AutoConfig.for_model(model_type, **{**SIZES, **settings, **more})


def randomized(model: nn.Module, name: str) -> nn.Module:
    """Its first weights, and N(0, 0.15) on top of each."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.15 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def on_disk(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """A reference's tensors under their names in files. GPT-NeoX's output layer has another name in memory."""
    is_neox = any(name.startswith("gpt_neox.") for name in tensors)
    return {
        name.replace("lm_head.", "embed_out.") if is_neox else name: tensor
        for name, tensor in tensors.items()
    }


def stored(folder: Path, arch: Architecture) -> dict[str, Tensor]:
    """A store's tensors under Hugging Face's names."""
    store = StoreReader(folder)
    return {
        hf: part
        for weight in weights(arch)
        for hf, part in zip(weight.hf, to_hf(weight, store.read_whole(weight.megatron), arch))
    }


# ---- GPT-2B-001's formula -------------------------------------------------------------------------------------------

GPT_2B = Architecture(
    num_layers=2,
    hidden_size=48,
    num_attention_heads=4,
    num_query_groups=4,
    ffn_hidden_size=64,
    vocab_size=1024,
    max_position_embeddings=256,
    kv_channels=12,
    tied_embeddings=False,
    family="nemo_gpt",
    normalization="layer",
    zero_centered_norm=True,
    rotary_fraction=0.5,
)


class PlainGPT(nn.Module):
    """layernorm1p, SwiGLU, half of a head rotated, no biases elsewhere: written out, for one row at a time."""

    def __init__(self):
        super().__init__()
        parts = [(name, shape) for w in weights(GPT_2B) for name, shape in zip(w.hf, hf_shapes(w, GPT_2B))]
        self.weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(torch.zeros(shape)) for name, shape in parts}
        )

    def state_dict(self, *_, **__) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.named_parameters()}

    def named_parameters(self, *_, **__):
        return [(name.replace("/", "."), parameter) for name, parameter in self.weights.items()]

    def forward(self, tokens: Tensor):
        [tokens], w = tokens, dict(self.named_parameters())
        x = w["model.embed_tokens.weight"][tokens]  # [S, H]
        for layer in range(GPT_2B.num_layers):
            at = f"model.layers.{layer}."
            y = self.norm(x, w, at + "input_layernorm")
            q, k, v = (
                (y @ w[f"{at}self_attn.{part}_proj.weight"].T).view(len(x), 4, 12).transpose(0, 1)
                for part in "qkv"
            )
            q, k = self.rotated(q), self.rotated(k)
            scores = q @ k.transpose(1, 2) / math.sqrt(12)
            scores += torch.full_like(scores, -torch.inf).triu(1)
            mixed = (scores.softmax(-1) @ v).transpose(0, 1).flatten(1)
            x = x + mixed @ w[at + "self_attn.o_proj.weight"].T
            y = self.norm(x, w, at + "post_attention_layernorm")
            gate, up = (y @ w[f"{at}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ w[at + "mlp.down_proj.weight"].T
        logits = self.norm(x, w, "model.norm") @ w["lm_head.weight"].T
        return SimpleNamespace(logits=logits[None])

    @staticmethod
    def norm(x: Tensor, w: dict[str, Tensor], name: str) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        scale = (centered.square().mean(-1, keepdim=True) + GPT_2B.norm_epsilon).rsqrt()
        return centered * scale * (1 + w[name + ".weight"]) + w[name + ".bias"]

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        """x [heads, S, 12]: the pairs (0, 3), (1, 4), (2, 5) turn, the last six values stay."""
        angles = torch.arange(x.shape[1])[:, None] / 10000.0 ** (torch.arange(3) / 3)
        turned = torch.polar(torch.ones_like(angles), angles) * torch.complex(x[..., :3], x[..., 3:6])
        return torch.cat([turned.real, turned.imag, x[..., 6:]], dim=-1)

    def generate(self, tokens: Tensor, max_new_tokens: int, **_) -> Tensor:
        for _ in range(max_new_tokens):
            tokens = torch.cat([tokens, self(tokens).logits[:, -1:].argmax(-1)], dim=1)
        return tokens


def make_plain(folder: Path) -> PlainGPT:
    """The reference, and a model folder with its weights: transformers has no class that an import could read."""
    model = randomized(PlainGPT(), PLAIN)
    tensors = model.state_dict()
    writer = StoreWriter(folder / "imported" / "weights", 0)
    for weight in weights(GPT_2B):
        fused = to_megatron(weight, [tensors[name] for name in weight.hf], GPT_2B)
        writer.add(Block.whole(weight.megatron, fused), fused)
    writer.flush()
    GPT_2B.save(folder / "imported")
    return model
