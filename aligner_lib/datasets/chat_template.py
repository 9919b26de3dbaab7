"""Conversations as text, in the tokenizer's chat template or in the plain form `User: …`, `Assistant: …`.

`use_template` chooses between the two for a tokenizer, and thus for all data of a job: SFT samples, pairs, prompts and
environments. Without a choice, the texts of data files stay unchanged, and the conversations of an environment use the
tokenizer's own template if there is one.

A template that knows tools writes tools, calls and results itself. For any other template, `tool_calls.in_words` puts them
into turns of system, user and assistant first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.datasets.jinja_template import DATE_FUNCTION, dated, rendered
from aligner_lib.datasets.tool_calls import (
    PROBE_CALL,
    PROBE_MESSAGES,
    PROBE_TOOL,
    CallForm,
    Tool,
    form_of_probe,
    in_words,
    uses_tools,
)
from aligner_lib.errors import UserError
from data.conversations import is_templated

if TYPE_CHECKING:
    from aligner_lib.datasets.tokenizer import Tokenizer

Message = dict[str, Any]  # {"role", "content"}; an assistant's message may have "tool_calls"
Conversation = str | list[Message]  # a text for the policy to continue, or a list of turns

RESPONSE = "the-response-stands-here"  # a placeholder, to find the text around a response in a template
PLAIN, OWN = "plain", "tokenizer"  # the values of model.data.chat_template
FILE = "template.json"  # beside a model's tokenizer: the template of the model's training conversations
PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n\n' }}{% endif %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] | trim }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}"
)
"""PLAIN as a chat template, without the BOS token."""
SCORED_END = "{% if messages and messages[-1]['role'] == 'assistant' and not add_generation_prompt %}{{ eos_token }}{% endif %}"
"""The end of a reward model's PLAIN_TEMPLATE: the stop token of the last answer, where the reward is read."""
ROLES = {"system": "System", "user": "User", "human": "User", "assistant": "Assistant", "gpt": "Assistant"}
ANSWER = "Assistant:"  # the end of a plain prompt
# in a copy, because a changed model in the cache counts as damaged
IN_A_COPY = "Start from a changed copy of the model's folder"
PLAIN_TURN = re.compile(r"(?:\A|\n\n)(System|User|Assistant):")


class StopTokenError(UserError):
    """The loss would not cover the stop token of some samples, so the trained policy would not end its answers."""


# ---- which template -------------------------------------------------------------------------------------------------


