"""`aligner serve` as a process of its own, asked by OpenAI's client, by the notebook's, and by nobody's."""

import asyncio
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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import forks
import pytest
from tiny_tokenizers import llama_2

from aligner_lib.datasets.chat_template import encode
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.generation_thread import DrawnToken, ResponseEnd
from aligner_lib.jobs.openai_answers import Choice, TokenLogprob, Usage, Writer
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, CompletionRequest, read
from aligner_lib.jobs.request_answer import Answer, ServedModel

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
        """How many responses the server writes, or has waiting."""
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

    def url() -> re.Match | bool | None:
        line = log.exists() and re.search(r"is served at (\S+) with the token", log.read_text())
        return line or process.exitcode is not None

    served = forks.until(url, "a server")
    assert isinstance(served, re.Match), log.read_text()
    return Server(process, log, served[1])


@pytest.fixture(scope="module")
def server(smoke, tmp_path_factory):
    running = start(tmp_path_factory.mktemp("serve"), str(smoke), "--rows", str(ROWS))
    yield running
    os.kill(running.process.pid, signal.SIGINT)  # SIGTERM: the last test but one
    running.process.join(60)
    assert running.process.exitcode == 0, running.log.read_text()


@pytest.fixture
def client(server):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=server.url, api_key=TOKEN, max_retries=0) as opened:
        yield opened


@pytest.fixture
def complete(client, smoke):
    """complete(**request): the server's answer to a request for completions."""
    return partial(client.completions.create, model=str(smoke))


@pytest.fixture
def chat(client, smoke):
    """chat(**request): the server's answer to a conversation."""
    return partial(client.chat.completions.create, model=str(smoke))


@pytest.fixture
def generated(smoke, here):
    """generated(prompt ids, seed, **sampling): the response that the model generates without a server."""
    from aligner_lib.jobs.inference import load_engine
    from aligner_lib.megatron.generate import Sampling, generate

    module, stop_ids = load_engine(smoke).module, Tokenizer(smoke).stop_ids

    def respond(prompt, seed, **sampling):
        (response,) = generate(module, [prompt], [seed], Sampling(**sampling), stop_ids=stop_ids)
        return response

    return respond


# ---- answers --------------------------------------------------------------------------------------------------------


def test_a_completion_is_what_the_model_generates(client, complete, smoke, generated):
    tokenizer = Tokenizer(smoke)
    sampling = {"temperature": 0.8, "top_p": 0.9}
    alone = generated(tokenizer.encode(PROMPT), 7, max_length=20, **sampling)
    answer = complete(prompt=PROMPT, seed=7, max_tokens=20, **sampling)
    (choice,) = answer.choices
    assert choice.text == tokenizer.decode(alone.tokens, continues=True)
    assert choice.finish_reason == ("stop" if alone.finished else "length")
    counts = (len(tokenizer.encode(PROMPT)), len(alone.tokens))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == counts
    assert answer.usage.total_tokens == sum(counts)
    assert [model.id for model in client.models.list()] == [str(smoke)]
    assert client.models.retrieve(str(smoke)).object == "model"


def test_a_chat_s_prompt_is_written_by_the_model_s_template(chat, smoke, generated):
    """The message in one piece, and in parts as OpenAI's clients may send it."""
    tokenizer = Tokenizer(smoke)
    prompt = encode(tokenizer, QUESTION)
    expected = tokenizer.decode(generated(prompt, 3, max_length=12).tokens, continues=True)
    parts = [{"role": "user", "content": [{"type": "text", "text": QUESTION[0]["content"]}]}]
    for messages in (QUESTION, parts):
        answer = chat(seed=3, messages=messages, max_completion_tokens=12)
        message = answer.choices[0].message
        assert (message.role, message.content) == ("assistant", expected)
        assert answer.usage.prompt_tokens == len(prompt)


