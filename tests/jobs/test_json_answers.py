"""Answers in JSON: every complete one satisfies its schema, and the other responses of the batch stay as they were."""

import asyncio
import json
import sys

import pytest
import tokenizers

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.jobs.generation_thread import GenerationThread
from aligner_lib.jobs.inference import load_engine
from aligner_lib.jobs.json_answers import json_constraint, json_tokenizer
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, read
from aligner_lib.jobs.request_answer import Answer, ServedModel
from aligner_lib.megatron.generate import ContinuousBatch, Sampling

jsonschema = pytest.importorskip("jsonschema")
ROWS = 4
QUESTION = {"messages": [{"role": "user", "content": "How do I bake bread?"}], "model": "model"}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "size": {"enum": ["small", "größer"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 3},
    },
    "required": ["name", "size", "count", "parts"],
    "additionalProperties": False,
    "$defs": {"part": {"anyOf": [{"type": "boolean"}, {"type": "null"}]}},
}


def formatted(schema):
    return {"type": "json_schema", "json_schema": {"name": "bread", "schema": schema, "strict": True}}


@pytest.fixture(scope="module")
def served(smoke):
    return ServedModel("model", Tokenizer(smoke), load_engine(smoke).module)


def answers(served, *requests):
    """The answers of a server to requests that arrive together. A request's `stream` is a list of parts."""

    async def run():
        thread = GenerationThread(served.module, ROWS, served.tokenizer.stop_ids)
        thread.start()
        both = [Answer(served, thread, read(ChatRequest, QUESTION | request)) for request in requests]
        for generation in (generation for answer in both for generation in answer.generations):
            thread.begin(generation)

        async def parts(answer):
            return [part async for part in answer.parts()]

        results = [parts(a) if r.get("stream") else a.whole() for a, r in zip(both, requests)]
        results = await asyncio.gather(*results)
        thread.close()
        await asyncio.to_thread(thread.join)
        return results

    return asyncio.run(run())


def test_every_answer_satisfies_its_schema_or_says_that_it_was_cut(served):
    pytest.importorskip("llguidance")
    schema = {"response_format": formatted(SCHEMA), "seed": 1, "logprobs": True, "top_logprobs": 1}
    whole, cut, parts, free = answers(
        served,
        schema | {"n": 12, "max_tokens": 120},
        schema | {"n": 2, "max_tokens": 5},
        schema | {"max_tokens": 120, "stream": True},
        {"response_format": {"type": "json_object"}, "n": 4, "max_tokens": 60, "temperature": 0.5},
    )
    texts = [choice["message"]["content"] for choice in whole["choices"]]
    for text, choice in zip(texts, whole["choices"]):
        assert choice["finish_reason"] == "stop"
        jsonschema.validate(json.loads(text), SCHEMA)
        json.dumps(choice["logprobs"], allow_nan=False)  # of the model's own distribution, without -inf
    assert len(set(texts)) > 6
    assert [choice["finish_reason"] for choice in cut["choices"]] == ["length"] * 2
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts) == texts[0]
    for choice in free["choices"]:
        if choice["finish_reason"] == "stop":
            assert isinstance(json.loads(choice["message"]["content"]), dict)
        assert choice["message"]["content"].startswith("{")


def test_other_responses_of_the_batch_stay_as_they_were(served):
    pytest.importorskip("llguidance")

    def beside(schema):
        batch = ContinuousBatch(served.module, ROWS, stop_ids=served.tokenizer.stop_ids)
        constraint = schema and json_constraint(served.json_tokenizer, schema)
        first = batch.add([5, 6, 7], 1, Sampling(8), constraint=constraint)
        others = [batch.add([5, 6, seed], seed, Sampling(8, greedy=seed == 2)) for seed in (2, 3, 4)]
        batch.run()
        return first, others

    (free, before), (constrained, after) = beside(None), beside(SCHEMA)
    assert served.tokenizer.decode(constrained.tokens, continues=True).startswith('{"name": "')
    assert free.tokens != constrained.tokens and before == after


REFUSED = {
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "a distant schema": ({"$ref": "https://example.org/a.json"}, "example.org"),
    "a request to look away": ({"uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_schema_that_cannot_be_kept_is_refused_by_the_part(served, case):
    pytest.importorskip("llguidance")
    schema, words = REFUSED[case]
    with pytest.raises(ApiError, match="the JSON schema cannot be kept") as error:
        answers(served, {"response_format": formatted(schema)})
    assert words in str(error.value) and (error.value.status, error.value.param) == (400, "response_format")


def test_a_vocabulary_without_a_mark_of_json_is_refused(tmp_path):
    pytest.importorskip("llguidance")
    letters = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "</s>": 1}, []))
    letters.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(ApiError, match=r"tokenizer \(its vocabulary has no {\): leave response_format out"):
        json_tokenizer(Tokenizer(tmp_path))


def test_without_the_library_and_with_tools_the_request_is_refused_with_the_cure(served, monkeypatch):
    tool = {"type": "function", "function": {"name": "add"}}
    with pytest.raises(ApiError, match=r"response_format with tools .*tool_choice=none"):
        read(ChatRequest, QUESTION | {"tools": [tool], "response_format": {"type": "json_object"}})
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ApiError, match=r"the package llguidance, .*pip install -e '\.\[json\]'"):
        json_tokenizer(served.tokenizer)
