"""Environments: prompts and rewards by hand, and processes of which a lost one costs at most its sample."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import psutil
import pytest
from forks import until
from hypothesis import given
from hypothesis import strategies as st
from pebble import ProcessExpired
from pebble.common import ProcessFuture, Result, ResultStatus
from pebble.pool.base_pool import Task
from pebble.pool.process import Acknowledgement, TaskResult

from aligner_lib.algorithms import batching
from aligner_lib.config.compose import compose, load, save
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import pool as pools
from aligner_lib.rollouts.environments import worker
from aligner_lib.rollouts.environments.answers import is_right, same_answer
from aligner_lib.rollouts.environments.base import Environment, Step
from aligner_lib.rollouts.environments.calculator import LARGEST, calculate, shown
from aligner_lib.rollouts.environments.form_rules import ASKED, FORMS, TOPICS
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.environments.registry import make
from data.drawn_forms import requests
from data.forms import Instruction, instruction_in, without_instruction
from data.gold import topic_of

ROOT = Path(__file__).parents[2]
SPLITS = ("train", "validation")


def user(text):
    return {"role": "user", "content": text}


def last(messages):
    return messages[-1]["content"]


def prompts_of(environment):
    return [last(environment.reset(seed)) for seed in range(environment.size)]


def numbers_in(text):
    return tuple(map(int, re.findall(r"\d+", text)))


def write_lines(file, records):
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(file)


def test_sums_are_split_once_and_all_prompts_share_right_examples():
    train, validation = splits = [make("sums", split) for split in SPLITS]
    sums = [set(map(numbers_in, prompts_of(split))) for split in splits]
    assert list(map(len, sums)) == [train.size, validation.size] == [68, 30]
    # 68 + 30 + 2 different sums are 100: no sum is in both splits, and no example is in any
    assert set().union(*sums, train.examples) == {(a, b) for a in range(10) for b in range(10)}
    assert train.reset(68) == train.reset(0)
    *examples, _ = train.reset(5)
    assert [turn["role"] for turn in examples] == ["user", "assistant"] * 2
    for question, answer in zip(examples[::2], examples[1::2]):
        assert int(answer["content"]) == sum(numbers_in(question["content"]))
    assert all(split.reset(seed)[:-1] == examples for split in splits for seed in range(split.size))


def test_only_the_result_in_the_examples_wording_is_right():
    environment = make("sums", low=3, high=4, examples=0, held_out=0.25)  # 3 + 4 or 4 + 3 is in this split
    next(seed for seed in range(3) if sum(numbers_in(last(environment.reset(seed)))) == 7)
    right, wrong = ("7", " 7\n", "7."), ("7..", "07", "3 + 4 = 7", "8", "")
    for response in right + wrong:
        reward = float(response in right)
        assert environment.step(response) == Step(reward, metrics={"exact": reward}), response


@pytest.mark.parametrize("answer", [" {sum}", "{sum}\n", "= {sum}"])
def test_white_space_around_the_wording_of_a_result_is_not_needed(answer):
    environment = make("sums", answer=answer)
    environment.reset(0)
    written = answer.format(sum=sum(environment.sum))
    assert [environment.step(response).reward for response in (written, written.strip())] == [1, 1]


def test_the_wording_of_a_sum_is_a_setting():
    words = {"question": "{a}+{b}=", "answer": "<{sum}>", "instruction": "Add.", "as_turns": False}
    system, turn = make("sums", low=10, high=19, **words).reset(0)
    assert system == {"role": "system", "content": "Add."}
    assert re.fullmatch(r"(1\d\+1\d= <\d\d>\n){2}1\d\+1\d=", turn["content"])


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
def test_a_good_answer_has_the_form_its_topic_own_words_variety_and_an_end(form):
    environment = make("form_rules")
    gap = next(iter(dict(FORMS[form].gaps)))
    asks = Instruction(form, ((gap, "Well" if form == "first_word" else ASKS[gap]),))
    environment.turn = f"Tell me about honey. {asks.worded(requests(form)[0])}"
    good = environment.step(ABOUT_HONEY[form])
    assert good.reward == good.metrics["obeys"] == good.metrics[f"form/{form}"] == 1
    others = (environment.step(answer) for name, answer in ABOUT_HONEY.items() if name != form)
    assert sum(step.metrics["obeys"] for step in others) <= 1  # a postscript with the word has the word in it
    for fault, part in {
        environment.turn: "own_words",
        ABOUT_HONEY[form].replace("Honey", "Jam").replace("honey", "jam"): "on_topic",
        f"{ABOUT_HONEY[form]} And": "ended",
        f"{ABOUT_HONEY[form]} Bees{', bees' * 10}.": "varied",
    }.items():
        step = environment.step(fault)
        assert step.reward == step.metrics[part] == 0, (part, fault)


def test_every_form_comes_with_every_topic():
    environment = make("form_rules")
    turns = prompts_of(environment)
    pairs = {(instruction_in(turn).form, *topic_of(without_instruction(turn))) for turn in turns}
    assert len(pairs) == len(set(turns)) == environment.size == len(ASKED) * len(environment.topics)
    form = next(form for form in FORMS if form not in ASKED)  # any form of the data may be asked for
    environment = make("form_rules", forms=[form], topics=["honey", "tea"], held_out=0.5)
    assert {instruction_in(turn).form for turn in prompts_of(environment)} == {form}


def test_a_calculator_answers_a_call_and_the_last_number_is_the_answer():
    environment = make("calculator", operations="*", digits=1, turns=2)
    a, b = numbers_in(last(environment.reset(0)))
    step = environment.step(f"Let me see: <calc>{a} * {b}</calc> that is 99")
    assert step == Step(done=False, observation=str(a * b))
    assert environment.step(f"{a} times {b} is {a * b}.") == Step(1, metrics={"right": 1, "calls": 1})
    environment.reset(0)
    assert environment.step("<calc>1 / 0</calc>").observation == "error: division by zero"
    assert environment.step(f"{a * b + 1}").reward == 0
    environment.reset(0)  # an episode of calls alone ends without a reward
    assert not environment.step("<calc>1</calc>").done
    assert environment.step("<calc>1</calc>") == Step(0, metrics={"right": 0, "calls": 2})


def test_expressions_have_their_values_and_all_other_texts_are_refused():
    values = {
        **{"12*34": "408", " 2 + 3 * 4 ": "14", "(2 + 3) * -4": "-20", "7 / 2": "3.5", "1/3": "0.3333333333"},
        **{"7 // 2": "3", "7 % 4": "3", "2 ** 10": "1024", "6 / 3": "2"},
    }
    assert {expression: shown(calculate(expression)) for expression in values} == values
    refused = "|a|__import__('os').system('ls')|9**9**9**9|10 ** 20|1e400|(-1) ** 0.5|1 if 1 else 2|True"
    refused += "|'1' * 9|[1][0]|1 << 60|0 ** -1|2 ** 64.5"
    for expression in (*refused.split("|"), "1," * 60, "(" * 90):
        with pytest.raises(ValueError):
            calculate(expression)


@given(st.text(alphabet="0123456789+-*/%(). e_aj'\n\0", max_size=120))
def test_any_text_is_a_bounded_number_or_refused(text):
    with suppress(ValueError):
        assert abs(calculate(text)) <= LARGEST


def test_a_number_is_found_by_going_higher_and_lower():
    assert make("guess_the_number", turns=1).max_turns == 1
    environment = make("guess_the_number", low=1, high=3, turns=4)
    seed = next(seed for seed in range(environment.size) if environment.numbers[seed] in (1, 3))
    number = environment.numbers[seed]
    environment.reset(seed)
    hint = f"My number is {'higher' if number == 3 else 'lower'} than 2."
    assert environment.step("Is it 2?").observation == hint
    assert environment.step("I give up").observation == "That is no number. Answer with a number."
    assert environment.step(f"{number}") == Step(1 - 2 / 4, metrics={"found": 1, "guesses": 3})
    environment.reset(seed)
    *before, end = [environment.step("2") for _ in range(4)]
    assert not any(step.done for step in before)
    assert end == Step(0, metrics={"found": 0, "guesses": 4})


def test_no_episode_is_in_both_splits():
    for use, episodes, count in [
        ("guess_the_number", lambda environment: environment.numbers, 20),
        ("calculator", prompts_of, 3 * 90 * 90),
        ("form_rules", lambda environment: environment.topics, len(TOPICS)),
    ]:
        train, validation = (set(episodes(make(use, split))) for split in SPLITS)
        assert train and validation and len(train | validation) == len(train) + len(validation) == count, use


SAME = [
    ("42", "42.0"), ("1,000", "$1000"), ("1/2", "0.5"), (r"\frac{1}{2}", "0.50"), (r"-\frac{3}{4}", "-0.75"), ("50%", r"50\%"),
    ("+7", "7."), (" x + 1 ", "x+1"), ("Paris", "paris."), ("€1,000", "1000"), ("3 1/2", "3.5"), ("−7", "-7"), ("2e3", "2000"),
    ("**42**", "42"), ("2,3", "2, 3"), ("1,00,000", "100000"), ("-1,234.50", "-1234.5"), ("42,", "42"),
]  # fmt: skip
DIFFERENT = [("2,3", "23"), ("1,0000", "10000"), ("1,000,5", "10005"), ("42", "-42"), ("0.33", "1/3"), ("1/0", "0"), ("", ""), ("7 apples", "7"), ("4 2", "42"), ("2*3", "23")]  # fmt: skip
RIGHT = [
    ("**42**", "42"), ("The answer is 42 apples.", "42"), ("#### 42", "42"), ("#### **42**", "42"), ("#### Answer\n42", "42"),
    ("The final answer is:\n\n**42** apples", "42"), ("The answer is 42. I am sure, 3 times.", "42"),
    ("answer is 6 x 7 = 42", "42"), (r"\boxed{42\text{ apples}}", "42"), (r"\boxed{x = 42}", "42"), ("x=-42", "-42"),
    ("It cost -$1,234.50.", "-1234.5"), ("€42", "42"), ("between 41-42", "42"), ("It is −42", "-42"), ("about 3/4.", "3/4"),
    ("3 1/2 cups", "3.5"), (r"It's \frac{1}{2}.", "0.5"), ("1,2,3", "3"), ("It is .5", "1/2"), ("So x^2 = 4 and 42", "42"),
    (r"So \boxed{1}, no: \boxed{\frac{1}{2}}.", "1/2"), (r"\boxed{4} and \boxed{5", "4"), ("144 / 2 = 24\n#### 72\n", "72"),
    ("First 3, then 1,000 apples.", "1000"), (" Paris\n", "Paris"), ("1,00,000 rupees", "100000"), ("#### Paris.", "Paris"),
    ("The answer is **Paris**", "Paris"), (r"\boxed{2, 3}", "2,3"), (r"\boxed{5 cm}", "5"), (r"\boxed{5 months}", "5"), (r"\boxed{50 percent}", "50%"), (r"\boxed{5 apples}", "5"),
    ("#### 5 m^2", "5"), ("The answer is St. Louis.", "St. Louis"), ("<think>the answer is 7.</think>\nTom has 8.", "8"), (r"\boxed{1{,}000}", "1000"), (r"\boxed{10000}", r"10,\!000"),
    (r"\boxed{\frac12}", "1/2"), (r"\boxed{\frac{-3}{4}}", "-0.75"), (r"\boxed{10}", r"10\text{ cm}"), (r"\boxed{90}", r"90^\circ"), ("5 pears", "5 apples"), (r"\boxed{\text{Paris}}", "Paris"), ("The answer is (A)", "A"), ("The answer is **2** apples", "2"), ("The answer is $5/hour.", "5"), ("The answer is part 1: 5", "5"),
    (r"\boxed{5\text{ cm}^2}", "5"), (r"\boxed{v = 5 m/s^{2}}", "5"), (r"\boxed{1,000 metres.}", "1000"),
]  # fmt: skip
WRONG = [
    ("42, no: 43", "42"), (r"\boxed{43} not 42", "42"), ("#### 4 2 1", "42"),
    (r"\boxed{x+42}", "42"), (r"\boxed{\frac{\sqrt{3}}{42}}", "42"), (r"The answer is $\frac{\sqrt{3}}{42}$", "42"),
    ("The answer isn't 5. It is 6.", "5"), ("#### 12 ft^3", "3"), (r"#### 10{,}000", "0"), *((f"The answer is {text}", "5") for text in ("minus 5.", "2^5", "2*5", "2**5", "3 × 5", "5x", "x^2 + 5", "7 - 5", "12:5", "5π")),
    ("42.5", "42"), ("142", "42"), ("-42", "42"), ("London, of 42 towns", "Paris"), ("", "42"), ("none", "42"),
    (r"\boxed{23}", "2,3"), (r"\boxed{5x}", "5"), (r"\boxed{5 x}", "5"), (r"\boxed{5 pi}", "5"), (r"\boxed{5 million}", "5"),
    (r"\boxed{5 apples and 3 pears}", "3"), (r"\boxed{2 thirds}", "2"), (r"\boxed{7 hundredths}", "7"), (r"\boxed{3 ab}", "3"), (r"\boxed{4 or five}", "4"), (r"\boxed{5 millions}", "5"), (r"\boxed{x + 5 cm}", "5"),
]  # fmt: skip


def test_answers_are_compared_as_numbers_and_else_as_texts():
    for judge, verdict, pairs in [
        *[(same_answer, True, SAME), (same_answer, False, DIFFERENT)],
        *[(is_right, True, RIGHT), (is_right, False, WRONG)],
    ]:
        assert [pair for pair in pairs if judge(*pair) is not verdict] == []


def test_unclosed_boxes_are_read_in_one_pass():
    began = time.process_time()
    assert is_right(r"So \boxed{4}. " + r"\boxed{" * 4_000, "4")
    assert time.process_time() - began < 1  # a pass for each box takes 18 s


def test_the_fields_of_open_math_instruct_and_of_gsm8k_are_read(tmp_path):
    gsm8k = {"question": "Half of 144?", "answer": "144 / 2 = <<144/2=72>>72\n#### 72"}
    records = [{"problem": "1 + 1?", "expected_answer": 2, "generated_solution": r"It is \boxed{2}."}, gsm8k]
    file = write_lines(tmp_path / "pairs.jsonl", records)
    environment = make("answers", prompts=dict.fromkeys(SPLITS, file), instruction="Box it.")
    for seed, (question, answer) in enumerate([("1 + 1?", "2"), ("Half of 144?", "72")]):
        assert last(environment.reset(seed)) == f"{question}\n\nBox it."
        assert environment.step(rf"I say \boxed{{{answer}}}") == Step(1, metrics={"right": 1, "marked": 1})
        for unmarked in ("I say 3", r"<think>\boxed{3}?</think> I say 3"):
            assert environment.step(unmarked) == Step(0, metrics={"right": 0, "marked": 0})


def test_a_file_is_always_split_in_the_same_way_and_equal_prompts_lie_on_one_side(tmp_path):
    file = write_lines(tmp_path / "p.jsonl", [{"prompt": f"number {i % 10}", "answer": i} for i in range(20)])
    train, validation = (prompts_of(make("reward_model", split, prompts=file)) for split in SPLITS)
    assert (len(train), len(validation)) == (16, 4) and not set(train) & set(validation)
    assert make("reward_model", prompts=file).reset(3) == [user(train[3])]


def test_a_prompt_is_a_user_s_turn_and_messages_and_texts_are_taken_as_they_are(tmp_path):
    messages = [{"role": "system", "content": "Be kind."}, user("Hi\u2028there")]
    text = "User: Hi\n\nAssistant:"
    named = [messages[0] | {"role": "System"}, messages[1] | {"role": "human"}]
    rows = [{"prompt": "Hi"}, {"messages": messages}, {"text": text}, {"prompt": messages}, {"prompt": named}]
    file = write_lines(tmp_path / "p.jsonl", rows)
    environment = make("reward_model", prompts=dict.fromkeys(SPLITS, file))
    prompts = [environment.reset(seed) for seed in range(5)]
    assert prompts == [[user("Hi")], messages, text, messages, messages]
    assert environment.step("Hello.") == Step()  # the environment does not know the reward model's reward


def test_the_turns_of_a_prompt_keep_their_calls_and_no_turn_loses_content(tmp_path):
    function = {"name": "sky", "arguments": '{"city": "Rome"}'}
    asking = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}
    observed = {"role": "tool", "name": "sky", "tool_call_id": "1", "content": "blue"}
    file = write_lines(tmp_path / "p.jsonl", [{"messages": [user("Sky?"), asking, observed]}])
    _, call, result = make("reward_model", prompts=dict.fromkeys(SPLITS, file)).reset(0)
    assert call["content"] == "" and call["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert result == {"role": "tool", "name": "sky", "content": "blue"}
    for turn, words in (
        (user("Hi") | {"reasoning_content": "Hm."}, "has the key 'reasoning_content', which is not read"),
        ({"role": "assistant", "content": "Yes."}, "p.jsonl:1 can't be used: the last turn of messages is"),
        (observed | {"tool_call_id": "2"}, "the tool_call_id '2', but the next call .* has '1'"),
    ):
        write_lines(tmp_path / "p.jsonl", [{"messages": [user("Sky?"), asking, turn]}])
        with pytest.raises(UserError, match=words):
            make("reward_model", prompts=file)


def test_instructions_are_judged_and_a_reward_model_s_prompts_are_only_measured(tmp_path):
    questions = ("Why? Write two sentences.", "Hi. End with a question.")
    texts = [f"User: {question}\n\nAssistant:" for question in questions]
    file = write_lines(tmp_path / "p.jsonl", [{"text": text} for text in texts])
    for use, reward in (("instructions", 1.0), ("reward_model", 0.0)):
        environment = make(use, prompts=dict.fromkeys(SPLITS, file))
        assert environment.reset(0) == texts[0]
        metrics = {"obeys": 1.0, "form/sentences": 1.0, "words": 4.0}
        assert environment.step("Cats purr. Dogs bark.") == Step(reward, metrics=metrics)
        environment.reset(1)
        metrics = {"obeys": 0.0, "form/question": 0.0, "words": 1.0}
        assert environment.step("Hello.") == Step(0, metrics=metrics)


def tasks(sizes, weights, tokenizer, prompt="x"):
    from aligner_lib.rollouts.tasks import EnvironmentTasks

    train = SimpleNamespace(
        sizes=lambda: sizes,
        reset=lambda episodes: [prompt] * len(episodes),
        tools=lambda: dict.fromkeys(sizes, ()),
    )
    return EnvironmentTasks({"train": train}, weights, frozenset(), tokenizer, 99, seed=1)


def test_prompts_that_are_drawn_again_are_the_same(here):
    tokenizer = SimpleNamespace(encode=lambda text: [1], decode=lambda ids, **_: "x", template=None)
    drawn = tasks({"few": 3, "many": None}, {"few": 1, "many": 2}, tokenizer)
    batches = [drawn.train(draw, 4) for draw in range(3)]
    assert [len(batch) for batch in batches] == [4, 4, 4]
    assert [drawn.train(draw, 4) for draw in range(3)] == batches


def test_the_prompts_of_an_epoch_are_shuffled_once(monkeypatch, here):
    tokenizer = SimpleNamespace(encode=lambda text: [1], decode=lambda ids, **_: "x", template=None)
    orders = [batching.sample_order(3, epoch, 1) for epoch in range(2)]
    shuffle = Mock(side_effect=batching.sample_order)
    monkeypatch.setattr(batching, "sample_order", shuffle)
    batching.kept_order.cache_clear()
    drawn = tasks({"few": 3}, {"few": 1}, tokenizer)
    assert [task.seed for draw in range(3) for task in drawn.train(draw, 2)] == [*orders[0], *orders[1]]
    assert shuffle.call_count == 2


def test_fewer_validation_prompts_than_copies_of_the_model_are_refused(monkeypatch):
    drawn = tasks({"few": 3}, {"few": 1}, None)
    drawn.environments["validation"] = drawn.environments["train"]
    monkeypatch.setattr("aligner_lib.megatron.parallel.dp_size", lambda: 4)
    with pytest.raises(UserError, match="3 validation prompts leave some of the 4 copies of the model"):
        drawn.validation(None)


def test_a_text_is_written_by_the_template_that_was_chosen(smoke, here):
    from aligner_lib.datasets.chat_template import OWN, encode, use_template
    from aligner_lib.datasets.tokenizer import Tokenizer

    tokenizer = use_template(Tokenizer(smoke), OWN)
    (task,) = tasks({"a": 1}, {"a": 1}, tokenizer, "User: Hi.\n\nAssistant:").train(0, 1)
    assert task.conversation == [user("Hi.")]
    assert list(task.tokens) == list(encode(tokenizer, task.conversation))
    (failure,) = tasks({"a": 1}, {"a": 1}, tokenizer, "[INST] Hi. [/INST]").train(0, 1)
    assert failure.reason == "templated" and "'[INST] Hi. [/INST]'" in failure.text


# ---- a file of the user's -------------------------------------------------------------------------------------------

PROMPTS = [{"prompt": f"number {i}", "target": i} for i in range(10)]


def own(folder, code, name="", records=PROMPTS):
    """A user's file as an environment in this process."""
    (folder / "mine.py").write_text(code)
    return make(f"{folder / 'mine.py'}{name}", prompts=write_lines(folder / "p.jsonl", records))


