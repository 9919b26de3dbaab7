"""Tools: a template's own form of calls and results, a default form, and environments that run the calls."""

import json

import pytest
from test_chat_template import FORGETFUL
from test_environments import settings
from tool_templates import ADD, LLAMA, MISTRAL, QWEN

from aligner_lib.datasets import tool_calls
from aligner_lib.datasets.chat_template import (
    OWN,
    PLAIN,
    call_form,
    encode,
    own_call_form,
    render,
    render_observation,
    use_template,
)
from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import ToolCall, in_default_form, read_calls
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.pool import Environments, Episode
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.rollouts.environments.search import word_f1
from aligner_lib.rollouts.environments.tools import DescribedTool, result_of

QUESTION = [{"role": "user", "content": "1 + 1?"}]
CALL = ToolCall("add", {"a": 1, "b": 1})
RESULT = {"role": "tool", "name": "add", "content": "2"}
WHOLE = [*QUESTION, tool_calls.calling_message([CALL]), RESULT, {"role": "assistant", "content": "Two."}]
TAGGED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 1}}\n</tool_call>'
OBJECT = '{"name": "add", "parameters": {"a": 1, "b": 1}}'


# ---- templates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("template", "written", "form"), [(QWEN, TAGGED, "tags"), (LLAMA, OBJECT, "object")])
def test_a_template_that_knows_tools_writes_them_as_in_transformers(with_template, template, written, form):
    from transformers import AutoTokenizer

    tokenizer = with_template(template)
    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    options = {"tools": [ADD], "tokenize": False, "add_generation_prompt": True}
    for turns in (1, 3):
        text = reference.apply_chat_template(WHOLE[:turns], **options)
        assert render(tokenizer, WHOLE[:turns], tools=[ADD]) == text
    assert own_call_form(tokenizer) == form
    assert read_calls(written, form) == ("", [CALL]) and in_default_form(written, form) == TAGGED
    # what the policy wrote, and then reads, is the whole conversation
    observation = render_observation(tokenizer, QUESTION, [RESULT], True, [ADD])
    assert render(tokenizer, QUESTION, tools=[ADD]) + written + "<|im_end|>" + observation == text


def test_with_tools_a_template_named_tool_use_comes_first_as_in_transformers(with_template):
    from transformers import AutoTokenizer

    templates = {"default": FORGETFUL, "tool_use": QWEN}
    tokenizer = with_template([{"name": name, "template": text} for name, text in templates.items()])
    reference = AutoTokenizer.from_pretrained(tokenizer.folder)
    options = {"tokenize": False, "add_generation_prompt": True}
    for tools in ([ADD], None):
        text = reference.apply_chat_template(QUESTION, tools=tools, **options)
        assert render(tokenizer, QUESTION, tools=tools or ()) == text
    assert own_call_form(tokenizer) == "tags"


def test_without_tools_in_the_template_they_have_the_default_form(smoke):
    tokenizer = use_template(Tokenizer(smoke), OWN)
    assert own_call_form(tokenizer) is None and call_form(tokenizer) == "tags"
    turns = [*QUESTION, tool_calls.calling_message([CALL, CALL], "So:"), RESULT, RESULT | {"content": "3"}]
    in_words = tool_calls.in_words([{"role": "system", "content": "Be brief."}, *turns], [ADD])
    heading = "Be brief.\n\nYou can call these functions:\n"
    assert in_words[0]["content"].startswith(heading + json.dumps(ADD["function"]))
    results = "<tool_response>\n2\n</tool_response>\n<tool_response>\n3\n</tool_response>"
    calls = {"role": "assistant", "content": f"So:\n{TAGGED}\n{TAGGED}"}
    assert in_words[1:] == [*QUESTION, calls, {"role": "user", "content": results}]
    assert render(tokenizer, turns, tools=[ADD]) == render(tokenizer, tool_calls.in_words(turns, [ADD]))
    plain = render(use_template(Tokenizer(smoke), PLAIN), turns[:2], tools=[ADD])
    assert plain.endswith(f"User: 1 + 1?\n\nAssistant: So:\n{TAGGED}\n{TAGGED}\n\nAssistant:")


def test_a_template_with_another_form_of_calls_is_refused_by_its_form(with_template):
    tokenizer = with_template(MISTRAL)
    with pytest.raises(UserError, match=r"writes a tool call as '\[TOOL_CALLS\]\[.*chat_template=plain"):
        render(tokenizer, QUESTION, tools=[ADD])
    assert render(tokenizer, QUESTION).endswith("1 + 1?<|im_end|>\n<|im_start|>assistant\n")
    assert own_call_form(with_template(FORGETFUL)) is None


