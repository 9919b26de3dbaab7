"""Environments: what they ask and reward, by hand; and processes that cost a sample at most."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from forks import until
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.config.compose import compose, load, save
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.errors import ConfigError, UserError
from aligner_lib.rollouts.environments.answers import final_answer, is_right, number, same_answer
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.calculator import LARGEST, calculate, shown
from aligner_lib.rollouts.environments.form_rules import ASKED, FORMS, TOPICS
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.environments.registry import make
from data.forms import instruction_in, without_instruction
from data.gold import topic_of

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
    splits = [make("sums"), make("sums", "validation")]
    train, validation = ({asked(split, seed) for seed in range(split.size)} for split in splits)
    assert (len(train), len(validation)) == tuple(split.size for split in splits) == (68, 30)
    assert train | validation | set(splits[0].examples) == {(a, b) for a in range(10) for b in range(10)}
    assert asked(splits[0], 68) == asked(splits[0], 0)  # seeds go round


@pytest.mark.parametrize("split", ["train", "validation"])
def test_worked_examples_are_right_and_none_is_the_question_or_held_out(split):
    environment, held_out = make("sums", split), make("sums", "validation")
    hidden = {asked(held_out, seed) for seed in range(held_out.size)}
    for seed in range(environment.size):
        *examples, question = environment.reset(seed)
        assert [turn["role"] for turn in examples] == ["user", "assistant"] * 2
        assert examples == make("sums").reset(5)[:-1], "all prompts share their examples"
        for example, answer in zip(examples[::2], examples[1::2]):
            a, b = map(int, re.findall(r"\d+", example["content"]))
            assert int(answer["content"]) == a + b
            assert (a, b) not in hidden and example != question


@pytest.mark.parametrize(
    ("responses", "reward"), [(["7", " 7\n", "7."], 1), (["7..", "07", "+7", "7!", "3 + 4 = 7", "8", ""], 0)]
)
def test_the_result_as_the_examples_write_it_is_right_and_nothing_else(responses, reward):
    environment = make("sums", low=3, high=4, examples=0, held_out=0.25)  # 3 + 4 or 4 + 3 is here
    environment.reset(next(seed for seed in range(3) if sum(asked(environment, seed)) == 7))
    for response in responses:
        assert environment.step(response) == Step(reward, metrics={"exact": reward}), response


def test_a_prompt_may_be_worded_otherwise():
    words = {"question": "{a}+{b}=", "answer": "<{sum}>", "instruction": "Add.", "as_turns": False}
    system, user = make("sums", low=10, high=19, **words).reset(0)
    assert system == {"role": "system", "content": "Add."}
    assert re.fullmatch(r"(1\d\+1\d= <\d\d>\n){2}1\d\+1\d=", user["content"])


# ---- rules of form --------------------------------------------------------------------------------------------------

ABOUT_HONEY = {
    "first_word": "Well, honey is made by bees.",
    "includes": "Honey is sweet, like the apples of autumn.",
    "last_words": "Honey is made by bees. Good question.",
    "postscript_word": "Honey is made by bees. P.S. I like apples.",
    "this_number": "A jar of honey has 7 spoons in it.",
}
ASKS = {"word": "apples", "phrase": "Good question.", "n": "7"}


@pytest.mark.parametrize("form", ASKED)
def test_an_answer_that_does_what_its_own_prompt_asks_is_good(form):
    environment = make("form_rules", forms=[form])
    gap = next(iter(dict(FORMS[form].gaps)))
    wanted = "Well" if form == "first_word" else ASKS[gap]
    about_honey = (
        seed for seed in range(100_000)
        if " honey" in (turn := last(environment.reset(seed))).lower() and dict(instruction_in(turn).gaps)[gap] == wanted
    )  # fmt: skip
    environment.reset(next(about_honey))
    good = environment.step(ABOUT_HONEY[form])
    assert good.reward == good.metrics["obeys"] == good.metrics[f"form/{form}"] == 1
    others = [
        environment.step(answer).metrics["obeys"] for name, answer in ABOUT_HONEY.items() if name != form
    ]
    assert sum(others) <= 1  # a postscript with the word has the word in it
    for fault, part in {
        environment.turn: "own_words",
        ABOUT_HONEY[form].replace("Honey", "Jam").replace("honey", "jam"): "on_topic",
        f"{ABOUT_HONEY[form]} And": "ended",
        f"{ABOUT_HONEY[form]} Bees, bees, bees, bees, bees, bees, bees, bees, bees, bees, bees.": "varied",
    }.items():
        step = environment.step(fault)
        assert step.reward == step.metrics[part] == 0, (part, fault)


def test_no_constant_answer_and_no_echo_is_good():
    environment = make("form_rules", "validation")
    answers = [*ABOUT_HONEY.values(), "Sure, sure,\nOiwear", " ".join(ABOUT_HONEY.values())]
    good = {answer: 0 for answer in answers}
    for seed in range(environment.size * 3):
        turn = last(environment.reset(seed))
        assert environment.step(turn).reward == 0
        for answer in answers:
            good[answer] += environment.step(answer).reward
    assert max(good.values()) <= 0.02 * 3 * environment.size


def test_every_form_comes_with_every_topic_and_validation_has_topics_of_its_own():
    splits = make("form_rules"), make("form_rules", "validation")
    train, validation = (set(split.topics) for split in splits)
    assert train | validation == set(TOPICS) and not train & validation
    for split in splits:
        turns = [last(split.reset(seed)) for seed in range(split.size)]
        assert split.size == len(ASKED) * len(split.topics) == len(set(turns))
        seen = Counter((instruction_in(turn).form, *topic_of(without_instruction(turn))) for turn in turns)
        assert len(seen) == split.size and set(seen.values()) == {1}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_the_data_may_be_asked_for(form):
    environment = make("form_rules", forms=[form], topics=["honey", "tea"], held_out=0.5)
    assert {instruction_in(last(environment.reset(seed))).form for seed in range(50)} == {form}


# ---- several turns --------------------------------------------------------------------------------------------------


def test_a_calculator_answers_a_call_and_the_last_number_is_the_answer():
    environment = make("calculator", operations="*", digits=1, turns=2)
    a, b = map(int, re.findall(r"\d+", last(environment.reset(0))))
    call = environment.step(f"Let me see: <calc>{a} * {b}</calc> that is 99")
    assert call == Step(done=False, observation=str(a * b))
    assert environment.step(f"{a} times {b} is {a * b}.") == Step(1, metrics={"right": 1, "calls": 1})
    environment.reset(0)
    assert environment.step("<calc>1 / 0</calc>").observation == "error: division by zero"
    assert environment.step(f"{a * b + 1}").reward == 0
    environment.reset(0)  # an episode of calls alone ends without a reward
    assert not environment.step("<calc>1</calc>").done
    assert environment.step("<calc>1</calc>") == Step(0, metrics={"right": 0, "calls": 2})


def test_expressions_have_their_values():
    values = {
        **{"12*34": "408", " 2 + 3 * 4 ": "14", "(2 + 3) * -4": "-20", "7 / 2": "3.5", "1/3": "0.3333333333"},
        **{"7 // 2": "3", "7 % 4": "3", "2 ** 10": "1024", "6 / 3": "2"},
    }
    assert {expression: shown(calculate(expression)) for expression in values} == values


@pytest.mark.parametrize(
    "expression",
    ["", "a", "__import__('os').system('ls')", "9**9**9**9", "10 ** 20", "1e400", "(-1) ** 0.5", "1 if 1 else 2", "True",
     "1," * 60, "(" * 90, "'1' * 9", "[1][0]", "1 << 60", "0 ** -1", "2 ** 64.5"],
)  # fmt: skip
def test_an_expression_that_is_no_small_sum_is_refused(expression):
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
    hint = f"My number is {'higher' if number == 3 else 'lower'} than 2."
    assert environment.step("Is it 2?").observation == hint
    assert environment.step("I give up").observation == "That is no number. Answer with a number."
    assert environment.step(f"{number}") == Step(1 - 2 / 4, metrics={"found": 1, "guesses": 3})
    environment.reset(seed)
    steps = [environment.step("2") for _ in range(4)]
    assert [step.done for step in steps] == [False] * 3 + [True]
    assert steps[-1] == Step(0, metrics={"found": 0, "guesses": 4})


@pytest.mark.parametrize("use", ["guess_the_number", "calculator"])
def test_no_episode_is_in_both_splits(use):
    train, validation = (
        {str(environment.reset(seed)[-1:]) if use == "calculator" else environment.numbers[seed]
         for seed in range(environment.size)}
        for environment in (make(use), make(use, "validation"))
    )  # fmt: skip
    assert train and validation and not train & validation


# ---- answers --------------------------------------------------------------------------------------------------------


def test_a_final_answer_is_found():
    answers = {
        r"So \boxed{1}, no: \boxed{\frac{1}{2}}.": r"\frac{1}{2}",
        r"\boxed{4} and \boxed{5": "4",
        "48 / 2 = 24\n#### 72\n": "72",
        "3 of 4. The answer is 12.": "12",
        "First 3, then 1,000 apples.": "1,000",
        " Paris\n": "Paris",
        "": "",
    }
    assert {text: final_answer(text) for text in answers} == answers


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


def test_open_math_instruct_s_fields_and_gsm8k_s(tmp_path):
    gsm8k = {"question": "Half of 144?", "answer": "144 / 2 = <<144/2=72>>72\n#### 72"}
    records = [{"problem": "1 + 1?", "expected_answer": 2, "generated_solution": r"It is \boxed{2}."}, gsm8k]
    file = write_lines(tmp_path / "pairs.jsonl", records)
    environment = make("answers", prompts={"train": file, "validation": file}, instruction="Box it.")
    for seed, (question, answer) in enumerate([("1 + 1?", "2"), ("Half of 144?", "72")]):
        assert last(environment.reset(seed)) == f"{question}\n\nBox it."
        assert environment.step(rf"I say \boxed{{{answer}}}") == Step(1, metrics={"right": 1, "marked": 1})
        assert environment.step("I say 3") == Step(0, metrics={"right": 0, "marked": 0})


# ---- prompts from files ---------------------------------------------------------------------------------------------


def test_a_file_of_prompts_is_split_always_in_the_same_way_and_equal_prompts_lie_on_one_side(tmp_path):
    file = write_lines(tmp_path / "p.jsonl", [{"prompt": f"number {i % 10}", "answer": i} for i in range(20)])
    splits = [make("reward_model", split, prompts=file) for split in ("train", "validation")]
    train, validation = ([last(split.reset(seed)) for seed in range(split.size)] for split in splits)
    assert (len(train), len(validation)) == (16, 4) and not set(train) & set(validation)
    assert make("reward_model", prompts=file).reset(3) == [{"role": "user", "content": train[3]}]


def test_a_prompt_is_a_user_s_turn_and_messages_and_texts_are_taken_as_they_are(tmp_path):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi\u2028there"}]
    text = "User: Hi\n\nAssistant:"
    file = write_lines(tmp_path / "p.jsonl", [{"prompt": "Hi"}, {"messages": messages}, {"text": text}])
    environment = make("reward_model", prompts={"train": file, "validation": file})
    prompts = [[{"role": "user", "content": "Hi"}], messages, text]
    assert [environment.reset(seed) for seed in range(3)] == prompts
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


def test_a_function_gets_the_record_s_fields_and_may_return_metrics(own):
    environment = own(
        "def length(prompt, response, target, **fields): return prompt, response, target, fields"
    )
    [message] = environment.reset(2)
    target = int(message["content"].split()[1])
    assert environment.step("yes").reward == (f"number {target}", "yes", target, {})
    for returned, step in [
        ("float(len(response))", Step(4.0)),
        ("{'reward': 0.5, 'length': len(response)}", Step(0.5, metrics={"length": 4})),
    ]:
        environment = own(f"def reward(prompt, response): return {returned}")
        environment.reset(0)
        assert environment.step("four") == step


def test_a_record_may_not_bring_a_response_of_its_own(own, tmp_path):
    records = [{"prompt": prompt, "response": "b"} for prompt in "ac"]
    with pytest.raises(UserError, match="key 'response', which is the policy's; rename it"):
        own(
            "def reward(prompt, response, **_): return 1.0",
            prompts=write_lines(tmp_path / "q.jsonl", records),
        )


TWO_FUNCTIONS = "def a(prompt, response): return 1.0\ndef b(prompt, response): return 2.0\n"


def test_of_several_functions_one_is_named(own):
    named_reward = f"{TWO_FUNCTIONS}def reward(prompt, response): return 3.0"
    for environment, value in ((own(TWO_FUNCTIONS, ":b"), 2.0), (own(named_reward), 3.0)):
        environment.reset(0)
        assert environment.step("") == Step(value)
    with pytest.raises(UserError, match=r"mine\.py has no c; it has a, b"):
        own(TWO_FUNCTIONS, ":c")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1", "has no function; write one, for example\n    def reward(prompt, response"),
        ("import math\nfrom os.path import join", "has no function"),  # another's function is not the file's
        ("def reward(prompt, response:\n    pass", 'mine.py", line 1\n    def reward(prompt, response:'),
        ("y = 1\nx = nothing", 'mine.py", line 2, in <module>\n    x = nothing\n'),
        ("def reward(response): return 1.0", "can't be called with prompt, response, target"),
        ("def reward(prompt, response, length): return 1.0", "missing a required argument: 'length'"),
        (TWO_FUNCTIONS, "has 2 functions or classes: a, b. Name one of them `reward`, or choose one: use="),
    ],
)
def test_a_file_that_is_no_environment_is_refused_with_the_cure(own, code, words):
    with pytest.raises(UserError, match=re.escape(words)):
        own(code)


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
        ("form_rules", {"forms": ["haiku"]}, "there is no haiku; there are sentences"),
        ("calculator", {"operations": "^"}, "some of + - *"),
        ("guess_the_number", {"low": 3, "high": 3}, "low=3 is not below high=3"),
        ("answers", {}, "args.prompts is needed"),
        ("answers", {"prompts": "nowhere.jsonl"}, "nowhere.jsonl can't be read"),
        ("answers", {"prompts": {"train": "a.jsonl"}}, "{train: FILE, validation: FILE}"),
    ],
)
def test_arguments_without_sense_are_refused_with_value_and_cure(use, args, words):
    with pytest.raises(UserError, match=re.escape(words)):
        make(use, **args)


@pytest.mark.parametrize(
    ("name", "args"), [("reasoning_gym", {"task": "chain_sum"}), ("verifiers", {"taskset": "a"})]
)
def test_an_optional_package_that_is_missing_is_named_with_the_command(name, args, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UserError, match=f"pip install (-U )?{name.replace('_', '-')}"):
        make(name, **args)


def test_a_task_of_reasoning_gym_has_its_own_scorer():
    pytest.importorskip("reasoning_gym")
    splits = [make("reasoning_gym", split, task="chain_sum", size=30) for split in ("train", "validation")]
    train, held_out = ({last(split.reset(seed)) for seed in range(split.size)} for split in splits)
    assert not train & held_out
    expression = last(splits[0].reset(0)).rpartition(":")[2].strip(" =?").replace(" ", "")
    assert splits[0].step(f"Well, <answer>{calculate(expression)}</answer>").reward == 1
    assert splits[0].step("<answer>a lot</answer>").reward == 0


def test_prompts_that_are_drawn_again_are_the_same(here):
    from aligner_lib.rollouts.tasks import EnvironmentTasks

    train = SimpleNamespace(
        sizes=lambda: {"few": 3, "many": None}, reset=lambda episodes: ["x"] * len(episodes)
    )
    tokenizer = SimpleNamespace(encode=lambda text: [1], decode=lambda ids, **_: "x", template=None)
    tasks = EnvironmentTasks({"train": train}, {"few": 1, "many": 2}, frozenset(), tokenizer, 8, seed=1)
    drawn = [tasks.train(draw, 4) for draw in range(3)]
    assert [len(draw) for draw in drawn] == [4, 4, 4]
    assert [tasks.train(draw, 4) for draw in range(3)] == drawn


def test_instructions_are_judged_and_a_reward_model_s_prompts_are_only_measured(tmp_path):
    texts = [
        f"User: {words}\n\nAssistant:" for words in ("Why? Write two sentences.", "Hi. End with a question.")
    ]
    prompts = dict.fromkeys(
        ("train", "validation"), write_lines(tmp_path / "p.jsonl", [{"text": t} for t in texts])
    )
    for use, reward in (("instructions", 1.0), ("reward_model", 0.0)):
        environment = make(use, prompts=prompts)
        assert environment.reset(0) == texts[0]
        metrics = {"obeys": 1.0, "form/sentences": 1.0, "words": 4.0}
        assert environment.step("Cats purr. Dogs bark.") == Step(reward, metrics=metrics)
        environment.reset(1)
        assert environment.step("Hello.") == Step(
            0, metrics={"obeys": 0.0, "form/question": 0.0, "words": 1.0}
        )
    write_lines(tmp_path / "p.jsonl", [{"text": "User: Hi.\n\nAssistant:"}])
    with pytest.raises(UserError, match=r"this prompt has no instruction of data/forms\.py: 'User: Hi"):
        make("instructions", prompts=prompts)
    environment = make("reward_model", prompts=prompts)
    environment.reset(0)
    assert environment.step("Hello.") == Step()


def test_a_text_is_written_by_the_template_that_was_chosen(smoke):
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
    page = (ROOT / "docs/environments.md").read_text()
    function, prompts, subclass = re.findall(r"```(?:python|jsonl)\n(.*?)```", page, re.DOTALL)
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

def fail():
    raise ValueError("too short")

DO = {
    "hang": lambda: time.sleep(600),
    "die": lambda: os._exit(3),
    "nan": lambda: float("nan"),
    "metric": lambda: {"reward": 1.0, "length": float("inf")},
    "nothing": lambda: None,
    "unnamed": lambda: {"length": 1.0},
    "raise": fail,
    "exit": lambda: sys.exit(0),
    "draw": random.random,
    "torch": lambda: float("torch" in sys.modules),
    "pid": os.getpid,
}

def reward(prompt, response, target, **fields):
    if response == "warned":
        os.kill(os.getpid(), signal.SIGTERM)
    return DO.get(response, lambda: float(target))()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("environment")
    (folder / "mine.py").write_text(MISBEHAVES)
    write_lines(folder / "p.jsonl", PROMPTS)
    return folder


def settings(folder, **changes):
    args = {"prompts": dict.fromkeys(("train", "validation"), str(folder / "p.jsonl"))}
    return EnvironmentSettings(**{"use": str(folder / "mine.py"), "timeout": 2, "args": args, **changes})


@pytest.fixture(scope="module")
def pool(folder):
    environments = {"mine": settings(folder), "guess": EnvironmentSettings("guess_the_number")}
    with Environments(environments, "train") as pool:
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
        ("raise", "raised", 'mine.py", line 5, in fail\n    raise ValueError("too short")\n'),
        ("exit", "raised", "SystemExit: 0"),
        ("nan", "not_finite", "the reward is nan"),
        ("metric", "not_finite", "length is inf"),
        ("nothing", "not_finite", "the reward is None, which is not a number"),
        (
            "unnamed",
            "reward_missing",
            "an answer lacks `reward`; it has length, which `rewards` may name instead",
        ),
        ("die", "died", "its process ended with exit code 3"),
    ],
)
def test_a_response_that_misbehaves_costs_its_sample_and_no_other(pool, response, reason, words):
    before, failure, *after = rewards(pool, "a", response, "c", "d", "e")
    assert isinstance(failure, EnvironmentFailure)
    assert (failure.environment, failure.seed, failure.reason) == ("mine", 1, reason)
    assert words in failure.text and "worker.py" not in failure.text
    assert [before, *after] == [Step(0.0), Step(2.0), Step(3.0), Step(4.0)]


def test_all_processes_may_hang_at_once_and_the_rest_is_answered(pool):
    *hung, third, fourth = rewards(pool, "hang", "hang", "c", "d")
    assert [failure.reason for failure in hung] == ["timeout", "timeout"]
    assert "no answer within 2 s; it was here, the innermost call first:" in hung[0].text
    assert re.search(r'mine\.py", line \d+ in reward', hung[0].text) and "worker.py" not in hung[0].text
    assert [third, fourth] == [Step(2.0), Step(3.0)]


TWO_REWARDS = """
def reward(prompt, response, **fields):
    if response == "half":
        return {"right": 1.0}
    return {"right": float("x" in response), "words": len(response.split()), "letters": len(response)}
