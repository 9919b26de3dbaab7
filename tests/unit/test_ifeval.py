"""benchmarks/ifeval.py: tables of policies, of kinds of instructions and of cheats, with a stand-in for lm_eval's checkers."""

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import ifeval
from benchmarks.ifeval import CHEATS, by_kind, checked, of_cheats

PROMPTS = [
    {"key": 1, "prompt": "Write in LOWER case.", "instruction_id_list": ["change_case:english_lowercase"]},
    {
        "key": 2,
        "prompt": "Say cat, and then say dog.",
        "instruction_id_list": ["keywords:existence", "keywords:forbidden_words"],
    },
]
CHECKER = """
def process_results(prompt, answers):
    (answer,) = answers
    rules = {
        "change_case:english_lowercase": answer == answer.lower() != "",
        "keywords:existence": "cat" in answer,
        "keywords:forbidden_words": "dog" not in answer,
    }
    each = [rules[name] for name in prompt["instruction_id_list"]]
    return {f"prompt_level_{kind}_acc": all(each) for kind in ("strict", "loose")} | {
        f"inst_level_{kind}_acc": each for kind in ("strict", "loose")
    }
"""


@pytest.fixture
def checkers(tmp_path, monkeypatch) -> str:
    """An interpreter whose `lm_eval` has three rules."""
    folder = tmp_path / "lm_eval" / "tasks" / "ifeval"
    folder.mkdir(parents=True)
    (folder / "utils.py").write_text(CHECKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return sys.executable


def verdicts_of(answers: list[str], checkers: str) -> list[dict]:
    return checked(PROMPTS, [{"answer": answer} for answer in answers], checkers)


def test_kept_answers_are_not_generated_again_and_those_of_other_settings_are_refused(tmp_path, monkeypatch):
    def generated(prompts, policy, options):
        answered_keys.extend(prompt["key"] for prompt in prompts)
        return [{"key": prompt["key"], "answer": policy} for prompt in prompts]

    monkeypatch.setattr(ifeval, "generated", generated)
    monkeypatch.setattr(ifeval, "resolve", Path)
    monkeypatch.setattr(ifeval, "model_hash", lambda folder: trained[folder.name])
    trained = {"sft": "a", "dpo": "b"}
    answered_keys, short = [], Namespace(max_length=8, precision="32")
    for count in (1, 2):  # the second call generates the second answer alone
        records = ifeval.answered(PROMPTS[:count], "sft", tmp_path / "a.jsonl", short)
    assert answered_keys == [1, 2] and [record["answer"] for record in records] == ["sft", "sft"]
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"key": 3, "ans')  # a killed program's last line
    ifeval.answered(PROMPTS, "sft", tmp_path / "a.jsonl", short)
    assert answered_keys == [1, 2] and len((tmp_path / "a.jsonl").read_text().splitlines()) == 2
    others = [PROMPTS[0] | {"prompt": "Write in UPPER case."}, PROMPTS[1]]
    for policy, hash_, prompts, length in (
        ("dpo", "a", PROMPTS, 8),
        ("sft", "retrained", PROMPTS, 8),
        ("sft", "a", others, 8),
        ("sft", "a", PROMPTS, 9),
    ):
        trained[policy] = hash_
        with pytest.raises(SystemExit, match=r"a\.jsonl has answers of {'policy': 'sft', 'hash': 'a'"):
            ifeval.answered(
                prompts, policy, tmp_path / "a.jsonl", Namespace(max_length=length, precision="32")
            )


@pytest.mark.parametrize(
    ("policies", "message"),
    [("sft", "'sft' is not NAME=POLICY"), ("sft=a sft=b", "sft: several policies have this NAME")],
)
def test_each_policy_has_a_name_of_its_own(monkeypatch, capsys, policies, message):
    words = ["ifeval", "input.jsonl", *policies.split(), "--checkers", "python", "--out", "o"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        ifeval._parsed()
    assert message in capsys.readouterr().err


def test_differences_are_counted_by_kind_of_instruction(checkers):
    verdicts = {
        "before": verdicts_of(["Upper", "cat and dog"], checkers),  # 0; 1, 0
        "after": verdicts_of(["lower", "cat"], checkers),  # 1; 1, 1
    }
    figures = by_kind(PROMPTS, verdicts).figures
    assert {name: figure.value for name, figure in figures["before"].items()} == {
        "change_case (1)": 0.0,
        "keywords (2)": 0.5,
    }
    assert {name: figure.value for name, figure in figures["after"].items()} == {
        "change_case (1)": 1.0,
        "change_case gain": 1.0,
        "keywords (2)": 1.0,
        "keywords gain": 0.5,
    }


def test_cheats_are_judged_by_the_same_checkers(checkers):
    strict = {
        name: figures["prompt_strict"].value for name, figures in of_cheats(PROMPTS, checkers).figures.items()
    }
    assert list(strict) == list(CHEATS)
    # The empty answer has no cat, and no lower-case letter. The lower-case prompt names the forbidden dog.
    assert list(strict.values()) == [0.0, 0.5, 0.0, 0.5]
