"""Formatted files as token ids: what is learnt, what is left out, and the report."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny_tokenizers import STYLES, llama_3, write

from aligner_lib.datasets.chat_template import PLAIN, plain_template, use_template
from aligner_lib.datasets.load import load_labelled, load_pairs, load_prompts, load_sft
from aligner_lib.datasets.load.sft import shorten
from aligner_lib.datasets.tokenizer import Tokenizer

LONG = "word " * 200
GOOD = {"input": "Say hello.", "output": "Hello there."}
ROLES = ("system", "user", "assistant", "user", "assistant")
TURNS = list(zip(ROLES, ("Be kind.", "Hi?", "Hello.", "Well?", "Yes.")))
MESSAGES = {"messages": [{"role": role, "content": text} for role, text in TURNS]}
NEMO = {"system": "Be kind.", "mask": "User"}
NEMO["conversations"] = [{"from": role.title(), "value": text} for role, text in TURNS[1:]]
CONVERSATION = "System: Be kind.\n\nUser: Hi?\n\nAssistant: Hello.\n\nUser: Well?\n\nAssistant: Yes."


@pytest.fixture(scope="module")
def tokenizer(smoke):
    return Tokenizer(smoke)


@pytest.fixture(scope="module", params=STYLES)
def styled(request, tmp_path_factory):
    """A tokenizer, and transformers' from the same folder."""
    from transformers import AutoTokenizer

    folder = STYLES[request.param](tmp_path_factory.mktemp(request.param))
    return Tokenizer(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def jsonl(tmp_path):
    def write(*records, name="data.jsonl"):
        lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
        path = tmp_path / name
        path.write_bytes(b"".join(line + b"\n" for line in lines))
        return path

    return write


def test_an_exported_plain_template_gives_the_tokens_of_training(styled):
    tokenizer, theirs = styled
    given = [{"role": "user", "content": "Say hello"}]
    template = plain_template(tokenizer)
    shown = theirs.apply_chat_template(given, chat_template=template, add_generation_prompt=True)
    assert shown["input_ids"] == tokenizer.encode("User: Say hello\n\nAssistant:")


def test_an_answer_ends_with_the_stop_token_and_the_input_loses_its_middle(jsonl, tokenizer):
    (sample,), report = load_sft([jsonl(GOOD)], tokenizer, 64)
    assert tokenizer.decode(sample.tokens[: sample.answer_start]) == "Say hello."
    whole = sample.tokens[sample.answer_start :]
    assert whole == tokenizer.encode(" Hello there.") + [tokenizer.eos_id]
    assert report.lines() == []
    (sample,), _ = load_sft([jsonl(GOOD | {"input": LONG})], tokenizer, len(whole) + 3)
    ids = tokenizer.encode(LONG)
    assert (sample.answer_start, sample.tokens) == (3, [*ids[:2], ids[-1], *whole])


def test_the_longest_paragraph_loses_its_middle_first():
    paragraphs = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12, 13]]
    kept = {
        13: [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11], [12, 13]],
        10: [[1, 2, 3], [4, 5, 6, 10, 11], [12, 13]],
        5: [[1, 2, 3], [], [12, 13]],
        4: [[1, 3], [], [12, 13]],
        1: [[], [], [12]],
    }
    assert {room: shorten(paragraphs, room) for room in kept} == kept
    assert paragraphs == kept[13], "the paragraphs themselves are left as they are"


CONTEXT = "The sky over the town was blue all day. " * 20
QUESTION = "What colour was the sky?"


@pytest.mark.parametrize(
    "text",
    [f"{CONTEXT}\n\n{CONTEXT}\n\n{QUESTION}", f"{QUESTION} {CONTEXT}"],
    ids=["last", "first, in one paragraph"],
)
def test_the_context_is_cut_and_not_the_question(jsonl, styled, text):
    tokenizer, _ = styled
    length = len(tokenizer.encode(f"{QUESTION} It was blue.")) + 60
    (sample,), report = load_sft([jsonl({"input": text, "output": "It was blue."})], tokenizer, length)
    assert len(sample.tokens) == length and sum(report.cut.values()) == 1
    assert sample.tokens[: len(tokenizer.bos_ids)] == tokenizer.bos_ids
    prompt = tokenizer.decode(sample.tokens[: sample.answer_start])
    assert prompt.startswith(QUESTION) if text.startswith(QUESTION) else prompt.endswith(QUESTION)
    assert tokenizer.decode(sample.tokens[sample.answer_start :], continues=True) == " It was blue."
    assert sample.tokens[-1] == tokenizer.eos_id