"""


@pytest.mark.parametrize(
    ("use", "weights", "words"),
    [
        (
            None,
            {"right": 1, "word": 0.1},
            "an answer lacks word, which `rewards` names; it has right, words, letters",
        ),
        ("reward_model", {"obeys": 1}, "rewards={'obeys': 1} lacks reward_model, the reward model's score"),
    ],
)
def test_rewards_that_an_environment_lacks_are_refused_at_the_start(folder, use, weights, words):
    (folder / "two.py").write_text(TWO_REWARDS)
    changes = {"use": use or str(folder / "two.py"), "rewards": weights}
    with pytest.raises(UserError, match=re.escape(f"model.environments.e: {words}")):
        Environments({"e": settings(folder, **changes)}, "train")


def test_an_answer_needs_each_of_the_rewards_that_the_settings_name(folder):
    (folder / "two.py").write_text(TWO_REWARDS)
    named = settings(folder, use=str(folder / "two.py"), rewards={"right": 1, "words": -0.1})
    with Environments({"e": named}, "train") as pool:
        both, one = pool.step([Episode("e", 0, ("x y",)), Episode("e", 0, ("half",))])
    assert both == Step(0.0, metrics={"right": 1, "words": 2, "letters": 3})
    assert (one.reason, one.text) == (
        "reward_missing",
        "an answer lacks words, which `rewards` names; it has right",
    )


def test_processes_that_are_killed_while_they_wait_are_replaced(pool):
    for pid in {int(one.reward) for one in rewards(pool, *["pid"] * 8)}:
        os.kill(pid, signal.SIGKILL)
    assert rewards(pool, *"abc") == [Step(0.0), Step(1.0), Step(2.0)]


def test_all_processes_of_an_environment_work_and_no_more(pool):
    rounds = []

    def both_answered():  # in one round: the test before may have killed a process of which nobody has heard yet
        rounds.append({step.reward for step in rewards(pool, *["pid"] * 8)})
        return len(rounds[-1]) == 2

    until(both_answered, "answers of both processes")
    assert {step.reward for step in rewards(pool, *["pid"] * 16)} <= rounds[-1]


def test_a_workers_process_has_no_torch_and_leaves_a_schedulers_warning_to_the_job(pool):
    import torch

    assert torch.__version__  # it is loaded here
    assert rewards(pool, "torch", "warned") == [Step(0.0), Step(1.0)]


def test_what_is_drawn_depends_on_the_episode_alone(pool):
    draws = [rewards(pool, *["draw"] * 6) for _ in range(2)]
    assert draws[0] == draws[1] and len({one.reward for one in draws[0]}) == 6


def test_an_episode_is_replayed_from_its_seed_and_the_responses(pool):
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
    file, code = tmp_path / "edited.py", "import os\ndef reward(prompt, response): return {}"
    file.write_text(code.format("os._exit(1) if response == 'die' else 1.0"))
    with Environments({"mine": settings(folder, use=str(file), processes=1)}, "train") as pool:
        file.write_text(code.format("2.0"))
        first, second = rewards(pool, "die", "a")  # the second is another process's
    assert first.reason == "died" and second == Step(1.0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use": "sums", "args": {"digits": 0}}, "digits=0: it must be at least 1"),
        ({"use": "", "args": {}}, "use='mine' is unknown; use one of sums"),
    ],
)
def test_a_wrong_environment_is_refused_when_a_run_begins(folder, changes, words):
    with pytest.raises(UserError, match=re.escape(f"model.environments.mine: {words}")):
        Environments({"mine": settings(folder, **changes)}, "train")


def test_a_process_that_hangs_ends_when_its_job_was_killed(folder):
    script = f"""
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.rollouts.environments.pool import Environments, Episode

