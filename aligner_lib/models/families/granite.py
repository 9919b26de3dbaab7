"""Granite: Llama with constant factors of embeddings, attention scores, layers' outputs and logits.

Source: Granite Team 2024, "Granite 3.0 Language Models"; the factors are those of Yang et al. 2022 (arXiv:2203.03466).
"""

from __future__ import annotations

from dataclasses import replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family
from aligner_lib.models.families.llama import read_llama, write_llama
from aligner_lib.models.families.settings import Settings


def from_hf(settings: Settings) -> Architecture:
    return replace(
        read_llama(settings),
        family="granite",
        embedding_scale=settings.number("embedding_multiplier", 1.0),
        attention_scale=settings.number("attention_multiplier", 1.0),
        residual_scale=settings.number("residual_multiplier", 1.0),
        logits_divisor=settings.number("logits_scaling", 1.0),
    )


def to_hf(arch: Architecture) -> dict:
    if arch.head == "scalar":
        raise ValueError(
            "transformers has no class for reward models of Granite, so this model cannot become a Hugging Face folder: score "
            "texts here, or train the reward model from another family"
        )
    return {
        **write_llama(arch),
        "embedding_multiplier": arch.embedding_scale,
        "attention_multiplier": arch.attention_scale,
        "residual_multiplier": arch.residual_scale,
        "logits_scaling": arch.logits_divisor,
    }


FAMILY = Family("granite", "granite", "Granite", from_hf, to_hf)
