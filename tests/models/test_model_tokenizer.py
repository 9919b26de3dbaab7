"""Tokenizers of all kinds give transformers' ids, and one that is rebuilt from a GGUF file those that it was made with."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_llama import ARCH, random_weights, read_json, update_json, write_gguf, write_hf
from tiny_tokenizers import STYLES, gpt2, llama_2, llama_3

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import import_hf, resolve
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.gguf_tokenizer import write_tokenizer

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


# ---- as transformers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=STYLES)
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    return Tokenizer(STYLES[request.param](tmp_path_factory.mktemp(request.param)))


def test_texts_and_ids_are_those_of_transformers(tokenizer):
    from transformers import AutoTokenizer

    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert ids == reference.encode(text), text
        assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert tokenizer.decode(ids, special_tokens=True) == reference.decode(ids)
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


@given(st.text(), st.text())
def test_a_text_in_parts_is_the_whole_text(tokenizer, prompt, answer):
    parts = tokenizer.encode_parts([prompt, answer])
    assert tokenizer.bos_ids + parts[0] + parts[1] == tokenizer.encode(prompt + answer)


def test_a_response_goes_on_where_its_prompt_ends(tokenizer):
    """As one text, and token by token; SentencePiece drops a text's first space, and a response's own is kept."""
    prompt = "User: Hi?\n\nAssistant:"
    for answer in (" Hello there.", "Hello", " naïve 北京 😀 ½", "\n\n end", "  two", ""):
        prompt_ids, answer_ids = tokenizer.encode_parts([prompt, answer])
        assert tokenizer.decode(tokenizer.bos_ids + prompt_ids) == prompt
        assert tokenizer.decode(answer_ids, continues=True) == answer
        assert "".join(tokenizer.tokens(answer_ids)) == answer
        ended = [*answer_ids, tokenizer.eos_id]
        assert tokenizer.decode(ended, continues=True) == answer
        assert tokenizer.tokens(ended)[-1] == "</s>"


def test_a_character_of_several_tokens_stands_at_the_last_of_them(tmp_path):
    tokenizer = Tokenizer(llama_2(tmp_path))
    _, ids = tokenizer.encode_parts(["a", "é😀b"])
    assert ids[:6] == [3 + byte for byte in "é😀".encode()]  # byte b has the id 3 + b
    assert tokenizer.tokens(ids) == ["", "é", "", "", "", "😀", "b"]
    assert tokenizer.tokens(ids[:3]) == ["", "é", "\ufffd"]  # cut off within a character


def test_bos_is_as_the_configuration_says(tmp_path):
    # None: as the post-processor says
    for make, add_bos_token, expected in (
        *((gpt2, None, []), (gpt2, True, [1])),
        *((llama_3, None, [1]), (llama_3, False, []), (llama_3, True, [1])),
    ):
        folder = make(tmp_path / f"{make.__name__} {add_bos_token}")
        update_json(folder / "tokenizer_config.json", add_bos_token=add_bos_token)
        tokenizer = Tokenizer(folder)
        assert tokenizer.bos_ids == expected
        assert tokenizer.encode("Hello") == expected + tokenizer.encode_parts(["Hello"])[0]
    update_json(folder / "tokenizer_config.json", bos_token=None)
    assert Tokenizer(folder).bos_ids == [1], "without a BOS token, the post-processor decides"
    update_json(folder / "tokenizer_config.json", bos_token="<begin>")
    with pytest.raises(ValueError, match=r"the BOS token '<begin>' is not in the vocabulary"):
        Tokenizer(folder).encode("a")


def test_what_a_tokenizer_file_puts_behind_a_text_or_cuts_off_is_left_out(tmp_path):
    from tokenizers import Tokenizer as Library
    from tokenizers import processors

    folder = llama_3(tmp_path)
    before = Tokenizer(folder).encode("Hello there")
    library = Library.from_file(str(folder / "tokenizer.json"))
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    library.enable_truncation(3)
    library.enable_padding(length=64)
    library.save(str(folder / "tokenizer.json"))
    assert Tokenizer(folder).encode("Hello there") == before


def test_tokens_with_a_name_and_added_stop_tokens_are_special_whatever_their_flag(tmp_path):
    """The named ones as in transformers; a newline that ends a response, too, is text elsewhere."""
    from transformers import AutoTokenizer

    folder, text = gpt2(tmp_path), "a\n<|im_end|><pad></s><tool>"

    def change(stored, config):
        size = len(stored["model"]["vocab"])
        for token_id, content in enumerate(("<|im_end|>", "<pad>", "<tool>"), size):
            token = {**stored["added_tokens"][2], "id": token_id, "content": content}
            stored["added_tokens"].append(token)
        for token in stored["added_tokens"]:
            token["special"] = False
        config.update(pad_token={"__type": "AddedToken", "content": "<pad>"})

    rewrite(folder, change)
    tokenizer, reference = Tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True) == "a\n<|im_end|><tool>"
    stop_ids = [ids[1], ids[2]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stop_ids}))
    assert Tokenizer(folder).decode(ids) == "a\n<tool>"


# ---- the same for two models? ---------------------------------------------------------------------------------------


def test_the_hash_is_of_what_the_tokenizer_does(tmp_path):
    folders = {"gpt2": gpt2(tmp_path / "gpt2")}
    changes = {
        "BOS": lambda stored, config: config.update(add_bos_token=True),
        "stop token": lambda stored, config: config.update(eos_token="<unk>"),
        "merges": lambda stored, config: stored["model"]["merges"].pop(),
        "normaliser": lambda stored, config: stored.update(normalizer={"type": "Lowercase"}),
    }
    for name, change in changes.items():
        folders[name] = gpt2(tmp_path / name)
        rewrite(folders[name], change)
    assert len({Tokenizer(folder).hash for folder in folders.values()}) == len(folders)

    def reorder(stored, config):
        stored["model"]["vocab"] = dict(sorted(stored["model"]["vocab"].items(), reverse=True))
        stored["model"] = dict(reversed(stored["model"].items()))
        cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
        stored["truncation"] = cut
        config.update(chat_template="another", model_max_length=7)

    before = Tokenizer(folders["gpt2"]).hash
    rewrite(folders["gpt2"], reorder)
    assert Tokenizer(folders["gpt2"]).hash == before


def rewrite(folder, change) -> None:
    paths = folder / "tokenizer.json", folder / "tokenizer_config.json"
    contents = [read_json(path) for path in paths]
    change(*contents)
    for path, content in zip(paths, contents):
        path.write_text(json.dumps(content, indent=1))


# ---- from a GGUF file -----------------------------------------------------------------------------------------------


def test_a_tokenizer_rebuilt_from_a_gguf_file_is_the_one_it_was_made_with(tmp_path, smoke):
    source = write_gguf(tmp_path / "m.gguf", ARCH, random_weights(ARCH), smoke)
    rebuilt, original = Tokenizer(import_hf(source, tmp_path / "model")), Tokenizer(smoke)
    assert rebuilt.eos_id == 2
    for key in ("eos_token", "bos_token", "chat_template"):
        assert rebuilt.config[key] == original.config[key]
    for text in TEXTS:
        ids = rebuilt.encode(text)
        assert ids == original.encode(text), text
        assert rebuilt.decode(ids, special_tokens=True) == text


DIGITS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": ["1", "2", "12", "<end>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 3],
    "tokenizer.ggml.merges": ["1 2"],
    "tokenizer.ggml.bos_token_id": 3,
    "tokenizer.ggml.eos_token_id": 3,
    "llama.context_length": 8,
}


@pytest.mark.parametrize(
    ("pre", "adds_bos", "ids"), [("gpt-2", True, [3, 0, 2, 0]), ("smollm", False, [0, 0, 1, 0])]
)
def test_a_gguf_file_says_whether_digits_stay_apart_and_a_text_begins_with_bos(tmp_path, pre, adds_bos, ids):
    """A vocabulary that could join 1 and 2; the text is 1121."""
    metadata = DIGITS | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": adds_bos}
    write_tokenizer(metadata.get, tmp_path / "m.gguf", tmp_path)
    assert Tokenizer(tmp_path).encode("1121") == ids
    assert Tokenizer(tmp_path).encode("1121<end>") == [*ids, 3]
    assert Tokenizer(tmp_path).decode(ids) == "1121", "a file that names no unknown token has none"


def test_a_gguf_file_may_lack_a_bos_token(tmp_path):
    without = {key: value for key, value in DIGITS.items() if key != "tokenizer.ggml.bos_token_id"}
    write_tokenizer(without.get, tmp_path / "m.gguf", tmp_path)
    assert Tokenizer(tmp_path).encode("1121") == [0, 2, 0]


def test_chat_templates_in_files_of_their_own_are_read_as_in_transformers(tmp_path, hf, caplog):
    from transformers import AutoTokenizer

    (hf / "additional_chat_templates").mkdir()
    for name in ("chat_template", "additional_chat_templates/tool_use"):
        (hf / f"{name}.jinja").write_text(f"{name} of a file")
    reference = AutoTokenizer.from_pretrained(hf).chat_template
    templates = Tokenizer(import_hf(hf, tmp_path / "model")).config["chat_template"]
    assert {entry["name"]: entry["template"] for entry in templates} == reference and len(reference) == 2
    assert not caplog.messages
    (hf / "chat_template.jinja").unlink()
    import_hf(hf, tmp_path / "other")
    assert "has the chat templates tool_use and none named default" in caplog.text


def test_tokens_listed_only_in_the_configuration_are_added_as_in_transformers(tmp_path, smoke, caplog):
    """A chat template in a file of its own moves into the configuration."""
    from transformers import AutoTokenizer

    arch = replace(ARCH, vocab_size=1026)
    source = write_hf(tmp_path / "hf", arch, random_weights(arch), smoke)
    listed = {"1024": {"content": "<tool>"}, "1025": {"content": "<end>", "special": True}}
    update_json(source / "tokenizer_config.json", added_tokens_decoder=listed, chat_template=None)
    (source / "chat_template.jinja").write_text("a template")
    tokenizer = Tokenizer(import_hf(source, tmp_path / "model"))
    assert tokenizer.config["chat_template"] == "a template"
    reference = AutoTokenizer.from_pretrained(source)
    ids = tokenizer.encode("a<tool>b<end>")
    assert ids == reference.encode("a<tool>b<end>") and {1024, 1025} <= {*ids}
    assert tokenizer.decode(ids) == reference.decode(ids, skip_special_tokens=True) == "a<tool>b"

    # a listed token that the vocabulary has already
    of_vocabulary = {"0": {"content": "<|endoftext|>", "special": True}}
    stored = [token for token in read_json(source / "tokenizer.json")["added_tokens"] if token["id"]]
    update_json(source / "tokenizer.json", added_tokens=stored)
    update_json(source / "tokenizer_config.json", added_tokens_decoder=of_vocabulary | listed)
    assert Tokenizer(import_hf(source, tmp_path / "again")).encode("a<tool>b<end>") == ids
    update_json(source / "tokenizer_config.json", added_tokens_decoder={"1025": listed["1025"]})
    assert Tokenizer(import_hf(source, tmp_path / "other")).vocab_size == 1024
    assert "cannot give '<end>' the id 1025 of tokenizer_config.json: the import leaves out" in caplog.text


@pytest.mark.parametrize(("eos", "stop_ids"), [(1, (2, 1)), ([2, 1], (2, 1)), (5000, (2,)), (None, (2,))])
def test_without_generation_config_the_stop_tokens_are_config_json_s(tmp_path, hf, eos, stop_ids):
    """A single id that is no token is left over from another tokenizer."""
    update_json(hf / "config.json", eos_token_id=eos)
    assert Tokenizer(import_hf(hf, tmp_path / "model")).stop_ids == stop_ids


def test_special_tokens_that_only_the_configuration_names_are_special_as_in_transformers(
    tmp_path, hf, caplog
):
    from transformers import AutoTokenizer

    update_json(hf / "tokenizer.json", added_tokens=[])
    update_json(hf / "tokenizer_config.json", extra_special_tokens=["<|im_start|>", "<tool>"])
    tokenizer, text = Tokenizer(import_hf(hf, tmp_path / "model")), "<|im_start|>user<|im_end|><|endoftext|>"
    ids = tokenizer.encode(text)
    assert ids == AutoTokenizer.from_pretrained(hf).encode(text) and {0, 1, 2} <= {*ids}
    assert tokenizer.decode(ids) == "user" and tokenizer.vocab_size == 1024
    assert "has no '<tool>', which tokenizer_config.json names: the import leaves out" in caplog.text


@pytest.mark.parametrize("rest", [{}, {"eos_token": None}, {"eos_token": None, "added_tokens_decoder": {}}])
def test_a_stop_token_named_only_in_special_tokens_map_is_taken(tmp_path, hf, rest):
    config = read_json(hf / "tokenizer_config.json")
    names = {"eos_token": {"content": config.pop("bos_token")}, "additional_special_tokens": []}
    del config["eos_token"]
    config |= rest
    (hf / "tokenizer_config.json").write_text(json.dumps(config))
    (hf / "special_tokens_map.json").write_text(json.dumps(names))
    tokenizer = Tokenizer(import_hf(hf, tmp_path / "model"))
    assert tokenizer.eos_id == 0 and tokenizer.config.keys() == config.keys() | {"eos_token"}


@pytest.mark.parametrize("listed", [{}, {"added_tokens_decoder": {"0": {"content": "<|endoftext|>"}}}])
def test_special_tokens_map_replaces_null_where_transformers_reads_the_map(tmp_path, hf, listed):
    from transformers import AutoTokenizer

    update_json(hf / "tokenizer_config.json", bos_token=None, additional_special_tokens=[], **listed)
    names = {"bos_token": "<|im_start|>", "additional_special_tokens": ["<|im_end|>"]}
    (hf / "special_tokens_map.json").write_text(json.dumps(names))
    config = Tokenizer(import_hf(hf, tmp_path / "model")).config
    assert (
        config["bos_token"]
        == AutoTokenizer.from_pretrained(hf).bos_token
        == (None if listed else "<|im_start|>")
    )
    assert config["additional_special_tokens"] == ([] if listed else ["<|im_end|>"])


# what transformers 5.23 gave for SmolLM2's GGUF file, digits apart; whichever source it was fetched from gives the same
SMOLLM2_IDS = {
    "The capital of France is Paris.": [504, 3575, 282, 4649, 314, 7042, 30],
    "x = 2024\n\t\t7 - 3.5": [104, 446, 216, 34, 32, 34, 36, 3558, 39, 731, 216, 35, 30, 37],
    "naïve café, 北京 😀 ½": [3546, 46494, 37366, 28, 13223, 230, 241, 16736, 122, 40303, 218, 216, 16738],
    "<|im_start|>user\nhi<|im_end|>\n": [1, 4093, 198, 6004, 2, 198],
}


@pytest.mark.model
def test_smollm2_is_itself(smollm2):
    tokenizer, arch = Tokenizer(smollm2), Architecture.load(smollm2)
    assert {text: tokenizer.encode(text) for text in SMOLLM2_IDS} == SMOLLM2_IDS
    assert tokenizer.vocab_size == arch.vocab_size == 49152
    assert arch.num_parameters == 134_515_008
    assert (arch.rotary_base, arch.norm_epsilon, arch.tied_embeddings) == (100_000.0, 1e-5, True)
    assert resolve("smollm2-135m") == smollm2