UNREADABLE = {
    "<tool_call>add(1, 1)</tool_call>": "is not JSON",
    '<tool_call>{"name": 3}</tool_call>': 'must have the form {"name"',
    '<tool_call>["add"]</tool_call>': 'must have the form {"name"',
    '<tool_call>{"name": "add", "arguments": [1]}</tool_call>': "of add must be a JSON object",
}


def test_calls_are_read_and_what_is_no_call_is_text():
    assert read_calls(f"So {TAGGED}\n{TAGGED} …") == ("So \n …", [CALL, CALL])
    stopped = TAGGED.removesuffix("</tool_call>")  # the stop token stood in its place
    for text in (stopped, TAGGED.replace('"name"', '"id": "1", "name"')):
        assert text != TAGGED and read_calls(text) == ("", [CALL])
    assert read_calls(TAGGED.replace("arguments", "parameters")) == ("", [ToolCall(CALL.name, {})])
    for text, problem in UNREADABLE.items():
        (call,) = read_calls(text)[1]
        assert problem in call.problem, text
    assert read_calls(f"{OBJECT}; {OBJECT}", "object") == ("", [CALL, CALL])
    for text in ('{"name": "add"}', f"It is {OBJECT}", f"{OBJECT} and", "Two."):
        assert read_calls(text, "object") == (text, []), text


# ---- SFT ------------------------------------------------------------------------------------------------------------


def learnt_parts(tokenizer, sample):
    ids = [token if learnt else None for token, learnt in zip(sample.tokens, sample.learnt)]
    runs = "".join(" \0" if token is None else tokenizer.decode([token], True, True) for token in ids)
    return [part for part in runs.replace(" \0", "\0").split("\0") if part]


