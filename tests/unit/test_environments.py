"""Environments: what they ask and reward, by hand; and processes that cost a sample at most."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.config.compose import compose, load, save
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.rollouts.environments.answers import final_answer, is_right, number, same_answer
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.calculator import LARGEST, calculate, shown
from aligner_lib.rollouts.environments.form_rules import FORMS, TOPICS
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.environments.registry import make

ROOT = Path(__file__).parents[2]


def last(messages):
    return messages[-1]["content"]


def write_lines(file, records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


# ---- sums -----------------------------------------------------------------------------------------------------------


def asked(environment, seed):
    return tuple(map(int, re.findall(r"\d+", last(environment.reset(seed)))))


def test_every_one_digit_sum_is_in_one_of_the_splits():
    train, validation = make("sums"), make("sums", "validation")
    seen = [{asked(split, seed) for seed in range(split.size)} for split in (train, validation)]
    assert [len(one) for one in seen] == [train.size, validation.size] == [68, 30]
    assert seen[0] | seen[1] | set(train.examples) == {(a, b) for a in range(10) for b in range(10)}
    assert asked(train, 68) == asked(train, 0)  # seeds go round


@pytest.mark.parametrize("split", ["train", "validation"])
def test_worked_examples_are_right_and_none_is_the_question_or_held_out(split):
    environment, held_out = make("sums", split), make("sums", "validation")
    hidden = {asked(held_out, seed) for seed in range(held_out.size)}
    for seed in range(3 * environment.size):
        *examples, question = environment.reset(seed)
        assert [turn["role"] for turn in examples] == ["user", "assistant"] * 2
        for example, answer in zip(examples[::2], examples[1::2]):
            a, b = map(int, re.findall(r"\d+", example["content"]))
            assert int(answer["content"]) == a + b
            assert (a, b) not in hidden and example != question


def test_all_prompts_share_their_examples():
    assert make("sums").reset(5) == make("sums").reset(5)
    assert make("sums").reset(5)[:-1] == make("sums", "validation").reset(7)[:-1]


@pytest.mark.parametrize(
    ("response", "reward"),
    [("7", 1), (" 7\n", 1), ("7.", 1), ("7..", 0), ("07", 0), ("+7", 0), ("7!", 0), ("3 + 4 = 7", 0), ("8", 0), ("", 0)],
)  # fmt: skip
def test_the_result_as_the_examples_write_it_is_right_and_nothing_else(response, reward):
    environment = make(
        "sums", low=3, high=4, examples=0, held_out=0.25
    )  # of 3 + 4 and 4 + 3 one is here at least
    environment.reset(next(seed for seed in range(3) if sum(asked(environment, seed)) == 7))
    assert environment.step(response) == Step(reward, metrics={"exact": reward})


def test_a_prompt_may_be_worded_otherwise():
    words = {"question": "{a}+{b}=", "answer": "<{sum}>", "instruction": "Add.", "as_turns": False}
    system, user = make("sums", low=10, high=19, **words).reset(0)
    assert system == {"role": "system", "content": "Add."}
    *examples, question = user["content"].split("\n")
    assert [bool(re.fullmatch(r"\d\d\+\d\d= <\d\d>", line)) for line in examples] == [True, True]
    assert re.fullmatch(r"1\d\+1\d=", question)


# ---- rules of form --------------------------------------------------------------------------------------------------

OBEYS = {
    "one_sentence": (["Bread is old.", "It costs 3.50 a loaf!", 'He said "yes."'], ["Bread is old", "Old. Good.", "", "."]),
    "two_sentences": (["Old. And good!", 'It is "old." So I say.'], ["Old.", "One. Two. Three.", "Old. Good"]),
    "under_ten_words": (["Old.", "1 2 3 4 5 6 7 8 9"], ["1 2 3 4 5 6 7 8 9 10", "", "- - -"]),
    "thirty_words": (["word " * 30], ["word " * 29, "word " * 29 + "-"]),
    "question": (["Old. Is it?", "Is it? \n"], ["Is it? Yes.", "?", ""]),
    "begins_with_sure": (["Sure, it is old.", "sure"], ["Surely it is.", "I am sure."]),
    "begins_with_well": (["Well, it is old."], ["Wellness.", "It is well."]),
    "three_dashes": (["- a\n- b\n- c", "Here:\n- a\n– b\n— c\n"], ["- a\n- b", "- a\n- b\n- c\n- d", "-\n-\n-", "a - b - c"]),
    "because": (["Because it is.", "It is, because."], ["becauses", "It is."]),
    "number": (["I have 7."], ["I have seven."]),
    "exclamation": (["Old!"], ["Old! Or not.", "!"]),
    "lower_case": (["it is old."], ["It is old.", "7", ""]),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_what_its_words_say(form):
    right, wrong = OBEYS[form]
    assert [FORMS[form].holds(text) for text in right] == [True] * len(right)
    assert [FORMS[form].holds(text) for text in wrong] == [False] * len(wrong)


@given(st.lists(st.lists(st.from_regex("[a-z]{1,8}", fullmatch=True), min_size=1), min_size=1, max_size=4))
def test_sentences_are_counted_however_long_they_are(sentences):
    text = " ".join(" ".join(words) + "." for words in sentences)
    assert FORMS["one_sentence"].holds(text) == (len(sentences) == 1)
    assert FORMS["two_sentences"].holds(text) == (len(sentences) == 2)


def test_every_form_comes_with_every_topic_and_validation_has_topics_of_its_own():
    seen = {}
    for split in ("train", "validation"):
        environment = make("form_rules", split)
        prompts = [last(environment.reset(seed)) for seed in range(environment.size)]
        assert environment.size == len(FORMS) * len(environment.topics) == len(set(prompts))
        for topic in environment.topics:
            assert sum(prompt.partition(".")[0].endswith(f" {topic}") for prompt in prompts) == len(FORMS)
        seen[split] = set(environment.topics)
    assert seen["train"] | seen["validation"] == set(TOPICS) and not seen["train"] & seen["validation"]
    assert len(TOPICS) >= 40


def test_a_response_is_judged_by_the_form_that_was_asked_for():
    environment = make("form_rules", forms=["number", "because"])
    assert "number" in last(environment.reset(0)) or "figure" in last(environment.reset(0))
    assert environment.step("It has 7 of them.") == Step(1, metrics={"form/number": 1, "words": 5})
    assert "because" in last(environment.reset(1))
    assert environment.step("It has 7 of them.") == Step(0, metrics={"form/because": 0, "words": 5})


# ---- several turns --------------------------------------------------------------------------------------------------


def test_a_calculator_answers_a_call_and_the_last_number_is_the_answer():
    environment = make("calculator", operations="*", digits=1)
    a, b = map(int, re.findall(r"\d+", last(environment.reset(0))))
    call = environment.step(f"Let me see: <calc>{a} * {b}</calc> that is 99")
    assert call == Step(done=False, observation=str(a * b))
    assert environment.step(f"{a} times {b} is {a * b}.") == Step(1, metrics={"right": 1, "calls": 1})
    environment.reset(0)
    assert environment.step("<calc>1 / 0</calc>").observation == "error: division by zero"
    assert environment.step(f"{a * b + 1}").reward == 0


def test_an_episode_that_only_calls_ends_without_a_reward():
    environment = make("calculator", turns=2)
    environment.reset(0)
    assert not environment.step("<calc>1</calc>").done
    assert environment.step("<calc>1</calc>") == Step(0, metrics={"right": 0, "calls": 2})


@pytest.mark.parametrize(
    ("expression", "value"),
    [("12*34", "408"), (" 2 + 3 * 4 ", "14"), ("(2 + 3) * -4", "-20"), ("7 / 2", "3.5"), ("1/3", "0.3333333333"),
     ("7 // 2", "3"), ("7 % 4", "3"), ("2 ** 10", "1024"), ("6 / 3", "2")],
)  # fmt: skip
def test_expressions_have_their_values(expression, value):
    assert shown(calculate(expression)) == value


@pytest.mark.parametrize(
    "expression",
    ["", "a", "__import__('os').system('ls')", "9**9**9**9", "10 ** 20", "1e400", "(-1) ** 0.5", "1 if 1 else 2", "True",
     "1," * 60, "(" * 90, "'1' * 9", "[1][0]", "1 << 60", "0 ** -1", "2 ** 64.5"],
)  # fmt: skip
def test_what_is_no_small_sum_is_refused(expression):
    with pytest.raises(ValueError):
        calculate(expression)


@given(st.text(alphabet="0123456789+-*/%(). e_aj'\n\0", max_size=120))
def test_any_text_is_a_bounded_number_or_refused(text):
    with suppress(ValueError):
        assert abs(calculate(text)) <= LARGEST


def test_a_number_is_found_by_going_higher_and_lower():
    environment = make("guess_the_number", low=1, high=3, turns=4)
    seed = next(seed for seed in range(environment.size) if environment.numbers[seed] in (1, 3))
    number = environment.numbers[seed]
    environment.reset(seed)
    assert environment.step("Is it 2?").observation == (
        f"My number is {'higher' if number == 3 else 'lower'} than 2."
    )
    assert environment.step("I give up").observation == "That is no number. Answer with a number."
    assert environment.step(f"{number}") == Step(1 - 2 / 4, metrics={"found": 1, "guesses": 3})
    environment.reset(seed)
    ends = [environment.step("2") for _ in range(4)]
    assert [one.done for one in ends] == [False] * 3 + [True]
    assert ends[-1] == Step(0, metrics={"found": 0, "guesses": 4})


@pytest.mark.parametrize("use", ["guess_the_number", "calculator"])
def test_what_is_held_out_is_in_one_split_alone(use):
    seen = [
        {str(environment.reset(seed)[-1:]) if use == "calculator" else environment.numbers[seed]
         for seed in range(environment.size)}
        for environment in (make(use), make(use, "validation"))
    ]  # fmt: skip
    assert seen[0] and seen[1] and not seen[0] & seen[1]


# ---- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{4} and \boxed{5", "4"),
        ("48 / 2 = 24\n#### 72\n", "72"),
        ("3 of 4. The answer is 12.", "12"),
        ("First 3, then 1,000 apples.", "1,000"),
        (" Paris\n", "Paris"),
        ("", ""),
    ],
)
def test_a_final_answer_is_found(text, answer):
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("42", "42.0", True), ("1,000", "$1000", True), ("1/2", "0.5", True), (r"\frac{1}{2}", "0.50", True),
        (r"-\frac{3}{4}", "-0.75", True), ("50%", r"50\%", True), ("+7", "7.", True), (" x + 1 ", "x+1", True),
        ("Paris", "paris.", True), ("42", "-42", False), ("0.33", "1/3", False), ("1/0", "0", False), ("", "", False),
        ("7 apples", "7", False), ("€1,000", "1000", True), ("3 1/2", "3.5", True), ("4 2", "42", False), ("−7", "-7", True),
        ("2e3", "2000", True), ("2*3", "23", False), ("**42**", "42", True),
    ],
)  # fmt: skip
def test_answers_are_compared_as_numbers_and_else_as_texts(one, other, same):
    assert same_answer(one, other) is same


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("**42**", "42"), ("The answer is 42 apples.", "42"), ("#### 42", "42"), ("#### **42**", "42"), ("#### Answer\n42", "42"),
        ("The final answer is:\n\n**42** apples", "42"), ("The answer is 42. I am sure, 3 times.", "42"),
        ("answer is 6 x 7 = 42", "42"), (r"\boxed{42\text{ apples}}", "42"), (r"\boxed{x = 42}", "42"), ("x=-42", "-42"),
        ("It cost -$1,234.50.", "-1234.5"), ("€42", "42"), ("between 41-42", "42"), ("It is −42", "-42"), ("about 3/4.", "3/4"),
        ("3 1/2 cups", "3.5"), (r"It's \frac{1}{2}.", "0.5"), ("1,2,3", "3"), ("It is .5", "1/2"), ("So x^2 = 4 and 42", "42"),
        ("1,00,000 rupees", "100000"), ("#### Paris.", "Paris"), ("The answer is **Paris**", "Paris"),
    ],
)  # fmt: skip
def test_a_right_number_is_right_whatever_surrounds_it(response, answer):
    assert is_right(response, answer)


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("42, no: 43", "42"), (r"\boxed{43} not 42", "42"), ("#### 4 2 1", "42"),
        (r"\boxed{x+42}", "42"), (r"\boxed{\frac{\sqrt{3}}{42}}", "42"), (r"The answer is $\frac{\sqrt{3}}{42}$", "42"),
        ("42.5", "42"), ("142", "42"), ("-42", "42"), ("London, of 42 towns", "Paris"), ("", "42"), ("none", "42"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_wrong_whatever_surrounds_it(response, answer):
    assert not is_right(response, answer)


@given(st.fractions(max_denominator=10**6))
def test_a_fraction_is_read_exactly(value):
    assert number(f"{value.numerator}/{value.denominator}") == value
    sign = "-" if value < 0 else ""
    assert number(rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}") == value
    assert number("9" * 41) is None and number("9" * 40) == Fraction("9" * 40)


@given(st.text(alphabet="0123456789\\boxedfrac{}$,.#%/ answeri\n", max_size=80))
def test_any_text_has_an_answer_that_is_the_same_as_itself_or_empty(text):
    answer = final_answer(text)
    assert same_answer(answer, answer) or not re.sub(r"[\s$.]|\\", "", answer)


def test_open_math_instructs_fields_and_gsm8ks(tmp_path):
    records = [
        {"problem": "1 + 1?", "expected_answer": 2, "generated_solution": r"It is \boxed{2}."},
        {"question": "Half of 144?", "answer": "144 / 2 = <<144/2=72>>72\n#### 72"},
    ]
    file = write_lines(tmp_path / "pairs.jsonl", records)
    environment = make("answers", prompts={"train": file, "validation": file}, instruction="Box it.")
    for seed, (question, answer) in enumerate([("1 + 1?", "2"), ("Half of 144?", "72")]):
        assert last(environment.reset(seed)) == f"{question}\n\nBox it."
        assert environment.step(rf"I say \boxed{{{answer}}}") == Step(1, metrics={"right": 1, "marked": 1})
        assert environment.step("I say 3") == Step(0, metrics={"right": 0, "marked": 0})


# ---- prompts from files ---------------------------------------------------------------------------------------------


def test_a_file_of_prompts_is_split_always_in_the_same_way(tmp_path):
    file = write_lines(tmp_path / "p.jsonl", [{"prompt": f"number {i}"} for i in range(10)])
    seen = []
    for split in ("train", "validation"):
        environment = make("reward_model", split, prompts=file)
        seen.append([last(environment.reset(seed)) for seed in range(environment.size)])
    assert [len(one) for one in seen] == [8, 2] and len({*seen[0], *seen[1]}) == 10
    assert make("reward_model", prompts=file).reset(3) == [{"role": "user", "content": seen[0][3]}]


def test_equal_prompts_are_on_one_side(tmp_path):
    file = write_lines(tmp_path / "p.jsonl", [{"prompt": f"number {i % 5}", "answer": i} for i in range(20)])
    sides = [make("reward_model", split, prompts=file, held_out=0.4) for split in ("train", "validation")]
    assert [side.size for side in sides] == [12, 8]
    seen = [{last(side.reset(seed)) for seed in range(side.size)} for side in sides]
    assert not seen[0] & seen[1]


def test_a_prompt_is_a_users_turn_messages_are_taken_as_they_are_and_so_is_a_text(tmp_path):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi\u2028there"}]
    file = write_lines(
        tmp_path / "p.jsonl", [{"prompt": "Hi"}, {"messages": messages}, {"text": "User: Hi\n\nAssistant:"}]
    )
    environment = make("reward_model", prompts={"train": file, "validation": file})
    assert [environment.reset(seed) for seed in range(3)] == [
        [{"role": "user", "content": "Hi"}],
        messages,
        "User: Hi\n\nAssistant:",
    ]
    assert environment.step("Hello.") == Step(0.0)  # the reward model's is not known here


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "Hi", "text": "Hi"}', "prompt and text"),
        ('{"question": "Hi"}', "none of prompt, messages, text"),
        ('{"prompt": 3}', "prompt is not a text"),
        ('{"messages": [{"role": "user"}]}', "list of {role, content}"),
        ("[1]", "not a JSON object"),
        ('{"prompt": "Hi"', "delimiter"),
    ],
)
def test_a_line_that_is_no_prompt_is_told_with_its_place(tmp_path, line, words):
    file = tmp_path / "p.jsonl"
    file.write_text(f'{{"prompt": "Hi"}}\n\n{line}\n')
    with pytest.raises(UserError, match=re.escape(f"{file}:3 can't be used: ") + ".*" + re.escape(words)):
        make("reward_model", prompts=str(file))


# ---- a file of the user's -------------------------------------------------------------------------------------------

PROMPTS = [{"prompt": f"number {i}", "target": i} for i in range(10)]


@pytest.fixture
def own(tmp_path):
    """A user's file as an environment in this process."""

    def environment(code, name="", split="train", **args):
        (tmp_path / "mine.py").write_text(code)
        if "class" not in code:
            args = {"prompts": write_lines(tmp_path / "p.jsonl", PROMPTS), **args}
        return make(f"{tmp_path / 'mine.py'}{name}", split, **args)

    return environment


