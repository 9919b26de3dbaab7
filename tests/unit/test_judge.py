"""A language model as judge, and reward functions that judge many responses together."""

import json
import math
import re
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from chat_server import serving

from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import judge_endpoint, worker
from aligner_lib.rollouts.environments.base import NoVerdict, Step
from aligner_lib.rollouts.environments.judge_endpoint import JudgeEndpoint
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.tutorial.judging.served import PrintedProgress

RUBRIC = {"It is true.": 3, "It is short.": 1}
NO_SERVER = "http://127.0.0.1:9"


@pytest.fixture
def prompts(tmp_path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Question {n}?"}) + "\n" for n in range(10)))
    return str(file)


def judge_at(url, prompts, **changes):
    settings = {"rubric": RUBRIC, "cache": False, "key_variable": None} | changes
    return make("judge", prompts=prompts, url=url, model="m", **settings)


def judged(answer, prompts, seeds, responses, **settings):
    """The steps of responses to the prompts of these seeds, if the judge gives this answer to messages."""
    judge = judge_at(NO_SERVER, prompts, **settings)
    judge.endpoint.ask = lambda conversations: list(map(answer, conversations))
    return judge.step_all(seeds, responses)


def points_of(messages):
    """A judge that gives the number in the answer for truth, and 10 for brevity."""
    answer = messages[-1]["content"].rpartition("THE ANSWER:\n")[2]
    return f"It is so.\nC1: {answer}\n\n**C2**: **10**/10"


def test_a_reward_is_the_weighted_mean_of_points_and_many_are_asked_at_the_same_time(prompts):
    answers = [str(n % 11) for n in range(16)]
    with serving(points_of, at_once=8) as server:
        steps = judge_at(server.url, prompts, concurrency=8).step_all(range(16), answers)
    assert [step.reward for step in steps] == pytest.approx([(3 * (n % 11) / 10 + 1) / 4 for n in range(16)])
    assert steps[7].metrics == {"criterion_1": 0.7, "criterion_2": 1.0}
    assert server.most_open == 8
    system, user = server.bodies[0]["messages"]
    assert "C1: It is true." in system["content"] and "C2: It is short." in system["content"]
    assert user["content"].startswith("THE USER:\nQuestion ")


def test_a_rubric_is_a_dict_a_text_or_a_list_of_criteria_with_weights(prompts):
    """Only a list can have an apostrophe in a setting, because Hydra's grammar has no quotes in keys."""
    rubric = [["The answer's tone is kind.", 3], "It is short."]
    judge = judge_at(NO_SERVER, prompts, rubric=rubric)
    assert judge.weights == {"C1": 0.75, "C2": 0.25} and judge.criteria["C1"] == rubric[0][0]
    assert judge_at(NO_SERVER, prompts, rubric="It is short.").criteria == {"C1": "It is short."}


NO_VERDICTS = """
C1: 7|C1: 11, C2: 3|C1: 7, C2: 3, But C1: 2.|C1: 7, C1: 3|C1: 7.5, C2: 3|C1: -7, C2: 3|C1: 7 out of 100, C2: 3|C1: 7/5, C2: 3
"""


@pytest.mark.parametrize("text", ["", *NO_VERDICTS.strip().split("|")])
def test_a_text_that_is_no_verdict_gives_no_reward(prompts, text):
    (step,) = judged(lambda messages: text.replace(", ", "\n"), prompts, [0], ["a"])
    assert step.reason == "not_understood"


@pytest.mark.parametrize("text", ["C1: 7.0", "c1: 7 points", "**C1**: 7 out of 10", "```\nC1: 7/10\n```\n"])
def test_the_usual_forms_of_points_are_understood(prompts, text):
    (step,) = judged(lambda messages: text, prompts, [0], ["a"], rubric="It is true.")
    assert step == Step(0.7, metrics={"criterion_1": 0.7})


def longer_answer(messages):
    """A judge of pairs that prefers the longer answer."""
    first, second = re.findall(r"ANSWER:\n(.*)", messages[-1]["content"])
    if "refused" in (first, second):
        return NoVerdict("judge", "too long")
    if "?" in (first, second):
        return "Hm."
    longer = "Verdict: **first**" if len(first) > len(second) else "SECOND"
    return f"So.\n{'TIE' if len(first) == len(second) else longer}\n```"


def test_comparisons_within_a_group_go_both_ways(prompts):
    """A response without a verdict has the reason of its own comparisons."""
    seeds, responses = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4], "a aaa aa b c ? d refused e alone".split()
    steps = judged(longer_answer, prompts, seeds, responses, compare=True)
    assert [step.reward for step in steps[:5]] == [0, 1, 0.5, 0.5, 0.5]
    reasons = "not_understood not_understood judge judge not_understood".split()
    assert [step.reason for step in steps[5:]] == reasons
    assert "none of FIRST, TIE, SECOND: 'Hm.'" in steps[5].text and "a single response" in steps[9].text


