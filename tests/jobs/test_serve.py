"""`aligner serve` as a process of its own, asked by OpenAI's client, by the notebook's, and by nobody's."""

import concurrent.futures
import http.client
import json
import os
import re
import signal
import socket
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import forks
import pytest

from aligner_lib.datasets.chat_template import encode
from aligner_lib.datasets.tokenizer import Tokenizer

TOKEN, ROWS = "a-token-of-the-tests", 4
QUESTION = [{"role": "user", "content": "How do I bake bread?"}]
PROMPT = "User: Hello.\n\nAssistant:"


def serve(*arguments: str) -> None:
    from aligner_lib.cli.main import main

    sys.argv = ["aligner", "serve", *arguments]
    main()


@dataclass
class Server:
    """A server that runs, and what it has said."""

    process: object
    log: Path
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = re.fullmatch(r"http://(.+):(\d+)/v1", self.url).groups()
        return host, int(port)

    def open_responses(self) -> int:
        """How many responses it writes, or has waiting."""
        with urllib.request.urlopen(f"{self.url.removesuffix('/v1')}/health") as answer:
            return json.load(answer)["open"]

    def post(self, path: str, body: object, token: str = TOKEN) -> tuple[int, dict]:
        """Status and JSON of a request that no client library would make."""
        connection = http.client.HTTPConnection(*self.address, timeout=forks.BOUND_S)
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", f"/v1/{path}", data, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def start(folder: Path, *arguments: str) -> Server:
    log = folder / "serve.log"
    process = forks.start(serve, *arguments, "--port", "0", "--token", TOKEN, log=log)
    said = r"is served at (\S+) with the token"
    found = forks.until(
        lambda: process.exitcode is not None or (log.exists() and re.search(said, log.read_text())),
        "a server",
    )
    assert isinstance(found, re.Match), log.read_text()
    return Server(process, log, found[1])


@pytest.fixture(scope="module")
def server(smoke, tmp_path_factory):
    running = start(tmp_path_factory.mktemp("serve"), str(smoke), "--rows", str(ROWS))
    yield running
    running.process.kill()


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key=TOKEN, max_retries=0) as opened:
        yield opened


@pytest.fixture
def name(smoke):
    return str(smoke)


@pytest.fixture(scope="module")
def generated(smoke, here_for_the_module):
    """What the model says by itself: generated(prompt ids, seed, **sampling) is a Response."""
    from aligner_lib.jobs.inference import load_engine
    from aligner_lib.megatron.generate import Sampling, generate

    module, stop_ids = load_engine(smoke).module, Tokenizer(smoke).stop_ids
    return lambda prompt, seed, **how: generate(module, [prompt], [seed], Sampling(**how), stop_ids=stop_ids)[
        0
    ]


@pytest.fixture(scope="module")
def here_for_the_module():
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)
    parallel.initialize()


# ---- answers --------------------------------------------------------------------------------------------------------


def test_the_model_is_listed(client, name):
    assert [one.id for one in client.models.list()] == [name]
    assert client.models.retrieve(name).object == "model"


def test_a_completion_is_what_the_model_generates(client, name, smoke, generated):
    tokenizer = Tokenizer(smoke)
    alone = generated(tokenizer.encode(PROMPT), 7, max_length=20, temperature=0.8, top_p=0.9)
    answer = client.completions.create(
        model=name, prompt=PROMPT, seed=7, max_tokens=20, temperature=0.8, top_p=0.9
    )
    (choice,) = answer.choices
    assert choice.text == tokenizer.decode(alone.tokens, continues=True)
    assert choice.finish_reason == ("stop" if alone.finished else "length")
    assert answer.usage.prompt_tokens == len(tokenizer.encode(PROMPT))
    assert answer.usage.completion_tokens == len(alone.tokens)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_chat_s_prompt_is_written_by_the_model_s_template(client, name, smoke, generated):
    tokenizer = Tokenizer(smoke)
    prompt = encode(tokenizer, QUESTION)
    alone = generated(prompt, 3, max_length=12)
    answer = client.chat.completions.create(model=name, messages=QUESTION, seed=3, max_completion_tokens=12)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == (
        "assistant",
        tokenizer.decode(alone.tokens, continues=True),
    )
    assert answer.usage.prompt_tokens == len(prompt)
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    again = client.chat.completions.create(model=name, messages=parts, seed=3, max_tokens=12)
    assert again.choices[0].message.content == choice.message.content


