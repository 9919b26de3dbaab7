"""Conversations as text: by the tokenizer's chat template, or as `User: …`, `Assistant: …` where it has none."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from aligner_lib.datasets.load import ROLES
from aligner_lib.errors import UserError

if TYPE_CHECKING:
    import jinja2

    from aligner_lib.datasets.tokenizer import Tokenizer

Message = dict[str, str]  # {"role", "content"}
Conversation = str | list[Message]  # a text that goes on, or turns

RESPONSE = "the-response-stands-here"  # in place of a response, to find what a template puts around it


def render(tokenizer: Tokenizer, messages: list[Message], continues: bool = False) -> str:
    """The text of a conversation, ready for the assistant's turn.

    As `apply_chat_template(..., add_generation_prompt=True)` of transformers gives it. continues: the last message is the
    assistant's, and its text is left open, for the policy to go on with. Raises UserError when the template refuses the
    messages, as some do a system's turn.
    """
    if not continues:
        return _apply(tokenizer, messages, ready=True)
    if _template_of(tokenizer) is None:
        return _plain(messages, ready=False)
    before, _ = _around_response(tokenizer, messages[:-1], [], ready=False)
    return before + messages[-1]["content"]


def render_observation(
    tokenizer: Tokenizer, conversation: Conversation, observation: Conversation, stopped: bool
) -> str:
    """What stands behind a response up to the next one: the end of the turn, the observation, and the next turn's head.

    conversation: what was responded to. observation: messages, or the text of a user's turn; behind a text it follows as
    it is. stopped: the response ended with the stop token, which is not given again. Raises UserError when the
    template writes the conversation before the response otherwise than the policy has read it.
    """
    if isinstance(conversation, str):
        assert isinstance(observation, str), f"behind a text comes a text, not {observation!r}"
        return observation
    before, after = _around_response(tokenizer, conversation, _turns(observation), ready=True)
    if before != render(tokenizer, conversation):
        raise UserError(
            f"{tokenizer.folder}: the chat template writes earlier turns otherwise when later ones follow, so no "
            "episode of several turns can be continued; take a model with another template, or environments of one turn"
        )
    stop = _special_tokens(tokenizer.config).get("eos_token", "")
    if stopped and stop and after.lstrip().startswith(stop):
        return after.lstrip().removeprefix(stop)
    return after


def extend(conversation: Conversation, response: str, observation: Conversation) -> Conversation:
    """The conversation that the next response answers."""
    if isinstance(conversation, str):
        return f"{conversation}{response}{observation}"
    return [*conversation, {"role": "assistant", "content": response}, *_turns(observation)]


def encode(tokenizer: Tokenizer, conversation: Conversation) -> list[int]:
    """A prompt's token ids. A template writes its BOS token itself; elsewhere the tokenizer puts it first."""
    if isinstance(conversation, str):
        return tokenizer.encode(conversation)
    text = render(tokenizer, conversation)
    return tokenizer.encode(text) if _template_of(tokenizer) is None else tokenizer.encode_parts([text])[0]


def _turns(observation: Conversation) -> list[Message]:
    return [{"role": "user", "content": observation}] if isinstance(observation, str) else observation


def _around_response(
    tokenizer: Tokenizer, before: list[Message], after: list[Message], ready: bool
) -> tuple[str, str]:
    """A conversation's text before and after one response in it."""
    messages = [*before, {"role": "assistant", "content": RESPONSE}, *after]
    head, found, tail = _apply(tokenizer, messages, ready).partition(RESPONSE)
    if not found:
        raise UserError(f"{tokenizer.folder}: the chat template leaves the assistant's turns out")
    if _template_of(tokenizer) is None:
        head = head.removesuffix(" ")  # the space behind `Assistant:` is the response's own
    return head, tail


def _apply(tokenizer: Tokenizer, messages: list[Message], ready: bool) -> str:
    template = _template_of(tokenizer)
    if template is None:
        return _plain(messages, ready)
    import jinja2

    try:
        return _compiled(template).render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=ready,
            **_special_tokens(tokenizer.config),
        )
    except jinja2.TemplateError as error:
        raise UserError(f"{tokenizer.folder}: the chat template can't be used: {error}") from None


def _plain(messages: list[Message], ready: bool) -> str:
    """As SFT has conversations (load_sft) and the HH files their prompts."""
    turns = [f"{_role(one)}: {one['content'].strip()}" for one in messages]
    return "\n\n".join([*turns, *(["Assistant:"] if ready else [])])


def _role(message: Message) -> str:
    if message["role"].lower() not in ROLES:
        raise UserError(f"a turn is from {message['role']!r}; it may be from {', '.join(ROLES)}")
    return ROLES[message["role"].lower()]


def _template_of(tokenizer: Tokenizer) -> str | None:
    """The template; of several by name, the one named default."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default")
    return template


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and the others by name, as a template reads them."""
    tokens = {name: value for name, value in config.items() if name.endswith("_token") and value}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


@cache
def _compiled(template: str) -> jinja2.Template:
    """The environment that templates are written for: transformers'."""
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(words: str):
        raise TemplateError(words)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)