INSTANCE = "class Judge:\n    def __call__(self, prompt, response): return 7.0\n"
OWN_CLASS = """
from aligner_lib.rollouts.environments.base import Environment, Step

class Own(Environment):
    def __init__(self, ARGUMENTS):
        self.size = digits

    def reset(self, seed): return "Hi"
    def step(self, response): return Step()
"""
TWO_FUNCTIONS = "def a(prompt, response): return 1.0\ndef b(prompt, response): return 2.0\n"


def test_a_function_gets_the_record_s_fields_and_returns_a_reward_alone_or_with_metrics(tmp_path):
    code = "def reward(prompt, response, target, **fields): return prompt, response, target, fields"
    environment = own(tmp_path, code)
    (tmp_path / "a_neighbour.py").write_text("def reward(prompt, response): return 8.0")
    prompt = last(environment.reset(2))
    assert environment.step("yes").reward == (prompt, "yes", *numbers_in(prompt), {})
    for code, name, step in [
        ("def f(prompt, response): return float(len(response))", "", Step(4.0)),
        ("def f(prompt, response): return {'reward': 3, 'size': 4}", "", Step(3, metrics={"size": 4})),
        (TWO_FUNCTIONS, ":b", Step(2.0)),
        (f"{TWO_FUNCTIONS}def reward(prompt, response): return 3.0", "", Step(3.0)),
        ("\ufeffdef f(prompt, response): return 5.0", "", Step(5.0)),  # a byte order mark
        ("from functools import cache\n@cache\ndef reward(prompt, response): return 6.0", "", Step(6.0)),
        (f"from functools import partial\n{TWO_FUNCTIONS}c = partial(b)", ":c", Step(2.0)),
        (f"{INSTANCE}reward = Judge()", "", Step(7.0)),
        ("from a_neighbour import reward", "", Step(8.0)),
    ]:
        environment = own(tmp_path, code, name)
        environment.reset(0)
        assert environment.step("four") == step


