"""A key that no trainer reads is refused by name, or listed as ignored on purpose."""

import pytest

from aligner_lib.datasets.load import load_labelled, load_pairs, load_preferences, load_prompts, load_sft
from aligner_lib.datasets.record_keys import UnreadKey, needs_conversion
from aligner_lib.datasets.tokenizer import Tokenizer

TURNS = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}]
SHAREGPT = [{"from": "User", "value": "Hello."}, {"from": "Assistant", "value": "Hi."}]
PAIR = [{"text": "User: a\n\nAssistant: b"}, {"text": "User: a\n\nAssistant: c"}]


@pytest.fixture(scope="module")
def tokenizer(smoke):
    return Tokenizer(smoke)


def with_key(turns: list[dict], number: int, **more) -> dict:
    return {"messages": [turn | more if i == number else turn for i, turn in enumerate(turns)]}


REFUSED = {
    "alpaca": ({"instruction": "Translate.", "input": "Hund", "output": "dog"}, "'instruction'", "`aligner data`, which reads Alpaca's instructions"),
    "context": ({"input": "a", "output": "b", "context": "c"}, "'context'", "into one text"),
    "weight": ({"input": "a", "output": "b", "weight": 0.5}, "'weight'", "remove the key"),
    "tools": ({"conversations": SHAREGPT, "tools": [{"name": "add"}]}, "'tools'", "`aligner data`, which reads ShareGPT's conversations"),
    "function_call": (with_key(TURNS, 1, function_call={"name": "add"}), "'function_call' of turn 2", "'tool_calls', a list"),
    "name": (with_key(TURNS, 0, name="Ann"), "'name' of turn 1", "remove the key"),
    "tool_call_id": (with_key(TURNS, 1, tool_call_id="a"), "'tool_call_id' of turn 2", "remove the key"),
    "mask": ({"conversations": SHAREGPT, "mask": "Assistant"}, "'mask'", "`aligner data`, which reads"),
    "unknown": ({"input": "a", "output": "b", "hint": "c"}, "'hint'", "remove the key"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_sft_refuses_a_key_that_it_does_not_read(jsonl, tokenizer, case):
    record, key, cure = REFUSED[case]
    files = jsonl({"input": "a", "output": "b"}, record)
    with pytest.raises(UnreadKey) as error:
        load_sft(files, tokenizer, 512)
    for words in (f"{files[0]}:2: the key {key}", "is not read", cure):
        assert words in str(error.value)


ANSWERS = [{"prompt": "a", "response": "b", "label": True}, {"prompt": "c", "response": "d", "label": False}]


@pytest.mark.parametrize("load", [load_pairs, load_preferences, load_prompts, load_labelled])
def test_preferences_labels_and_prompts_refuse_it_at_the_line_that_has_it(jsonl, tokenizer, load):
    for first, second in (PAIR, ANSWERS) if load is load_labelled else (PAIR,):
        with pytest.raises(UnreadKey, match=r"data\.jsonl:2: the key 'margin' is not read"):
            load(jsonl(first, second | {"margin": 2}), tokenizer, 512)


def test_metadata_is_ignored_on_purpose_and_listed(jsonl, tokenizer):
    records = [
        {"input": "a", "output": "b", "category": "x", "id": 1},
        {"input": "a", "output": "b", "category": "y"},
        {"messages": [turn | {"id": 7} for turn in TURNS]},
        {
            "conversations": [SHAREGPT[0], SHAREGPT[1] | {"label": "quality:4"}],
            "type": "VALUE_TO_TEXT",
        },  # NeMo's
    ]
    assert not any(needs_conversion(record, "sft") for record in records)
    samples, report = load_sft(jsonl(*records), tokenizer, 512)
    assert (len(samples), report.lines()) == (4, [])
    ignored = "metadata keys, which are ignored on purpose: category (2 records), id (2 records), label (1 records), type (1 records)"
    assert report.ignored_keys() == ignored


def test_a_value_that_changes_nothing_is_no_reason_to_refuse(jsonl, tokenizer):
    records = [
        with_key(TURNS, 1, weight=1, tool_calls=None, name=None, reasoning_content="") | {"tools": []},
        {"conversations": SHAREGPT, "mask": "User", "system": ""},
        {"instruction": "", "input": "a", "output": "b"},
    ]
    samples, report = load_sft(jsonl(*records), tokenizer, 512)
    assert (len(samples), report.ignored_keys()) == (3, "")


@pytest.mark.parametrize(
    ("turn", "needed"),
    [
        ({"role": "speaker", "content": "Hello."}, True),
        (
            {"role": "speaker", "content": "Hello.", "function_call": {"name": "add"}},
            False,
        ),  # no form has the key
        ({"role": "tool", "content": "5"}, False),
    ],
    ids=["an unknown role", "a key that no form reads", "a tool's result"],
)
def test_turns_that_a_conversion_can_mend_are_converted(turn, needed):
    assert needs_conversion({"messages": [turn, *TURNS]}, "sft") == needed