def test_one_function_is_an_environment(own):
    environment = own(
        "def length(prompt, response, target, **fields):\n    return prompt, response, target, fields"
    )
    [message] = environment.reset(2)
    target = int(message["content"].split()[1])
    assert environment.step("yes").reward == (f"number {target}", "yes", target, {})


def test_a_function_gets_the_fields_that_it_names(own):
    environment = own("def reward(prompt, response): return float(len(response))")
    environment.reset(0)
    assert environment.step("four") == Step(4.0)


def test_a_record_may_not_bring_a_response_of_its_own(own, tmp_path):
    file = write_lines(
        tmp_path / "q.jsonl", [{"prompt": "a", "response": "b"}, {"prompt": "c", "response": "d"}]
    )
    with pytest.raises(UserError, match="key 'response', which is the policy's; rename it"):
        own("def reward(prompt, response, **_): return 1.0", prompts=file)


def test_a_dict_has_the_reward_and_metrics(own):
    environment = own("def reward(prompt, response, **_): return {'reward': 0.5, 'length': len(response)}")
    environment.reset(0)
    assert environment.step("four") == Step(0.5, metrics={"length": 4})


def test_a_class_is_an_environment_with_helpers_beside_it(own):
    code = """
from aligner_lib.rollouts.environments.base import Environment, Step

def helper(text):
    return text.upper()

class Echo(Environment):
    size, max_turns = 3, 2

    def __init__(self, split="train", *, word="a"):
        super().__init__(split)
        self.word = word

    def reset(self, seed):
        return helper(self.word) + str(seed)

    def step(self, response):
        return Step(1.0)
"""
    assert own(code, word="b").reset(2) == "B2"
    with pytest.raises(UserError, match=r"there is no args\.wrod; the environment takes word"):
        own(code, wrod="b")


