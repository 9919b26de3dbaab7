"""A language model as judge, and reward functions that judge many responses together."""

import json
import math
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from chat_server import serving

from aligner_lib.config.environments import EnvironmentSettings
from aligner_lib.errors import UserError
from aligner_lib.rollouts.environments import worker
from aligner_lib.rollouts.environments.base import NoVerdict, Step
from aligner_lib.rollouts.environments.judge import probability_of
from aligner_lib.rollouts.environments.judge_endpoint import JudgeEndpoint
from aligner_lib.rollouts.environments.pool import EnvironmentFailure, Environments, Episode
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.tutorial.judging.served import PrintedProgress

RUBRIC = {"It is true.": 3, "It is short.": 1}
RUBRIC_TRUE = "It is true."


@pytest.fixture
def prompts(tmp_path) -> str:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Question {n}?"}) + "\n" for n in range(10)))
    return str(file)


def judge_at(url, prompts, **changes):
    return make("judge", prompts=prompts, url=url, model="m", **{"rubric": RUBRIC, "cache": False} | changes)


def points_of(messages):
    """A judge that gives the number in the answer for truth, and 10 for brevity."""
    answer = messages[-1]["content"].rpartition("THE ANSWER:\n")[2]
    return f"It is so.\nC1: {answer}\n\n**C2**: **10**/10"


def test_a_reward_is_the_weighted_mean_of_points_and_many_are_asked_at_the_same_time(prompts):
    with serving(points_of, at_once=8) as server:
        steps = judge_at(server.url, prompts, concurrency=8).step_all(
            range(16), [str(n % 11) for n in range(16)]
        )
    assert [step.reward for step in steps] == pytest.approx([(3 * (n % 11) / 10 + 1) / 4 for n in range(16)])
    assert steps[7].metrics == {"criterion_1": 0.7, "criterion_2": 1.0}
    assert server.most_open == 8
    system, user = server.bodies[0]["messages"]
    assert "C1: It is true." in system["content"] and "C2: It is short." in system["content"]
    assert user["content"].startswith("THE USER:\nQuestion ")


def test_a_rubric_is_a_dict_a_list_or_a_list_of_criteria_with_weights(prompts):
    """Only a list can have an apostrophe in a setting, because Hydra's grammar has no quotes in keys."""
    rubric = [["The answer's tone is kind.", 3], "It is short."]
    judge = judge_at("http://127.0.0.1:9", prompts, rubric=rubric)
    assert judge.weights == {"C1": 0.75, "C2": 0.25} and judge.criteria["C1"] == rubric[0][0]
    assert judge_at("http://127.0.0.1:9", prompts, rubric="It is short.").criteria == {"C1": "It is short."}
    for wrong in ([["It is short."]], [5], [[5, 1]], 5, None):
        with pytest.raises(UserError, match=r"rubric.*: write \[criterion, weight\]"):
            judge_at("http://127.0.0.1:9", prompts, rubric=wrong)


NOT_A_VERDICT = (
    "",
    "I like it.",
    "C1: 7",
    "C1: 11\nC2: 3",
    "C1: 7\nC2: 3\nBut C1: 2.",
    "C1: 7\nC1: 3",
    "C1: 7.5\nC2: 3",
    "C1: -7\nC2: 3",
)


def test_a_text_that_is_no_verdict_gives_no_reward(prompts):
    texts = iter(NOT_A_VERDICT)
    with serving(lambda messages: next(texts)) as server:
        judge = judge_at(server.url, prompts, concurrency=1)
        steps = judge.step_all([0] * len(NOT_A_VERDICT), [f"{n}" for n in range(len(NOT_A_VERDICT))])
    assert [step.reason for step in steps] == ["not_understood"] * len(NOT_A_VERDICT)


def longer_wins(messages):
    _, *answers = messages[-1]["content"].replace("THE SECOND", "THE FIRST").split("THE FIRST ANSWER:\n")
    first, second = (len(answer.strip()) for answer in answers)
    return "So.\n" + ("TIE" if first == second else "FIRST" if first > second else "SECOND")


