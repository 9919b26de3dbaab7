"""The tokenizer that is rebuilt from a GGUF file gives the ids that it was made with."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_llama import ARCH, random_weights, write_gguf

from aligner_lib.models import import_hf
from aligner_lib.tokenizer import Tokenizer

TEXTS = [
    "The capital of France is Paris.",
    "  leading, trailing  ",
    "I'm sure we'll say it's theirs, they've said.",
    "On 2024-01-02 it cost 1,234.50 (3 × 411.5)\n\t\t7 and \n 8",
    "def f(x):\n    return x ** 2  # a square\n\n\n",
    "naïve café, 北京, مرحبا, 😀👩‍👩‍👧, \u200b\ufeff, ½ ² Ⅳ ٣",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>x<|im_end|>",
    "<|im_start|<|im_end|>|>",
    "\r\n \n\t",
    "",
]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory, smoke) -> Tokenizer:
    folder = tmp_path_factory.mktemp("gguf")
    write_gguf(folder / "m.gguf", ARCH, random_weights(ARCH), smoke)
    return Tokenizer(import_hf(folder / "m.gguf", folder / "model"))


@pytest.mark.parametrize("text", TEXTS)
def test_same_ids_as_the_original(rebuilt, smoke, text):
    assert rebuilt.encode(text) == Tokenizer(smoke).encode(text)


@given(st.text())
@settings(deadline=None)
def test_any_text_comes_back(rebuilt, smoke, text):
    ids = rebuilt.encode(text)
    assert ids == Tokenizer(smoke).encode(text)
    assert rebuilt._tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_configuration_comes_along(rebuilt, smoke):
    original = Tokenizer(smoke).config
    for key in ("eos_token", "bos_token", "chat_template"):
        assert rebuilt.config[key] == original[key]
    assert rebuilt.eos_id == 2


def test_digits_stay_apart(rebuilt):
    assert rebuilt.tokens(rebuilt.encode("x2024"))[-4:] == ["2", "0", "2", "4"]


def test_a_chat_template_of_its_own_file_moves_into_the_configuration(tmp_path, smoke):
    from tiny_llama import write_hf

    source = write_hf(tmp_path / "hf", ARCH, random_weights(ARCH), smoke)
    config = json.loads((source / "tokenizer_config.json").read_text())
    (source / "chat_template.jinja").write_text(config.pop("chat_template"))
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    out = import_hf(source, tmp_path / "model")
    assert Tokenizer(out).config["chat_template"] == Tokenizer(smoke).config["chat_template"]


@pytest.mark.model
@pytest.mark.slow
def test_smollm2_has_transformers_ids(smollm2, tmp_path):
    """The vocabulary, merges and special tokens as `transformers` takes them.

    transformers 5 reads a GGUF's tokens but not its pre-tokenizer's name, and would leave digits together: it is given
    the one that SmolLM's own tokenizer.json has.
    """
    from tokenizers import pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    reference = PreTrainedTokenizerFast.from_pretrained(smollm2)
    digits = pre_tokenizers.Digits(individual_digits=True)
    reference.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(False)]
    )
    tokenizer = Tokenizer(smollm2)
    for text in TEXTS:
        assert tokenizer.encode(text) == reference.encode(text, add_special_tokens=False)