def test_of_several_functions_one_is_named(own):
    code = "def a(prompt, response, **_): return 1.0\ndef b(prompt, response, **_): return 2.0\n"
    environment = own(code, ":b")
    environment.reset(0)
    assert environment.step("") == Step(2.0)
    with pytest.raises(
        UserError,
        match=r"mine\.py has 2 functions or classes: a, b\. Name one of them `reward`, or choose one: use=mine\.py:a",
    ):
        own(code)
    with pytest.raises(UserError, match=r"mine\.py has no c; it has a, b"):
        own(code, ":c")
    environment = own(f"{code}def reward(prompt, response, **_): return 3.0")
    environment.reset(0)
    assert environment.step("") == Step(3.0)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", "has no function; write one, for example\n    def reward(prompt, response"),
        ("import math\nfrom os.path import join", "has no function"),  # another's function is not the file's
        ("def reward(prompt, response:\n    pass", 'mine.py", line 1\n    def reward(prompt, response:'),
        ("y = 1\nx = nothing", 'mine.py", line 2, in <module>\n    x = nothing\n'),
        (
            "def reward(response): return 1.0",
            "reward(response) can't be called with prompt, response, target",
        ),
        ("def reward(prompt, response, length): return 1.0", "missing a required argument: 'length'"),
    ],
)
def test_a_file_that_is_no_environment_is_told_what_to_write(own, code, words):
    with pytest.raises(UserError) as error:
        own(code)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("use", "args", "words"),
    [
        ("sum", {}, "use='sum' is unknown; use one of sums, form_rules"),
        ("nowhere.py", {}, "nowhere.py can't be read"),
        ("sums", {"digit": 2}, "there is no args.digit; the environment takes digits, low"),
        ("sums", {"digits": 0}, "digits=0: it must be at least 1"),
        ("sums", {"digits": "two"}, "can't be built with args={'digits': 'two'}"),
        ("sums", {"digits": 4}, "more than 1,000,000"),
        ("sums", {"low": 5, "high": 5}, "there are 1 different episodes"),
        ("sums", {"examples": 70}, "it must be 0 to 69"),
        ("sums", {"held_out": 1}, "held_out=1: it must be above 0 and below 1"),
        ("sums", {"question": "{a}"}, "it must contain {b}"),
        ("form_rules", {"forms": ["haiku"]}, "there is no haiku; there are one_sentence"),
        ("calculator", {"operations": "^"}, "some of + - *"),
        ("guess_the_number", {"low": 3, "high": 3}, "low=3 is not below high=3"),
        ("answers", {}, "args.prompts is needed"),
        ("answers", {"prompts": "nowhere.jsonl"}, "nowhere.jsonl can't be read"),
        ("answers", {"prompts": {"train": "a.jsonl"}}, "{train: FILE, validation: FILE}"),
    ],
)
def test_what_makes_no_sense_is_told_with_value_and_cure(use, args, words):
    with pytest.raises(UserError) as error:
        make(use, **args)
    assert words in str(error.value)


