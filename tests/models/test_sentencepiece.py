"""SentencePiece's models, converted: the ids that `sentencepiece` and `transformers` give."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import read_json, update_json
from tiny_tokenizers import LINES

from aligner_lib.datasets import chat_template
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import import_hf
from aligner_lib.models.sentencepiece_tokenizer import write_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")

# as Llama 2's and GPT-2B-001's; without a fallback; with what their normalizers may do
BYTES = {"byte_fallback": True}
KINDS = {
    "llama_2": {
        **{"model_type": "bpe", "vocab_size": 420, **BYTES},
        **{"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    },
    "unigram": {"model_type": "unigram", "vocab_size": 340, **BYTES},
    "unknown": {"model_type": "unigram", "vocab_size": 90},
    "bpe_nfkc": {"model_type": "bpe", "vocab_size": 150, "normalization_rule_name": "nfkc_cf"},
    "no_prefix": {
        **{"model_type": "bpe", "vocab_size": 420, **BYTES},
        **{"add_dummy_prefix": False, "remove_extra_whitespaces": False},
        "user_defined_symbols": ["<extra>", "▁▁", "▁▁▁"],  # Gemma's has runs of spaces
    },
}
TEXTS = [
    "The capital of the garden is fine today.",
    "  leading, trailing  ",
    "two  spaces, tab\tand\nnewline\n\n",
    "naïve café, 北京, مرحبا, 😀👩‍👩‍👧, \u200b, ½ ² Ⅳ ٣ ﬁ",
    "a<0x41>b ▁ people▁in",
    "aaaaaaa ttttttt      eeeee",
    "",
]
CHARACTERS = st.sampled_from(TEXTS) | st.text(st.sampled_from(" \n\taehilnoprstuwyHS,.ñ北😀\u200b½"))


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return trained(tmp_path_factory.mktemp(request.param), KINDS[request.param])


def trained(folder, options):
    """A folder with nothing but a tokenizer.model."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*LINES * 4, "0 1 4 < x >"]),
        model_prefix=str(folder / "tokenizer"),
        minloglevel=2,
        hard_vocab_limit=False,
        **options,
    )
    return folder


@pytest.fixture(scope="module")
def processor(folder):
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


@pytest.fixture(scope="module")
def tokenizer(folder) -> Tokenizer:
    write_tokenizer(folder / "tokenizer.model", folder, {})
    return Tokenizer(folder)


@given(CHARACTERS)
def test_any_text_has_sentencepieces_ids_and_they_its_text(tokenizer, processor, text):
    ids = processor.encode(text)
    assert tokenizer.encode(text) == ids
    if processor.unk_id() not in ids:  # `sentencepiece` writes ⁇ for it
        assert tokenizer.decode(ids) == processor.decode(ids)


TEMPLATE = "{% for m in messages %}{{ bos_token + '[INST] ' + m['content'] + ' [/INST]' }}{% endfor %}"


@pytest.fixture
def llama_2(hf):
    """As Llama 2's repository was before it had a tokenizer.json, with a token of its own added."""
    (hf / "tokenizer.json").unlink()
    trained(hf, KINDS["llama_2"])
    size = sentencepiece.SentencePieceProcessor(model_file=str(hf / "tokenizer.model")).piece_size()
    tokens = {0: "<unk>", 1: "<s>", 2: "</s>", size: "<pad>"}
    update_json(
        hf / "tokenizer_config.json",
        **{"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "chat_template": TEMPLATE},
        **{"bos_token": "<s>", "unk_token": "<unk>"},
        eos_token={"__type": "AddedToken", "content": "</s>"},
        added_tokens_decoder={str(i): {"content": token, "special": True} for i, token in tokens.items()},
    )
    return hf


def test_a_folder_with_sentencepieces_model_alone_is_imported_as_in_transformers(llama_2, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = Tokenizer(import_hf(llama_2, tmp_path / "model"))
    (llama_2 / "tokenizer.json").unlink(missing_ok=True)
    reference = AutoTokenizer.from_pretrained(llama_2)
    texts = [*TEXTS, "What?<pad> Hello</s>the people", "<s>Hello<s>"]
    assert [tokenizer.encode(text) for text in texts] == [reference.encode(text) for text in texts]
    assert (tokenizer.bos_ids, tokenizer.eos_id) == ([1], 2)
    messages = [{"role": "user", "content": "How are you?"}]
    text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert chat_template.render(tokenizer, messages) == text
    assert chat_template.encode(tokenizer, messages) == reference.encode(text, add_special_tokens=False)


def test_without_a_configuration_the_models_own_tokens_are_taken(llama_2, tmp_path):
    (llama_2 / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer(import_hf(llama_2, tmp_path / "model"))
    assert (tokenizer.bos_ids, tokenizer.eos_id) == ([1], 2)
    assert tokenizer.encode("Hello") == [1, *tokenizer.encode_parts(["Hello"])[0]]


def test_added_tokens_with_a_name_are_special_and_a_bos_of_null_is_none(llama_2, tmp_path):
    """added_tokens.json, the oldest form, has no flags."""
    config = read_json(llama_2 / "tokenizer_config.json")
    *_, size = config.pop("added_tokens_decoder")
    added = {token: int(size) + number for number, token in enumerate(("<pad>", "<end>", "<tool>"))}
    names = {"pad_token": {"content": "<pad>"}, "additional_special_tokens": ["<end>"]}
    for name, content in (
        ("added_tokens.json", added),
        ("special_tokens_map.json", names),
        ("tokenizer_config.json", config | {"bos_token": None}),
    ):
        (llama_2 / name).write_text(json.dumps(content))
    tokenizer = Tokenizer(import_hf(llama_2, tmp_path / "model"))
    special = [token for token, token_id in added.items() if token_id in tokenizer.special_ids]
    assert special == ["<pad>", "<end>"]
    assert tokenizer.bos_ids == []


def test_a_model_that_can_t_be_converted_is_told(llama_2, tmp_path):
    path = llama_2 / "tokenizer.model"
    whole, other_id = path.read_bytes(), {"700": {"content": "<pad>", "special": True}}
    update_json(llama_2 / "tokenizer_config.json", added_tokens_decoder=other_id)
    with pytest.raises(ValueError, match=r"gives '<pad>' the id 700, but the vocabulary gives \d+"):
        import_hf(llama_2, tmp_path / "model")
    for content, message in (
        (whole[:-1], "is not a complete SentencePiece model"),  # half of it may end between two pieces
        (b"", "has no pieces"),
        (b"IQ== 0\nIg== 1\n", "is not a SentencePiece model"),  # Llama 3's is tiktoken's
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            import_hf(llama_2, tmp_path / "model")
    prefix = KINDS["no_prefix"] | {"add_dummy_prefix": True}
    for options, message in (
        ({"model_type": "word", "vocab_size": 20}, "a SentencePiece model of words or characters"),
        (prefix, "adds a space before a text and has the user-defined piece '▁▁' of spaces"),
    ):
        trained(tmp_path, options)
        with pytest.raises(ValueError, match=message):
            write_tokenizer(tmp_path / "tokenizer.model", tmp_path, {})