def test_a_judge_reads_the_calls_of_a_prompt(tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns = [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "2"}]
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": [{"role": "user", "content": "Add."}, *turns]}))
    judge = judge_at(NO_SERVER, {"train": str(file), "validation": str(file)})
    ((_, user),) = judge.rubric_requests(judge.records[0], "It is 2.")
    assert '{"name": "add", "arguments": {"a": 1}}' in user["content"]
    assert "<tool_response>\n2\n</tool_response>" in user["content"]


def first_tokens(**probabilities: float) -> str:
    """A judge's answer: its likeliest first tokens and their log-probabilities."""
    return json.dumps({token.replace("_", " "): math.log(p) for token, p in probabilities.items()})


def test_a_probability_is_the_verdict_on_a_criterion(prompts):
    def tokens(messages):
        (message,) = messages
        if "broken" in message["content"]:
            return first_tokens(Hm=0.5)
        is_truth = "It is true." in message["content"]
        return first_tokens(Yes=0.2, _yes=0.1, No=0.1, x=0.5) if is_truth else first_tokens(no=1)

    fine, broken = judged(tokens, prompts, [0, 1], ["fine", "broken"], verdict="logprobs")
    assert fine.reward == pytest.approx(3 / 4 * 0.3 / 0.4)
    assert fine.metrics == pytest.approx({"criterion_1": 0.75, "criterion_2": 0})
    assert isinstance(broken, NoVerdict) and "'Hm'" in broken.text


def test_a_probability_is_the_verdict_on_a_pair(prompts):
    """The judge gives the first place 0.9 for equal answers, and 0.6 for the worse one."""

    def tokens(messages):
        win = 0.9 if "ANSWER A:\ngood" in messages[0]["content"] else 0.6
        return first_tokens(A=win, B=1 - win)

    good, bad = judged(tokens, prompts, [0, 0], ["good", "bad"], verdict="logprobs", compare=True)
    assert (good.reward, bad.reward) == pytest.approx(((0.9 + 0.4) / 2, (0.6 + 0.1) / 2))
    assert good.metrics["swayed_by_order"] == 1


def conversation(text) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(text)}]


def test_the_probabilities_of_first_tokens_with_the_same_text_are_added():
    entries = [
        {"token": token, "logprob": math.log(p)} for token, p in (("Yes", 0.2), ("Yes", 0.1), ("No", 0.1))
    ]
    logprobs = {"content": [{"top_logprobs": entries}]}
    with serving(lambda messages: "", logprobs=lambda messages: logprobs) as server:
        (answer,) = JudgeEndpoint(server.url, "m", likeliest=20).ask([conversation("a")])
    assert json.loads(answer) == pytest.approx({"Yes": math.log(0.3), "No": math.log(0.1)})
    assert (server.bodies[0]["max_tokens"], server.bodies[0]["top_logprobs"]) == (1, 20)


@pytest.mark.parametrize(
    ("logprobs", "cause"),
    [
        (None, "log-probabilities are missing; use verdict=text"),
        ({"content": []}, "ended without an answer (finish_reason='stop')"),
    ],
)
def test_a_server_without_logprobs_gives_no_verdict(logprobs, cause):
    with serving(lambda messages: "Yes", logprobs=lambda messages: logprobs) as server:
        (answer,) = JudgeEndpoint(server.url, "m", likeliest=20).ask([conversation("a")])
    assert answer.reason == "judge" and cause in answer.text