def test_a_reward_that_changes_a_list_of_its_record_changes_only_its_copy(tmp_path):
    code = (
        "def reward(prompt, response, words): return [words.pop() in response for _ in words[:]].count(True)"
    )
    environment = own(tmp_path, code, records=[{"prompt": str(i), "words": ["a", "b"]} for i in range(10)])
    environment.reset(0)
    assert [environment.step(response).reward for response in ("a b", "a b", "b")] == [2, 2, 1]


@pytest.mark.parametrize(
    ("arguments", "key"), [("prompt, response", "response"), ("completions", "completions")]
)
def test_no_key_of_any_record_takes_the_place_of_the_response(tmp_path, arguments, key):
    code = f"def reward({arguments}, **fields): return [1.0]"
    with pytest.raises(UserError, match=f"a record has the key '{key}', which is the name of an argument"):
        own(tmp_path, code, records=[*PROMPTS, {"prompt": "last", key: "DATASET TEXT"}])


def test_a_function_of_lists_reads_a_column_of_responses(tmp_path):
    code = "def reward(completions, response): return [response[0] + completions[0]]"
    environment = own(tmp_path, code, records=[{"prompt": f"number {i}", "response": "x"} for i in range(10)])
    environment.reset(0)
    assert environment.step("y").reward == "xy"