def test_several_choices_to_several_prompts_each_have_a_seed(client, name):
    prompts = ["One.", "Two."]
    answer = client.completions.create(model=name, prompt=prompts, n=2, seed=5, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for index, choice in enumerate(answer.choices):
        alone = client.completions.create(
            model=name, prompt=prompts[index // 2], seed=5 + index % 2, max_tokens=8
        )
        assert alone.choices[0].text == choice.text
    assert len({choice.text for choice in answer.choices}) == 4


def test_temperature_0_takes_the_likeliest_token_whatever_the_seed(client, name):
    texts = {
        client.completions.create(model=name, prompt=PROMPT, temperature=0, seed=seed, max_tokens=8)
        .choices[0]
        .text
        for seed in (1, 2)
    }
    assert len(texts) == 1


def test_a_stream_brings_what_an_answer_in_one_piece_has(client, name):
    asked = {"model": name, "messages": QUESTION, "n": 2, "seed": 11, "max_tokens": 24}
    whole = client.chat.completions.create(**asked)
    texts, reasons, roles, usage = ["", ""], [None, None], [0, 0], None
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            roles[choice.index] += choice.delta.role == "assistant"
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == [1, 1]
    assert usage == whole.usage


def test_a_streamed_completion_comes_token_by_token(client, name):
    asked = {"model": name, "prompt": PROMPT, "seed": 2, "max_tokens": 16}
    parts = [chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(parts) == client.completions.create(**asked).choices[0].text
    assert len(parts) > 4


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_is_not_in_it(client, name, stream):
    asked = {"model": name, "prompt": PROMPT, "seed": 2, "max_tokens": 32}
    text = client.completions.create(**asked).choices[0].text
    stop = text[9:14]  # crosses tokens
    expected = text[: text.index(stop)]
    answer = client.completions.create(**asked, stop=["never said", stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == expected
    assert choices[-1].finish_reason == "stop"


# ---- log-probabilities ----------------------------------------------------------------------------------------------


def test_logprobs_are_the_model_s_own_and_sorted(client, name, smoke, generated):
    tokenizer = Tokenizer(smoke)
    alone = generated(tokenizer.encode(PROMPT), 4, max_length=6)  # drawn from the unchanged distribution
    answer = client.completions.create(model=name, prompt=PROMPT, seed=4, max_tokens=6, logprobs=3)
    choice = answer.choices[0]
    shown = len(choice.logprobs.tokens)
    assert choice.logprobs.token_logprobs == pytest.approx(alone.logprobs[:shown], abs=1e-4)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert [choice.text[at:][:1] for at in choice.logprobs.text_offset] == [
        token[:1] for token in choice.logprobs.tokens
    ]
    for own, likeliest in zip(choice.logprobs.token_logprobs, choice.logprobs.top_logprobs):
        assert len(likeliest) <= 3 and own <= max(likeliest.values()) + 1e-6
    cold = client.completions.create(
        model=name, prompt=PROMPT, seed=4, max_tokens=6, logprobs=1, temperature=0
    ).choices[0]
    for token, own, likeliest in zip(
        cold.logprobs.tokens, cold.logprobs.token_logprobs, cold.logprobs.top_logprobs
    ):
        assert likeliest == {token: pytest.approx(own)} and own < 0


def test_a_chat_s_logprobs(client, name):
    answer = client.chat.completions.create(
        model=name, messages=QUESTION, seed=1, max_tokens=5, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs.content
    assert "".join(one.token for one in content) == answer.choices[0].message.content
    assert all(len(one.top_logprobs) == 2 for one in content)
    whole = [one for one in content if one.bytes is not None]  # no part of a character
    assert whole and all(bytes(one.bytes).decode() == one.token for one in whole)


def test_an_echo_has_the_prompt_s_logprobs(client, name, smoke, generated):
    """As lm-eval asks for the likelihood of a text; the reference is a forward pass of one row."""
    tokenizer = Tokenizer(smoke)
    ids = tokenizer.encode(PROMPT)
    answer = client.completions.create(model=name, prompt=ids, echo=True, logprobs=1, max_tokens=1, seed=0)
    choice = answer.choices[0]
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs.tokens[: len(ids)] == [tokenizer.decode([one], continues=True) for one in ids]
    assert choice.logprobs.token_logprobs[0] is None
    import torch

    from aligner_lib.jobs.inference import load_engine

    with torch.no_grad():
        module = load_engine(smoke).module.eval()
        logprobs = module.logits(module(torch.tensor([ids]))[:-1, 0]).log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert choice.logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected.tolist(), abs=1e-4)
    assert choice.logprobs.text_offset == sorted(choice.logprobs.text_offset)


# ---- what can't be answered -----------------------------------------------------------------------------------------

COMPLETION = {"prompt": "Hello."}
CHAT = {"messages": QUESTION}
NESTED = json.loads("[" * 40 + "]" * 40)


def turn(**changed: object) -> dict:
    return {"messages": [{"role": "user", "content": "Hello."} | changed]}


@pytest.mark.parametrize(
    ("path", "changed", "status", "param", "words"),
    [
        ("completions", {"prompt": ""}, 400, "prompt", "empty"),
        ("completions", {"prompt": 5}, 400, "prompt", "prompt"),
        ("completions", {"prompt": [1 << 20]}, 400, "prompt", "token id 1048576 is not in the vocabulary"),
        ("completions", {"temperature": 3}, 400, "temperature", "less than or equal to 2 (it is 3)"),
        ("completions", {"top_p": 0}, 400, "top_p", "greater than 0"),
        ("completions", {"max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ("completions", {"n": 1000}, 400, "n", "less than or equal to 128"),
        ("completions", {"best_of": 3}, 400, "best_of", "best_of=3 is not supported here"),
        ("completions", {"tempreature": 1}, 400, "tempreature", "there is no field 'tempreature'"),
        ("completions", {"frequency_penalty": 0.5}, 400, "frequency_penalty", "not supported here"),
        ("completions", {"stop": [""]}, 400, "stop", "at least 1 character"),
        ("completions", {"stop": ["a" * 1001]}, 400, "stop", "at most 1000 characters"),
        (
            "completions",
            {"prompt": "a \ud800"},
            400,
            "prompt",
            "character 2 of a text in prompt is '\\ud800'",
        ),
        ("completions", {"model": "\udfff"}, 400, "model", "half of a surrogate pair"),
        ("completions", b"[" * 200_000, 400, None, "more than 32 deep"),
        ("completions", {"logit_bias": NESTED}, 400, "logit_bias", "more than 32 deep"),
        ("completions", {"prompt": [[]] * 20_000}, 400, "prompt", "20000 parts, but only 16384 are allowed"),
        ("completions", {"prompt": [1] * 300_000}, 400, "prompt", "more than 262144 token ids"),
        ("completions", {"model": "gpt-9"}, 404, "model", "there is no model 'gpt-9' here"),
        ("completions", {"echo": True, "stream": True}, 400, "echo", "leave one of them out"),
        ("chat/completions", {"messages": []}, 400, "messages", "at least 1 item"),
        ("chat/completions", {"messages": "Hello."}, 400, "messages", "valid list"),
        (
            "chat/completions",
            turn(role="tool"),
            400,
            "messages",
            "'system', 'developer', 'user' or 'assistant'",
        ),
        ("chat/completions", turn(role="wizard"), 400, "messages", "(it is 'wizard')"),
        ("chat/completions", turn(tool_calls=[{"id": "1"}]), 400, "messages", "messages.0.tool_calls is not"),
        ("chat/completions", turn(name="Ada"), 400, "messages", "messages.0.name is not supported here"),
        ("chat/completions", {"top_logprobs": 2}, 400, "top_logprobs", "logprobs=true"),
        ("chat/completions", {"tools": [{"type": "function"}]}, 400, "tools", "not supported here"),
        ("chat/completions", b"{", 400, None, "the body is not JSON"),
        ("chat/completions", b"[1]", 400, None, "the body is list"),
        ("answers", {}, 404, None, "there is no /v1/answers"),
    ],
)
def test_a_request_that_makes_no_sense_is_told_what_is_wrong(
    server, name, path, changed, status, param, words
):
    body = changed
    if isinstance(changed, dict):
        body = {"model": name} | (CHAT if path.startswith("chat") else COMPLETION) | changed
    seen, answer = server.post(path, body)
    error = answer["error"]
    assert (seen, error["param"]) == (status, param), error
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_what_makes_no_difference_is_accepted(server, name):
    ignored = {"user": "me", "presence_penalty": 0, "logit_bias": None, "response_format": {"type": "text"}}
    assert server.post("chat/completions", {"model": name, "max_tokens": 1, **CHAT, **ignored})[0] == 200
    sent_back = {
        "role": "assistant",
        "content": "Well.",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
    }
    messages = [{"role": "developer", "content": "Be kind."}, *QUESTION, sent_back, *QUESTION]
    status, answer = server.post("chat/completions", {"model": name, "max_tokens": 1, "messages": messages})
    assert status == 200, answer


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize(("token", "status"), [(TOKEN, 413), ("another", 401)])
def test_a_body_that_is_too_large_is_refused_when_all_of_it_has_come(server, token, status, chunked):
    """A client that still sends reads no answer: its connection would be reset."""
    connection = http.client.HTTPConnection(*server.address, timeout=forks.BOUND_S)
    parts = [b" " * (1 << 20)] * 9
    connection.request(
        "POST",
        "/v1/completions",
        iter(parts) if chunked else b"".join(parts),
        {"Authorization": f"Bearer {token}"},
        encode_chunked=chunked,
    )
    answer = connection.getresponse()
    message = json.loads(answer.read())["error"]["message"]
    assert answer.status == status
    assert ("larger than 8388608 bytes" if status == 413 else "the token is missing") in message


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(client, name, smoke):
    import openai

    tokenizer = Tokenizer(smoke)
    text = "bread " * 600
    count = len(tokenizer.encode(text))
    with pytest.raises(
        openai.BadRequestError, match=rf"512 tokens; the prompt has {count}, .* may have 16"
    ) as seen:
        client.completions.create(model=name, prompt=text, max_tokens=16)
    assert seen.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="together 513"):
        client.completions.create(model=name, prompt=[5] * 500, max_tokens=13)
    answer = client.completions.create(model=name, prompt=[5] * 500, max_tokens=12)  # to the last position
    assert answer.usage.total_tokens <= 512


def test_only_who_has_the_token_is_answered(server, name):
    import openai

    for token in ("", "another"):
        status, answer = server.post("completions", {"model": name, **COMPLETION}, token=token)
        assert status == 401
        assert answer["error"]["type"] == "authentication_error"
    with pytest.raises(openai.AuthenticationError, match="the token is missing or wrong"):
        openai.OpenAI(base_url=server.url, api_key="wrong", max_retries=0).models.list()


# ---- many, and those who leave --------------------------------------------------------------------------------------


def test_fifty_clients_at_once_each_get_their_own_answer(client, name, smoke, generated):
    def ask(number: int) -> str:
        answer = client.completions.create(
            model=name, prompt=f"Question {number}:", seed=number, max_tokens=1 + number % 12
        )
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(50) as clients:
        texts = list(clients.map(ask, range(50)))
    tokenizer = Tokenizer(smoke)
    for number in (0, 7, 23, 49):
        alone = generated(tokenizer.encode(f"Question {number}:"), number, max_length=1 + number % 12)
        assert texts[number] == tokenizer.decode(alone.tokens, continues=True)
    assert len(set(texts)) > 40


def without_end(name: str) -> dict:
    """A request whose answers take as long as the context allows."""
    return {"model": name, "prompt": "On and on.", "max_tokens": 480, "n": ROWS}


def test_a_request_that_comes_while_others_run_joins_them(client, name):
    with client.completions.create(**without_end(name), stream=True) as stream:
        next(stream)  # it runs, on all rows but those that end early
        short = client.completions.create(model=name, prompt="Hi.", max_tokens=2, seed=0)
        assert short.choices[0].text
    # … and was answered before the long one, which went on meanwhile


def test_others_are_answered_while_a_megabyte_is_tokenised(server, name):
    """With the interpreter's lock held by the tokeniser, two or three are: before it begins, and when it has ended."""
    body = {"model": name, "prompt": "How do I bake bread? " * 50_000}
    with concurrent.futures.ThreadPoolExecutor(1) as other:
        long = other.submit(server.post, "completions", body)
        answered = 0
        while not long.done():
            server.open_responses()
            answered += 1
    assert long.result()[1]["error"]["code"] == "context_length_exceeded"
    assert answered > 10


def test_a_request_of_many_answers_does_not_make_another_wait(server, client, name):
    """Four tokens come while the other request's answers are still waiting for rows."""
    many = without_end(name) | {"n": 100}
    with client.completions.create(**many, stream=True) as stream:
        next(stream)
        client.completions.create(model=name, prompt="Hi.", max_tokens=4, seed=0)
        assert server.open_responses() > 100 - 2 * ROWS
    forks.until(lambda: server.open_responses() == 0, "rows to be free", bound_s=10)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_rows(server, client, name, stream):
    forks.until(lambda: server.open_responses() == 0, "nothing open")
    with socket.create_connection(server.address) as connection:
        body = json.dumps(without_end(name) | {"stream": stream, "n": 3 * ROWS}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        if stream:
            assert connection.recv(64).startswith(b"HTTP/1.1 200")
        forks.until(lambda: server.open_responses() > 0, "the request")
    forks.until(lambda: server.open_responses() == 0, "rows to be free", bound_s=10)
    assert client.completions.create(model=name, prompt="Hi.", max_tokens=2).choices[0].text is not None


def test_the_notebook_s_chat_talks_to_it(server, name, smoke, here_for_the_module):
    from aligner_lib.errors import UserError
    from aligner_lib.jobs.inference import answering
    from aligner_lib.jobs.served import answering_at
    from widgets import Chat

    chat = Chat({"served": answering_at(server.url, TOKEN, max_length=8, seed=3)})
    (answer,) = chat.ask(PROMPT)
    assert answer["error"] == "" and answer["text"] == answering(smoke, max_length=8, seed=3)(PROMPT)
    assert answering_at(server.url, TOKEN, max_length=4)("How are you?") is not None
    with pytest.raises(UserError, match="the token is missing or wrong"):
        answering_at(server.url, "wrong")
    with pytest.raises(UserError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        answering_at("http://127.0.0.1:9", TOKEN)
    (refused,) = Chat({"served": answering_at(server.url, TOKEN, temperature=9)}).ask("Hello.")
    assert "temperature" in refused["error"]


# ---- beginning and end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_ends_in_peace_and_says_so_to_those_who_wait(smoke, tmp_path, number):
    """What it prints at its start works as it is printed; at its end an answer under way is broken off, not left hanging."""
    running = start(tmp_path, "smoke", "--rows", "2")
    said = running.log.read_text()
    assert f"curl {running.url}/chat/completions" in said
    snippet = said[said.index("from openai") :].split("\n\n")[0]
    pytest.importorskip("openai")
    exec(snippet, {"print": lambda text: None})
    with concurrent.futures.ThreadPoolExecutor(1) as waiting:
        body = without_end("smoke") | {"n": 8}
        answer = waiting.submit(running.post, "completions", body)
        forks.until(lambda: running.open_responses() == 8, "the request")
        os.kill(running.process.pid, number)
        status, told = answer.result(timeout=60)
    assert (status, told["error"]["message"]) == (503, "the server ends")
    running.process.join(60)
    assert running.process.exitcode == 0, running.log.read_text()
    with pytest.raises(OSError):
        socket.create_connection(running.address, timeout=1).close()


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(smoke, tmp_path):
    from aligner_lib.errors import UserError
    from aligner_lib.jobs.serve_policy import serve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"port {port} of 127.0.0.1 can't be used \(Address already in use\)"
        ):
            serve("no such model", host="127.0.0.1", port=port, token=None, rows=1, say=print)
    for port in (99999, -1):  # 99999 is 34463 in 16 bits
        with pytest.raises(UserError, match=f"there is no port {port}: give --port from 1 to 65535"):
            serve("smoke", host="127.0.0.1", port=port, token=None, rows=1, say=print)
    with pytest.raises(UserError, match="the token is empty"):
        serve("smoke", host="127.0.0.1", port=0, token="", rows=1, say=print)


def test_a_reward_model_is_not_served(rm, here_for_the_module):
    from aligner_lib.errors import UserError
    from aligner_lib.jobs.serve_policy import serve

    with pytest.raises(UserError, match="is a reward model or a critic"):
        serve(str(rm.path), host="127.0.0.1", port=0, token=None, rows=1, say=print)
