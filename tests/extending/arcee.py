"""A model family: Arcee is Llama with a squared ReLU and no gate in its MLP."""

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.families.family import Family, check_activation, read_base, read_rope, write_base
from aligner_lib.models.families.settings import Settings


def from_hf(settings: Settings) -> Architecture:
    settings.refuse_flags("attention_bias", "mlp_bias")
    check_activation(settings, "hidden_act", "relu2")
    return Architecture(
        **read_base(settings),
        **read_rope(settings),
        family="arcee",
        norm_epsilon=settings.number("rms_norm_eps", 1e-5),
        activation="squared_relu",
    )


def to_hf(arch: Architecture) -> dict:
    return {**write_base(arch), "rms_norm_eps": arch.norm_epsilon, "hidden_act": "relu2"}


FAMILY = Family("arcee", "arcee", "Arcee", from_hf, to_hf)