@pytest.mark.parametrize("template", [QWEN, LLAMA, OWN, PLAIN])
def test_sft_learns_calls_and_answers_and_never_a_result(smoke, with_template, tmp_path, template):
    is_named = template in (OWN, PLAIN)
    tokenizer = use_template(Tokenizer(smoke), template) if is_named else with_template(template)
    # OpenAI's form: arguments are JSON text, the content is null, and the call has an id
    calls = [{"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}]
    answer = {"role": "assistant", "content": None, "tool_calls": calls}
    turns = [*QUESTION, answer, {"role": "tool", "tool_call_id": "1", "content": "2"}, WHOLE[-1]]
    file = tmp_path / "tools.jsonl"
    as_text = json.dumps([ADD["function"]])  # tools as JSON text, without their envelope
    file.write_text("\n".join(json.dumps({"messages": turns, "tools": tools}) for tools in ([ADD], as_text)))
    samples, _ = load_sft([file], tokenizer, 2048)
    of_each = len(samples) // 2
    assert samples[:of_each] == samples[of_each:]
    learnt = [learnt_parts(tokenizer, sample) for sample in samples[:of_each]]
    call, stop = (OBJECT if template == LLAMA else TAGGED), "<|im_end|>"
    # plain texts have a stop token at the end alone, and a policy has to stop after a call
    if template == PLAIN:
        assert learnt == [[f" {call}{stop}"], [f" Two.{stop}"]]
    else:  # the context is the prompt that the policy will read
        assert learnt == [[call + stop, "Two." + stop]]
        assert samples[0].tokens[: samples[0].answer_start] == encode(tokenizer, QUESTION, [ADD])


BAD_RECORDS = {
    "'tools' is dict": {"messages": WHOLE, "tools": {"name": "add"}},
    "a tool is 'add'": {"messages": WHOLE, "tools": ["add"]},
    "'tools' is a text, but not JSON (maximum recursion": {"messages": WHOLE, "tools": "[" * 100_000},
    "a call is {'function': {'name': 'add', 'arguments': '[[": {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": "[" * 100_000}}]}]},
    "a call is {'id': '1'}": {"messages": [*QUESTION, {"role": "assistant", "tool_calls": [{"id": "1"}]}]},
    "which only an assistant's turn may have": {"messages": [QUESTION[0] | {"tool_calls": WHOLE[1]["tool_calls"]}, WHOLE[-1]]},
}  # fmt: skip


@pytest.mark.parametrize("problem", BAD_RECORDS)
def test_sft_leaves_out_a_record_whose_tools_it_cannot_read_and_says_why(smoke, tmp_path, problem):
    file = tmp_path / "tools.jsonl"
    file.write_text("\n".join(map(json.dumps, (BAD_RECORDS[problem], {"input": "a", "output": "b"}))))
    samples, report = load_sft([file], Tokenizer(smoke), 2048)
    assert len(samples) == 1 and problem in report.lines()[0] and "tools.jsonl:1" in report.lines()[0]


def test_a_call_whose_arguments_contain_a_stop_token_is_left_out(with_template, tmp_path):
    call = tool_calls.calling_message([ToolCall("add", {"a": "1<|im_end|>é"})])
    file = tmp_path / "tools.jsonl"
    file.write_text("\n".join(json.dumps({"messages": turns}) for turns in ([*QUESTION, call], WHOLE)))
    samples, report = load_sft([file], with_template(QWEN), 2048)
    words = "1 of 2 samples left out: an answer contains the stop token '<|im_end|>'"
    assert len(samples) == 1 and report.lines()[0].startswith(words)


# ---- environments ---------------------------------------------------------------------------------------------------

FILE = '''
from aligner_lib.rollouts.environments.base import Step
from aligner_lib.rollouts.environments.tools import ToolEnvironment

def half(number: int) -> float:
    """
    Halves a number.

    Args:
        number: An even number.
    """
    if number % 2:
        raise RuntimeError("odd")
    return number / 2

class Halves(ToolEnvironment):
    max_turns = 3
    tools = (half,)

    def prompt(self, seed):
        return [{"role": "user", "content": "Halve 8."}]

    def judge(self, answer):
        return Step(float(answer == "4"), metrics={"words": len(answer.split())})
'''


def calling(name, **arguments):
    return tool_calls.written_calls([ToolCall(name, arguments)])


NO_FIT = "error: the arguments of half do not fit: "
RESULTS = {
    calling("half", number=8): "4.0",
    calling("half", number=7): "error: RuntimeError: odd",
    calling("half", number="8"): f"{NO_FIT}number: '8' is not of type 'integer'",
    calling("half"): f"{NO_FIT}'number' is a required property",
    calling("half", number=8, by=2): f"{NO_FIT}Additional properties",
    calling("double", number=8): "error: there is no function double; the functions are half",
    calling("\ud83d"): r"error: there is no function \ud83d; the functions are half",
    "<tool_call>half(8)</tool_call>": "error: the call is not JSON",
}


def test_calls_are_run_in_order_and_errors_go_back_to_the_model(tmp_path):
    file = tmp_path / "halves.py"
    file.write_text(FILE)
    environment = make(str(file))
    environment.reset(0)
    step = environment.step("\n".join(RESULTS))
    assert not step.done and [message["role"] for message in step.observation] == ["tool"] * len(RESULTS)
    for message, result in zip(step.observation, RESULTS.values()):
        assert message["content"].startswith(result)
    assert json.dumps(step.observation, ensure_ascii=False).encode(), "a tokenizer can read all texts"
    counts = {"calls": len(RESULTS), "failed_calls": len(RESULTS) - 1}
    assert environment.step("4") == Step(1.0, metrics={"words": 1} | counts)
    environment.reset(0)
    for _ in range(2):
        assert not environment.step(calling("half", number=8)).done
    # the call in the last turn is not run, and the text beside it is the answer
    metrics = {"words": 1, "calls": 3, "failed_calls": 0}
    assert environment.step(f"4 {calling('half', number=8)}") == Step(1.0, metrics=metrics)


def test_a_judge_of_an_environment_with_tools_may_ask_a_second_question(tmp_path):
    ask = "Step(0.5, False, 'Sure?') if self.turns == 1 else "
    (tmp_path / "halves.py").write_text(FILE.replace("return Step(", f"return {ask}Step("))
    environment = make(str(tmp_path / "halves.py"))
    environment.reset(0)
    counts = {"calls": 0, "failed_calls": 0}
    assert environment.step("4") == Step(0.5, False, "Sure?", counts)
    assert environment.step("4") == Step(1.0, metrics={"words": 1} | counts)


def write_environment(folder, tools: str, reward: str) -> dict[str, str]:
    """A file with tools and a reward, and prompts; gives the paths of both. reward: the source from its parameters on."""
    file, prompts = folder / "mine.py", folder / "prompts.jsonl"
    file.write_text(f"{FILE.split('class')[0]}TOOLS = {tools}\n\ndef reward({reward}\n")
    records = [{"prompt": f"Halve {n}.", "right": str(n // 2)} for n in (2, 4, 6)]
    prompts.write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"use": str(file), "prompts": str(prompts)}


def test_a_file_with_tools_and_a_reward_is_an_environment_in_processes(tmp_path):
    paths = write_environment(tmp_path, "[half]", "prompt, response, right): return float(response == right)")
    args = {"prompts": paths["prompts"], "turns": 2}
    used = settings(tmp_path, use=paths["use"], processes=1, args=args)
    with Environments({"mine": used}, "train") as pool:
        assert pool.max_turns() == {"mine": 2}
        assert [tool["function"]["name"] for tool in pool.tools()["mine"]] == ["half"]
        (prompt,) = pool.reset([Episode("mine", 0)])
        number = int(prompt[0]["content"].split()[1].rstrip("."))
        call = calling("half", number=number)
        first, whole = pool.step([Episode("mine", 0, (call,)), Episode("mine", 0, (call, str(number // 2)))])
    assert first.observation == [{"role": "tool", "name": "half", "content": str(number / 2)}]
    assert (whole.reward, whole.metrics) == (1.0, {"calls": 1.0, "failed_calls": 0.0})


def test_a_reward_after_tools_may_be_none_and_no_metric_replaces_the_count_of_calls(tmp_path):
    reward = "prompt, response): return {'reward': 1.0, 'calls': 9} if response else None"
    paths = write_environment(tmp_path, "[half]", reward)
    environment = make(paths["use"], prompts=paths["prompts"])
    environment.reset(0)
    assert environment.step("").reason == "no_reward"
    with pytest.raises(ValueError, match="a metric is named calls, as a count of tool calls: rename"):
        environment.step("4")


def test_an_argument_that_may_be_none_takes_null():
    def total(numbers: list[int] | None = None, unit: str = "") -> str:
        """
        Adds.

        Args:
            numbers: What to add.
            unit: The unit.
        """
        return f"{sum(numbers or [])}{unit}"

    tools = {"total": DescribedTool(total)}
    for arguments, result in (({"numbers": None}, "0"), ({"numbers": [1, 2]}, "3"), ({}, "0")):
        assert result_of(ToolCall("total", arguments), tools) == result
    for wrong in ({"unit": None}, {"numbers": [None]}):
        with pytest.raises(ValueError, match="the arguments of total do not fit"):
            result_of(ToolCall("total", wrong), tools)


def test_an_async_tool_is_awaited():
    async def wait(seconds: int) -> str:
        """
        Waits.

        Args:
            seconds: How long.
        """
        return f"waited {seconds} s"

    assert result_of(ToolCall("wait", {"seconds": 0}), {"wait": DescribedTool(wait)}) == "waited 0 s"


@pytest.mark.parametrize(
    ("tools", "reward", "words"),
    [
        ("half", "prompt, response", "TOOLS is <function half at .*, but must be a list of functions"),
        ("[half, 3]", "prompt, response", "must be a list of functions"),
        ("[half, half]", "prompt, response", "two tools are named half: rename one of them"),
        ("[lambda number: 1]", "prompt, response", r"the tool .* can't be described: .*Write it as in"),
        ("[half]", "prompts, completions", "the reward judges one episode at a time: write a plain function"),
    ],
)
def test_tools_that_cannot_be_used_end_the_start(tmp_path, tools, reward, words):
    paths = write_environment(tmp_path, tools, f"{reward}, **fields): return 0")
    with pytest.raises(UserError, match=words):
        print(make(paths["use"], prompts=paths["prompts"]).tool_schemas)


def test_the_calculator_and_the_search_are_tools():
    calculator = make("tool_calculator", digits=3, operations="+", examples=1)
    *worked, question = calculator.reset(3)
    assert [turn["role"] for turn in worked] == ["user", "assistant", "tool", "assistant"]
    assert worked[2]["content"] == worked[3]["content"]
    a, b = map(int, question["content"].removeprefix("What is ").rstrip("?").split(" + "))
    assert min(a, b) >= 100 and max(a, b) < 1000
    for answer, is_right in ((a + b, 1.0), (a - b, 0.0)):
        calculator.reset(3)
        step = calculator.step(calling("calculator", expression=f"{a} + {b}"))
        assert step.observation[0]["content"] == str(a + b)
        assert calculator.step(f"It is {answer}.").metrics == {
            "right": is_right,
            "calls": 1,
            "failed_calls": 0,
        }
    search = make("search")
    (question,) = search.reset(0)
    text = search.step(calling("search", query=question["content"])).observation[0]["content"]
    assert search.record["response"] in text
    whole, copied = (search.step(answer).reward for answer in (search.record["response"], text))
    assert whole == 1 and 0 < copied < 0.6  # a copy of the text has further words


@pytest.mark.parametrize(
    ("answer", "known", "f1"),
    [
        ("The U.S.", "us", 1.0),
        ("a river of ice", "The river", 2 / (3 + 1)),
        ("the", "The answer is a bridge.", 0.0),
    ],
)
def test_f1_compares_words_without_punctuation_and_articles_as_squad_does(answer, known, f1):
    assert word_f1(answer, known) == f1