@pytest.mark.parametrize("name", ["reasoning_gym", "verifiers"])
def test_an_optional_package_that_is_missing_is_told_with_the_command(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"pip install (-U )?{name.replace('_', '-')}"):
        make(name, **{"reasoning_gym": {"task": "chain_sum"}, "verifiers": {"taskset": "a"}}[name])


def test_a_task_of_reasoning_gym_has_its_own_scorer():
    pytest.importorskip("reasoning_gym")
    environment, held_out = (
        make("reasoning_gym", split, task="chain_sum", size=30) for split in ("train", "validation")
    )
    questions = [
        {one.entry["question"] for seed in range(one.size) if one.reset(seed)}
        for one in (environment, held_out)
    ]
    assert not questions[0] & questions[1]
    asked = last(environment.reset(0)).rpartition(":")[2].strip(" =?").replace(" ", "")
    assert environment.step(f"Well, <answer>{calculate(asked)}</answer>").reward == 1
    assert environment.step("<answer>a lot</answer>").reward == 0


def test_prompts_that_are_drawn_again_are_the_same(here):
    """As after an interruption, when a run does the steps since its last checkpoint again."""
    from aligner_lib.rollouts.tasks import EnvironmentTasks

    train = SimpleNamespace(
        sizes=lambda: {"few": 3, "many": None}, reset=lambda episodes: ["x"] * len(episodes)
    )
    tokenizer = SimpleNamespace(encode=lambda text: [1], decode=lambda ids, **_: "x", template=None)
    tasks = EnvironmentTasks({"train": train}, {"few": 1, "many": 2}, frozenset(), tokenizer, 8, seed=1)
    drawn = [tasks.train(draw, 4) for draw in range(3)]
    assert [len(draw) for draw in drawn] == [4, 4, 4]
    assert [tasks.train(draw, 4) for draw in range(3)] == drawn