def test_cut_samples_are_counted_with_their_places(jsonl, tokenizer):
    long = GOOD | {"input": LONG}
    samples, report = load_sft([jsonl(GOOD, *[long] * 4, GOOD | {"output": LONG})], tokenizer, 64)
    assert len(samples) == 5
    assert report.lines() == [
        "1 of 6 samples left out: output longer than 64 tokens (encoder_seq_length) (first: data.jsonl:6)",
        "4 of 6 samples cut: longer than 64 tokens (encoder_seq_length); the middle of the input's longest paragraph "
        "was removed (first: data.jsonl:2, data.jsonl:3, data.jsonl:4)",
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (GOOD | {"output": "  "}, "empty output"),
        (GOOD | {"input": ""}, "empty input"),
        ({"output": "x"}, "no key 'input'"),
        (GOOD | {"output": 7}, "'output' is not a text"),
        ([GOOD], "not a JSON object"),
        (b"[" * 100_000, "not JSON"),
        (b"1" * 5_000, "not JSON"),
        (b'{"input": "\\ud83d", "output": "x"}', "'input' contains half a surrogate pair"),
        (b'{"input": "\xff", "output": "x"}', "not UTF-8"),
        ({"messages": MESSAGES["messages"][:-1]}, "the last turn is not the assistant's"),
        ({"messages": "hi"}, "'messages' is not a list of turns"),
        ({"messages": [{"role": "critic", "content": "7"}]}, "a turn has the role 'critic'; the roles are"),
        ({"messages": [{"role": "assistant", "content": " "}]}, "an empty answer"),
        ({"messages": [{"role": "assistant", "content": LONG}]}, "longer than 64 tokens"),
    ],
)
def test_a_record_without_anything_to_learn_is_counted_with_its_place(jsonl, tokenizer, record, reason):
    samples, report = load_sft([jsonl(GOOD, b"", record, GOOD)], tokenizer, 64)
    assert len(samples) == 2
    (line,) = report.lines()
    assert line.startswith(f"1 of 3 samples left out: {reason}")
    assert line.endswith("(first: data.jsonl:3)")


PAIR = {"chosen": "So.", "rejected": "No."}
LABELLED = {"response": "So.", "label": True}
BLANK_TURN = [{"role": "user", "content": " "}]


@pytest.mark.parametrize(
    ("load", "good", "bad", "reason"),
    [
        (load_prompts, {}, {"prompt": " "}, "'prompt' is empty"),
        (load_prompts, {}, {"prompt": BLANK_TURN}, "the last turn of 'prompt' is empty"),
        (load_pairs, PAIR, PAIR | {"prompt": ""}, "'prompt' is empty"),
        (load_pairs, PAIR, b'{"prompt": "Why?", "chos', "not JSON"),
        (load_labelled, LABELLED, b'{"prompt": "Why?", "resp', "not JSON"),
    ],
)
def test_an_unusable_first_record_is_left_out_and_the_others_keep_their_form(
    jsonl, tokenizer, load, good, bad, reason
):
    samples, report = load(
        [jsonl(bad, *(good | {"prompt": text} for text in ("Why?", "How?")))], tokenizer, 64
    )
    assert len(samples) == 2 and report.lines()[0].startswith(f"1 of 3 samples left out: {reason}")


@pytest.mark.parametrize(
    ("load", "records", "reason"),
    [
        (load_pairs, [{"text": "a"}, {"text": "b"}, {"text": "c"}, {"id": 1}], "no key 'text'"),
        (load_labelled, [LABELLED | {"prompt": text} for text in "ab"] + [{"prompt": "c", "response": "d"}], "'label' is None"),
    ],
)  # fmt: skip
def test_a_record_without_a_key_of_the_first_record_is_left_out(jsonl, tokenizer, load, records, reason):
    samples, report = load([jsonl(*records)], tokenizer, 64)
    assert samples and list(report.dropped.values()) == [1] and reason in report.lines()[0]


