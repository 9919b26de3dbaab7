"""What a program says of a run's first and last validation, by hand."""

import json

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.gold import before_and_after


def validated(folder, steps):
    """A run folder with answers to prompts 0, 1, … at each step: (obeys, ended, reward)."""
    folder.mkdir(exist_ok=True)
    records = [
        {"step": step, "split": "validation", "group": at, "reward": reward, "finished": ended, "length": 4}
        | ({} if obeys is None else {"metrics": {"obeys": obeys, "form/list": obeys, "words": 3.0}})
        for step, answers in steps.items()
        for at, (obeys, ended, reward) in enumerate(answers)
    ]
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return RunFolder(folder)


def test_the_first_validation_is_compared_with_the_last(tmp_path):
    first = [(0.0, True, 0.0), (0.0, True, 0.0), (1.0, True, 1.0), (0.0, False, -1.0)]
    between = [(0.0, False, -9.0)] * 4
    last = [(1.0, True, 2.0), (0.0, True, 1.0), (1.0, True, 2.0), (1.0, True, 2.0)]
    table = before_and_after(validated(tmp_path / "run", {0: first, 6: between, 12: last}))
    sft, ppo = table.figures["step 0"], table.figures["step 12"]
    assert (sft["obeys"].value, ppo["obeys"].value, ppo["obeys_gain"].value) == (0.25, 0.75, 0.5)
    assert ppo["obeys_gain"].low <= 0.25 and ppo["obeys_gain"].high == 1.0
    assert (sft["ended"].value, sft["list (4)"], ppo["list (4)"], ppo["tokens"]) == (0.75, 0.25, 0.75, 4)
    parts = [ppo[f"reward gained: {name}"] for name in ("ended", "gold", "rest")]
    worth_of_ending = 1 / 3 + 1  # rewards 0, 0, 1 of those that end, −1 of the one that doesn't
    assert parts[0] == (1 - 0.75) * worth_of_ending
    assert parts[1] == (3 / 4 - 1 / 3) * (1 - 0)
    assert abs(sum(parts) - (7 / 4 - 0)) < 1e-12
    assert "4 held-out prompts with one answer each" in repr(table)


def test_nothing_is_said_where_nothing_can_be_checked(tmp_path):
    for steps in ({0: [(None, True, 0.0)], 6: [(None, True, 1.0)]}, {0: [(1.0, True, 0.0)]}):
        assert before_and_after(validated(tmp_path / "run", steps)) is None


def test_good_answers_and_their_gain_stand_first_where_a_program_can_judge_the_texts(tmp_path):
    prompt = 'User: How do I sow carrots? The word "fact" has to appear in your answer.\n\nAssistant:'
    good = "To sow carrots, in fact, scatter the seeds thinly in loose soil and keep the row damp."
    echo = 'The word "fact" has to appear in your answer.'
    answers = {0: [good, "In loose soil, and water them."], 6: [echo, echo]}
    run = validated(
        tmp_path / "run",
        {step: [(float("fact" in text), True, 0.0) for text in texts] for step, texts in answers.items()},
    )
    records = run.rollouts()
    for record in records:
        record |= {"prompt": prompt, "response": answers[record["step"]][record["group"]]}
    (run.path / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    before, after = before_and_after(RunFolder(run.path)).figures.values()
    assert next(iter(before)) == "good"
    assert (before["good"].value, after["good"].value, after["good_gain"].value) == (0.5, 0.0, -0.5)
    assert (before["obeys"].value, after["obeys"].value) == (0.5, 1.0)  # which an echo wins
    assert (before["own_words"], after["own_words"], after["on_topic"]) == (1.0, 0.0, 0.0)