def test_instructions_are_judged_and_a_reward_models_prompts_are_told(tmp_path):
    texts = [
        "User: Why do cats purr? Write two sentences.\n\nAssistant:",
        "User: Hi. End with a question.\n\nAssistant:",
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    prompts = {"train": str(file), "validation": str(file)}
    for use, rewards in (("instructions", (1.0, 0.0)), ("reward_model", (0.0, 0.0))):
        environment = make(use, prompts=prompts)
        assert environment.reset(0) == texts[0]
        assert environment.step("Cats purr. Dogs bark.") == Step(
            rewards[0], metrics={"obeys": 1.0, "form/sentences": 1.0, "words": 4.0}
        )
        environment.reset(1)
        assert environment.step("Hello.") == Step(
            rewards[1], metrics={"obeys": 0.0, "form/question": 0.0, "words": 1.0}
        )
    file.write_text(json.dumps({"text": "User: Hi.\n\nAssistant:"}))
    with pytest.raises(UserError, match=r"this prompt has no instruction of data/forms\.py: 'User: Hi"):
        make("instructions", prompts=prompts)
    environment = make("reward_model", prompts=prompts)
    environment.reset(0)
    assert environment.step("Hello.") == Step()


def test_a_text_is_written_by_the_template_that_was_chosen(smoke):
    """Else a policy that has learnt turns of the template would be asked in another way than it was trained."""
    from aligner_lib.datasets.chat_template import OWN, PLAIN, encode, use_template
    from aligner_lib.datasets.tokenizer import Tokenizer
    from aligner_lib.rollouts.tasks import EnvironmentTasks

    text = "User: Hi.\n\nAssistant:"
    one = SimpleNamespace(sizes=lambda: {"a": 1}, reset=lambda episodes: [text] * len(episodes))
    for template, wanted in ((PLAIN, text), (OWN, [{"role": "user", "content": "Hi."}])):
        tokenizer = use_template(Tokenizer(smoke), template)
        (task,) = EnvironmentTasks({"train": one}, {"a": 1}, frozenset(), tokenizer, 99, seed=1).train(0, 1)
        assert task.conversation == wanted and list(task.tokens) == list(encode(tokenizer, wanted))


def test_the_files_on_the_page_about_environments_work(tmp_path, monkeypatch):
    blocks = re.findall(
        r"```(python|jsonl)\n(.*?)```", (ROOT / "docs/environments.md").read_text(), re.DOTALL
    )
    function, prompts, subclass = [text for _, text in blocks]
    monkeypatch.chdir(tmp_path)
    Path("shorter.py").write_text(function)
    Path("prompts.jsonl").write_text(prompts)
    environment = make("shorter.py", prompts={"train": "prompts.jsonl", "validation": "prompts.jsonl"})
    assert last(environment.reset(1)) == "What is bread?"
    assert environment.step("flour " * 8) == Step(1, metrics={"words": 8})
    Path("echo.py").write_text(subclass)
    environment = make("echo.py", word="b")
    assert last(environment.reset(2)) == "Write bbb."
    assert environment.step("a").observation == "Once more, please."
    assert environment.step("bbb") == Step(1, metrics={"words": 1})


# ---- processes ------------------------------------------------------------------------------------------------------

MISBEHAVES = """
import os, random, signal, sys, time
from pathlib import Path

HERE = Path(__file__).parent

def reward(prompt, response, target, **fields):
    if response == "hang":
        time.sleep(600)
    if response == "spin":
        while True: pass
    if response == "die":
        os._exit(3)
    if response == "nan":
        return float("nan")
    if response == "metric":
        return {"reward": 1.0, "length": float("inf")}
    if response == "nothing":
        return None
    if response == "raise":
        raise ValueError("too short")
    if response == "exit":
        sys.exit(0)
    if response == "warned":
        os.kill(os.getpid(), signal.SIGTERM)
    if response == "draw":
        return random.random()
    if response == "torch":
        return float("torch" in sys.modules)
    if response == "pid":
        return os.getpid()
    if response == "together":
        mark = HERE / "under_way" / str(os.getpid())
        mark.touch()
        end = time.monotonic() + 0.5
        while (count := len(list(mark.parent.iterdir()))) < 2 and time.monotonic() < end:
            pass
        mark.unlink()
        return count
    return float(target)
"""
TIMEOUT = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    (folder / "mine.py").write_text(MISBEHAVES)
    (folder / "under_way").mkdir()
    write_lines(folder / "p.jsonl", PROMPTS)
    return folder


def settings(folder, **changes):
    args = {"prompts": {split: str(folder / "p.jsonl") for split in ("train", "validation")}}
    return EnvironmentSettings(
        **{"use": str(folder / "mine.py"), "timeout": TIMEOUT, "args": args, **changes}
    )


@pytest.fixture(scope="module")
def pool(folder):
    with Environments(
        {"mine": settings(folder), "guess": EnvironmentSettings("guess_the_number")}, "train"
    ) as pool:
        yield pool


def rewards(pool, *responses):
    """Of episodes 0, 1, …, each with one response."""
    return pool.step([Episode("mine", seed, (response,)) for seed, response in enumerate(responses)])


def test_episodes_are_answered_in_their_order_each_by_its_environment(pool):
    assert pool.names == ["mine", "guess"]
    assert pool.sizes() == {"mine": 10, "guess": 14} and pool.max_turns() == {"mine": 1, "guess": 6}
    prompts = pool.reset([Episode("guess", 0), Episode("mine", 4), Episode("mine", 12)])
    assert [last(prompt)[:8] for prompt in prompts] == ["I have a", "number 4", "number 2"]
    assert rewards(pool, *"abc") == [Step(0.0), Step(1.0), Step(2.0)]


@pytest.mark.parametrize(
    ("response", "reason", "words"),
    [
        ("raise", "raised", 'mine.py", line 21, in reward\n    raise ValueError("too short")\n'),
        ("exit", "raised", "SystemExit: 0"),
        ("nan", "not_finite", "the reward is nan"),
        ("metric", "not_finite", "length is inf"),
        ("nothing", "not_finite", "the reward is None, which is not a number"),
        ("die", "died", "its process ended with exit code 3"),
        ("hang", "timeout", 'no answer within 2 s; it was here, the innermost call first:\n  File "'),
        ("spin", "timeout", 'mine.py", line 11 in reward'),
    ],
)
def test_one_that_misbehaves_costs_its_sample_and_no_other(pool, response, reason, words):
    before, failure, *after = rewards(pool, "a", response, "c", "d", "e")
    assert isinstance(failure, EnvironmentFailure)
    assert (failure.environment, failure.seed, failure.reason) == ("mine", 1, reason)
    assert words in failure.text and "worker.py" not in failure.text
    assert [before, *after] == [Step(0.0), Step(2.0), Step(3.0), Step(4.0)]


def test_all_processes_may_hang_at_once_and_the_rest_is_answered(pool):
    *hung, last, other = rewards(pool, "hang", "hang", "c", "d")
    assert [one.reason for one in hung] == ["timeout", "timeout"]
    assert [last, other] == [Step(2.0), Step(3.0)]


def test_processes_that_are_killed_while_they_wait_are_replaced(pool):
    for pid in {int(one.reward) for one in rewards(pool, *["pid"] * 8)}:
        os.kill(pid, signal.SIGKILL)
    assert rewards(pool, *"abc") == [Step(0.0), Step(1.0), Step(2.0)]


def test_no_more_requests_are_under_way_than_there_are_processes(pool):
    end, most = time.monotonic() + 60, 1  # the second process may have to start first
    while most < 2 and time.monotonic() < end:
        most = max(one.reward for one in rewards(pool, *["together"] * 6))
    assert most == 2


def test_a_workers_process_has_no_torch_and_leaves_a_schedulers_warning_to_the_job(pool):
    import torch

    assert torch.__version__  # it is loaded here
    assert rewards(pool, "torch", "warned") == [Step(0.0), Step(1.0)]


def test_what_is_drawn_depends_on_the_episode_alone(pool):
    draws = [rewards(pool, *["draw"] * 6) for _ in range(2)]
    assert draws[0] == draws[1] and len({one.reward for one in draws[0]}) == 6


def test_an_episode_is_replayed_from_its_seed_and_the_responses(pool):
    """Any process says what one alone says that sees all of an episode."""
    alone, guesses = make("guess_the_number"), ["10", "what?", "15", "3", "7", "20"]
    for seed in range(4):
        alone.reset(seed)
        for turn, guess in enumerate(guesses, 1):
            expected = alone.step(guess)
            [answer] = pool.step([Episode("guess", seed, tuple(guesses[:turn]))])
            assert answer == expected
            if expected.done:
                break


def test_an_episode_that_is_over_takes_no_response(pool):
    [failure] = pool.step([Episode("mine", 0, ("a", "b"))])
    assert failure.reason == "raised" and "done after 1 of its 2 responses" in failure.text


def test_a_run_goes_on_with_the_file_that_it_began_with(folder, tmp_path):
    file = tmp_path / "edited.py"
    file.write_text(
        "import os\ndef reward(prompt, response, **_):\n    return os._exit(1) if response == 'die' else 1.0"
    )
    with Environments({"mine": settings(folder, use=str(file), processes=1)}, "train") as pool:
        file.write_text("def reward(prompt, response, **_): return 2.0")
        first, second = rewards(pool, "die", "a")  # the second is another process's
    assert first.reason == "died" and second == Step(1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use": "sum"}, "model.environments.mine: use='sum' is unknown; use one of sums"),
        ({"use": "sums", "args": {"digits": 0}}, "model.environments.mine: digits=0: it must be at least 1"),
        ({"use": "", "args": {}}, "model.environments.mine: use='mine' is unknown; use one of sums"),
    ],
)
def test_a_wrong_environment_is_told_when_a_run_begins(folder, changes, words):
    with pytest.raises(UserError, match=re.escape(words)):
        Environments({"mine": settings(folder, **changes)}, "train")