def test_a_task_of_reasoning_gym_has_its_own_scorer():
    pytest.importorskip("reasoning_gym")
    train, held_out = (make("reasoning_gym", split, task="chain_sum", size=30) for split in SPLITS)
    assert not set(prompts_of(train)) & set(prompts_of(held_out))
    expression = last(train.reset(0)).rpartition(":")[2].strip(" =?").replace(" ", "")
    assert train.step(f"Well, <answer>{calculate(expression)}</answer>").reward == 1
    assert train.step("<answer>a lot</answer>").reward == 0


def test_the_files_on_the_page_about_environments_work(tmp_path, monkeypatch):
    page = (ROOT / "docs/environments.md").read_text()
    files = re.findall(r"```(?:python|jsonl)\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    for name, text in zip(("shorter.py", "prompts.jsonl", "sky.py"), files, strict=True):
        Path(name).write_text(text)
    environment = make("shorter.py", prompts=dict.fromkeys(SPLITS, "prompts.jsonl"))
    assert last(environment.reset(1)) == "What is bread?"
    assert environment.step("flour " * 8) == Step(1, metrics={"words": 8})
    Path("cities.jsonl").write_text('{"prompt": "How warm is Rome?", "degrees": "21.5"}\n')
    environment = make("sky.py", prompts=dict.fromkeys(SPLITS, "cities.jsonl"))
    environment.reset(0)
    call = '<tool_call>{"name": "temperature", "arguments": {"city": "Rome"}}</tool_call>'
    assert last(environment.step(call).observation) == "21.5"
    assert environment.step("It is 21.5 degrees.") == Step(1, metrics={"calls": 1, "failed_calls": 0})


# ---- processes ------------------------------------------------------------------------------------------------------

MISBEHAVES = """
import multiprocessing, os, random, signal, subprocess, sys, time

def fail():
    raise ValueError("too short")

def terminated():
    program = subprocess.Popen(["sleep", "60"])
    program.terminate()
    fork = multiprocessing.get_context("fork").Process(target=signal.raise_signal, args=[signal.SIGTERM])
    fork.start()
    fork.join()
    return {"reward": program.wait(), "fork": fork.exitcode}

DO = {
    "hang": lambda: time.sleep(600),
    "program": lambda: subprocess.run(["sleep", "60.25"]),
    "terminated": terminated,
    "die": lambda: os._exit(3),
    "nan": lambda: float("nan"),
    "huge": lambda: 1e39,
    "metric": lambda: {"reward": 1.0, "length": float("inf")},
    "nothing": lambda: None,
    "taken": lambda: {"reward": 1.0, "turns": 3},
    "unnamed": lambda: {"length": 1.0},
    "number": lambda: {"reward": 1.0, 3: 2.0},
    "raise": fail,
    "exit": lambda: sys.exit(0),
    "draw": random.random,
    "torch": lambda: float("torch" in sys.modules),
    "pid": os.getpid,
    "rank": lambda: float("GROUP_RANK" in os.environ),
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
    args = {"prompts": dict.fromkeys(SPLITS, str(folder / "p.jsonl"))}
    return EnvironmentSettings(**{"use": str(folder / "mine.py"), "timeout": 2, "args": args, **changes})


@pytest.fixture(scope="module")
def pool(folder):
    environments = {"mine": settings(folder), "guess": EnvironmentSettings("guess_the_number")}
    with pytest.MonkeyPatch.context() as of_a_rank:
        of_a_rank.setenv("GROUP_RANK", "0")
        with Environments(environments, "train") as pool:
            yield pool


def steps(pool, *responses):
    """The answers to episodes 0, 1, …, each with one response."""
    return pool.step([Episode("mine", seed, (response,)) for seed, response in enumerate(responses)])


def test_episodes_are_answered_in_their_order_each_by_its_environment(pool):
    import torch

    assert pool.names == ["mine", "guess"]
    assert pool.sizes() == {"mine": 10, "guess": 14} and pool.max_turns() == {"mine": 1, "guess": 6}
    prompts = pool.reset([Episode("guess", 0), Episode("mine", 4), Episode("mine", 12)])
    assert [last(prompt)[:8] for prompt in prompts] == ["I have a", "number 4", "number 2"]
    assert steps(pool, *"abc") == [Step(0.0), Step(1.0), Step(2.0)]
    assert torch.__version__  # this process has torch; a worker has not, and ignores the scheduler's SIGTERM
    assert steps(pool, "torch", "warned", "rank") == [Step(0.0), Step(1.0), Step(0.0)]
    (ended,) = steps(pool, "terminated")  # what a worker starts does not ignore SIGTERM
    assert ended == Step(-signal.SIGTERM, metrics={"fork": -signal.SIGTERM})


def running(*command):
    return [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == [*command]]


FAILURES = {
    "raise": ("raised", 'mine.py", line 5, in fail\n    raise ValueError("too short")\n'),
    "exit": ("raised", "SystemExit: 0"),
    "nan": ("not_finite", "the reward is nan"),
    "huge": ("not_finite", "the reward is 1e+39, beyond float32's 3.4028235e+38"),
    "metric": ("not_finite", "length is inf"),
    "unnamed": ("reward_missing", "an answer lacks `reward`; it has length, which `rewards` may name"),
    "number": ("raised", "a metric is named 3: give the metric a text as its name"),
    "nothing": ("no_reward", "the reward function returned None"),
    "taken": ("raised", "a metric is named turns, as a figure of every environment: rename the metric"),
    "die": ("died", "its process ended with exit code 3"),
    "program": ("timeout", "no answer within 2 s; it was here, the innermost call first:"),
    "hang": ("timeout", "no answer within 2 s; it was here, the innermost call first:"),
}


def test_a_response_that_misbehaves_costs_its_sample_and_no_other(pool):
    # the last two: both processes hang at the same time
    first, *failures, final = steps(pool, "good", *FAILURES, "good")
    of_last_seed = (len(FAILURES) + 1) % 10  # of ten prompts, seed 10 is seed 0 again
    assert [first, final] == [Step(0.0), Step(of_last_seed)]
    for seed, (response, failure) in enumerate(zip(FAILURES, failures), 1):
        reason, words = FAILURES[response]
        assert isinstance(failure, EnvironmentFailure) and words in failure.text
        assert (failure.environment, failure.seed, failure.reason) == ("mine", seed, reason)
        assert "worker.py" not in failure.text
    assert re.search(r'mine\.py", line \d+ in reward', failures[-1].text)
    until(lambda: not running("sleep", "60.25"), "the end of a program whose worker has ended", 30)


def test_the_task_that_ended_a_worker_is_blamed_and_not_the_task_before():
    manager = pools._Pool(max_workers=1, context=pools.GroupLeaders())._pool_manager
    workers, ended = manager.worker_manager, SimpleNamespace(pid=7, is_alive=lambda: False, exitcode=3)
    workers.create_channels()
    workers.create_workers, workers.workers[7] = Mock(), ended
    before, last = tasks = [Task(number, ProcessFuture(), None, None) for number in (1, 2)]
    for task in tasks:
        manager.context.task_queue.put(task)
        manager.task_manager.register(task)
    result = TaskResult(1, Result(ResultStatus.SUCCESS, "right"))
    for message in (Acknowledgement(7, 1), result, Acknowledgement(7, 2)):
        workers.workers_channel.send(message)
    manager.process_next_message(0)
    manager.update_workers()  # notices the end, with two messages unread
    manager.process_next_message(0)
    assert before.future.result(0) == "right" and isinstance(last.future.exception(0), ProcessExpired)
    workers.close_channels()


TWO_REWARDS = """
def reward(prompt, response, **fields):
    if response == "half":
        return {"right": 1.0}
    return {"right": float("x" in response), "words": len(response.split()), "letters": len(response)}
"""


def test_the_rewards_that_the_settings_name_are_needed_at_the_start_and_in_each_answer(folder):
    (folder / "two.py").write_text(TWO_REWARDS)
    use = str(folder / "two.py")
    with pytest.raises(UserError, match="e: an answer lacks word, which `rewards` names; it has right, w"):
        Environments({"e": settings(folder, use=use, rewards={"right": 1, "word": 0.1})}, "train")
    named = settings(folder, use=use, rewards={"right": 1, "words": -0.1})
    with Environments({"e": named}, "train") as pool:
        complete, half = pool.step([Episode("e", 0, ("x y",)), Episode("e", 0, ("half",))])
    assert complete == Step(0.0, metrics={"right": 1, "words": 2, "letters": 3})
    assert half.reason == "reward_missing" and "lacks words, which `rewards` names; it has right" in half.text


def test_a_reward_model_s_environment_needs_a_weight_for_its_score(folder):
    without = settings(folder, use="reward_model", rewards={"obeys": 1})
    words = "model.environments.e: rewards={'obeys': 1} lacks reward_model, the reward model's score"
    with pytest.raises(UserError, match=words):
        Environments({"e": without}, "train")


def test_killed_processes_are_replaced(pool):
    for pid in {int(step.reward) for step in steps(pool, *["pid"] * 8)}:
        os.kill(pid, signal.SIGKILL)  # the kernel's killer of processes, as memory runs out
    assert steps(pool, *"abc") == [Step(0.0), Step(1.0), Step(2.0)]


def test_an_answer_depends_only_on_the_episode_s_seed_and_responses(pool):
    draws = [steps(pool, *["draw"] * 6) for _ in range(2)]
    assert draws[0] == draws[1] and len({step.reward for step in draws[0]}) == 6
    alone, guesses = make("guess_the_number"), ["10", "what?", "15", "3", "7", "20"]
    for seed in range(4):
        alone.reset(seed)
        for turn, guess in enumerate(guesses, 1):
            expected = alone.step(guess)
            assert pool.step([Episode("guess", seed, tuple(guesses[:turn]))]) == [expected]
            if expected.done:
                break
    [failure] = pool.step([Episode("mine", 0, ("a", "b"))])
    assert failure.reason == "raised" and "done after 1 of its 2 responses" in failure.text


def test_the_time_limit_of_a_turn_counts_the_turns_that_are_replayed(pool, monkeypatch):
    def limit_of(blueprint, call, groups=(0,)):
        return worker.time_limit(blueprint, make("guess_the_number"), groups)

    monkeypatch.setattr(worker, "_bounded_call", limit_of)
    for function, responses, turns in ((worker.reset, (), 1), (worker.step, ("10", "15", "3"), 3)):
        limit = function(pool._blueprints["guess"], 0, responses)
        assert limit == pool._seconds("guess", function, (0, responses)) == turns * 10


class Name(str):
    """A text of a class that the trainer does not know."""


class Echo(Environment):
    max_turns = 2

    def reset(self, seed):
        return [{"role": Name("user"), "content": Name("Hi")}]

    def step(self, response):
        return Step(1.0, response == "end", Name(response), {Name("words"): 2})


def test_the_trainer_gets_python_s_own_texts_which_a_tokenizer_can_read():
    environment = Echo()
    (message,), step = worker._begin(environment, "train", 0), worker.play(environment, "train", 0, ["on"])
    assert {type(text) for text in (*message.values(), step.observation, *step.metrics)} == {str}
    with pytest.raises(ValueError, match=r"'\\ud83d' contains half a surrogate pair: give text\.enc"):
        worker.play(environment, "train", 0, ["\ud83d"])


def test_an_episode_that_goes_on_needs_a_class_or_a_setting_with_max_turns():
    environment = type("Forgot", (Environment,), {"reset": Echo.reset, "step": Echo.step})()
    assert worker.play(environment, "train", 0, ["end"]).done
    with pytest.raises(
        TypeError, match=r"the episode goes on, but Forgot\.max_turns is 1: set max_turns, the mo"
    ):
        worker.play(environment, "train", 0, ["on"])
    environment.step_all = lambda seeds, responses, groups: [Step(), Step(done=False, observation="On?")]
    with pytest.raises(TypeError, match=r"an episode goes on, but Forgot\.judges_together is set"):
        worker.judge(environment, "train", [0, 1], "ab")
    environment.max_turns = 1
    assert worker.play(environment, "train", 0, ["on"]).done


ENDLESS = """
import os
from aligner_lib.rollouts.environments.base import Environment, Step

class Endless(Environment):
    max_turns = 2

    def reset(self, seed):
        return "Go on."

    def step(self, response):
        return Step(os._exit(1) if response == "die" else REWARD, done=False, observation=" More.")
"""


def test_an_episode_ends_after_max_turns_and_a_run_goes_on_with_the_file_that_it_began_with(folder, tmp_path):
    file = tmp_path / "endless.py"
    file.write_text(ENDLESS.replace("REWARD", "1.0"))
    with Environments({"mine": settings(folder, use=str(file), processes=1, args={})}, "train") as pool:
        file.write_text(ENDLESS.replace("REWARD", "2.0"))
        episodes = [Episode("mine", 0, responses) for responses in (("die",), ("a",), ("a", "b"))]
        died, first, second = pool.step(episodes)  # a new process answers the second and the third
    assert died.reason == "died"
    assert [first, second] == [Step(1.0, False, " More."), Step(1.0, True, " More.")]


def test_a_process_that_hangs_ends_when_its_job_was_killed(folder):
    script = f"""
from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.rollouts.environments.pool import Environments, Episode

if __name__ == "__main__":
    pool = Environments({{"mine": {settings(folder, processes=1, timeout=600)!r}}}, "train")
    print(int(pool.step([Episode("mine", 0, ("pid",))])[0].reward), flush=True)
    pool.step([Episode("mine", 0, ("hang",))])
"""
    (folder / "job.py").write_text(script)
    command, environment = [sys.executable, folder / "job.py"], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as job:
        worker = psutil.Process(int(job.stdout.readline()))
        job.kill()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE, "the worker's end")


def environments(*overrides):
    """model.environments of a PPO job, composed from overrides."""
    overrides = ["={sums: {}}", *overrides]
    config = compose("ppo", [f"model.environments{override}" for override in overrides])
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


def prompts_with(line):
    def read(folder):
        (folder / "my p.jsonl").write_text(f'{{"prompt": "Hi"}}\n\n{line}\n')
        make("reward_model", prompts=str(folder / "my p.jsonl"))

    return read


def answers_with(**record):
    return lambda folder: make("answers", prompts=write_lines(folder / "p.jsonl", [record]))


def built(use, **args):
    return lambda folder: make(use, **args)


def written(code, name=""):
    return lambda folder: own(folder, code, name)


def own_class(arguments, **args):
    def build(folder):
        (folder / "mine.py").write_text(OWN_CLASS.replace("ARGUMENTS", arguments))
        return make(str(folder / "mine.py"), **args)

    return build


def test_a_class_gets_the_split_at_any_place(tmp_path):
    for arguments in ("split, digits=2", "digits=2, split='train'", "digits=2, **others"):
        assert own_class(arguments)(tmp_path).size == 2


def composed(override):
    return lambda folder: environments(override)


def started(**changes):
    return lambda folder: Environments({"mine": EnvironmentSettings(**changes)}, "train")


def no_instruction(folder):
    file = write_lines(folder / "p.jsonl", [{"text": "User: Hi.\n\nAssistant:"}] * 2)
    make("instructions", prompts=dict.fromkeys(SPLITS, file))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (prompts_with('{"prompt": "Hi", "text": "Hi"}'), "p.jsonl:3 can't be used: the line has prompt and text"),
        (prompts_with('{"question": "Hi", "gold": 2}'), "rename the key of the prompt to 'prompt'; the line has qu"),
        (prompts_with("Hi,2"), "(char 0); environments read JSON Lines: `aligner data '/"),
        (prompts_with('{"messages": ["Hi"]}'), "list of {role, content}"),
        (prompts_with('{"messages": [{"from": "human", "value": "Hi"}]}'), "messages is not a list of {role, content}"),
        (prompts_with('{"messages": [{"role": "user", "content": " "}]}'), "the last turn of messages is empty"),
        (prompts_with('{"messages": [{"role": "user", "value": "Hi"}]}'), "p.jsonl:3 can't be used: no key 'content'"),
        (prompts_with('{"messages": [{"role": "user"}]}'), "p.jsonl:3 can't be used: no key 'content'"),
        (prompts_with('{"messages": [{"role": "critic", "content": "Hi"}]}'), "p.jsonl:3 can't be used: a turn has the role 'critic'"),
        (prompts_with('{"messages": [{"role": "user", "content": "\\ud83d"}]}'), "p.jsonl:3 can't be used: 'content' contains half a surrogate"),
        (prompts_with('{"prompt": "\\ud83d"}'), "p.jsonl:3 can't be used: 'prompt' contains half a surrogate"),
        (answers_with(question="\ud83d", answer="2"), "p.jsonl:1 can't be used: 'question' contains half a surrogate"),
        (answers_with(question="2?", answer="\ud83d"), "p.jsonl:1 can't be used: 'answer' contains half a surrogate"),
        (prompts_with("[1]"), "p.jsonl:3 can't be used: the line is not a JSON object; environments read JSON"),
        (no_instruction, "this prompt has no instruction of data/forms.py: 'User: Hi"),
        (written("from os.path import join"), "has no function: write a function, for example\n    def reward(pr"),
        (written("def reward(prompt, response:\n  pass"), 'mine.py", line 1\n    def reward(prompt, resp'),
        (written("y = 1\nx = nothing"), 'mine.py", line 2, in <module>\n    x = nothing\n'),
        (written("def reward(response): return 1.0"), "can't be called with prompt, response, target"),
        (written("def reward(prompt, response, size): return 1.0"), "missing a required argument: 'size'"),
        (written(TWO_FUNCTIONS), "functions or classes: a, b. Name a function `reward`, or choose a function: use="),
        (written("from functools import partial\nreward = partial(print)"), "reward(*args, sep="),
        (written(f"class Judge: pass\n{TWO_FUNCTIONS}", ":Judge"), "mine.py has no Judge; known functions: a, b"),
        (written(TWO_FUNCTIONS, ":c"), "mine.py has no c; known functions: a, b"),
        (own_class("digits=2"), 'Own(digits=2) takes no split: write def __init__(self, split="train", *, …)'),
        (own_class("part, **others"), 'Own(part, **others) takes no split: write def __init__(self, split="train", *, …)'),
        (own_class("split, digits, **others"), "args.digits is needed"),
        (own_class("split, digits=0"), "Own.size is 0: give the number of different episodes, at least 1, or None for"),
        (own_class("split, digits", digits="2"), "Own.size is '2': give the number of different episodes, at least 1"),
        (built("sum"), "use='sum' is unknown: choose from sums, form_rules"),
        (built("nowhere.py"), "nowhere.py can't be read"),
        (own_class("split, part: bool, full=True", part=True, full="off"), "full='off': write true or false"),
        (built("sums", digits="two"), "digits='two': write a whole number"),
        (built("sums", digit=2), "there is no args.digit; the environment takes digits, low"),
        (built("sums", low="two"), "can't be built with args={'low': 'two'}"),
        (built("sums", low=5, high=5), "there are 1 different episodes"),
        (built("sums", held_out=1), "held_out=1: the value must be above 0 and below 1"),
        (built("sums", question="{a} + {b}? As {json}"), "{json}': it must contain {a} and {b}; write other braces twice, as in {{x}}"),
        (built("sums", answer="{{sum}}"), "answer='{{sum}}': it must contain {sum}"),
        (built("sums", answer="{sum"), "answer='{sum': it must contain {sum}"),
        (built("form_rules", forms=["haiku"]), "there is no haiku; there are sentences"),
        (built("answers"), "args.prompts is needed"),
        (built("answers", prompts={"train": "a.jsonl"}), "{train: FILE, validation: FILE}"),
        (built("reasoning_gym", task="chain_sum"), "pip install reasoning-gym"),
        (started(use="sums", args={"digits": 0}), "model.environments.mine: digits=0: the value must be at least 1"),
        (started(), "model.environments.mine: use='mine' is unknown: choose from sums"),
        (composed(".sums.wieght=2"), "did you mean model.environments.sums.weight?"),
        (composed(".sums.weight=-1"), "model.environments.sums.weight=-1.0: the value must be at least 0"),
        (composed(".sums.timeout=long"), "model.environments.sums.timeout takes float"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_value_and_cure(call, words, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(UserError, match=re.escape(words)):
        call(tmp_path)