def test_a_labelled_text_is_a_user_s_turn_unless_it_ends_as_a_plain_prompt(jsonl, smoke):
    def rows(*prompts):
        files = [jsonl(*(LABELLED | {"prompt": prompt} for prompt in prompts))]
        return [sample.rows for sample in load_labelled(files, plain, 64)[0]]

    plain, texts = use_template(Tokenizer(smoke), PLAIN), ("Why?", "How?")
    turns = rows(*([{"role": "user", "content": text}] for text in texts))
    assert rows(*texts) == turns == rows(*(f"User: {text}\n\nAssistant:" for text in texts))


def test_a_byte_order_mark_costs_no_record(jsonl, tokenizer):
    samples, report = load_sft([jsonl(b"\xef\xbb\xbf" + json.dumps(GOOD).encode(), GOOD)], tokenizer, 64)
    assert len(samples) == 2 and not report.dropped


@pytest.mark.parametrize("load", [load_sft, load_pairs, load_prompts])
def test_a_file_with_nothing_usable_is_an_error(jsonl, tokenizer, load):
    for files, words in [
        ([jsonl(name="empty.jsonl")], r"no usable sample in .*empty\.jsonl: the files have no line"),
        ([jsonl(b"nonsense")], r"no usable sample in .*: 1 of 1 samples left out: .*:1"),
        ([], "an empty list of files"),
        ([Path("nowhere.jsonl")], r"nowhere\.jsonl does not exist"),
    ]:
        with pytest.raises((ValueError, FileNotFoundError), match=words):
            load(files, tokenizer, 64)


def test_pairs_are_lines_two_by_two_and_end_with_the_stop_token(jsonl, tokenizer):
    texts = ["User: hi\n\nAssistant: hello", "User: hi\n\nAssistant: go"]
    (sample,), _ = load_pairs([jsonl(*({"text": text} for text in texts))], tokenizer, 64)
    assert [sample.chosen, sample.rejected] == [tokenizer.encode(text) + [tokenizer.eos_id] for text in texts]
    assert len(sample) == max(len(sample.chosen), len(sample.rejected))


def test_bad_pairs_are_left_out_and_do_not_shift_the_others(jsonl, tokenizer):
    pairs = [("a", "a"), ("good", "bad"), (LONG, "b"), ("c", " "), ("fine", "poor"), ("alone",)]
    file = jsonl(*({"text": text} for texts in pairs for text in texts))
    samples, report = load_pairs([file], tokenizer, 64)
    assert [tokenizer.decode(sample.chosen) for sample in samples] == ["good", "fine"]
    assert report.total == 6
    assert dict(report.dropped) == {
        "chosen and rejected are equal": 1,
        "longer than 64 tokens (encoder_seq_length)": 1,
        "empty text": 1,
        "a chosen line without its rejected line": 1,
    }
    assert report.places["a chosen line without its rejected line"] == ["data.jsonl:11"]


@pytest.mark.parametrize(
    ("lines", "kept", "reasons"),
    [
        # in the place of a record; c is the better response, r the worse one
        ("c1 r1 -- r2 c3 r3", ["c1 r1", "c3 r3"], {"empty line": 1}),
        ("c1 r1 -- -- c3 r3 -- --", ["c1 r1", "c3 r3"], {"empty line": 1}),
        # between pairs: a line that is added twice shifts nothing
        ("c1 r1 -- c2 r2 -- c3 r3", ["c1 r1", "c3 r3"], {"empty line": 2}),
        # either: r2 and c3 would be a pair if the empty line were taken for c2
        (
            "c1 r1 -- c2 r2 c3 r3",
            ["c1 r1"],
            dict.fromkeys(["empty line", "ambiguous", "without its rejected"], 1),
        ),
    ],
)
def test_an_empty_line_never_pairs_the_wrong_lines(jsonl, tokenizer, lines, kept, reasons):
    records = [b" " if word == "--" else {"text": word} for word in lines.split()]
    samples, report = load_pairs([jsonl(*records)], tokenizer, 64)
    assert [f"{tokenizer.decode(s.chosen)} {tokenizer.decode(s.rejected)}" for s in samples] == kept
    for reason, count in reasons.items():
        assert [number for line, number in report.dropped.items() if reason in line] == [count]
    assert report.total == len(samples) + sum(reasons.values())


def test_prompts_of_several_files_are_one_data_set_without_those_that_leave_no_room(jsonl, tokenizer):
    first = jsonl({"text": "Hi"}, {"text": LONG}, {"text": ""}, name="first.jsonl")
    samples, report = load_prompts([first, jsonl({"text": "two"})], tokenizer, 20)
    for sample, text in zip(samples, ("Hi", "two"), strict=True):
        assert (sample.text, sample.tokens) == (text, tokenizer.encode(text))
    assert report.total == 4 and sorted(report.dropped.values()) == [1, 1]
    assert any("longer than 20 tokens" in line for line in report.lines())