def use_template(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """Use a template, PLAIN or OWN, for all further conversations of this tokenizer. Returns the tokenizer.

    Raises UserError for OWN when the tokenizer has no chat template.
    """
    assert name in (PLAIN, OWN), f"there is no template {name!r}"
    if name == OWN and not has_template(tokenizer):
        raise UserError(
            f"the tokenizer of {tokenizer.folder} has no chat template: give model.data.chat_template={PLAIN}, which "
            "writes `User: …` and `Assistant: …`, or choose a model with a chat template"
        )
    tokenizer.template = name
    return tokenizer


def has_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer has a chat template of its own."""
    return _own_template(tokenizer) is not None


def template_in_use(tokenizer: Tokenizer) -> str:
    """The template of prompts for the model in the tokenizer's folder: the recorded template, if there is a record.

    Without a record, a model gets prompts in its tokenizer's own template if the tokenizer has one, else plain prompts. A
    training leaves no record only if environments gave all its prompts and the settings named no template.
    """
    return recorded_template(tokenizer.folder) or (OWN if has_template(tokenizer) else PLAIN)


def own_template(tokenizer: Tokenizer) -> str:
    """The text of the tokenizer's own chat template. Requires `has_template`."""
    return _own_template(tokenizer)


def recorded_template(folder: Path) -> str | None:
    """The template of a model's training conversations; None for a folder without a record.

    Raises UserError for a damaged record.
    """
    try:
        name = json.loads((Path(folder) / FILE).read_text())["chat_template"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        name = None
    if name not in (PLAIN, OWN):
        raise UserError(
            f'{Path(folder) / FILE} is damaged: the file must contain {{"chat_template": "{PLAIN}"}} or {OWN!r}'
        )
    return name


def writes_date(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer's own template writes a date into conversations."""
    return any(DATE_FUNCTION in (_own_template(tokenizer, tools) or "") for tools in (False, True))


def recorded_date(folder: Path) -> date | None:
    """The date in a model's training conversations; None if they had no date. Raises UserError for a damaged record."""
    try:
        day = json.loads((Path(folder) / FILE).read_text()).get("date")
        return None if day is None else date.fromisoformat(day)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{Path(folder) / FILE} is damaged: its date must look like 2025-01-31") from None


def plain_template(tokenizer: Tokenizer) -> str:
    """PLAIN as a chat template for exports: a model trained on plain texts needs plain prompts, whatever its own template.

    The template writes the BOS token itself, because an added BOS token may have no name in tokenizer_config.json.
    """
    bos = "".join(tokenizer.decode([token_id], special_tokens=True) for token_id in tokenizer.bos_ids)
    start = "User:"
    if bos and tokenizer.encode_parts([bos + start])[0] != tokenizer.encode(start):
        bos += " "  # a tokenizer with a space before the first word of a text writes none behind a BOS token in the text
    return (f"{{{{ {json.dumps(bos, ensure_ascii=False)} }}}}" if bos else "") + PLAIN_TEMPLATE


def exported_template(tokenizer: Tokenizer) -> str | list[dict[str, str]] | None:
    """The chat template for an export, in tokenizer_config.json's form, if the template is not the tokenizer's own.

    A model trained on plain texts gets `plain_template`; a model whose training conversations had a date gets a template with
    this date in place of today's.
    """
    if recorded_template(tokenizer.folder) == PLAIN:
        return plain_template(tokenizer)
    template, day = tokenizer.config.get("chat_template"), recorded_date(tokenizer.folder)
    if day is None or template is None:
        return None
    if isinstance(template, list):
        return [entry | {"template": dated(entry["template"], day)} for entry in template]
    return dated(template, day)


def record_plain_template(tokenizer: Tokenizer) -> None:
    """Record PLAIN in the tokenizer's folder if its own chat template is `plain_template`, which an export has written."""
    template = _own_template(tokenizer)
    if template and template.removesuffix(SCORED_END) == plain_template(tokenizer):
        save_tokenizer(use_template(tokenizer, PLAIN), tokenizer.folder)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's files into a model folder, with the chosen template, if any, and the template's date."""
    tokenizer.save(folder)
    if tokenizer.template is not None:
        record = {"chat_template": tokenizer.template}
        if tokenizer.date is not None and tokenizer.template == OWN and writes_date(tokenizer):
            record["date"] = tokenizer.date.isoformat()
        (Path(folder) / FILE).write_text(json.dumps(record) + "\n")


# ---- texts of data files --------------------------------------------------------------------------------------------


def encode_prompt(tokenizer: Tokenizer, prompt: Conversation) -> list[int]:
    """Token ids of a data file's prompt: of the unchanged text, or of its turns in the tokenizer's template."""
    return encode(tokenizer, as_written(tokenizer, prompt))


def as_written(tokenizer: Tokenizer, conversation: Conversation) -> Conversation:
    """A conversation in the form for the chosen template: turns for the tokenizer's own template, otherwise unchanged, except that
    a prompt that a template has written loses its BOS token, which the tokenizer adds.

    Raises UserError for a text without a turn, and for a prompt that a template has written, if a template should write it.
    """
    if is_templated(conversation):
        if tokenizer.template == OWN:
            raise UserError(
                f"the prompt {conversation.strip()[:24]!r}… is written in a chat template, and the tokenizer's would write it again: "
                f"give model.data.chat_template={PLAIN}, which leaves the prompt as it is, or turns of role and content"
            )
        bos = tokenizer.decode(tokenizer.bos_ids, special_tokens=True)
        text = conversation.lstrip()
        return text.removeprefix(bos) if bos and text.startswith(bos) else conversation
    if tokenizer.template != OWN or not isinstance(conversation, str):
        return conversation
    if turns := turns_of(conversation):
        return turns
    raise UserError(
        f"the prompt {conversation!r} has no turn for the chat template to write: begin the prompt with `User: …`"
    )


def with_response(tokenizer: Tokenizer, prompt: Conversation, response: str) -> tuple[list[int], int]:
    """Token ids of prompt, response and stop token, and the index of the response's first token.

    prompt: turns, or a text that ends in `Assistant:`; response: the text after the prompt, with its leading space. Raises
    ValueError when the response contains a stop token.
    """
    prompt = as_written(tokenizer, prompt)
    if not isinstance(prompt, str) and _template_of(tokenizer) is not None:
        messages = [*prompt, {"role": "assistant", "content": response.strip()}]
        prompt_ids, response_ids = tokenizer.encode_parts([*answer_of(tokenizer, messages)])
        return [*prompt_ids, *response_ids], len(prompt_ids)
    text = prompt if isinstance(prompt, str) else render(tokenizer, prompt)
    before, ids = tokenizer.encode_parts([text, response])
    end = tokenizer.eos_id
    if is_templated(text) and ids and ids[-1] in tokenizer.stop_ids:
        end = ids.pop()
    if problem := stop_token_within(tokenizer, ids):
        raise ValueError(problem)
    return [*tokenizer.bos_ids, *before, *ids, end], len(tokenizer.bos_ids) + len(before)


def turns_of(text: str) -> list[Message]:
    """The turns of a text in `User: …`, `Assistant: …` paragraphs, without an empty last turn. Other texts: a user's turn."""
    before, *pieces = PLAIN_TURN.split(text)
    if before.strip() or not pieces:
        return [{"role": "user", "content": text.strip()}]
    turns = [
        {"role": role.lower(), "content": content.strip()} for role, content in zip(pieces[::2], pieces[1::2])
    ]
    return turns[:-1] if turns[-1] == {"role": "assistant", "content": ""} else turns


def answered_texts(
    tokenizer: Tokenizer, messages: list[Message], tools: Sequence[Tool] = ()
) -> list[list[str]]:
    """A conversation in the tokenizer's template, as lists of texts: context, answer, context, answer, …

    The loss covers the answers, each with the template's stop token. The result is a single list if earlier turns stay
    unchanged when later turns follow. Some templates change earlier turns (the templates of reasoning models remove earlier
    thoughts). An answer whose context was changed begins a new list, with the context as the policy will read it. Raises the
    errors of `answer_of`.
    """
    texts: list[list[str]] = []
    done = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        head, answer = answer_of(tokenizer, messages[: i + 1], tools)
        if texts and head.startswith(done):
            texts[-1] += [head[len(done) :], answer]
        else:
            texts.append([head, answer])
        done = head + answer
    return texts


def answer_of(tokenizer: Tokenizer, messages: list[Message], tools: Sequence[Tool] = ()) -> tuple[str, str]:
    """Split a conversation that ends with the assistant's turn into the context and the answer.

    The answer is the part of the assistant's turn in the loss, the stop token included. Raises StopTokenError when the template
    ends an answer without a stop token, UserError when the template changes the context once an answer follows, ValueError when
    the answer contains a stop token.
    """
    content = messages[-1]["content"]
    written = content + json.dumps(messages[-1].get("tool_calls", []), ensure_ascii=False)
    if stop := next((stop for stop in stop_texts(tokenizer) if stop in written), None):
        raise ValueError(_holds_stop_token(stop))
    before, whole = messages[:-1], _apply(tokenizer, messages, False, tools)
    # for no message, templates fail, or leave their own system turn out
    head = (
        _apply(tokenizer, before, True, tools)
        if before
        else _around_response(tokenizer, [], [], False, tools)[0]
    )
    if not whole.startswith(head):
        raise UserError(
            f"{tokenizer.folder}: the chat template changes a prompt once an answer follows, so the policy would "
            f"train on other prompts than in generation: give model.data.chat_template={PLAIN}"
        )
    return head, _up_to_stop(tokenizer, whole[len(head) :], content)


def _up_to_stop(tokenizer: Tokenizer, answer: str, content: str) -> str:
    """The text that a template writes for an answer, up to and including the first stop token."""
    stops = stop_texts(tokenizer)
    places = [(answer.index(stop), stop) for stop in stops if stop in answer]
    if not places:
        raise StopTokenError(
            f"the loss would not cover the stop token {' or '.join(map(repr, stops))}: the chat template of "
            f"{tokenizer.folder} ends an answer with {_ending(answer, content)!r}, so a policy trained on these "
            f"answers would never stop. {IN_A_COPY}: make the text the eos_token in its tokenizer_config.json, or name the text's "
            f"id in eos_token_id of its generation_config.json. Or give model.data.chat_template={PLAIN}"
        )
    place, stop = min(places)
    if tokenizer.encode_parts([stop])[0] != [stops[stop]]:
        raise StopTokenError(
            f"the loss would not cover the stop token {stop!r}: {tokenizer.folder / 'tokenizer.json'} has the token "
            f"in its vocabulary but not among its added_tokens, so the token is read as text. {IN_A_COPY}: add the token in its "
            f"tokenizer.json. Or give model.data.chat_template={PLAIN}"
        )
    return answer[: place + len(stop)]


def stop_token_within(tokenizer: Tokenizer, ids: list[int]) -> str | None:
    """The reason to drop a sample whose answer, given as token ids, contains a stop token; None for other answers."""
    stop = next((token_id for token_id in ids if token_id in tokenizer.stop_ids), None)
    return None if stop is None else _holds_stop_token(tokenizer.decode([stop], special_tokens=True))


def _holds_stop_token(stop: str) -> str:
    return (
        f"an answer contains the stop token {stop!r}, after which a policy writes nothing: remove it, because training "
        "adds the stop token"
    )


def stop_texts(tokenizer: Tokenizer) -> dict[str, int]:
    """Maps the texts of the tokens that end a response to their ids. The stop token comes first."""
    return {tokenizer.decode([token_id], special_tokens=True): token_id for token_id in tokenizer.stop_ids}


def answer_end(tokenizer: Tokenizer) -> int:
    """The id of the token that ends answers in the training data: the template's, or the stop token of plain texts.

    Raises StopTokenError when the template ends an answer without a stop token.
    """
    if tokenizer.template != OWN:
        return tokenizer.eos_id
    row, _ = with_response(tokenizer, f"User: ?\n\n{ANSWER}", f" {RESPONSE}")
    return row[-1]


def answer_mark(tokenizer: Tokenizer) -> str:
    """The text before an answer: `Assistant:`, or the generation prompt of the tokenizer's template, which may be empty."""
    if tokenizer.template != OWN:
        return ANSWER
    question = [{"role": "user", "content": "?"}]
    return _apply(tokenizer, question, True).removeprefix(_apply(tokenizer, question, False))


def _ending(whole: str, content: str) -> str:
    return whole.rpartition(content.strip())[2].strip() or "nothing"


# ---- conversations --------------------------------------------------------------------------------------------------


def render(
    tokenizer: Tokenizer, messages: list[Message], continues: bool = False, tools: Sequence[Tool] = ()
) -> str:
    """The text of a conversation, ready for the assistant's turn.

    Equals `apply_chat_template(..., add_generation_prompt=True)` of transformers. continues: the last message is the
    assistant's and stays open, so that the policy can continue the message. tools: the functions that the policy may call.
    Raises UserError when the template refuses the messages; some templates refuse a system turn.
    """
    if not continues:
        return _apply(tokenizer, messages, True, tools)
    if _template_of(tokenizer) is None:
        return _plain(messages, ready=False)
    before, _ = _around_response(tokenizer, messages[:-1], [], False, tools)
    return before + messages[-1]["content"]


def render_observation(
    tokenizer: Tokenizer,
    conversation: Conversation,
    observation: Conversation,
    stopped: bool,
    tools: Sequence[Tool] = (),
) -> str:
    """The text between two responses: the end of the first response's turn, the observation, and the head of the next turn.

    conversation: the prompt of the response. observation: messages, or the text of a user's turn; if the conversation is a
    text, the observation is appended unchanged. stopped: the response ended with a stop token, which is not repeated. Raises
    UserError when the template now writes the conversation before the response differently from the policy's prompt.
    """
    if isinstance(conversation, str):
        assert isinstance(observation, str), (
            f"a conversation that is a text is continued by a text, not {observation!r}"
        )
        return observation
    before, after = _around_response(tokenizer, conversation, _turns(observation), True, tools)
    if before != render(tokenizer, conversation, tools=tools):
        raise UserError(
            f"{tokenizer.folder}: the chat template changes earlier turns when later turns follow, so an episode of "
            "several turns cannot be continued: use a model with another template, or environments with one turn"
        )
    stop = next((text for text in stop_texts(tokenizer) if after.lstrip().startswith(text)), "")
    return after.lstrip().removeprefix(stop) if stopped and stop else after


def extend(conversation: Conversation, response: str, observation: Conversation) -> Conversation:
    """The prompt of the next response: the conversation, the response and the observation."""
    if isinstance(conversation, str):
        return f"{conversation}{response}{observation}"
    return [*conversation, {"role": "assistant", "content": response}, *_turns(observation)]


def encode(tokenizer: Tokenizer, conversation: Conversation, tools: Sequence[Tool] = ()) -> list[int]:
    """Token ids of a prompt. A chat template contains its BOS token; for plain texts the tokenizer adds the BOS token."""
    if isinstance(conversation, str):
        return tokenizer.encode(conversation)
    text = render(tokenizer, conversation, tools=tools)
    return tokenizer.encode(text) if _template_of(tokenizer) is None else tokenizer.encode_parts([text])[0]


def call_form(tokenizer: Tokenizer) -> CallForm:
    """The form in which the template writes tool calls; the default form for a template that does not know tools.

    Raises UserError for a template that writes calls in a form that is not read here.
    """
    return own_call_form(tokenizer) or "tags"


def own_call_form(tokenizer: Tokenizer) -> CallForm | None:
    """The form in which the template itself writes tool calls; None for a template that does not know tools."""
    return _form_of(tokenizer, _template_of(tokenizer, with_tools=True))


def _form_of(tokenizer: Tokenizer, template: str | None) -> CallForm | None:
    if template is None:
        return None
    written = _written_probe(template, tuple(sorted(_special_tokens(tokenizer.config).items())))
    if written is None:
        return None
    for stop in stop_texts(tokenizer):
        written = written.partition(stop)[0]
    return form_of_probe(written, tokenizer.folder)


@cache
def _written_probe(template: str, special_tokens: tuple[tuple[str, str], ...]) -> str | None:
    """The answer that a template writes for the probe's call; None if the template does not write tools or calls."""
    import jinja2

    variables = {"tools": [PROBE_TOOL], "documents": None, **dict(special_tokens)}
    try:
        head = rendered(template, None, messages=PROBE_MESSAGES[:1], add_generation_prompt=True, **variables)
        whole = rendered(template, None, messages=PROBE_MESSAGES, add_generation_prompt=False, **variables)
    except jinja2.TemplateError:
        return None
    call = whole.removeprefix(head)
    return call if PROBE_CALL.name in head and PROBE_CALL.name in call else None


def _turns(observation: Conversation) -> list[Message]:
    return [{"role": "user", "content": observation}] if isinstance(observation, str) else observation


def _around_response(
    tokenizer: Tokenizer, before: list[Message], after: list[Message], ready: bool, tools: Sequence[Tool]
) -> tuple[str, str]:
    """The texts of a conversation before and after a response."""
    messages = [*before, {"role": "assistant", "content": RESPONSE}, *after]
    head, mark, tail = _apply(tokenizer, messages, ready, tools).partition(RESPONSE)
    if not mark:
        raise UserError(f"{tokenizer.folder}: the chat template leaves the assistant's turns out")
    if _template_of(tokenizer) is None:
        head = head.removesuffix(" ")  # the space after `Assistant:` belongs to the response
    return head, tail


def _apply(tokenizer: Tokenizer, messages: list[Message], ready: bool, tools: Sequence[Tool] = ()) -> str:
    template = _template_of(tokenizer, bool(tools))
    if uses_tools(messages, tools) and _form_of(tokenizer, template) is None:
        messages, tools = in_words(messages, tools), ()
        template = _template_of(tokenizer)
    if template is None:
        return _plain(messages, ready)
    import jinja2

    try:
        return rendered(
            template,
            tokenizer.date,
            messages=messages,
            tools=list(tools) or None,
            documents=None,
            add_generation_prompt=ready,
            **_special_tokens(tokenizer.config),
        )
    except jinja2.TemplateError as error:
        raise UserError(f"{tokenizer.folder}: the chat template can't be used: {error}") from None


def _plain(messages: list[Message], ready: bool) -> str:
    """The plain form, in which load_sft writes conversations and the HH files contain prompts."""
    turns = [f"{_role(message)}: {message['content'].strip()}" for message in messages]
    return "\n\n".join([*turns, *(["Assistant:"] if ready else [])])


def _role(message: Message) -> str:
    if message["role"].lower() not in ROLES:
        raise UserError(f"a turn has the role {message['role']!r}; the roles are {', '.join(ROLES)}")
    return ROLES[message["role"].lower()]


def _template_of(tokenizer: Tokenizer, with_tools: bool = False) -> str | None:
    """The template of conversations; None: the plain form."""
    return None if tokenizer.template == PLAIN else _own_template(tokenizer, with_tools)


def _own_template(tokenizer: Tokenizer, with_tools: bool = False) -> str | None:
    """The tokenizer's own template. Several templates have names: with tools, tool_use comes before default, as in transformers."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        template = named.get("default")
        if with_tools and template is not None:
            template = named.get("tool_use", template)
    return template


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """The special tokens by name (bos_token and so on), as a template reads them."""
    tokens = {name: value for name, value in config.items() if name.endswith("_token") and value}
    texts = {
        name: value.get("content") if isinstance(value, dict) else value for name, value in tokens.items()
    }
    return {name: text for name, text in texts.items() if isinstance(text, str)}
