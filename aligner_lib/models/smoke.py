"""The smoke model: a tiny random Llama, created locally in seconds, for checking the installation."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from aligner_lib.models.architecture import Architecture
from aligner_lib.models.convert import write_model_folder
from aligner_lib.models.names import Weight, weights
from aligner_lib.models.progress import echo_to
from aligner_lib.models.stream import StreamedTensor, write_store
from cluster.record import write_json

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# the tokenizer is trained on these samples
TEXTS = ("dolly-sample.jsonl", "hh-sample-test.jsonl", "hh-sample-train.jsonl")
INIT_STD = 0.02
ARCHITECTURE = Architecture(
    num_layers=2,
    hidden_size=96,
    num_attention_heads=4,
    num_query_groups=2,
    ffn_hidden_size=256,
    vocab_size=1024,
    max_position_embeddings=512,
    kv_channels=24,
    tied_embeddings=False,
)


@dataclass(frozen=True)
class SmokeModel:
    """A random Llama with a tokenizer trained on the bundled samples.

    The same seed and samples give the same bytes.
    """

    architecture: Architecture = ARCHITECTURE
    seed: int = 1234

    def is_current(self, origin: dict) -> bool:
        """Whether a cached model with this source.json has the same seed, architecture and samples."""
        return origin.get("origin") == self._origin()

    def make(self, name: str, out: Path, progress: bool) -> None:
        """Create the model folder `out`."""
        number = f"{self.architecture.num_parameters:,}"
        echo_to(progress)(f"{name}: made on this machine ({number} random weights, seed {self.seed})")
        write_model_folder(out, self._write, {"name": name, "origin": self._origin()})

    def _write(self, folder: Path) -> None:
        self.architecture.save(folder)
        _train_tokenizer(self.architecture, folder)
        write_store(folder / "weights", list(random_weights(self.architecture, self.seed)), progress=None)

    def _origin(self) -> str:
        """Identifies all inputs that determine the model's bytes."""
        digest = hashlib.sha256(f"{self} {SPECIAL_TOKENS} {CHAT_TEMPLATE} {INIT_STD}".encode())
        for path in _samples():
            digest.update(path.read_bytes())
        return f"smoke {digest.hexdigest()}"


def random_weights(architecture: Architecture, seed: int) -> Iterator[StreamedTensor]:
    """A model's weights with Megatron's initial values, float32. Each weight is computed when read."""
    for index, weight in enumerate(weights(architecture)):
        random = np.random.default_rng([seed, index])
        yield StreamedTensor(
            weight.megatron,
            "F32",
            weight.shape,
            lambda w=weight, r=random: _initial(w, r, architecture.num_layers),
        )


def _initial(weight: Weight, random: np.random.Generator, num_layers: int) -> np.ndarray:
    """Megatron's initial values, float32 of weight.shape: norms 1, matrices N(0, 0.02).

    Matrices whose output is added to the residual stream get N(0, 0.02/√(2L)), where L is the number of layers.
    """
    if weight.megatron.endswith(("layer_norm_weight", "layernorm.weight")):
        return np.ones(weight.shape, np.float32)
    into_residual = weight.megatron.endswith(("linear_proj.weight", "linear_fc2.weight"))
    std = INIT_STD / math.sqrt(2 * num_layers) if into_residual else INIT_STD
    return random.normal(0.0, std, weight.shape).astype(np.float32)


def _train_tokenizer(arch: Architecture, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=arch.vocab_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    if (size := tokenizer.get_vocab_size()) != arch.vocab_size:
        raise ValueError(
            f"data/samples/ has too little text for a vocabulary of {arch.vocab_size}: the text gives only {size} "
            "tokens"
        )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[2],
        "model_max_length": arch.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    write_json(folder / "tokenizer_config.json", config)


def _samples() -> list[Path]:
    import data  # the project's top-level package, whose folder holds the samples

    folder = Path(data.__file__).parent / "samples"
    paths = [folder / name for name in TEXTS]
    if missing := [path.name for path in paths if not path.exists()]:
        raise FileNotFoundError(f"{folder} has no {missing[0]}: the installation is incomplete")
    return paths


def _texts() -> Iterator[str]:
    for path in _samples():
        for line in path.read_text(encoding="utf-8").splitlines():
            yield from (value for value in json.loads(line).values() if isinstance(value, str))