if __name__ == "__main__":
    pool = Environments({{"mine": {settings(folder, processes=1)!r}}}, "train")
    print(int(pool.step([Episode("mine", 0, ("pid",))])[0].reward), flush=True)
    pool.step([Episode("mine", 0, ("hang",))])
"""
    (folder / "job.py").write_text(script)
    command, environment = [sys.executable, folder / "job.py"], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as job:
        worker = psutil.Process(int(job.stdout.readline()))
        job.kill()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker's end")


# ---- settings -------------------------------------------------------------------------------------------------------


def environments(*overrides):
    """model.environments of a PPO job, composed from overrides."""
    config = compose(
        "ppo", ["model.environments={sums: {}}", *(f"model.environments{text}" for text in overrides)]
    )
    assert load("ppo", save(config)) == config
    return save(config)["model"]["environments"]


def test_a_dotted_key_changes_one_environment_or_adds_one_and_a_dict_replaces_all():
    changed = environments(".sums.args.config.size=2", ".sums.args.config.low=1", ".mine.use=a/file.py:name")
    assert changed["sums"]["args"] == {"config": {"size": 2, "low": 1}}
    assert (changed["mine"]["use"], changed["mine"]["weight"]) == ("a/file.py:name", 1.0)
    given = environments("={mine: {use: sums, weight: 2, args: {prompts: {train: a}}}, calculator: {}}")
    assert list(given) == ["mine", "calculator"]
    assert (given["mine"]["weight"], given["mine"]["args"]) == (2.0, {"prompts": {"train": "a"}})
    assert list(environments("={}")) == []


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (".sums.wieght=2", "did you mean model.environments.sums.weight?"),
        ("={mine: {wieght: 2}}", "did you mean model.environments.mine.weight?"),
        (".sums.weight=-1", "model.environments.sums.weight=-1.0: it must be at least 0"),
        ("={mine: {processes: 0}}", "model.environments.mine.processes=0: it must be at least 1"),
        (".sums.timeout=long", "model.environments.sums.timeout takes float"),
        (".sums=3", "model.environments.sums is a group of settings (use, weight"),
        ("=3", "model.environments takes dict[str, EnvironmentSettings]"),
        (".sums.args=3", "model.environments.sums.args takes dict[str, Any]"),
    ],
)
def test_a_wrong_setting_of_an_environment_is_refused_as_any_other(override, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        environments(override)