def test_a_busy_judge_is_asked_again_and_another_error_is_reported_once():
    left, pauses = Counter({"busy": 2, "broken": 1}), []

    def answer(messages):
        text = messages[0]["content"]
        if text == "refused":
            return 401, "no such key"
        if left[text] > 0:
            left[text] -= 1
            return (429, "later") if text == "busy" else (500, "oh")
        return text

    with serving(answer) as server:
        endpoint = JudgeEndpoint(server.url, "m", sleep=pauses.append, retries=2)
        answers = endpoint.ask([conversation(text) for text in "busy broken refused fine fine".split()])
    cure = "give key_variable, the environment variable with the server's key, such as JUDGE_KEY"
    refusal = NoVerdict("judge", f"the judge at {server.url} gave no answer: 401 no such key; {cure}")
    assert answers == ["busy", "broken", refusal, "fine", "fine"]
    assert sorted(pauses)[-2:] == [3, 3] and len(pauses) == 3, "a server's Retry-After is kept"
    assert len(server.bodies) == 3 + 2 + 1 + 1
    (answer,) = JudgeEndpoint(NO_SERVER, "m", sleep=pauses.append, retries=1).ask([conversation("busy")])
    assert answer.reason == "judge" and "refused" in answer.text


@pytest.mark.parametrize(("header", "pause"), [("3", 3), ("-1", None), ("nan", None), ("Monday", None)])
def test_a_server_s_retry_after_that_is_no_pause_is_ignored(header, pause):
    assert judge_endpoint._pause(header) == pause


@pytest.mark.parametrize("body", ["<html>", '{"choices": []}', '{"choices": ["a"]}', "[]", '{"error": 1}'])
def test_a_body_that_is_no_chat_completion_is_quoted(body):
    with pytest.raises(ValueError, match=re.escape(f"it sent {body!r} in place of a chat completion")):
        judge_endpoint._choice(body.encode())


def test_an_interrupt_waits_for_no_queued_request():
    may_answer, interrupt = threading.Event(), Mock(side_effect=KeyboardInterrupt)

    def answer(messages):
        return "so" if messages[0]["content"] == "0" or may_answer.wait(1) else "late"

    with serving(answer) as server:
        endpoint = JudgeEndpoint(server.url, "m", concurrency=1, on_answer=interrupt)
        with pytest.raises(KeyboardInterrupt):
            endpoint.ask([conversation(n) for n in range(4)])
        sent = len(server.bodies)
        may_answer.set()
    assert sent <= 2, "the first, and one under way"


def test_half_an_answer_is_asked_again_and_costs_no_other_response_its_reward():
    """The server closes its first two connections in the middle of an answer."""
    with serving(lambda messages: messages[0]["content"], cut=2) as server:
        endpoint = JudgeEndpoint(server.url, "m", sleep=lambda seconds: None, retries=1, concurrency=1)
        lost, answer = endpoint.ask([conversation("a"), conversation("b")])
    assert lost.reason == "judge" and "IncompleteRead" in lost.text
    assert answer == "b" and len(server.bodies) == 3


def test_a_verdict_that_was_cut_is_no_verdict(prompts, tmp_path):
    """Of "C2: 10", the limit of tokens may leave "C2: 1"."""
    with serving(lambda messages: "C1: 7\nC2: 1", finish_reason="length") as server:
        judge = judge_at(server.url, prompts, cache=str(tmp_path / "judge.sqlite"))
        for _ in range(2):
            (step,) = judge.step_all([0], ["a"])
            assert step.reason == "judge" and "cut at max_tokens=256; raise max_tokens" in step.text
        assert len(server.bodies) == 2, "the cut answer is not cached"