def test_comparisons_within_a_group_go_both_ways(prompts):
    seeds, responses = [0, 0, 0, 1, 1, 2], ["a", "aaa", "aa", "b", "c", "alone"]
    with serving(longer_wins) as server:
        steps = judge_at(server.url, prompts, compare=True).step_all(seeds, responses)
    assert [step.reward for step in steps[:5]] == [0, 1, 0.5, 0.5, 0.5]
    assert len(server.bodies) == 3 * 2 + 2
    assert isinstance(steps[5], NoVerdict) and "a single response" in steps[5].text
    with serving(lambda messages: "Verdict: **first**") as server:
        steps = judge_at(server.url, prompts, compare=True).step_all([0, 0], ["a", "b"])
    assert [step.reward for step in steps] == [0.5, 0.5], "a judge that prefers a place decides nothing"
    assert [step.metrics["swayed_by_order"] for step in steps] == [1, 1]


def test_a_response_without_a_verdict_has_the_reason_of_its_own_comparisons(prompts):
    def answer(messages):
        return (400, "too long") if "long" in messages[-1]["content"] else "Hm."

    seeds, responses = [0, 0, 1, 1, 2], ["long a", "long b", "c", "d", "alone"]
    with serving(answer) as server:
        steps = judge_at(server.url, prompts, compare=True).step_all(seeds, responses)
    reasons = ["judge", "judge", "not_understood", "not_understood", "not_understood"]
    assert [step.reason for step in steps] == reasons
    assert "none of FIRST, TIE, SECOND: 'Hm.'" in steps[2].text and "a single response" in steps[4].text
    with serving_first_tokens(lambda messages: {"Hm": 0.5}) as server:
        (step, _) = judge_at(server.url, prompts, verdict="logprobs", compare=True).step_all([0, 0], "ab")
    assert "neither 'a' nor 'b' is among the judge's likeliest tokens: 'Hm'" in step.text


def test_a_judge_reads_the_calls_of_a_prompt(tmp_path):
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    turns = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "2"},
    ]
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"messages": turns}))
    judge = judge_at("http://127.0.0.1:9", {"train": str(file), "validation": str(file)})
    ((_, user),) = judge.rubric_requests(judge.records[0], "It is 2.")
    assert '{"name": "add", "arguments": {"a": 1}}' in user["content"]
    assert "<tool_response>\n2\n</tool_response>" in user["content"]


def serving_first_tokens(serving_tokens):
    """Serve the log-probabilities of {first token: probability}, which serving_tokens gives for a conversation."""

    def answer(messages):
        top = [{"token": t, "logprob": math.log(p)} for t, p in serving_tokens(messages).items()]
        return {"content": [{"token": "", "logprob": 0.0, "top_logprobs": top}]} if top else None

    return serving(lambda messages: "", logprobs=answer)


def test_a_probability_is_the_verdict_on_a_criterion(prompts):
    def tokens(messages):
        (message,) = messages
        if "broken" in message["content"]:
            return {"Hm": 0.5}
        return (
            {"Yes": 0.2, " yes": 0.1, "No": 0.1, "x": 0.5} if RUBRIC_TRUE in message["content"] else {"no": 1}
        )

    with serving_first_tokens(tokens) as server:
        steps = judge_at(server.url, prompts, verdict="logprobs").step_all([0, 1], ["fine", "broken"])
    assert steps[0].reward == pytest.approx(3 / 4 * 0.3 / 0.4)
    assert steps[0].metrics == pytest.approx({"criterion_1": 0.75, "criterion_2": 0})
    assert isinstance(steps[1], NoVerdict) and "'Hm'" in steps[1].text
    assert len(server.bodies) == 2 * 2
    assert {(body["max_tokens"], body["top_logprobs"]) for body in server.bodies} == {(1, 20)}


def test_the_probabilities_of_tokens_of_the_same_text_are_added():
    """0.2 + 0.1 for Yes."""
    top = [{"token": t, "logprob": math.log(p)} for t, p in (("Yes", 0.2), ("Yes", 0.1), ("No", 0.1))]
    with serving(
        lambda messages: "", logprobs=lambda messages: {"content": [{"top_logprobs": top}]}
    ) as server:
        (answer,) = JudgeEndpoint(server.url, "m", likeliest=20).ask([conversation("a")])
    assert probability_of(answer, "yes", "no") == pytest.approx(0.75)


