"""The long answers of the downloaded model that SFT rehearses."""

import json

from data.sample_text import own_pairs
from data.sample_text.rehearsal import ITEM_NUMBER, SHORTEST, TASKS, example, tasks, write
from data.sources import SAMPLES

WORDS = " ".join(["word"] * SHORTEST)


def test_each_topic_has_another_kind_of_task_in_each_round_and_held_out_topics_have_none():
    all_tasks = tasks()
    assert len(set(all_tasks)) == len(all_tasks)
    clauses, held_out = (
        {topic.clause for topic in own_pairs.prompts_of(split).values()} for split in ("train", "test")
    )
    assert not [task for task in all_tasks if any(clause in task for clause in held_out - clauses)]
    kinds = [task.split()[:3] for task in all_tasks]
    assert kinds[0] != kinds[len(clauses)] and len(TASKS) == 16


def test_an_example_ends_with_a_whole_sentence_and_before_the_first_repeated_line():
    assert example(f"{WORDS}.", finished=True) == f"{WORDS}."
    assert example(f"{WORDS}. And then", finished=True) == f"{WORDS}. And then"
    assert example(f"{WORDS}. And then", finished=False) == f"{WORDS}."
    assert example(f"{WORDS}.\n\nOne\n\nTwo\n\none\n\nThree.", finished=True) == f"{WORDS}.\n\nOne\n\nTwo"
    assert example("word " * (SHORTEST - 1), finished=True) is None, "too short"
    assert example(WORDS, finished=False) is None, "no whole sentence"
    assert example(f"1. {WORDS}.\n\n2. And so", finished=False) == f"1. {WORDS}."


def test_answers_are_written_in_dolly_s_format_and_short_ones_are_counted(tmp_path):
    message = write([("Write.", f"{WORDS}.", True), ("Tell.", "No.", True)], tmp_path)
    assert message.endswith("1 examples; 1 answers were too short")
    record = json.loads((tmp_path / "rehearsal.jsonl").read_text())
    assert record.pop("response") == f"{WORDS}."
    assert record == {"instruction": "Write.", "context": "", "category": "rehearsal"}


def test_the_sample_has_a_task_and_a_long_answer_in_every_line():
    records = [json.loads(line) for line in (SAMPLES / "rehearsal.jsonl").read_text().splitlines()]
    instructions = [record["instruction"] for record in records]
    assert len(instructions) > 400
    assert instructions == [task for task in tasks() if task in set(instructions)]
    assert all(record["response"] == example(record["response"], finished=True) for record in records)
    assert not [record for record in records if ITEM_NUMBER.search(record["response"])]