def test_a_process_that_hangs_ends_when_its_job_was_killed(folder):
    """It ends at its own bound: nobody is left to stop it."""
    script = f"""
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.rollouts.environments.pool import Environments, Episode

if __name__ == "__main__":
    pool = Environments({{"mine": {settings(folder, processes=1)!r}}}, "train")
    print(int(pool.step([Episode("mine", 0, ("pid",))])[0].reward), flush=True)
    pool.step([Episode("mine", 0, ("hang",))])
"""
    (folder / "job.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, folder / "job.py"], stdout=subprocess.PIPE, env=environment
    ) as job:
        worker = int(job.stdout.readline())
        job.kill()
    end = time.monotonic() + 30
    while runs(worker) and time.monotonic() < end:
        time.sleep(0.05)
    assert not runs(worker)


def runs(pid):
    """Whether a process is there and no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


# ---- settings -------------------------------------------------------------------------------------------------------

KIND = """
from dataclasses import dataclass, field
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.config.kind import JobKind
from aligner_lib.config.schema import ExpManager, Model, Trainer, setting

@dataclass
class OwnModel(Model):
    environments: dict[str, EnvironmentSettings] = field(default_factory=lambda: {"sums": EnvironmentSettings()})

@dataclass
class OwnConfig:
    trainer: Trainer = field(default_factory=Trainer)
    model: OwnModel = field(default_factory=OwnModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)

