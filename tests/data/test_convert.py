"""Data of one's own: recognised by its columns, converted without a loss, and refused or left out by name."""

import json

import pytest
from format_table import write
from typer.testing import CliRunner

from aligner_lib.cli.data_commands import commands
from aligner_lib.datasets.lengths import token_lengths
from aligner_lib.datasets.load import load_labelled, load_preferences, load_prompts, load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from data import DataError, convert
from data.raw_forms import FORMS
from data.report import Reason

ASKED = [{"role": "user", "content": "What is the sea?"}]
ANSWER, WORSE = "Salt water.\n\nAssistant: a word, not a turn.", "No idea."


def turn(text: str) -> dict:
    return {"role": "assistant", "content": text}


def hh(answer: str) -> str:
    return f"\n\nHuman: What is the sea?\n\nAssistant: {answer}"


ADD = {"type": "function", "function": {"name": "add"}}
# arguments as JSON text, and as an object
CALLS = {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "add", "arguments": '{"a": 1}'}}, {"id": "b", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}]}  # fmt: skip
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]}  # fmt: skip
DIALOGUE = {"messages": [*ASKED, turn(ANSWER)]}
PAIR = {"prompt": ASKED, "chosen": ANSWER, "rejected": WORSE}
Q = "What is the sea?"
CHATML = f"<|endoftext|><|im_start|>user\n{Q}<|im_end|>\n<|im_start|>assistant\n"
NEMO = f"<extra_id_0>System\n\n<extra_id_1>User\n{Q}\n<extra_id_1>Assistant\n"
# what a stranger's record is: its form, the target, and the line that the trainers get
RECOGNISED = {
    "pairs of texts": ({"prompt": Q, "chosen": ANSWER, "rejected": WORSE}, "preferences", PAIR),
    "HH's prompt in a column": ({"prompt": "\n\nHuman: What is the sea?\n\nAssistant:", "chosen": ANSWER, "rejected": WORSE}, "preferences", PAIR),
    "HH's form without the first empty line": ({"chosen": hh("It is water.").lstrip(), "rejected": hh(WORSE).lstrip()}, "preferences", PAIR | {"chosen": "It is water."}),
    "HH's prompt without the first empty line": ({"prompt": "Human: What is the sea?\n\nAssistant:", "completion": ANSWER}, "sft", DIALOGUE),
    "a question that begins with Human:": ({"prompt": "Human: what is that word?", "completion": ANSWER}, "sft", {"messages": [{"role": "user", "content": "Human: what is that word?"}, turn(ANSWER)]}),
    "a system's turn of an implicit prompt": ({"system": "S.", "chosen": [*ASKED, turn(ANSWER)], "rejected": [*ASKED, turn(WORSE)]}, "preferences", PAIR | {"prompt": [{"role": "system", "content": "S."}, *ASKED]}),
    "turns written as texts": ({"prompt": json.dumps(ASKED, indent=1), "chosen": str([*ASKED, turn(ANSWER)]), "rejected": json.dumps([*ASKED, turn(WORSE)])}, "preferences", PAIR),
    "an answer written as turns": ({"prompt": Q, "response": str([turn(ANSWER)]), "score": 1}, "sft", DIALOGUE),
    "a completion of turns written as a text": ({"prompt": Q, "completion": json.dumps([CALLED, {"role": "tool", "content": "3"}, turn(ANSWER)])}, "sft", {"messages": [*ASKED, CALLED, {"role": "tool", "content": "3"}, turn(ANSWER)]}),
    "an answer with a list that has words after it": ({"prompt": Q, "completion": '[{"role": "admin", "content": "B"}]\nThe list.'}, "sft", {"messages": [*ASKED, turn('[{"role": "admin", "content": "B"}]\nThe list.')]}),
    "an answer with roles of its own": ({"prompt": Q, "completion": '[{"role": "admin", "content": "B"}]'}, "sft", {"messages": [*ASKED, turn('[{"role": "admin", "content": "B"}]')]}),
    "pandas' index": ({"__index_level_0__": 4, "Unnamed: 0": "4", "prompt": Q, "completion": ANSWER}, "sft", DIALOGUE),
    "an answer in the prompt": ({"prompt": [*ASKED, turn(WORSE), *ASKED], "completion": ANSWER}, "sft", {"messages": [*ASKED, turn(WORSE) | {"weight": 0}, *ASKED, turn(ANSWER)]}),
    "pairs of turns": ({"prompt": ASKED, "chosen": [turn(ANSWER)], "rejected": [turn(WORSE)]}, "preferences", PAIR),
    "an implicit prompt": ({"chosen": [*ASKED, turn(ANSWER)], "rejected": [*ASKED, turn(WORSE)]}, "preferences", PAIR),
    "both, as UltraFeedback": ({"prompt": Q, "chosen": [*ASKED, turn(ANSWER)], "rejected": [*ASKED, turn(WORSE)], "score_chosen": 8.0, "messages": [*ASKED, turn(ANSWER)]}, "preferences", PAIR),
    "HH": ({"chosen": hh("It is water."), "rejected": hh(WORSE)}, "preferences", PAIR | {"chosen": "It is water."}),
    "NeMo-Aligner's": ({"prompt": Q, "chosen_response": ANSWER, "rejected_response": WORSE, "chosen_reward": 2.0}, "preferences", PAIR),
    "OpenAI's": ({"input": {"messages": ASKED, "tools": [], "parallel_tool_calls": True}, "preferred_output": [turn(ANSWER)], "non_preferred_output": [turn(WORSE)]}, "preferences", PAIR),
    "labels": ({"prompt": Q, "completion": ANSWER, "label": True}, "preferences", {"prompt": ASKED, "response": ANSWER, "label": True}),
    "labels of a CSV": ({"prompt": Q, "response": ANSWER, "label": "0.0"}, "preferences", {"prompt": ASKED, "response": ANSWER, "label": False}),
    "labels of 1 and -1": ({"prompt": Q, "response": ANSWER, "label": "-1"}, "preferences", {"prompt": ASKED, "response": ANSWER, "label": False}),
    "UltraFeedback's answers": ({"instruction": Q, "completions": [{"response": WORSE, "overall_score": 2}, {"response": ANSWER, "overall_score": 9.5}]}, "preferences", PAIR),
    "a prompt in a template": ({"prompt": CHATML}, "prompts", {"text": CHATML}),
    "a question that begins with a mark": ({"prompt": f"[INST] {Q}"}, "prompts", {"prompt": [{"role": "user", "content": f"[INST] {Q}"}]}),
    "a label in a template": ({"prompt": NEMO, "response": ANSWER, "label": 1}, "preferences", {"prompt": NEMO, "response": ANSWER, "label": True}),
    "the prompt of a pair in a template": ({"prompt": f"[INST] {Q} [/INST]", "chosen_response": ANSWER, "rejected_response": WORSE}, "prompts", {"text": f"[INST] {Q} [/INST]"}),
    "a pair for SFT": ({"prompt": Q, "chosen": ANSWER, "rejected": WORSE}, "sft", DIALOGUE),
    "OpenOrca": ({"id": "niv.1", "system_prompt": "Be brief.", "question": Q, "response": ANSWER}, "sft", {"messages": [{"role": "system", "content": "Be brief."}, *ASKED, turn(ANSWER)]}),
    "an instruction's pair": ({"instruction": Q, "chosen": ANSWER, "rejected": WORSE}, "preferences", PAIR),
    "an instruction's pair with input": ({"instruction": "What is", "input": "the sea?", "chosen": ANSWER, "rejected": WORSE}, "preferences", PAIR | {"prompt": [{"role": "user", "content": "What is\n\nthe sea?"}]}),
    "Orca's pair": ({"system": "Be brief.", "question": Q, "chosen": ANSWER, "rejected": WORSE}, "preferences", PAIR | {"prompt": [{"role": "system", "content": "Be brief."}, *ASKED]}),
    "messages": (DIALOGUE | {"prompt": Q, "id": 3}, "sft", DIALOGUE),
    "calls": ({"tools": json.dumps([ADD["function"]]), "messages": [*ASKED, CALLS | {"content": None}, {"role": "tool", "tool_call_id": "a", "name": "add", "content": ""}, {"role": "tool", "tool_call_id": "b", "content": "4"}, turn(ANSWER)]}, "sft", {"messages": [*ASKED, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"a": n}}} for n in (1, 2)]}, {"role": "tool", "content": ""}, {"role": "tool", "content": "4"}, turn(ANSWER)], "tools": [ADD]}),
    "parts of a turn": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "the sea?"}, {"type": "text", "text": None}]}, turn(ANSWER)]}, "sft", DIALOGUE),
    "ShareGPT": ({"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": ANSWER, "label": "quality:4"}]}, "sft", DIALOGUE),
    "ShareGPT's calls": ({"tools": json.dumps([ADD["function"]]), "conversations": [{"from": "human", "value": Q}, {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'}, {"from": "observation", "value": "2"}, {"from": "gpt", "value": ANSWER}]}, "sft", {"messages": [*ASKED, CALLED, {"role": "tool", "content": "2"}, turn(ANSWER)], "tools": [ADD]}),
    "several of ShareGPT's calls": ({"conversations": [{"from": "human", "value": Q}, {"from": "function_call", "value": json.dumps([{"name": "add", "arguments": {"a": 1}}] * 2)}]}, "sft", {"messages": [*ASKED, CALLED | {"tool_calls": CALLED["tool_calls"] * 2}]}),
    "Hermes's results in tags": ({"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": "<tool_call>"}, {"from": "tool", "value": "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"}, {"from": "gpt", "value": ANSWER}]}, "sft", {"messages": [*ASKED, turn("<tool_call>"), {"role": "tool", "content": "2\n</tool_response>\n<tool_response>\n3"}, turn(ANSWER)]}),
    "TRL's calls": ({"prompt": [*ASKED, CALLED | {"content": None}, {"role": "tool", "name": "add", "content": "2"}, *ASKED], "completion": [CALLED, {"role": "tool", "content": "3"}, turn(ANSWER)], "tools": [ADD]}, "sft", {"messages": [*ASKED, CALLED | {"weight": 0}, {"role": "tool", "content": "2"}, *ASKED, CALLED, {"role": "tool", "content": "3"}, turn(ANSWER)], "tools": [ADD]}),
    "the prompt of a longer completion": ({"prompt": ASKED, "completion": [turn(WORSE), *ASKED, turn(ANSWER)]}, "prompts", {"prompt": ASKED}),
    "weights in an implicit prompt": ({"chosen": [*ASKED, turn(WORSE) | {"weight": 0}, *ASKED, turn(ANSWER)], "rejected": [*ASKED, turn(WORSE) | {"weight": 0}, *ASKED, turn(WORSE)]}, "preferences", PAIR | {"prompt": [*ASKED, turn(WORSE), *ASKED]}),
    "NeMo-Aligner's conversation": ({"mask": "User", "type": "VALUE_TO_TEXT", "system": "Be brief.", "conversations": [{"from": "User", "value": Q}, {"from": "Assistant", "value": ANSWER}]}, "sft", {"messages": [{"role": "system", "content": "Be brief."}, *ASKED, turn(ANSWER)]}),
    "a system's turn twice": ({"system": "Be brief.", "messages": [{"role": "system", "content": "Be brief."}, *ASKED, turn(ANSWER)]}, "sft", {"messages": [{"role": "system", "content": "Be brief."}, *ASKED, turn(ANSWER)]}),
    "a weight": ({"messages": [*ASKED, turn(WORSE) | {"weight": 0}, *ASKED, turn(ANSWER)]}, "sft", {"messages": [*ASKED, turn(WORSE) | {"weight": 0}, *ASKED, turn(ANSWER)]}),
    "Alpaca": ({"instruction": "What is", "input": "the sea?", "output": ANSWER}, "sft", {"messages": [{"role": "user", "content": "What is\n\nthe sea?"}, turn(ANSWER)]}),
    "Alpaca with a blank input": ({"instruction": Q, "input": " ", "output": ANSWER}, "sft", DIALOGUE),
    "a dialogue's prompt": ({"messages": [*ASKED, turn(WORSE), *ASKED, turn(ANSWER)]}, "prompts", {"prompt": [*ASKED, turn(WORSE), *ASKED]}),
    "a plain prompt": ({"prompt": f" User:{Q} \r\n\r\nAssistant: \n"}, "prompts", {"prompt": ASKED}),
    "a plain prompt of several turns": ({"prompt": f"System: S.\n\nUser: {Q}\n\nAssistant: {WORSE}\n\nUser: {Q}\n\nAssistant:"}, "prompts", {"prompt": [{"role": "system", "content": "S."}, *ASKED, turn(WORSE), *ASKED]}),
    **{
        f"not a plain prompt, {why}": ({"prompt": f"{text}\n\nAssistant:"}, "prompts", {"prompt": [{"role": "user", "content": f"{text}\n\nAssistant:"}]})
        for why, text in {"blank": "User:", "answered": "User: a\n\nAssistant: b", "a late system turn": "User: a\n\nSystem: b\n\nUser: c", "no user": "System: a\n\nAssistant: b"}.items()
    },
    "a plain system turn": ({"prompt": "System: S.\n\nAssistant:"}, "prompts", {"prompt": [{"role": "system", "content": "S."}]}),
    "a question that begins as a plain prompt": ({"prompt": "User: who is it?\n\nAssistant: a word?"}, "prompts", {"prompt": [{"role": "user", "content": "User: who is it?\n\nAssistant: a word?"}]}),
}  # fmt: skip


def jsonl(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8-sig")
    return path


def lines(conversion, split="train"):
    path = next(path for path in conversion.paths if path.stem == split)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("case", RECOGNISED)
def test_a_record_becomes_what_the_trainers_read(tmp_path, case):
    record, to, line = RECOGNISED[case]
    conversion = convert(jsonl(tmp_path / "raw.jsonl", record), tmp_path, to, validation_fraction=0)
    assert lines(conversion) == [line]
    assert conversion.report.kept == 1 and "recognised" in str(conversion)


def test_neighbours_with_scores_become_a_pair_of_the_best_and_the_worst(tmp_path):
    rows = [{"prompt": Q, "response": str(n), "helpfulness": n, "verbosity": 1} for n in (2, 4, 1)]
    rows += [{"prompt": "Alike?", "response": word, "helpfulness": 3} for word in "ab"]
    conversion = convert(jsonl(tmp_path / "raw.jsonl", *rows), tmp_path, "preferences", validation_fraction=0)
    assert lines(conversion) == [{"prompt": ASKED, "chosen": "4", "rejected": "1"}]
    assert "no two answers with different scores: 1" in str(conversion)
    assert "read 5 records, kept 1, skipped 1" in str(conversion)
    assert "answers joined to the record before, which has the same prompt: 3" in str(conversion)


@pytest.mark.parametrize(
    ("rows", "to", "line"),
    [
        ([{"prompt": Q, "chosen": text, "rejected": WORSE} for text in (None, ANSWER)], "preferences", PAIR),
        ([{"question": Q, "answer": answer} for answer in (ANSWER, None)], "sft", DIALOGUE),
    ],
)
def test_an_empty_value_does_not_hide_the_form(tmp_path, rows, to, line):
    conversion = convert(jsonl(tmp_path / "raw.jsonl", *rows), tmp_path, to, validation_fraction=0)
    assert lines(conversion) == [line] and "missing key: 1" in str(conversion)


def test_turns_in_the_cells_of_a_csv_are_turns(tmp_path):
    # pandas writes lists as Python does
    row = {"prompt": "[{not a turn", "chosen": json.dumps([turn(ANSWER)]), "rejected": str([turn(WORSE)])}
    write(tmp_path / "raw.csv", [row])
    conversion = convert(tmp_path / "raw.csv", tmp_path, "preferences", validation_fraction=0)
    assert lines(conversion) == [PAIR | {"prompt": [{"role": "user", "content": "[{not a turn"}]}]


def test_a_spreadsheet_s_line_ends_inside_of_cells_are_no_part_of_the_texts(tmp_path):
    """As git's autocrlf and Excel write them: HH's marks are found all the same."""
    text = 'prompt,chosen,rejected\n"\n\nHuman: hi\n\nAssistant:","a\nb",bad\n'
    (tmp_path / "raw.csv").write_bytes(text.replace("\n", "\r\n").encode())
    [record] = lines(convert(tmp_path / "raw.csv", tmp_path, "preferences", validation_fraction=0))
    assert record["prompt"] == [{"role": "user", "content": "hi"}] and record["chosen"] == "a\nb"


def test_a_quoted_column_may_have_a_comma_beside_semicolons(tmp_path):
    (tmp_path / "raw.csv").write_text('"Frage, lang";"Antwort"\nq;a\n')
    columns = {"Frage, lang": "prompt", "Antwort": "completion"}
    [record] = lines(convert(tmp_path / "raw.csv", tmp_path, "sft", columns=columns, validation_fraction=0))
    assert record["messages"][0]["content"] == "q"


@pytest.mark.parametrize("name", ["a.json", "lines.json", "a.csv", "a.jsonl.gz", "a.parquet", "a.arrow"])
def test_every_kind_of_file_gives_the_same_lines(tmp_path, name, monkeypatch):
    monkeypatch.setattr("data.readers.CHUNK_CHARACTERS", 7)  # records are longer than what is read at once
    rows = [
        {"prompt": f'A "quoted", {n}\nline', "chosen": f"é{n}", "rejected": "x", "id": n} for n in range(9)
    ]
    if name == "lines.json":
        jsonl(tmp_path / name, *rows)
    else:
        write(tmp_path / name, rows)
    conversion = convert(tmp_path / name, tmp_path / "out", "preferences", validation_fraction=0)
    assert lines(conversion) == [
        {"prompt": [{"role": "user", "content": row["prompt"]}], "chosen": row["chosen"], "rejected": "x"}
        for row in rows
    ]


def test_a_folder_of_datasets_keeps_its_splits_and_a_leak_is_told(tmp_path):
    for split, prompts in (("train", "abc"), ("test", "cd")):
        folder = tmp_path / "set" / split
        (folder / ".ipynb_checkpoints").mkdir(parents=True)
        rows = [{"prompt": prompt, "completion": f"{split} {prompt}"} for prompt in prompts]
        write(folder / "data-00000-of-00001.arrow", rows)
        for name in ("dataset_info.json", "state.json"):
            (folder / name).write_text("{}")
        # a result of Dataset.map, and a copy of Jupyter's
        write(folder / "cache-0ca01d6e40b5e747.arrow", [{"prompt": "mapped", "completion": split}])
        jsonl(folder / ".ipynb_checkpoints/train-checkpoint.jsonl", {"prompt": "old", "completion": split})
    conversion = convert(tmp_path / "set", tmp_path / "out", "sft")
    assert [line["messages"][0]["content"] for line in lines(conversion, "validation")] == ["c", "d"]
    assert "leak: 1 of 2 validation samples" in str(conversion)


@pytest.mark.parametrize(
    ("names", "held_out"),
    [
        ("devices testimonials valuable train dev-v1 test_prefs validation testset",
         ["dev-v1", "test_prefs", "testset", "validation"]),
        ("art dev-ops medicine", []),
        ("data test-00000-of-00001", ["test-00000-of-00001"]),
        ("own own_test", ["own_test"]),
        ("own-train own-test", ["own-test"]),
        ("train/art train/dev-ops test/art", ["test/art"]),
        ("dev/train dev/validation", ["dev/validation"]),
    ],
)  # fmt: skip
def test_files_named_after_a_split_are_held_out_and_a_topic_is_not_taken_for_one(tmp_path, names, held_out):
    for name in names.split():
        path = tmp_path / "set" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        jsonl(path, *({"prompt": f"{name} {number}", "completion": "b"} for number in range(9)))
    fraction = 0.5 if held_out else 0  # where names tell the split, no prompt of a training file is held out
    report = convert(tmp_path / "set", tmp_path / "out", "sft", validation_fraction=fraction)
    prompts = [line["messages"][0]["content"].split()[0] for line in lines(report, "validation")]
    assert list(dict.fromkeys(prompts)) == held_out
    if held_out:
        assert f"held out, by their names: {tmp_path / 'set' / held_out[0]}.jsonl" in str(report)
    else:
        doubtful = tmp_path / "set" / "dev-ops.jsonl"
        assert f"not held out, because no other file is named train: {doubtful}" in str(report)


def test_training_files_without_a_usable_record_are_refused(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    for name, completion in (("train", " "), ("test", "b")):
        jsonl(folder / f"{name}.jsonl", {"prompt": "a", "completion": completion})
    with pytest.raises(DataError, match=r"(?s)no record of the training files is usable.*'completion' is bl"):
        convert(folder, tmp_path / "out", "sft")


def test_equal_prompts_are_on_one_side_and_the_same_sample_counts_once(tmp_path):
    rows = [{"prompt": f"question {n % 40}", "completion": f"answer {n}"} for n in range(200)]
    raw = jsonl(tmp_path / "raw.jsonl", *rows, *rows[:5])
    conversion = convert(raw, tmp_path, "sft", validation_fraction=0.25)
    train, validation = (
        {line["messages"][0]["content"] for line in lines(conversion, split)}
        for split in ("train", "validation")
    )
    assert not train & validation and len(train | validation) == 40
    assert 4 <= len(validation) <= 16, "a quarter of 40"
    assert conversion.leaked == 0 and "the same sample again: 5" in str(conversion)
    assert len(conversion.drawn) == 10 and all(record in lines(conversion) for record in conversion.drawn)


@pytest.mark.parametrize("fraction", [1e-9, 0.5, 1 - 1e-9])
def test_any_share_of_few_prompts_leaves_one_on_each_side(tmp_path, fraction):
    for count in (1, 2, 3):
        rows = [{"prompt": f"{n}?"} for n in range(count)]
        raw = jsonl(tmp_path / "raw.jsonl", *rows)
        conversion = convert(raw, tmp_path / "out", "prompts", validation_fraction=fraction)
        train, validation = (len(lines(conversion, split)) for split in ("train", "validation"))
        assert train + validation == count and train >= 1 and (validation >= 1) == (count > 1)
        assert ("no validation sample: all samples have the same prompt" in str(conversion)) == (count == 1)


@pytest.mark.parametrize(("to", "held_out"), [("preferences", 2), ("sft", 1)])
def test_of_four_prompts_kto_gets_two_held_out_because_it_compares_prompts(tmp_path, to, held_out):
    rows = [{"prompt": f"{n}?", "response": "a", "label": True} for n in range(4)]
    conversion = convert(jsonl(tmp_path / "raw.jsonl", *rows), tmp_path, to, validation_fraction=1e-9)
    assert len(lines(conversion, "validation")) == held_out


LEFT_OUT = {
    "another column": ({"prompt": "a", "completion": "b", "hint": "c"}, "unread key", "'hint'"),
    "a missing answer": ({"prompt": "a", "completion": None}, "missing key", "'completion'"),
    "a blank answer": ({"prompt": "a", "completion": "  "}, "empty text", "'completion'"),
    "half a surrogate": ({"prompt": "a", "completion": "\ud83d"}, "bad UTF-8", "half a surrogate"),
    "a number": ({"messages": [*ASKED, turn(3)]}, "wrong type", "turn 2 of 'messages' is int"),
    "a critic's turn": ({"prompt": [{"role": "critic", "content": "4"}], "completion": "b"}, "unknown role", "'critic'"),
    "a call": ({"prompt": [ASKED[0] | {"tool_calls": [1]}], "completion": "b"}, "unread key", "'tool_calls'"),
    "a picture": ({"prompt": [{"role": "user", "content": [{"type": "image"}]}], "completion": "b"}, "wrong type", "turn 1"),
    "an answered prompt": ({"prompt": [*ASKED, turn("So.")], "completion": "b"}, "the prompt ends with the assistant's turn", "'prompt'"),
    "a prompt in a template": ({"prompt": CHATML, "completion": "b"}, "a chat template has written the prompt", "give them without marks"),
    "two system texts": ({"system": "S.", "system_prompt": "T.", "prompt": "a", "completion": "b"}, "unread key", "system and system_prompt differ"),
    "two system turns": ({"system": "S.", "messages": [{"role": "system", "content": "T."}, *ASKED, turn("b")]}, "unread key", "'system' and the first turn differ, and only one can be the system turn: use --ignore system"),
    "turns as numpy writes them": ({"prompt": "a", "completion": "[{'content': 'b', 'role': 'user'}\n {'content': 'c', 'role': 'assistant'}]"}, "wrong type", "'completion' is the text of a list of turns, but not JSON: write lists with json.dumps"),
    "half a weight": ({"prompt": [ASKED[0] | {"weight": 0.5}], "completion": "b"}, "wrong type", "weight 0.5"),
    "a call in prose": ({"messages": [*ASKED, CALLS | {"tool_calls": "add(1)"}]}, "wrong type", "turn 2 of 'messages': 'tool_calls' is str"),
    "the old form of a call": ({"messages": [*ASKED, turn("b") | {"function_call": {"name": "add"}}]}, "unread key", "'function_call'"),
    "reasoning": ({"messages": [*ASKED, CALLS | {"reasoning_content": "Hm."}]}, "unread key", "'reasoning_content'"),
    "results in another order": ({"messages": [*ASKED, CALLS, {"role": "tool", "tool_call_id": "b", "content": "4"}, turn("b")]}, "wrong type", "turn 3 has the tool_call_id 'b'"),
    "a call without a result": ({"messages": [*ASKED, CALLS, {"role": "tool", "content": "4"}, turn("b")]}, "wrong type", "turn 4 follows a result, but the call of 'add' before has none"),
    "a result too many": ({"messages": [*ASKED, CALLED, *[{"role": "tool", "content": "4"}] * 2, turn("b")]}, "wrong type", "turn 4 is a result, but no call before it lacks a result"),
    "a result of the user": ({"messages": [*ASKED, {"role": "tool", "content": "4"}, turn("b")]}, "wrong type", "turn 2 is a result, but no call"),
    "a role's call in prose": ({"messages": [*ASKED, {"role": "function_call", "content": "add(1)"}]}, "wrong type", "turn 2 of 'messages' has the role 'function_call', but its text is not the JSON of a call: 'add(1)'"),
    "tools twice": ({"messages": [{"role": "system", "content": "You have <tools>[]</tools>"}, *ASKED, turn("b")], "tools": [ADD]}, "unread key", "use --ignore tools"),
    "tools in prose": ({"messages": [*ASKED, turn("b")], "tools": "add"}, "wrong type", "not JSON"),
    "a tool without a name": ({"messages": [*ASKED, turn("b")], "tools": [{"type": "function"}]}, "wrong type", "a tool is {'type'"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_OUT)
def test_a_record_that_would_lose_something_is_left_out_by_name(tmp_path, case):
    record, reason, detail = LEFT_OUT[case]
    good = DIALOGUE if "messages" in record else {"prompt": "a", "completion": "b"}
    raw = jsonl(tmp_path / "raw.jsonl", good, record)
    conversion = convert(raw, tmp_path, "sft", validation_fraction=0)
    assert conversion.report.skipped == {reason: 1}
    assert detail in str(conversion) and "raw.jsonl:2" in str(conversion)
    with pytest.raises(DataError, match=r"raw\.jsonl:2"):
        convert(raw, tmp_path, "sft", strict=True)


def test_tools_of_a_parquet_file_have_no_fields_of_other_tools_and_prompts_hold_none(tmp_path):
    def record(name, **arguments):
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        return {"tools": [{"type": "function", "function": {"name": name}}], "messages": [*ASKED, turn("") | {"tool_calls": [call]}]}  # fmt: skip

    rows = [record("add", a=1), record("halve", b=2)]
    write(tmp_path / "raw.parquet", rows)
    assert lines(convert(tmp_path / "raw.parquet", tmp_path, "sft", validation_fraction=0)) == rows
    with pytest.raises(DataError, match="which prompts cannot hold: use --to sft"):
        convert(tmp_path / "raw.parquet", tmp_path, "prompts")


def test_the_report_shows_calls_as_the_model_sees_them(tmp_path, smoke):
    result = {"role": "tool", "content": "4"}
    raw = jsonl(
        tmp_path / "raw.jsonl", {"messages": [*ASKED, CALLS, result, result, turn("4")], "tools": [ADD]}
    )
    options = ["--to", "sft", "--out", str(tmp_path), "--validation-fraction", "0", "--tokenizer", str(smoke)]
    shown = CliRunner().invoke(commands, [str(raw), *options]).output
    assert "You can call these functions:" in shown and '⟦ <tool_call>\n{"name": "add"' in shown, shown
    assert "tool_response" in shown


REFUSED = {
    "unknown columns": ([{"q": "a", "a": "b"}], "sft", r"the columns q, a, which match no known form .*--map question=prompt"),
    "columns with capitals": ([{"Prompt": "a", "Chosen": "b", "Rejected": "c"}], "preferences", "are those of preference pairs, but with capitals: .*--map Prompt=prompt,Chosen=chosen,Rejected=rejected$"),
    "some columns with capitals": ([{"prompt": "a", "Chosen": "b", "Rejected": "c", "ID": 1, "Unnamed: 0": 0}], "preferences", "but with capitals: .*--map Chosen=chosen,Rejected=rejected,ID=id$"),
    "capitals of a form and further columns": ([{"Prompt": "a", "Better": "b", "Worse": "c"}], "preferences", "which match no known form "),
    "records with lists": ([{"q": [{"a": "b"}]}] * 2, "sft", "match no known form .*: name their meanings"),
    "unread columns to quote": ([{"prompt": "a", "completion": "b", "Ticket Nr": 1, "Tags": 2}], "sft", "--ignore 'Ticket Nr,Tags'$"),
    "an unread column": ([{"prompt": "a", "chosen": "b", "rejected": "c", "tools": [1]}], "sft", r"does not read the column tools; SFT keeps the tools of conversations.*--ignore tools"),
    "two answers of a question": ([{"question": "a", "answer": "b", "response": "c"}], "sft", "recognised as prompts and answers, which does not read the column response: .*--ignore response"),
    "two prompts of an answer": ([{"prompt": "a", "question": "b", "response": "c"}], "sft", "does not read the column question: .*--ignore question"),
    "two prompts of a pair": ([{"prompt": "a", "instruction": "b", "chosen": "c", "rejected": "d"}], "preferences", "does not read the column prompt: .*--ignore prompt"),
    "no answers": ([{"prompt": "a"}], "sft", "have no answers"),
    "no usable record": ([{"prompt": "a", "completion": "b"}, {"prompt": 3, "completion": "b"}], "text", "to='text'"),
    "turns in prose": ([{"messages": "User: hello"}], "prompts", "'messages' is a text, but must be a list of turns in JSON"),
    "a part of another type": ([{"messages": [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use"}]}]}], "sft", "turn 2 of 'messages' has a part of type 'tool_use', but only 'text' is read: give calls as OpenAI's tool_calls"),
    "another prompt": ([{"prompt": "Why?", "chosen": [*ASKED, turn("a")], "rejected": [*ASKED, turn("b")]}], "preferences", "different prompts .*do not contain 'prompt'"),
    "a label in words": ([{"prompt": "a", "response": "b", "label": "good"}], "preferences", "'label' is 'good', but must be true or 1, or false, 0 or -1"),
    "a user's turn as an answer": ([{"chosen": [*ASKED, {"role": "user", "content": "b"}], "rejected": [*ASKED, turn("c")]}], "preferences", "'chosen' or 'rejected'"),
    "a number too large": ([{"prompt": "a", "response": "b", "score": 10**400}], "preferences", "'score' is 10{400}, not a number"),
    "no number": ([{"prompt": "a", "response": "b", "score": "nan"}], "preferences", "'score' is 'nan', not a number"),
    "equal answers": ([{"prompt": "a", "chosen": "b", "rejected": "b"}], "preferences", "no usable record .*chosen and rejected are equal 1"),
    "no weight": ([{"messages": [*ASKED, turn("a") | {"weight": 0}]}], "sft", "every answer has the weight 0 1"),
    "a mask of answers": ([{"conversations": [{"from": "User", "value": "a"}, {"from": "Assistant", "value": "b"}], "mask": "Assistant"}], "sft", "'mask' is 'Assistant', but the loss covers the assistant's turns alone"),
    "answers apart": ([{"prompt": p, "response": "b", "score": n} for n, p in enumerate("aba")], "preferences", "one answer; sort the file by prompt"),
    "different prompts": ([{"chosen": hh("a"), "rejected": hh("b").replace("sea", "sun")}], "preferences", "different prompts"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_data_set_that_means_something_else_is_refused_with_the_cure(tmp_path, case):
    rows, to, message = REFUSED[case]
    with pytest.raises(DataError, match=message):
        convert(jsonl(tmp_path / "raw.jsonl", *rows), tmp_path / "out", to)
    assert not list((tmp_path / "out").glob("*.jsonl"))


@pytest.mark.parametrize("title", ["prompt", "title"])
def test_two_columns_with_the_same_meaning_are_refused(tmp_path, title):
    columns = {"title": "prompt", "question": "prompt"} if title == "title" else {"question": "prompt"}
    rows = [{"completion": "b", "question": "Why?"}, {"completion": "b", "question": "So?", title: "Water"}]
    message = f"raw.jsonl:2: the columns 'question' and '{title}' both mean 'prompt'.*--ignore {title}"
    with pytest.raises(DataError, match=message):
        convert(jsonl(tmp_path / "raw.jsonl", *rows), tmp_path / "out", "sft", columns=columns)
    assert not list((tmp_path / "out").glob("*.jsonl"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("raw.json", b'"prompt"', "is neither a list of records"),
        ("raw.json", b'[{"prompt": "a"}, {"prompt"', "is not JSON after record 1"),
        ("raw.json", b'[{"prompt": "a"}]\n[{"prompt": "c"}]', "goes on after its list of 1 records"),
        ("raw.json", '[{"prompt": "é"}]'.encode("latin-1"), "is not UTF-8 text"),
        ("raw.json", b"[]", "holds no readable record: give a file with at least one record"),
        ("raw.json", b'{\n "data": []\n}', "no readable record; .*: write each record in one line, or all"),
        ("raw.jsonl", b"[1, 2]", "no readable record; the first: .*: a record must have named columns"),
        (
            "raw.jsonl",
            '{"prompt": "Größe?"}'.encode("utf-16"),
            "no readable record.*: save the file as UTF-8",
        ),
        ("raw.jsonl", b'[{"prompt": "a"}, {"prompt"', "is not JSON after record 1"),
        ("raw.json", b'[{"prompt": "a"}, {"id": ' + b"9" * 5_000, "is not JSON after record 1 .*digits"),
        ("raw.json", b'[{"prompt": "a"}, ' + b"[" * 100_000, "is not JSON after record 1 .*recursion"),
        ("raw.json", b'{"data": []}', "has the columns data, which match no known form"),
        (
            "raw.json",
            b'{"data": [{"prompt": "a"}]}',
            "if 'data' is the list of records, write that list alone",
        ),
        (
            "raw.csv",
            b"prompt,completion\na\n",
            "fewer cells than the header's 2.*: put a text with the character",
        ),
        (
            "raw.csv",
            b"sep=,\nprompt,,\na,,\nb,,c\n",
            "raw.csv:4: 'c' is in a column without a name: name the column",
        ),
        ("raw.csv", b"prompt,completion,completion\nhi,a,b\n", "two columns with the name completion"),
        ("raw.csv", 'prompt\n"Größe?"\n'.encode("latin-1"), "is not UTF-8 text .*: save"),
        ("raw.arrow", b"x", "cannot be read as an Arrow stream"),
        ("raw.txt", b"x", "has an unknown ending|is not a file|ends in"),
    ],
)
def test_a_damaged_file_is_refused_with_its_place_and_nothing_is_lost_in_silence(
    tmp_path, name, content, message
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        convert(tmp_path / name, tmp_path / "out", "prompts")


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ('prompt;completion\n"a, b; c";"d; e"', "a, b; c", "d; e"),
        ('prompt\tcompletion\n"a, b; c"\td', "a, b; c", "d"),
        (", prompt, completion,\n0,a,b,\n", "a", "b"),  # with pandas' index and blanks
        ("sep=;\nprompt;completion\na;b\n", "a", "b"),  # as Excel writes it
    ],
)
def test_a_spreadsheets_table_may_have_other_characters_between_its_cells(tmp_path, text, first, last):
    (tmp_path / "raw.csv").write_text(text)
    conversion = convert(tmp_path / "raw.csv", tmp_path / "out", "sft", validation_fraction=0)
    assert [turn["content"] for turn in lines(conversion)[0]["messages"]] == [first, last]


def test_a_tsv_has_tabs_between_its_cells_whatever_its_texts_have(tmp_path):
    (tmp_path / "raw.tsv").write_text("prompt\na, b; c\nd, e\n")
    conversion = convert(tmp_path / "raw.tsv", tmp_path / "out", "prompts", validation_fraction=0)
    assert [line["prompt"][0]["content"] for line in lines(conversion)] == ["a, b; c", "d, e"]


def test_a_column_that_the_first_record_lacks_may_be_named_and_a_column_that_no_record_has_may_not(tmp_path):
    rows = [{"prompt": f"{n}?", "completion": "b"} for n in range(200)]
    rows[1]["s"], rows[-1]["late"] = "S.", 1
    raw = jsonl(tmp_path / "raw.jsonl", *rows)
    conversion = convert(raw, tmp_path / "a", "sft", columns={"s": "system"}, ignore=["late"])
    assert conversion.columns == ("prompt", "completion", "s", "late")
    assert not conversion.report.skipped[Reason.UNREAD_KEY]
    for names in ({"columns": {"no": "system"}}, {"ignore": ["no"]}):
        with pytest.raises(DataError, match=r"raw\.jsonl has no column 'no', only prompt, completion, s"):
            convert(raw, tmp_path / "b", "sft", **names)
    assert not list((tmp_path / "b").glob("*.jsonl"))


def test_the_source_is_never_replaced(tmp_path):
    source = jsonl(tmp_path / "train.jsonl", {"prompt": "a", "completion": "b"})
    text = source.read_text()
    for raw in (source, tmp_path):
        with pytest.raises(DataError, match=r"train\.jsonl is data to convert, .* another folder as --out"):
            convert(raw, tmp_path / "folder" / "..", "sft", validation_fraction=0)
    assert source.read_text() == text


def test_no_form_hides_another():
    for i, form in enumerate(FORMS):
        hidden = [later.name for later in FORMS[i + 1 :] if set(form.columns) <= set(later.columns)]
        assert not hidden or form.columns == ("input", "output"), f"{form.name} hides {hidden}"


def test_the_command_renames_ignores_and_shows_what_is_learnt(tmp_path, smoke):
    rows = ({"question": f"{n}?", "best": f"yes {n}", "worst": "no", "margin": 2} for n in range(12))
    raw = jsonl(tmp_path / "raw.jsonl", *rows)
    options = (
        "--map question=prompt,best=chosen,worst=rejected --ignore margin --validation-fraction 0".split()
    )
    options += ["--to", "preferences", "--out", str(tmp_path), "--tokenizer", str(smoke)]
    result = CliRunner().invoke(commands, [str(raw), *options])
    assert result.exit_code == 0, result.output
    assert "ignored as you asked: margin" in result.output and "sample 10 of 10" in result.output
    assert "tokens of a sample: median " in result.output and "characters" not in result.output
    assert "⟦ yes" in result.output and "left out" not in result.output
    options[:4], stop = [], "<|im_end|>"
    jsonl(raw, *({"prompt": f"{n}?", "chosen": "yes" + stop * (n == 3), "rejected": "no"} for n in range(12)))
    result = CliRunner().invoke(commands, [str(raw), *options, "--validation-fraction", "0"])
    assert "in a training: 1 of 12 samples left out: " in result.output
    assert "are longer than" not in result.output
    result = CliRunner().invoke(commands, [str(raw), *options, "--max-length", "1"])
    assert "in a training: 11 of 11 samples are longer than 1 tokens, and left out\n" in result.output
    without = CliRunner().invoke(commands, [str(raw), *options[:-2], "--max-length", "1"])
    assert "--max-length 1 is a number of tokens: give --tokenizer" in str(without.exception)


def test_the_command_shows_a_file_in_a_job_s_format_as_the_job_reads_it(tmp_path, smoke):
    raw = jsonl(tmp_path / "raw.jsonl", *[{"input": Q, "output": ANSWER}] * 2, {"input": Q, "output": None})
    options = ["--out", str(tmp_path), "--validation-fraction", "0", "--tokenizer", str(smoke)]
    shown = CliRunner().invoke(commands, [str(raw), "--to", "sft", *options]).output
    train = (tmp_path / "train.jsonl").read_text().splitlines()
    assert [*map(json.loads, train)] == [{"input": Q, "output": ANSWER}] * 2
    assert f"{Q}⟦ {ANSWER}" in shown and "User:" not in shown and "missing key: 1" in shown
    assert "kept, but note: the same sample again: 1" in shown
    jsonl(raw, {"input": Q, "output": "a " * 500})
    shown = CliRunner().invoke(commands, [str(raw), "--to", "sft", *options]).output
    assert " tokens … " in shown and len(shown) < 1500
    jsonl(raw, {"text": f"User: {Q}\n\nAssistant: {ANSWER}"})
    for to, jobs in (("preferences", "`aligner rm` and `aligner dpo`"), ("prompts", "`aligner ppo`")):
        refused = CliRunner().invoke(commands, [str(raw), "--to", to, *options])
        assert f"has whole texts, which {jobs}" in str(refused.exception)
    jsonl(raw, {"prompt": f"{Q} " * 9000, "chosen": ANSWER, "rejected": WORSE, "text": None})
    shown = CliRunner().invoke(commands, [str(raw), "--to", "preferences", *options]).output
    assert "unchanged: 1 records" in shown and "left out\n" in shown
    shown = (
        CliRunner()
        .invoke(commands, [str(raw), "--to", "prompts", "--ignore", "chosen,rejected", *options])
        .output
    )
    assert "tokens of a sample" in shown and "left out" not in shown, "a job's responses decide the limit"
    other = jsonl(tmp_path / "other.jsonl", {"chosen": hh("a"), "rejected": hh("b")})
    refused = CliRunner().invoke(commands, [str(other), str(raw), "--to", "preferences", *options])
    assert "raw.jsonl is in a job's own format, and " in str(refused.exception)


@pytest.mark.parametrize(
    ("to", "record", "load"),
    [
        ("sft", {"prompt": Q, "completion": ANSWER}, load_sft),
        ("preferences", {"prompt": Q, "chosen": ANSWER, "rejected": WORSE}, load_preferences),
        ("preferences", {"prompt": Q, "completion": WORSE, "label": True}, load_labelled),
        ("prompts", {"prompt": Q}, load_prompts),
    ],
)
def test_lengths_in_tokens_are_those_of_the_trainers_samples(tmp_path, smoke, to, record, load):
    raw = jsonl(tmp_path / "raw.jsonl", *(record | {"prompt": f"{'so ' * n}{Q}"} for n in range(3)))
    conversion, tokenizer = convert(raw, tmp_path, to, validation_fraction=0), Tokenizer(smoke)
    samples, _ = load([conversion.paths[0]], tokenizer, 4096)
    rows = [len(sample.rows[0]) if load is load_labelled else len(sample) for sample in samples]
    lengths, report = token_lengths(conversion.paths, to, tokenizer)
    assert list(lengths) == rows and rows == sorted(set(rows)) and not report.dropped