def test_answers_are_kept_when_the_run_is_killed_during_a_step(tmp_path):
    cache, killed = tmp_path / "judge.sqlite", Mock(side_effect=SystemExit)
    with serving(lambda messages: (500, "") if messages[0]["content"] == "b" else "so") as server:
        endpoint = JudgeEndpoint(server.url, "m", cache=cache, concurrency=1, sleep=killed)
        with pytest.raises(SystemExit):
            endpoint.ask([conversation("a"), conversation("b")])
        assert JudgeEndpoint(server.url, "m", cache=cache).ask([conversation("a")]) == ["so"]
        assert len(server.bodies) == 2


def test_answers_are_cached_by_all_that_decides_them_and_a_budget_ends_the_requests(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-key\n")
    conversations = [conversation(n) for n in range(6)]
    cache = tmp_path / "folder" / "judge.sqlite"
    with serving(lambda messages: f"to {messages[0]['content']}") as server:
        settings = {"model": "m", "cache": cache, "key_variable": "MY_KEY"}

        def endpoint(**changes):
            return JudgeEndpoint(server.url, **settings | changes)

        assert endpoint().ask(conversations[:4]) == [f"to {n}" for n in range(4)]
        assert endpoint(max_calls=1).ask(conversations[:5])[4] == "to 4", "cached answers cost nothing"
        assert endpoint(max_calls=0).ask(conversations[:4])[3] == "to 3"
        assert len(server.bodies) == 5
        for changes in ({"model": "n"}, {"temperature": 0.5}, {"max_tokens": 7}):
            endpoint(**changes).ask(conversations[:1])
        assert len(server.bodies) == 8
        answers = endpoint(max_calls=1, concurrency=1, cache=None).ask(conversations)
        assert answers[0] == "to 0" and {answer.reason for answer in answers[1:]} == {"budget"}
        assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret-key"}
    assert b"secret-key" not in cache.read_bytes() and "secret-key" not in repr(endpoint())


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"rubric": []}, "at least one criterion"),
        ({"rubric": {"a": 0, "b": "high"}}, "a: 0, b: 'high'; a weight must be a number above 0"),
        ({"rubric": ["A", "B", "A"]}, "rubric: A: remove the repetition"),
        ({"rubric": [["It is short."]]}, r"rubric.*: write \[criterion, weight\]"),
        ({"url": "127.0.0.1:8000"}, "url='127.0.0.1:8000': the value must begin with http://"),
        ({"retries": -1}, "retries=-1: the value must be a whole number of at least 0"),
        ({"retries": 1.0}, r"retries=1\.0: the value must be a whole number of at least 0"),
        ({"timeout": 0}, r"timeout=0: the value must be a number of at least 0\.001"),
        ({"cache": "/dev/null/judge"}, "cache='/dev/null/judge': the file cannot hold.*cache: false"),
        ({"cache": "no"}, "cache='no': write true, false or a file"),
        ({"compare": "no"}, "compare='no': write true or false"),
        ({"verdict": "json"}, "verdict='json': choose from text, logprobs"),
        (
            {"key_variable": "KEY_OF_TWO_LINES"},
            r"^the key in the environment variable KEY_OF_TWO_LINES has a line break [^!]*\Z",
        ),
        ({"key_variable": "NOT_SET_HERE"}, "NOT_SET_HERE: this environment variable is not set"),
        ({"workers": 3}, r"no args\.workers; a judge also takes concurrency"),
    ],
)
def test_wrong_arguments_are_refused_at_the_start(prompts, monkeypatch, args, message):
    monkeypatch.setenv("KEY_OF_TWO_LINES", "secret!\nkey!")  # [^!]: the message does not contain the key
    with pytest.raises(UserError, match=message):
        judge_at(args.pop("url", NO_SERVER), prompts, **args)


def environments(use, limit=10.0, **args):
    settings = EnvironmentSettings(use=use, args=args, timeout=limit, processes=1)
    return Environments({"mine": settings}, "train")


def test_a_judge_in_its_process_gets_all_responses_in_one_call_and_failures_are_left_out(prompts):
    def answer(messages):
        return points_of(messages) if "bad" not in messages[-1]["content"] else "Hm."

    args = {"prompts": prompts, "model": "m", "rubric": RUBRIC, "cache": False, "held_out": 0.5}
    args["limit"] = 1e-4  # a request to the judge may take longer than the environment
    with serving(answer, at_once=4) as server, environments("judge", url=server.url, **args) as pool:
        steps = pool.step([Episode("mine", n, (text,)) for n, text in enumerate(["1", "2", "bad", "10"])])
    assert [step.reward for step in steps if isinstance(step, Step)] == pytest.approx([0.325, 0.4, 1])
    assert isinstance(steps[2], EnvironmentFailure)
    assert (steps[2].reason, steps[2].seed) == ("not_understood", 2)