PROMPT = "User: How are you, in 北京?\n\nAssistant:"
ANSWERS = ["I am well 😀.", "Go away."]


def test_all_kinds_of_records_have_the_ids_of_the_whole_text_and_one_beginning(jsonl, styled):
    tokenizer, reference = styled
    texts = [f"{PROMPT} {answer}" for answer in ANSWERS]
    whole = [[*reference.encode(text), tokenizer.eos_id] for text in texts]
    (sft,), _ = load_sft([jsonl({"input": PROMPT, "output": ANSWERS[0]})], tokenizer, 256)
    (pair,), _ = load_pairs([jsonl(*({"text": text} for text in texts))], tokenizer, 256)
    (prompt,), _ = load_prompts([jsonl({"text": PROMPT})], tokenizer, 256)
    (conversation,), _ = load_sft([jsonl(MESSAGES)], tokenizer, 512)
    assert [sft.tokens, pair.chosen, pair.rejected] == [whole[0], *whole]
    assert tokenizer.decode(sft.tokens[: sft.answer_start]) == PROMPT
    assert prompt.tokens == reference.encode(PROMPT)
    assert conversation.tokens == [*reference.encode(CONVERSATION), tokenizer.eos_id]
    for ids, start, answer in zip(whole, (sft.answer_start, len(prompt.tokens)), ANSWERS):
        assert ids[: len(prompt.tokens)] == prompt.tokens
        assert tokenizer.decode(ids[start:-1], continues=True) == f" {answer}"


def test_a_token_that_spans_the_border_belongs_to_the_answer(jsonl, tmp_path):
    """`Q? A` has the tokens Q, `? ` and A: the second is the prompt's last character and the answer's first."""
    from tokenizers import Tokenizer as Library
    from tokenizers import models

    vocabulary = {token: i for i, token in enumerate(["Q", "?", " ", "A", "? ", "</s>"])}
    library = Library(models.BPE(vocabulary, [("?", " ")]))
    tokenizer = Tokenizer(write(tmp_path, library, "PreTrainedTokenizerFast"))
    (sample,), _ = load_sft([jsonl({"input": "Q?", "output": "A"})], tokenizer, 8)
    assert (sample.tokens, sample.answer_start) == ([0, 4, 3, 5], 1)


def test_a_token_that_spans_an_answer_and_the_next_turn_is_not_learnt(jsonl, tmp_path):
    """Llama 3 has the full stop and the empty line after it in one token: the stop token is to follow, not the line."""
    tokenizer = Tokenizer(llama_3(tmp_path))
    (sample,), _ = load_sft([jsonl(MESSAGES)], tokenizer, 512)
    ((start, end),) = sample.others
    text = lambda ids: tokenizer.decode(ids, continues=True)  # noqa: E731
    assert text(sample.tokens[sample.answer_start : start]) == " Hello"
    assert text(sample.tokens[start:end]) == ".\n\nUser: Well?\n\nAssistant:"
    assert text(sample.tokens[end:]) == " Yes."


@pytest.mark.parametrize(
    "record", [MESSAGES, NEMO, MESSAGES | {"system": "Be kind."}], ids=["messages", "conversations", "twice"]
)
def test_of_a_conversation_the_assistant_s_turns_alone_are_learnt(jsonl, tokenizer, record):
    from aligner_lib.config.functions import library_functions
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    (sample,), report = load_sft([jsonl(record)], tokenizer, 64)
    assert report.lines() == []
    assert tokenizer.decode(sample.tokens) == CONVERSATION and sample.tokens[-1] == tokenizer.eos_id
    answers = [*tokenizer.encode(" Hello."), *tokenizer.encode(" Yes."), tokenizer.eos_id]
    for answer_only_loss, learnt in ((True, answers), (False, sample.tokens[1:])):
        functions = library_functions("sft")
        trainer = SimpleNamespace(tokenizer=tokenizer, answer_only_loss=answer_only_loss, functions=functions)
        batch = SFTTrainer.collate(trainer, [sample])
        assert batch.tokens[0, 1:][batch.mask[0]].tolist() == learnt  # column i predicts token i + 1