def test_several_choices_to_several_prompts_each_have_a_seed(complete):
    prompts = ["One.", "Two."]
    answer = complete(prompt=prompts, n=2, seed=5, max_tokens=8)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    for index, choice in enumerate(answer.choices):
        alone = complete(prompt=prompts[index // 2], seed=5 + index % 2, max_tokens=8)
        assert alone.choices[0].text == choice.text
    assert len({choice.text for choice in answer.choices}) == 4


def test_a_streamed_chat_has_the_texts_and_the_usage_of_an_answer_in_one_piece(chat):
    request = {"messages": QUESTION, "n": 2, "seed": 11, "max_tokens": 24}
    whole = chat(**request)
    chunks = list(chat(**request, stream=True, stream_options={"include_usage": True}))
    assert len(chunks) > 8  # token by token
    for choice in whole.choices:
        parts = [part for chunk in chunks for part in chunk.choices if part.index == choice.index]
        assert "".join(part.delta.content or "" for part in parts) == choice.message.content
        assert [part.delta.role for part in parts if part.delta.role] == ["assistant"]
        assert [part.finish_reason for part in parts if part.finish_reason] == [choice.finish_reason]
    assert [chunk.usage for chunk in chunks if chunk.usage] == [whole.usage]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_text_and_is_not_in_it(complete, stream):
    request = {"prompt": PROMPT, "seed": 2, "max_tokens": 32}
    text = complete(**request).choices[0].text
    stop = text[9:14]  # crosses tokens
    answer = complete(**request, stop=["never said", stop], stream=stream)
    choices = [chunk.choices[0] for chunk in answer] if stream else answer.choices
    assert "".join(choice.text for choice in choices) == text[: text.index(stop)]
    assert choices[-1].finish_reason == "stop"


# ---- log-probabilities ----------------------------------------------------------------------------------------------


def test_logprobs_are_the_model_s_own_and_sorted(complete, smoke, generated):
    alone = generated(Tokenizer(smoke).encode(PROMPT), 4, max_length=6)  # from the unchanged distribution
    choice = complete(prompt=PROMPT, seed=4, max_tokens=6, logprobs=3).choices[0]
    logprobs = choice.logprobs
    assert logprobs.token_logprobs == pytest.approx(alone.logprobs[: len(logprobs.tokens)], abs=1e-4)
    assert "".join(logprobs.tokens) == choice.text
    assert [choice.text[at] for at in logprobs.text_offset] == [token[0] for token in logprobs.tokens]
    for own, likeliest in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        assert len(likeliest) <= 3 and own <= max(likeliest.values()) + 1e-6
    coldest, cold = (
        complete(prompt=PROMPT, seed=4, max_tokens=6, logprobs=1, temperature=temperature).choices[0].logprobs
        for temperature in (1e-40, 0)
    )
    assert coldest == cold
    for token, own, likeliest in zip(cold.tokens, cold.token_logprobs, cold.top_logprobs):
        assert likeliest == {token: pytest.approx(own)} and own < 0


def test_of_tokens_with_one_text_the_likeliest_counts():
    parts_of_emoji = (("\ufffd", -0.2), ("\ufffd", -3.0), ("a", -4.0))
    choice = Choice(0, "\ufffd", tokens=[TokenLogprob("\ufffd", -0.2, parts_of_emoji)])
    written = Writer("m", chat=False).whole([choice], Usage(1, 1))["choices"][0]["logprobs"]
    assert written["top_logprobs"] == [{"\ufffd": -0.2, "a": -4.0}]


def test_a_chat_s_logprobs(chat):
    choice = chat(messages=QUESTION, seed=1, max_tokens=5, logprobs=True, top_logprobs=2).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    whole = [token for token in tokens if token.bytes is not None]  # no part of a character
    assert whole and all(bytes(token.bytes).decode() == token.token for token in whole)


def test_an_echo_has_the_prompt_s_logprobs(complete, smoke, here):
    """lm-eval sends this request for the likelihood of a text; the reference is a forward pass of one row."""
    import torch

    from aligner_lib.jobs.inference import load_engine

    tokenizer = Tokenizer(smoke)
    ids = tokenizer.encode(PROMPT)
    choice = complete(prompt=ids, echo=True, logprobs=1, max_tokens=1, seed=0).choices[0]
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs.tokens[: len(ids)] == [tokenizer.decode([id_], continues=True) for id_ in ids]
    assert choice.logprobs.token_logprobs[0] is None
    with torch.no_grad():
        module = load_engine(smoke).module.eval()
        logprobs = module.logits(module(torch.tensor([ids]))[:-1, 0]).log_softmax(-1)
    expected = logprobs.gather(-1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert choice.logprobs.token_logprobs[1 : len(ids)] == pytest.approx(expected.tolist(), abs=1e-4)
    assert choice.logprobs.text_offset == sorted(choice.logprobs.text_offset)
    alone = complete(prompt=ids, echo=True, logprobs=1, max_tokens=0)
    assert (alone.choices[0].text, alone.choices[0].finish_reason) == (PROMPT, "length")
    assert alone.choices[0].logprobs.token_logprobs == choice.logprobs.token_logprobs[: len(ids)]
    assert alone.usage.completion_tokens == 0
    single = complete(prompt=ids[:1], echo=True, logprobs=1, max_tokens=1, seed=0).choices[0]
    assert single.logprobs.token_logprobs[0] is None and len(single.logprobs.tokens) == 2


class Canceller:
    """Stands in for the generation thread: remembers which responses were cancelled."""

    def __init__(self):
        self.cancelled = []

    def cancel(self, generation):
        self.cancelled.append(generation)


def answer_to(smoke, kind, **request) -> Answer:
    """The answer to a request, whose tokens the test gives."""
    architecture = SimpleNamespace(max_position_embeddings=512, vocab_size=10**6)
    model = ServedModel("m", Tokenizer(smoke), SimpleNamespace(architecture=architecture))
    return Answer(model, Canceller(), read(kind, {"model": "m", **request}))


def give(generation, *events) -> None:
    for event in events:
        generation.events.put_nowait(event)


def test_a_completion_s_stop_token_has_a_logprob_and_no_text(smoke):
    """lm-eval drops the last entry, because it asks for a token after the text."""
    tokenizer = Tokenizer(smoke)
    (word,), stop = tokenizer.encode("a"), tokenizer.eos_id
    events = [DrawnToken(word, -1.0), DrawnToken(stop, -0.5), ResponseEnd(True)]

    async def choice_of(kind, **request):
        answer = answer_to(smoke, kind, **request)
        give(answer.generations[0], *events)
        return (await answer.whole())["choices"][0]

    choice = asyncio.run(choice_of(CompletionRequest, prompt=PROMPT, logprobs=0))
    assert choice["text"] == "a" and choice["logprobs"]["token_logprobs"] == [-1.0, -0.5]
    assert choice["logprobs"]["tokens"] == ["a", tokenizer.decode([stop], special_tokens=True)]
    choice = asyncio.run(choice_of(ChatRequest, messages=QUESTION, logprobs=True))
    assert [token["logprob"] for token in choice["logprobs"]["content"]] == [-1.0]


def test_tokens_that_a_stop_string_removes_have_no_logprobs(smoke):
    """Of a, a, a, b the stop string aab leaves the first a, which is sent when the third arrives."""
    a, b = (Tokenizer(smoke).encode(letter)[0] for letter in "ab")

    async def choices():
        answer = answer_to(smoke, CompletionRequest, prompt=PROMPT, logprobs=0, stop="aab", stream=True)
        give(answer.generations[0], *map(DrawnToken, (a, a, a, b)))
        return [part["choices"][0] async for part in answer.parts()]

    parts = asyncio.run(choices())
    assert [part["text"] for part in parts] == ["a", ""]
    assert [part["logprobs"]["tokens"] for part in parts] == [["a"], []]


def test_the_offsets_of_an_echo_are_places_in_its_text(tmp_path):
    """The text is without the prompt's special token, and without the space that SentencePiece writes first."""
    tokenizer = Tokenizer(llama_2(tmp_path))
    prompt = [tokenizer.eos_id, *tokenizer.encode("hello people")[len(tokenizer.bos_ids) :]]

    async def logprobs(prompt, alternatives):
        return [(-1.0, ())] * (len(prompt) - 1)

    async def echoed():
        answer = answer_to(tokenizer.folder, CompletionRequest, prompt=prompt, logprobs=0, echo=True)
        answer._thread.prompt_logprobs = logprobs
        give(answer.generations[0], ResponseEnd(False))
        return (await answer.whole())["choices"][0]

    choice = asyncio.run(echoed())
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    assert choice["text"] == "hello people" and offsets[:2] == [0, 0]
    assert [choice["text"].find(token, at) for at, token in zip(offsets[2:], tokens[2:])] == offsets[2:]


def test_each_choice_ends_at_its_stop_string_and_an_error_ends_all(smoke):
    tokens = [DrawnToken(token) for token in Tokenizer(smoke).encode("now stop and")]

    async def check():
        answer = answer_to(smoke, CompletionRequest, prompt=PROMPT, n=3, stop="stop")
        first, second, _ = answer.generations
        whole = asyncio.create_task(answer.whole())
        give(second, *tokens)
        for _ in range(100):  # turns of the loop
            await asyncio.sleep(0)
        assert answer._thread.cancelled == [second]  # the first choice still waits for its tokens
        give(first, RuntimeError("no"))
        with pytest.raises(ApiError, match="generation failed: no"):
            await whole
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(check())


# ---- what can't be answered -----------------------------------------------------------------------------------------

DEEP = {"id": "1", "function": {"name": "f", "arguments": "[" * 100_000}}
NESTED = json.loads("[" * 40 + "]" * 40)


def turn(**changed: object) -> dict:
    return {"messages": [{"role": "user", "content": "Hello."} | changed]}


COMPLETIONS, CHAT = "completions", "chat/completions"
# (path, fields or the whole body, the field that the error names, words of the error)
REFUSED = [
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": [1 << 20]}, "prompt", "token id 1048576 is not in the vocabulary"),
    (COMPLETIONS, {"prompt": [1.5]}, "prompt", "prompt: the prompt must be a text, a list of token ids"),
    (COMPLETIONS, {"prompt": "a \ud800"}, "prompt", "character 2 of a text in prompt is '\\ud800'"),
    (COMPLETIONS, {"prompt": [[]] * 20_000}, "prompt", "20000 parts, but only 16384 are allowed"),
    (COMPLETIONS, {"prompt": [1] * 300_000}, "prompt", "more than 262144 token ids"),
    (COMPLETIONS, {"temperature": 3}, "temperature", "less than or equal to 2 (it is 3)"),
    (COMPLETIONS, {"best_of": 3}, "best_of", "best_of=3 is not supported here"),
    (COMPLETIONS, {"tempreature": 1}, "tempreature", "there is no field 'tempreature'"),
    (COMPLETIONS, {"logit_bias": NESTED}, "logit_bias", "more than 32 deep"),
    (COMPLETIONS, {"echo": True, "stream": True}, "echo", "leave either out"),
    (COMPLETIONS, {"max_tokens": 0}, "max_tokens", "give echo=true"),
    (CHAT, turn() | {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (COMPLETIONS, b"[" * 200_000, None, "more than 32 deep"),
    (CHAT, turn(content=[{"type": "image_url"}]), "messages", "messages.0.content: only a text, or parts"),
    (CHAT, {"response_format": {"type": "json_object"}, "stop": "}"}, "response_format", "with stop is not"),
    (CHAT, turn(role="wizard"), "messages", "(it is 'wizard')"),
    (CHAT, turn(role="assistant", tool_calls=[DEEP]), "messages", "must be the JSON text of an object"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs", "logprobs=true"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "needs json_schema"),
    (CHAT, b"{", None, "the body is not JSON"),
    (CHAT, b"[1]", None, "the body is list"),
]


@pytest.mark.parametrize(("path", "changed", "param", "words"), REFUSED)
def test_an_invalid_request_is_refused_with_the_field_and_the_reason(
    server, smoke, path, changed, param, words
):
    body = changed
    if isinstance(changed, dict):
        body = {"model": str(smoke), **(turn() if path == CHAT else {"prompt": "Hello."}), **changed}
    status, answer = server.post(path, body)
    error = answer["error"]
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert words in error["message"]


@pytest.mark.parametrize(
    ("path", "token", "status", "param", "words"),
    [
        ("completions", TOKEN, 404, "model", "there is no model 'gpt-9' here"),
        ("answers", TOKEN, 404, None, "there is no /v1/answers"),
        ("completions", "", 401, None, "the token is missing"),
        ("completions", "another", 401, None, "the token is missing or wrong"),
    ],
)
def test_an_unknown_model_an_unknown_path_and_a_wrong_token(server, path, token, status, param, words):
    answered, answer = server.post(path, {"model": "gpt-9", "prompt": "Hello."}, token)
    error = answer["error"]
    kind = "authentication_error" if status == 401 else "invalid_request_error"
    assert (answered, error["type"], error["param"]) == (status, kind, param)
    assert words in error["message"]


def test_fields_without_effect_are_accepted(server, smoke):
    ignored = {"user": "me", "presence_penalty": 0, "logit_bias": None, "response_format": {"type": "text"}}
    sent_back = {"role": "assistant", "content": "Well.", "refusal": None, "tool_calls": None}
    messages = [{"role": "developer", "content": "Be kind."}, *QUESTION, sent_back, *QUESTION]
    body = {"model": str(smoke), "max_tokens": 1, "messages": messages, **ignored}
    status, answer = server.post(CHAT, body)
    assert status == 200, answer


@pytest.mark.parametrize(("token", "status", "chunked"), [(TOKEN, 413, True), ("another", 401, False)])
def test_a_body_that_is_too_large_is_refused_when_all_of_it_has_come(server, token, status, chunked):
    """A client that still sends reads no answer: its connection would be reset."""
    connection = http.client.HTTPConnection(*server.address, timeout=forks.BOUND_S)
    parts = [b" " * (1 << 20)] * 9
    body, headers = iter(parts) if chunked else b"".join(parts), {"Authorization": f"Bearer {token}"}
    connection.request("POST", "/v1/completions", body, headers, encode_chunked=chunked)
    answer = connection.getresponse()
    message = json.loads(answer.read())["error"]["message"]
    assert answer.status == status
    assert ("larger than 8388608 bytes" if status == 413 else "the token is missing") in message


def test_a_prompt_that_does_not_fit_is_refused_with_the_numbers(complete, smoke):
    import openai

    text = "bread " * 600
    count = len(Tokenizer(smoke).encode(text))
    words = rf"512 tokens; the prompt has {count}, .* may have 16"
    with pytest.raises(openai.BadRequestError, match=words) as error:
        complete(prompt=text, max_tokens=16)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError, match="together 513"):
        complete(prompt=[5] * 500, max_tokens=13)
    answer = complete(prompt=[5] * 500, max_tokens=12)  # to the last position
    assert answer.usage.total_tokens <= 512


# ---- many, and those who leave --------------------------------------------------------------------------------------


def test_twenty_clients_at_once_each_get_their_own_answer(complete, smoke, generated):
    def ask(number: int) -> str:
        answer = complete(prompt=f"Question {number}:", seed=number, max_tokens=1 + number % 12)
        return answer.choices[0].text

    with concurrent.futures.ThreadPoolExecutor(20) as clients:
        texts = list(clients.map(ask, range(20)))
    tokenizer = Tokenizer(smoke)
    for number in (0, 7, 19):
        alone = generated(tokenizer.encode(f"Question {number}:"), number, max_length=1 + number % 12)
        assert texts[number] == tokenizer.decode(alone.tokens, continues=True)
    assert len(set(texts)) > 15


# a request whose answers take as long as the context allows
ENDLESS = {"prompt": "On and on.", "max_tokens": 480, "n": ROWS}


def test_a_request_of_many_answers_does_not_make_another_wait(server, complete):
    """Four tokens come while the other request's answers are still waiting for rows."""
    with complete(**ENDLESS | {"n": 100}, stream=True) as stream:
        next(stream)
        complete(prompt="Hi.", max_tokens=4, seed=0)
        assert server.open_responses() > 100 - 2 * ROWS
    forks.until(lambda: server.open_responses() == 0, "rows to be free", bound_s=10)


def test_a_client_that_goes_away_frees_its_rows(server, complete, smoke):
    """One that reads no stream; one that does: the test above."""
    with socket.create_connection(server.address) as connection:
        body = json.dumps({"model": str(smoke), **ENDLESS, "n": 3 * ROWS}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        forks.until(lambda: server.open_responses() > 0, "the request")
    forks.until(lambda: server.open_responses() == 0, "rows to be free", bound_s=10)
    assert complete(prompt="Hi.", max_tokens=2).choices[0].text is not None


def test_the_notebook_s_chat_talks_to_it(server, smoke, here):
    from aligner_lib.jobs.inference import answering
    from aligner_lib.jobs.served import answering_at
    from widgets import Chat

    (answer,) = Chat({"served": answering_at(server.url, TOKEN, max_length=8, seed=3)}).ask(PROMPT)
    assert answer["error"] == "" and answer["text"] == answering(smoke, max_length=8, seed=3)(PROMPT)
    with pytest.raises(UserError, match="the token is missing or wrong"):
        answering_at(server.url, "wrong")
    with pytest.raises(UserError, match=r"no server answers at http://127\.0\.0\.1:9/v1"):
        answering_at("http://127.0.0.1:9", TOKEN)
    (refused,) = Chat({"served": answering_at(server.url, TOKEN, temperature=9)}).ask("Hello.")
    assert "temperature" in refused["error"]


# ---- beginning and end ----------------------------------------------------------------------------------------------


def test_a_signal_ends_the_server_and_the_answers_under_way(smoke, tmp_path):
    """The snippet that the server prints at its start works as it is printed."""
    pytest.importorskip("openai")
    running = start(tmp_path, "smoke", "--rows", "2")
    printed = running.log.read_text()
    assert f"curl {running.url}/chat/completions" in printed
    exec(printed[printed.index("from openai") :].split("\n\n")[0], {"print": lambda text: None})
    with concurrent.futures.ThreadPoolExecutor(1) as waiting:
        answer = waiting.submit(running.post, "completions", {"model": "smoke", **ENDLESS, "n": 8})
        # all eight only until the first of them ends, which a busy machine may miss
        forks.until(lambda: running.open_responses() > 0, "the request")
        os.kill(running.process.pid, signal.SIGTERM)
        status, body = answer.result(timeout=60)
    assert (status, body["error"]["message"]) == (503, "the server ends")
    running.process.join(60)
    assert running.process.exitcode == 0, running.log.read_text()
    with pytest.raises(OSError):
        socket.create_connection(running.address, timeout=1).close()


@pytest.mark.parametrize(
    ("model", "port", "token", "words"),
    [
        ("no such model", None, None, r"port {port} of 127.0.0.1 can't be used \(Address already in use\)"),
        ("smoke", 99999, None, "there is no port 99999: give --port from 1 to 65535"),  # 34463 in 16 bits
        ("smoke", 0, " \n", "the token is empty"),
        ("smoke", 0, "schlüssel", "the token 'schlüssel' has other characters than printable ASCII"),
        ("a reward model", 0, None, "is a reward model or a critic"),
    ],
)
def test_a_server_that_cannot_start_says_why(rm, here, model, port, token, words):
    from aligner_lib.jobs.serve_policy import serve

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1] if port is None else port
        with pytest.raises(UserError, match=words.format(port=port)):
            path = str(rm.path) if model == "a reward model" else model
            serve(path, host="127.0.0.1", port=port, token=token, rows=1, say=print)
    with pytest.raises(UserError, match="this machine has no such address: give another with --host"):
        serve(model, host="192.0.2.1", port=0, token=None, rows=1, say=print)