def test_a_probability_is_the_verdict_on_a_pair(prompts):
    """The judge gives the first place 0.9 for equal answers, and 0.6 for the worse one."""

    def tokens(messages):
        first = messages[0]["content"].partition("ANSWER A:\n")[2].partition("\n")[0]
        win = 0.9 if first == "good" else 0.6
        return {"A": win, "B": 1 - win}

    with serving_first_tokens(tokens) as server:
        judge = judge_at(server.url, prompts, verdict="logprobs", compare=True)
        good, bad = judge.step_all([0, 0], ["good", "bad"])
    assert (good.reward, bad.reward) == pytest.approx(((0.9 + 0.4) / 2, (0.6 + 0.1) / 2))
    assert good.metrics["swayed_by_order"] == 1


def test_a_server_without_logprobs_gives_no_verdict(prompts):
    with serving(lambda messages: "Yes") as server:
        (step,) = judge_at(server.url, prompts, verdict="logprobs").step_all([0], ["a"])
    assert step.reason == "judge" and "log-probabilities are missing; use verdict=text" in step.text
    with serving(lambda messages: "", logprobs=lambda messages: {"content": []}) as server:
        (step,) = judge_at(server.url, prompts, verdict="logprobs").step_all([0], ["a"])
    assert step.reason == "judge" and "ended without an answer (finish_reason='stop')" in step.text


def conversation(text) -> list[dict[str, str]]:
    return [{"role": "user", "content": str(text)}]


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
    absent = JudgeEndpoint("http://127.0.0.1:9", "m", sleep=pauses.append, retries=1)
    (answer,) = absent.ask([conversation("busy")])
    assert answer.reason == "judge" and "refused" in answer.text


def test_an_interrupt_waits_for_no_queued_request():
    may_answer = threading.Event()

    def answer(messages):
        return "so" if messages[0]["content"] == "0" or may_answer.wait(1) else "late"

    def interrupt(done, requests):
        raise KeyboardInterrupt

    with serving(answer) as server:
        endpoint = JudgeEndpoint(server.url, "m", concurrency=1, on_answer=interrupt)
        with pytest.raises(KeyboardInterrupt):
            endpoint.ask([conversation(n) for n in range(4)])
        sent = len(server.bodies)
        may_answer.set()
    assert sent <= 2, "the first, and one under way"


def test_a_long_wait_for_the_judge_prints_how_many_requests_are_done(capsys):
    clock = iter([0, 0, 5, 21, 30, 40, 50])  # created, then the answers 1 to 6
    with serving(lambda messages: "fine") as server:
        endpoint = JudgeEndpoint(server.url, "m", on_answer=PrintedProgress(lambda: next(clock)))
        endpoint.ask([conversation(n) for n in range(6)])
    assert capsys.readouterr().out == "3 of 6 requests to the judge are done\n"


def test_half_an_answer_is_asked_again_and_costs_no_other_response_its_reward():
    """The server closes the connection once in the middle of an answer."""
    with serving(lambda messages: messages[0]["content"], cut=1) as server:
        endpoint = JudgeEndpoint(server.url, "m", sleep=lambda seconds: None, retries=1, concurrency=1)
        assert endpoint.ask([conversation("a"), conversation("b")]) == ["a", "b"]
        assert len(server.bodies) == 3
    with serving(lambda messages: "so", cut=2) as server:
        endpoint = JudgeEndpoint(server.url, "m", sleep=lambda seconds: None, retries=1)
        (answer,) = endpoint.ask([conversation("a")])
    assert answer.reason == "judge" and "IncompleteRead" in answer.text


def test_a_verdict_that_was_cut_is_no_verdict(prompts, tmp_path):
    """Of "C2: 10", the limit of tokens may leave "C2: 1"."""
    with serving(lambda messages: "C1: 7\nC2: 1", finish_reason="length") as server:
        judge = judge_at(server.url, prompts, cache=str(tmp_path / "judge.sqlite"))
        for _ in range(2):
            (step,) = judge.step_all([0], ["a"])
            assert step.reason == "judge" and "cut at max_tokens=256; raise max_tokens" in step.text
        assert len(server.bodies) == 2, "the cut answer is not cached"


