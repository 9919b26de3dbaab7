"""Families of models: a module for each family, with everything specific to the family.

A module tells which `config.json` belongs to its family, reads the switches of `Architecture` from the file and writes them
back, and lists the names of weights that differ from Llama's. No other part of the library names a family.
"""

from __future__ import annotations

from dataclasses import asdict, replace

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families import (
    gemma,
    gemma2,
    gemma3,
    gpt_neox,
    granite,
    llama,
    mistral,
    nemo_gpt,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    smollm3,
)
from aligner_lib.models.families.family import CLASSIFIER, Family
from aligner_lib.models.families.settings import Settings

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (
        *(llama, mistral, phi3, qwen2, qwen3, smollm3),
        *(granite, olmo2, gemma, gemma2, gemma3, nemo_gpt, gpt_neox),
    )
}
# model_type: the reason why the family is not read; more in docs/decisions/families.md
_EXPERTS = "each layer has a router and experts, and adapters, export and layouts here assume one MLP a layer"
_PICTURES = "it reads pictures or sound, and models here read text alone"
REFUSED = {
    "gpt2": "it has learned positions, and matrices stored as [inputs, outputs]; Pythia is a gpt_neox of similar sizes",
    "phi": "attention and MLP share a norm, and the output layer has a bias; Phi-3 is read",
}
# settings of config.json, whatever the model_type: the reason
REFUSED_SETTINGS = {
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"), _EXPERTS),
    **dict.fromkeys(("vision_config", "audio_config"), _PICTURES),
}
BY_MODEL_TYPE = {family.model_type: family for family in FAMILIES.values()}


def from_hf(config: dict, where: str = "config.json") -> Architecture:
    """The architecture described by a Hugging Face `config.json`. A classifier's head is scalar.

    where: the file, for error messages. Raises ValueError for an unknown family, an unsupported feature, and a setting that is
    missing or of the wrong type.
    """
    settings = Settings(config, where)
    family = BY_MODEL_TYPE.get(settings.word("model_type", None))
    if family is None:
        name = config.get("model_type")
        reasons = [REFUSED_SETTINGS[key] for key in REFUSED_SETTINGS if config.get(key)]
        reasons += [REFUSED[name]] if isinstance(name, str) and name in REFUSED else []
        why = f" ({name}: {reasons[0]})" if reasons else ""
        raise settings.refuse(
            f"model_type is {name!r}, but the importer reads only {', '.join(BY_MODEL_TYPE)}: take a model of one of these "
            f"families{why}"
        )
    arch = family.from_hf(settings)
    classes = settings.listed("architectures") or []
    if not any(str(name).endswith(CLASSIFIER) for name in classes):
        return arch
    # transformers does not write the number of labels if there are 2
    labels = settings.count("num_labels", None) or len(settings.section("id2label")) or 2
    if labels != 1:
        raise settings.refuse(
            f"the model is a classifier with {labels} labels, but a reward model has a single label"
        )
    return replace(arch, head="scalar")


def to_hf(arch: Architecture) -> dict:
    """The `config.json` of an architecture for transformers, without token ids and dtype.

    A scalar head becomes a classifier with one label. Raises ValueError for an architecture that transformers' class can't
    represent.
    """
    family = FAMILIES[arch.family]
    scalar = arch.head == "scalar"
    config = {
        "architectures": [family.classifier if scalar else f"{family.classes}ForCausalLM"],
        "model_type": family.model_type,
        **family.to_hf(arch),
        **({"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}} if scalar else {}),
    }
    read, original = asdict(from_hf(config)), asdict(arch)
    if lost := [f"{name}={original[name]}" for name in original if original[name] != read[name]]:
        raise ValueError(f"transformers' {family.classes} can't represent {', '.join(lost)}")
    return config