KIND = JobKind(name="own", command="own", summary="", schema=OwnConfig, build="nowhere:nothing")
"""


@pytest.fixture
def environments(tmp_path, monkeypatch):
    """model.environments of a kind of job with one, composed from overrides."""
    (tmp_path / "kind_with_environments.py").write_text(KIND)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("ALIGNER_KINDS", "kind_with_environments")
    return lambda *overrides: save(compose("own", overrides))["model"]["environments"]


def test_a_dotted_key_changes_one_environment_or_adds_one(environments):
    changed = environments(
        "model.environments.sums.args.digits=2", "model.environments.mine.use=a/file.py:name"
    )
    assert changed["sums"]["args"] == {"digits": 2}
    nested = environments(
        "model.environments.sums.args.config.size=2", "model.environments.sums.args.config.low=1"
    )
    assert nested["sums"]["args"] == {"config": {"size": 2, "low": 1}}
    assert changed["mine"] == {
        "use": "a/file.py:name",
        "weight": 1.0,
        "timeout": 10.0,
        "processes": 2,
        "args": {},
    }


def test_a_dict_is_all_there_are(environments):
    given = environments(
        "model.environments={mine: {use: sums, weight: 2, args: {prompts: {train: a}}}, calculator: {}}"
    )
    assert list(given) == ["mine", "calculator"]
    assert (given["mine"]["weight"], given["mine"]["args"]) == (2.0, {"prompts": {"train": "a"}})
    assert list(environments("model.environments={}")) == []


def test_settings_of_environments_are_kept_with_the_run(environments):
    config = compose("own", ["model.environments={mine: {use: sums, args: {digits: 2}}}"])
    assert load("own", save(config)) == config


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.environments.sums.wieght=2", "did you mean model.environments.sums.weight?"),
        ("model.environments={mine: {wieght: 2}}", "did you mean model.environments.mine.weight?"),
        ("model.environments.sums.weight=-1", "model.environments.sums.weight=-1.0: it must be at least 0"),
        (
            "model.environments={mine: {processes: 0}}",
            "model.environments.mine.processes=0: it must be at least 1",
        ),
        ("model.environments.sums.timeout=long", "model.environments.sums.timeout takes float"),
        ("model.environments.sums=3", "model.environments.sums is a group of settings (use, weight"),
        ("model.environments=3", "model.environments takes dict[str, EnvironmentSettings]"),
        ("model.environments.sums.args=3", "model.environments.sums.args takes dict[str, Any]"),
    ],
)
def test_a_wrong_setting_of_an_environment_is_refused_as_any_other(environments, override, words):
    with pytest.raises(ConfigError) as error:
        environments(override)
    assert words in str(error.value)