def test_a_judge_compares_no_responses_of_two_groups_with_the_same_prompt(prompts):
    """A judge that prefers the longer answer. Within their groups, "a" and "aaa" lose."""
    args = {"prompts": prompts, "model": "m", "cache": False, "compare": True}
    texts = ["a", "aa", "aaa", "aaaa"]
    with serving(longer_answer) as server, environments("judge", url=server.url, **args) as pool:
        steps = pool.step([Episode("mine", 0, (text,), group=n // 2) for n, text in enumerate(texts)])
    assert [step.reward for step in steps] == [0, 1, 0, 1]
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("compared_at_once", "waits"),
    [(0, 4), (2, 4), (1, 3 * 2 + 1)],  # each of three responses has two comparisons
)
def test_the_time_limit_counts_the_comparisons_of_each_response(compared_at_once, waits):
    environment = SimpleNamespace(waiting_seconds=10, compared_at_once=compared_at_once)
    seconds = worker.time_limit(SimpleNamespace(timeout=2), environment, [1, 1, 1, 2])
    assert seconds == 4 * 2 + waits * 10


@pytest.mark.parametrize(
    ("verdict", "concurrency", "times"), [("text", 1, 1), ("logprobs", 1, 2), ("logprobs", 2, 1)]
)
def test_the_time_limit_counts_the_requests_of_each_criterion(prompts, verdict, concurrency, times):
    judge = judge_at(NO_SERVER, prompts, verdict=verdict, concurrency=concurrency)
    assert judge.waiting_seconds == times * judge.endpoint.longest_wait


def test_a_long_wait_for_the_judge_prints_how_many_requests_are_done(capsys):
    clock = iter([0, 0, 5, 21, 30, 40, 50])  # created, then the answers 1 to 6
    on_answer = PrintedProgress(lambda: next(clock))
    for done in range(1, 7):
        on_answer(done, 6)
    assert capsys.readouterr().out == "3 of 6 requests to the judge are done\n"


@pytest.fixture
def reward_file(tmp_path):
    """A function that writes a reward file, and returns the file's path."""

    def write(text: str) -> str:
        (tmp_path / "mine.py").write_text(text)
        return str(tmp_path / "mine.py")

    return write


AS_TRL = """
async def reward(prompts, completions, extra, **columns):
    assert None in extra  # the column of a record without the key
    return [len(text) + len(prompt) for prompt, text in zip(prompts, completions)]
"""
ASYNC_OF_ONE_RESPONSE = """
import asyncio
waiting = []
async def reward(prompt, response, **fields):
    waiting.append(0)
    while len(waiting) < 3:
        await asyncio.sleep(0)
    return len(response) + len(prompt)
"""


AN_ASYNC_INSTANCE = f"""
{ASYNC_OF_ONE_RESPONSE.replace("reward", "_judge")}
class Judge:
    async def __call__(self, prompt, response):
        return await _judge(prompt, response)
reward = Judge()
"""


@pytest.mark.parametrize("text", [AS_TRL, ASYNC_OF_ONE_RESPONSE, AN_ASYNC_INSTANCE])
def test_a_reward_function_of_lists_or_an_async_one_judges_all_responses_together(
    tmp_path, reward_file, text
):
    records = [{"prompt": "Number 0?"}, *({"prompt": f"Number {n}?", "extra": n} for n in (1, 2, 3))]
    file = tmp_path / "numbers.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    environment = make(reward_file(text), prompts={"train": str(file), "validation": str(file)})
    assert environment.judges_together
    steps = environment.step_all([1, 0, 3], ["x", "xx", "xxx"])
    assert [step.reward for step in steps] == [10, 11, 12]


RAISES_ONCE = """
async def reward(prompt, response):
    return 1 / len(response)
"""


def test_an_error_of_an_async_reward_costs_only_its_response(reward_file, prompts):
    first, empty, last = make(reward_file(RAISES_ONCE), prompts=prompts).step_all([0, 0, 0], ["a", "", "bb"])
    assert (first, last) == (Step(1.0), Step(0.5)) and empty.reason == "raised"
    assert re.search(r'mine\.py", line 3, in reward(?s:.*)ZeroDivisionError', empty.text)
    assert "user_file.py" not in empty.text


@pytest.mark.parametrize("module", ["random", "numpy.random"])
def test_a_reward_function_of_lists_draws_from_generators_that_the_seeds_determine(
    reward_file, prompts, module
):
    text = f"import {module}\ndef reward(completions):\n    return [{module}.random() for _ in completions]"
    environment = make(reward_file(text), prompts=prompts)
    first, again, other = [worker.judge(environment, "train", [0, n], "ab") for n in (1, 1, 2)]
    assert first == again != other


CONVERSATIONAL = """
def reward(prompts, completions, **columns):
    texts = [completion[0]["content"] for completion in completions]
    return [len(text) + len(prompt[-1]["content"]) for prompt, text in zip(prompts, texts)]
"""


def test_a_reward_function_for_trl_s_messages_gets_messages_with_conversational(reward_file, prompts):
    environment = make(reward_file(CONVERSATIONAL), prompts=prompts, conversational=True)
    question, (first, second) = environment.records[0].question, environment.step_all([0, 0], ["x", ""])
    assert (first.reward, second.reward) == (len(question) + 1, len(question))
    assert environment.records[0].prompt == [{"role": "user", "content": question}], "the prompt stays"
    without = make(reward_file(CONVERSATIONAL), prompts=prompts)
    with pytest.raises(TypeError, match="string indices must be integers") as error:
        without.step_all([0], ["x"])
    assert error.value.__notes__[0].endswith("give args.conversational=true.")


SOME_REWARDS = """
def reward(completions, **columns):
    return [None if text == '-' else 1 for text in completions if text]
"""


def test_missing_rewards_and_a_wrong_count_are_failures(reward_file, prompts):
    with environments(reward_file(SOME_REWARDS), prompts=prompts) as pool:
        missing, right = pool.step([Episode("mine", 0, ("-",)), Episode("mine", 1, ("a",))])
        steps = pool.step([Episode("mine", 0, ("",)), Episode("mine", 1, ("a",))])
    assert missing.reason == "no_reward" and right == Step(1.0)
    assert [step.reason for step in steps] == ["raised", "raised"]
    assert "1 rewards were returned for 2 responses" in steps[0].text


@pytest.mark.parametrize("returned", ["None", "0.5", "{'reward': [1.0]}", "'1.0'"])
@pytest.mark.parametrize("kind", ["", "async "])
def test_a_reward_function_of_lists_that_returns_no_list_is_named(reward_file, prompts, returned, kind):
    text = f"{kind}def score(prompts, completions): return {returned}"
    message = (
        f"score(prompts, completions) returned {returned}: return a list with one reward for each completion"
    )
    with pytest.raises(TypeError, match=re.escape(message)):
        make(reward_file(text), prompts=prompts).step_all([0], ["x"])


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("def reward(completions, answer): ...", {}, r"\(completions, answer\) can't be called with prompts"),
        (
            "async def reward(prompt, response): ...",
            {"conversational": True},
            r"conversational=True: write reward\(prompts, completions",
        ),
        (CONVERSATIONAL, {"conversational": True, "prompts": "texts.jsonl"}, "needs `prompt` or `messages`"),
    ],
)
def test_a_reward_function_that_does_not_fit_its_prompts_is_refused_at_the_start(
    tmp_path, monkeypatch, reward_file, prompts, text, arguments, message
):
    monkeypatch.chdir(tmp_path)
    Path("texts.jsonl").write_text('{"text": "One"}\n{"text": "Two"}\n')
    with pytest.raises(UserError, match=message):
        make(reward_file(text), **{"prompts": prompts} | arguments)
