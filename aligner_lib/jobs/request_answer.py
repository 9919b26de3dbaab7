"""The answer to a request: encodes and checks the prompts, and generates the choices, complete or part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from aligner_lib.datasets.chat_template import ANSWER, call_form, encode, render
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.datasets.tool_calls import ToolCall
from aligner_lib.errors import UserError
from aligner_lib.jobs.generation_thread import (
    DrawnToken,
    GenerationThread,
    Likeliest,
    PendingResponse,
    ResponseEnd,
    ThreadEnded,
)
from aligner_lib.jobs.json_answers import json_constraint, json_tokenizer
from aligner_lib.jobs.openai_answers import Choice, TokenLogprob, Usage, Writer
from aligner_lib.jobs.openai_api import ApiError, ChatRequest, CompletionRequest
from aligner_lib.jobs.response_text import ResponseText
from aligner_lib.jobs.streamed_calls import StreamedCalls
from aligner_lib.megatron.generate import Sampling
from aligner_lib.megatron.model import Transformer

if TYPE_CHECKING:
    from llguidance import LLTokenizer

GREEDY_BELOW = 1e-6
"""A request with a lower temperature is answered greedily: logits divided by 1e-38 overflow."""


@dataclass(frozen=True)
class ServedModel:
    """The model on the server."""

    name: str
    """The name in requests."""
    tokenizer: Tokenizer
    module: Transformer

    @property
    def positions(self) -> int:
        """The largest number of tokens in prompt and answer together."""
        return self.module.architecture.max_position_embeddings

    @cached_property
    def json_tokenizer(self) -> LLTokenizer:
        """The tokenizer for answers in JSON. Raises ApiError without the library."""
        return json_tokenizer(self.tokenizer)

    @cached_property
    def writes_plain(self) -> bool:
        """Whether conversations have the form `User: …`, `Assistant: …`, in which an answer begins with a space."""
        return render(self.tokenizer, [{"role": "user", "content": "?"}]).endswith(ANSWER)


class Abandoned(Exception):
    """No client waits for the answer any more."""


class Answer:
    """The choices of a request: n for each prompt, in the order of the prompts."""

    def __init__(
        self, model: ServedModel, thread: GenerationThread, request: CompletionRequest | ChatRequest
    ):
        self._model, self._thread, self._request = model, thread, request
        self._chat = isinstance(request, ChatRequest)
        self._tools = request.offered_tools if self._chat else ()
        self._writer = Writer(self._model.name, self._chat)
        self._prompts = [self._encoded(prompt) for prompt in request.prompts]
        self._drawn = 0  # number of tokens
        schema = request.json_schema if self._chat else None
        constraint = None if schema is None else json_constraint(model.json_tokenizer, schema)
        self.generations = [
            PendingResponse(
                prompt, seed, sampling, request.alternatives, self, constraint and constraint.copy()
            )
            for prompt, sampling in [(prompt, self._sampling(prompt)) for prompt in self._prompts]
            for seed in request.seeds()
        ]

    async def whole(self) -> dict:
        """Return the complete answer."""
        # all choices at the same time, so that each one's generation ends at its stop string
        tasks = [
            asyncio.create_task(self._choice(index, generation))
            for index, generation in enumerate(self.generations)
        ]
        try:
            choices = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        return self._writer.whole(choices, self._usage())

    async def _choice(self, index: int, generation: PendingResponse) -> Choice:
        choice = Choice(index, tokens=None if self._request.alternatives is None else [])
        if self._request.echoes:
            await self._echo(choice, generation.prompt)
        if not self._request.draws:
            return replace(choice, finish_reason="length")
        begin = len(choice.text)
        async for part in self._parts(index, generation):
            choice.text += part.text
            choice.calls += part.calls
            choice.finish_reason = part.finish_reason
            if choice.tokens is not None:
                choice.tokens += [replace(token, offset=begin + token.offset) for token in part.tokens]
        return choice

    async def parts(self) -> AsyncIterator[dict]:
        """Yield the answer part by part during generation."""
        if self._chat:
            for index in range(len(self.generations)):
                yield self._writer.begin(index)
        parts: asyncio.Queue[Choice | BaseException | None] = asyncio.Queue()
        tasks = [
            asyncio.create_task(_pour(self._parts(index, generation), parts))
            for index, generation in enumerate(self.generations)
        ]
        open_ = len(tasks)
        try:
            while open_:
                part = await parts.get()
                if isinstance(part, BaseException):
                    raise part
                if part is None:
                    open_ -= 1
                else:
                    yield self._writer.part(part)
        finally:
            for task in tasks:
                task.cancel()
        if self._request.stream_options.include_usage:
            yield self._writer.usage(self._usage())

    async def _parts(self, index: int, generation: PendingResponse) -> AsyncIterator[Choice]:
        """Yield the parts of a choice's text as they become certain. The last part has the reason for the end."""
        tokenizer = self._model.tokenizer
        text = ResponseText(tokenizer, self._request.stop, strip=self._chat and self._model.writes_plain)
        calls = StreamedCalls(call_form(tokenizer)) if self._tools else None
        called = 0  # number of calls
        tokens: list[TokenLogprob] = []  # tokens after the last part
        sent = 0  # characters of the text
        while True:
            event = await generation.events.get()
            if isinstance(event, Exception):
                raise _failure(event)
            is_last = isinstance(event, ResponseEnd)
            if is_last and generation.constraint is not None and generation.constraint.problem:
                raise ApiError(f"the answer in JSON failed: {generation.constraint.problem}", 500)
            begin = len(text.text)
            certain = ""
            if is_last:
                certain = text.end()
            else:
                self._drawn += 1
                # some tokenizers don't mark their stop tokens as special
                is_stop = event.token in tokenizer.stop_ids
                if not is_stop:
                    certain = text.add(event.token)
                # a completion's stop token has a log-probability and no text: lm-eval drops the last entry, whatever it is
                if not (is_stop and self._chat):
                    tokens.append(self._token_logprob(event, begin))
            reason = None
            if is_last or text.stopped:
                reason = "stop" if text.stopped or event.finished else "length"
                if text.stopped:
                    tokens = [token for token in tokens if token.offset < len(text.text)]
            sent += len(certain)
            new_calls: list[ToolCall] = []
            if calls is not None:
                certain, new_calls = calls.add(certain)
                if reason:
                    rest, last_calls = calls.end()
                    certain, new_calls = certain + rest, new_calls + last_calls
                if reason == "stop" and called + len(new_calls):
                    reason = "tool_calls"
            if certain or new_calls or reason:
                with_tokens = self._request.alternatives is not None
                # a stop string may still remove the later tokens
                own = [token for token in tokens if reason or token.offset < sent]
                yield Choice(index, certain, reason, own if with_tokens else None, new_calls, called)
                tokens, called = tokens[len(own) :], called + len(new_calls)
            if reason:
                self._thread.cancel(generation)
                return

    async def _echo(self, choice: Choice, prompt: list[int]) -> None:
        """Put the prompt before an answer, with the prompt's log-probabilities if requested."""
        choice.text = self._model.tokenizer.decode(prompt)
        if choice.tokens is None:
            return
        logprobs = await self._thread.prompt_logprobs(prompt, self._request.alternatives)
        choice.tokens += await asyncio.to_thread(self._prompt_tokens, prompt, logprobs)

    def _prompt_tokens(
        self, prompt: list[int], logprobs: list[tuple[float, Likeliest]]
    ) -> list[TokenLogprob]:
        tokenizer = self._model.tokenizer
        # the echoed text has no special tokens, and no space that SentencePiece puts before the first word
        lengths = [
            0 if token in tokenizer.special_ids else len(text)
            for token, text in zip(prompt, tokenizer.tokens(prompt))
        ]
        removed = sum(lengths) - len(tokenizer.decode(prompt))
        begins = [max(0, begin - removed) for begin in accumulate(lengths, initial=0)]
        first = TokenLogprob(self._text(prompt[0]), None)
        others = zip(prompt[1:], logprobs, begins[1:])
        return [first, *(self._token_logprob(DrawnToken(token, *own), begin) for token, own, begin in others)]

    def _token_logprob(self, drawn: DrawnToken, begin: int) -> TokenLogprob:
        likeliest = tuple((self._text(token), logprob) for token, logprob in drawn.likeliest)
        return TokenLogprob(self._text(drawn.token), drawn.logprob, likeliest, begin)

    def _text(self, token: int) -> str:
        return self._model.tokenizer.decode([token], special_tokens=True, continues=True)

    def _usage(self) -> Usage:
        return Usage(sum(map(len, self._prompts)), self._drawn)

    def _encoded(self, prompt: str | list[int] | list[dict]) -> list[int]:
        """Encode a prompt as token ids. Raises ApiError for a prompt that the model can't continue."""
        field = "messages" if self._chat else "prompt"
        if isinstance(prompt, list) and not self._chat:
            size = self._model.module.architecture.vocab_size
            wrong = [token for token in prompt if not 0 <= token < size]
            if wrong:
                raise ApiError(f"token id {wrong[0]} is not in the vocabulary, 0 to {size - 1}", param=field)
            return prompt
        try:
            tokens = encode(self._model.tokenizer, prompt, self._tools)
        except (UserError, UnicodeEncodeError) as error:
            raise ApiError(str(error), param=field) from None
        if not tokens:
            raise ApiError("the prompt is empty: give at least 1 character", param=field)
        return tokens

    def _sampling(self, prompt: list[int]) -> Sampling:
        request, positions = self._request, self._model.positions
        room = positions - len(prompt)
        length = request.tokens_for(max(room, 1))
        if length > room:
            raise ApiError(
                f"the model's context has {positions} tokens; the prompt has {len(prompt)}, and the answer may have {length}: "
                f"together {len(prompt) + length}. Shorten the prompt, or request fewer tokens (max_tokens)",
                param="messages" if self._chat else "prompt",
                code="context_length_exceeded",
            )
        greedy = request.temperature < GREEDY_BELOW
        return Sampling(
            max_length=max(length, 1),  # of 0 tokens, none is drawn
            temperature=1.0 if greedy else request.temperature,
            top_k=request.top_k,
            top_p=request.top_p,
            greedy=greedy,
        )


def _failure(error: Exception) -> Exception:
    if isinstance(error, ThreadEnded):
        return ApiError(str(error), 503)
    if isinstance(error, Abandoned):
        return error
    return ApiError(f"generation failed: {error}", 500)


async def _pour(parts: AsyncIterator[Choice], into: asyncio.Queue) -> None:
    try:
        async for part in parts:
            await into.put(part)
        await into.put(None)
    except Exception as error:  # raised again by the reader of the queue
        await into.put(error)