def test_answers_are_kept_when_the_run_is_killed_during_a_step(tmp_path):
    class Killed(BaseException):
        pass

    def ending(seconds):
        raise Killed

    cache = tmp_path / "judge.sqlite"
    with serving(lambda messages: (500, "") if messages[0]["content"] == "b" else "so") as server:
        endpoint = JudgeEndpoint(server.url, "m", cache=cache, concurrency=1, sleep=ending)
        with pytest.raises(Killed):
            endpoint.ask([conversation("a"), conversation("b")])
        assert JudgeEndpoint(server.url, "m", cache=cache).ask([conversation("a")]) == ["so"]
        assert len(server.bodies) == 2


def test_answers_are_cached_by_all_that_decides_them_and_a_budget_ends_the_requests(tmp_path, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-key")
    conversations = [conversation(n) for n in range(6)]
    cache = tmp_path / "folder" / "judge.sqlite"
    with serving(lambda messages: f"to {messages[0]['content']}") as server:

        def endpoint(**changes):
            return JudgeEndpoint(
                server.url, **{"model": "m", "cache": cache, "key_variable": "MY_KEY"} | changes
            )

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
        ({"rubric": {"a": 0}}, "a: 0; a weight must be a number above 0"),
        ({"rubric": {"a": "high"}}, "a: 'high'; a weight must be a number above 0"),
        ({"url": "127.0.0.1:8000"}, "url='127.0.0.1:8000': the value must begin with http://"),
        ({"retries": -1}, "retries=-1: the value must be a number of at least 0"),
        ({"timeout": "soon"}, "timeout='soon': the value must be a number"),
        ({"max_calls": -1}, "max_calls=-1: the value must be a number of at least 0"),
        (
            {"cache": "/dev/null/judge"},
            "cache='/dev/null/judge': the file cannot hold answers .*cache: false",
        ),
        ({"verdict": "json"}, "verdict='json': choose from text, logprobs"),
        ({"rubric": []}, "at least one criterion"),
        ({"rubric": ["A", "B", "A"]}, "rubric: A: remove the repetition"),
        ({"key_variable": "NOT_SET_HERE"}, "NOT_SET_HERE: this environment variable is not set"),
        ({"workers": 3}, r"no args\.workers; a judge also takes concurrency"),
    ],
)
def test_wrong_arguments_are_refused_at_the_start(prompts, args, message):
    with pytest.raises(UserError, match=message):
        judge_at(args.pop("url", "http://127.0.0.1:9"), prompts, **args)


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


@pytest.mark.parametrize(
    ("compared_at_once", "seeds", "seconds"),
    [
        (0, [1, 1, 1, 2], 4 * (2 + 10)),
        (2, [1, 1, 1, 2], 4 * (2 + 10)),  # each of three responses has two comparisons
        (1, [1, 1, 1, 2], 4 * 2 + 3 * 2 * 10 + 10),
    ],
)
def test_the_time_limit_counts_the_comparisons_of_each_response(compared_at_once, seeds, seconds):
    waiting = SimpleNamespace(waiting_seconds=10, compared_at_once=compared_at_once)
    assert worker.time_limit(SimpleNamespace(timeout=2), waiting, seeds) == seconds


@pytest.mark.parametrize(
    ("verdict", "concurrency", "times"), [("text", 1, 1), ("logprobs", 1, 2), ("logprobs", 2, 1)]
)
def test_the_time_limit_counts_the_requests_of_each_criterion(prompts, verdict, concurrency, times):
    judge = judge_at("http://127.0.0.1:9", prompts, verdict=verdict, concurrency=concurrency)
    assert judge.waiting_seconds == times * judge.endpoint.longest_wait


FUNCTIONS = {
    "as TRL": "def reward(prompts, completions, **columns):\n    return [len(text) + len(prompt) for prompt, text in zip(prompts, completions)]",
    "a column": "def reward(completions, extra):\n    assert None in extra\n    return [len(text) + 9 for text in completions]",
    "async lists": "async def reward(prompts, completions, **columns):\n    return [{'reward': len(text) + 9, 'm': 1} for text in completions]",
    "async": "import asyncio\nwaiting = []\nasync def reward(prompt, response, **fields):\n    waiting.append(0)\n    while len(waiting) < 3:\n        await asyncio.sleep(0)\n    return len(response) + len(prompt)",
}  # fmt: skip


