"""Tool calls in the server's answers, whole and streamed. The model's tokens are given; the rest is the server's own code."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from tiny_tokenizers import with_settings
from tool_templates import ADD, LLAMA

from aligner_lib.datasets.chat_template import OWN, use_template
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import ToolCall, calling_message, in_words
from aligner_lib.jobs.generation_thread import DrawnToken, ResponseEnd
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, read
from aligner_lib.jobs.request_answer import Answer, ServedModel

QUESTION = [{"role": "user", "content": "1 + 1?"}]
CALL = ToolCall("add", {"a": 1, "b": "ü"})
TAGGED = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": "ü"}}\n</tool_call>'
BROKEN = "<tool_call>\nadd(1)\n</tool_call>"
OBJECT = '{"name": "add", "parameters": {"a": 1, "b": "ü"}}'


@pytest.fixture
def answered(smoke, tmp_path):
    """answered(text, template, **request): the answer when the model writes a text, and the parts of the streamed answer."""

    def answer(text, template=None, finished=True, **changed):
        folder = with_settings(smoke, tmp_path, chat_template=template) if template else smoke
        tokenizer = use_template(Tokenizer(folder), OWN)
        module = SimpleNamespace(architecture=SimpleNamespace(max_position_embeddings=4096))
        served = ServedModel("model", tokenizer, module)
        request = read(ChatRequest, {"model": "model", "messages": QUESTION, "tools": [ADD], **changed})

        async def run(stream):
            answer = Answer(served, SimpleNamespace(cancel=lambda generation: None), request)
            (generation,) = answer.generations
            for token in tokenizer.encode_parts([text])[0]:
                generation.events.put_nowait(DrawnToken(token))
            generation.events.put_nowait(ResponseEnd(finished))
            return [part async for part in answer.parts()] if stream else await answer.whole()

        return asyncio.run(run(False)), asyncio.run(run(True))

    return answer


def calls_of(message):
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"].startswith("call_") for call in calls)
    return [ToolCall(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


TWO = f"So: {TAGGED}\n{TAGGED}"
# text of the model, template, changes → content, calls, reason
ANSWERS = {
    "a call": (TAGGED, None, {}, None, [CALL], "tool_calls"),
    "text and two calls": (TWO, None, {}, "So:", [CALL, CALL], "tool_calls"),
    "no call": ("It is < 3 <tool", None, {}, "It is < 3 <tool", [], "stop"),
    "an unreadable call": (f"{BROKEN} Two.", None, {}, f"{BROKEN} Two.", [], "stop"),
    "a call without its end": (TAGGED[:-3], None, {"finished": False}, TAGGED[:-3], [], "length"),
    "tool_choice none": (TAGGED, None, {"tool_choice": "none"}, TAGGED, [], "stop"),
    "an object": (OBJECT, LLAMA, {}, None, [CALL], "tool_calls"),
    "no object": (f"It is {OBJECT}", LLAMA, {}, f"It is {OBJECT}", [], "stop"),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_calls_stand_in_openai_s_form_and_are_streamed_as_they_are_written_whole(answered, case):
    text, template, changes, content, calls, reason = ANSWERS[case]
    whole, parts = answered(text, template, **changes)
    (choice,) = whole["choices"]
    assert choice["message"]["content"] == content and calls_of(choice["message"]) == calls
    assert choice["finish_reason"] == reason
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert "".join(delta.get("content") or "" for delta in deltas) == (content or "")
    streamed = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert [call["index"] for call in streamed] == list(range(len(calls)))
    assert calls_of({"tool_calls": streamed}) == calls
    reasons = [part["choices"][0]["finish_reason"] for part in parts]
    assert reasons == [None] * (len(parts) - 1) + [reason]
    if case == "no call":
        assert len(parts) > 4  # text is not held back until the end


def test_the_prompt_has_the_tools_the_calls_and_their_results(answered, smoke):
    """Many clients write the tool's name into its result."""
    function = {"name": "add", "arguments": json.dumps(CALL.arguments)}
    calling = {"role": "assistant", "tool_calls": [{"id": "7", "type": "function", "function": function}]}
    result = {"role": "tool", "tool_call_id": "7", "name": "add", "content": "2"}
    whole, _ = answered("Two.", messages=[*QUESTION, calling | {"content": None}, result])
    turns = in_words([*QUESTION, calling_message([CALL]), {"role": "tool", "content": "2"}], [ADD])
    text = "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)
    tokens = Tokenizer(smoke).encode_parts([f"{text}<|im_start|>assistant\n"])[0]
    assert whole["usage"]["prompt_tokens"] == len(tokens)


CALLED = {"id": "7", "function": {"name": "add", "arguments": "{}"}}
REFUSED = [
    ({"tool_choice": "required"}, "tool_choice", "'none' or 'auto' (it is 'required')"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls", "not supported here"),
    ({"tools": [{"type": "function"}]}, "tools", "must have the form"),
    ({"tools": [{"type": "function", "function": {"name": "add", "strict": True}}]}, "tools", "leave strict out"),
    ({"messages": [{"role": "tool", "content": "2"}]}, "messages", "needs tool_call_id"),
    ({"messages": [{"role": "tool", "content": "2", "tool_call_id": "8"}]}, "messages", "no call before it"),
    ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALLED]}]}, "messages", "only an assistant's"),
    ({"messages": [{"role": "user", "content": "a", "name": "Ada"}]}, "messages", "only a message of the role tool has a name"),
    ({"messages": [{"role": "assistant", "tool_calls": [CALLED | {"function": {"name": "a", "arguments": "[1]"}}]}]}, "messages", "JSON text of an object"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "param", "words"), REFUSED)
def test_a_field_that_cannot_be_met_is_refused_by_name(changed, param, words):
    with pytest.raises(ApiError) as error:
        read(ChatRequest, {"model": "model", "messages": QUESTION, "tools": [ADD], **changed})
    assert error.value.param == param and words in str(error.value)