@pytest.mark.parametrize("form", FUNCTIONS)
def test_a_reward_function_of_lists_or_an_async_one_judges_all_responses_together(tmp_path, form):
    file, prompts = tmp_path / "mine.py", tmp_path / "prompts.jsonl"
    file.write_text(FUNCTIONS[form])
    prompts.write_text(
        "".join(
            json.dumps({"prompt": f"Number {n}?", **({"extra": n} if n else {})}) + "\n" for n in range(4)
        )
    )
    environment = make(str(file), prompts={"train": str(prompts), "validation": str(prompts)})
    assert environment.judges_together
    steps = environment.step_all([1, 0, 3], ["x", "xx", "xxx"])
    assert [step.reward for step in steps] == [10, 11, 12]


def test_a_reward_function_of_lists_draws_from_generators_that_the_seeds_determine(tmp_path, prompts):
    file = tmp_path / "mine.py"
    file.write_text(
        "import random, numpy\ndef reward(completions, **columns):\n"
        "    return [random.random() + numpy.random.random() for _ in completions]"
    )
    environment = make(str(file), prompts=prompts)
    first, again, other = [worker.judge(environment, "train", [0, n], "ab") for n in (1, 1, 2)]
    assert first == again != other


CONVERSATIONAL = """
def reward(prompts, completions, **columns):
    texts = [completion[0]["content"] for completion in completions]
    return [len(text) + len(prompt[-1]["content"]) for prompt, text in zip(prompts, texts)]
"""


def test_a_reward_function_for_trl_s_messages_gets_messages_with_conversational(tmp_path, prompts):
    file = tmp_path / "mine.py"
    file.write_text(CONVERSATIONAL)
    environment = make(str(file), prompts=prompts, conversational=True)
    question = environment.records[0].question
    assert [step.reward for step in environment.step_all([0, 0], ["x", ""])] == [
        len(question) + 1,
        len(question),
    ]
    assert environment.records[0].prompt == [{"role": "user", "content": question}], (
        "the prompt stays as it was"
    )
    with environments(str(file), prompts=prompts) as pool:
        (failure,) = pool.step([Episode("mine", 0, ("a",))])
    assert "string indices must be integers" in failure.text
    assert failure.text.endswith('as in completion[0]["content"], give args.conversational=true.')


def test_conversational_needs_messages_and_the_form_of_lists(tmp_path, prompts):
    file, texts = tmp_path / "mine.py", tmp_path / "texts.jsonl"
    file.write_text("async def reward(prompt, response, **fields):\n    return 0.0")
    with pytest.raises(UserError, match=r"conversational=True: write reward\(prompts, completions"):
        make(str(file), prompts=prompts, conversational=True)
    file.write_text(CONVERSATIONAL)
    texts.write_text('{"text": "One"}\n{"text": "Two"}\n')
    with pytest.raises(UserError, match="needs `prompt` or `messages`"):
        make(str(file), prompts=str(texts), conversational=True)


def test_missing_rewards_a_wrong_count_and_a_wrong_signature_are_failures(tmp_path, prompts):
    file = tmp_path / "mine.py"
    file.write_text(
        "def reward(completions, **columns):\n    return [None if text == '-' else 1 for text in completions if text]"
    )
    with environments(str(file), prompts=prompts) as pool:
        steps = pool.step([Episode("mine", 0, ("-",)), Episode("mine", 1, ("a",))])
        assert steps[0].reason == "no_reward" and steps[1] == Step(1.0)
        steps = pool.step([Episode("mine", 0, ("",)), Episode("mine", 1, ("a",))])
    assert [step.reason for step in steps] == ["raised", "raised"]
    assert "1 rewards were returned for 2 responses" in steps[0].text
    file.write_text("def reward(completions, answer):\n    return [0.0] * len(completions)")
    words = r"reward\(completions, answer\) can't be called with prompts, completions"
    with pytest.raises(UserError, match=words):  # before anything runs
        environments(str(file), prompts=prompts)
