"""Conversations as text: by the tokenizer's chat template, or as `User: …`, `Assistant: …`, which is called plain.

`use_template` chooses one of the two for a tokenizer, and with it for all that a job reads: SFT's samples, pairs, prompts
and environments. Where nobody has chosen, a file's texts stay as they are, and an environment's conversations take
the tokenizer's own where it has one.
"""

from __future__ import annotations

import json
import re
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.datasets.jinja_template import DATE_FUNCTION, rendered
from aligner_lib.errors import UserError

if TYPE_CHECKING:
    from aligner_lib.datasets.tokenizer import Tokenizer

Message = dict[str, str]  # {"role", "content"}
Conversation = str | list[Message]  # a text that goes on, or turns

RESPONSE = "the-response-stands-here"  # in place of a response, to find what a template puts around it
PLAIN, OWN = "plain", "tokenizer"  # a tokenizer's template: model.data.chat_template
FILE = "template.json"  # beside a model's tokenizer: how what it has learnt from was written
ROLES = {"system": "System", "user": "User", "human": "User", "assistant": "Assistant", "gpt": "Assistant"}
ANSWER = "Assistant:"  # what ends a plain prompt
PLAIN_TURN = re.compile(r"(?:\A|\n\n)(System|User|Assistant):")


class StopTokenError(UserError):
    """Samples whose stop token would not be learnt: a policy that is trained on them does not end its answers."""


# ---- which template -------------------------------------------------------------------------------------------------


def use_template(tokenizer: Tokenizer, name: str) -> Tokenizer:
    """The tokenizer, which writes all conversations by this template from here on: PLAIN or OWN.

    Raises UserError for OWN where it has none.
    """
    assert name in (PLAIN, OWN), f"there is no template {name!r}"
    if name == OWN and not has_template(tokenizer):
        raise UserError(
            f"the tokenizer of {tokenizer.folder} has no chat template: give model.data.chat_template={PLAIN}, which writes "
            "`User: …` and `Assistant: …`, or a model that has one"
        )
    tokenizer.template = name
    return tokenizer


def has_template(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer brings a chat template."""
    return _own_template(tokenizer) is not None


def template_in_use(tokenizer: Tokenizer) -> str:
    """The template that the model of the tokenizer's folder is asked in: the recorded one.

    Where nothing is recorded a downloaded model is asked in its tokenizer's own template, any other one plain.
    """
    is_downloaded = (tokenizer.folder / "source.json").exists() and has_template(tokenizer)
    return recorded_template(tokenizer.folder) or (OWN if is_downloaded else PLAIN)


def own_template(tokenizer: Tokenizer) -> str:
    """The text of the chat template that the tokenizer brings. It has one where `has_template` says so."""
    return _own_template(tokenizer)


def recorded_template(folder: Path) -> str | None:
    """The template of what a model folder's model has learnt from; None where it does not say, as a downloaded one."""
    try:
        name = json.loads((Path(folder) / FILE).read_text())["chat_template"]
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        name = None
    if name not in (PLAIN, OWN):
        raise UserError(
            f'{Path(folder) / FILE} is damaged: it has to say {{"chat_template": "{PLAIN}"}} or {OWN!r}'
        )
    return name


def writes_date(tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer's own template puts the day into conversations."""
    return DATE_FUNCTION in (_own_template(tokenizer) or "")


def recorded_date(folder: Path) -> date | None:
    """The day in the conversations that a model folder's model has learnt from; None where there was none."""
    try:
        day = json.loads((Path(folder) / FILE).read_text()).get("date")
        return None if day is None else date.fromisoformat(day)
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError):
        raise UserError(f"{Path(folder) / FILE} is damaged: its date has to be like 2025-01-31") from None


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the tokenizer's files into a model folder, and its template where one was chosen, with the day that it writes."""
    tokenizer.save(folder)
    if tokenizer.template is not None:
        record = {"chat_template": tokenizer.template}
        if tokenizer.date is not None and tokenizer.template == OWN and writes_date(tokenizer):
            record["date"] = tokenizer.date.isoformat()
        (Path(folder) / FILE).write_text(json.dumps(record) + "\n")


# ---- texts of data files --------------------------------------------------------------------------------------------


def encode_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of a data file's prompt: of the text as it is, or of its turns by the tokenizer's template."""
    return encode(tokenizer, as_written(tokenizer, text))


def as_written(tokenizer: Tokenizer, conversation: Conversation) -> Conversation:
    """A conversation as the tokenizer's chosen template writes it: a text's turns where that is the tokenizer's own."""
    own = tokenizer.template == OWN and isinstance(conversation, str)
    return turns_of(conversation) if own else conversation


def with_response(tokenizer: Tokenizer, prompt: str, response: str) -> tuple[list[int], int]:
    """Token ids of prompt, response and stop token, and where the response begins.

    prompt: a text that ends in `Assistant:`; response: what follows it, the space included.
    """
    if tokenizer.template == OWN:
        messages = [*turns_of(prompt), {"role": "assistant", "content": response.strip()}]
        read, ids = tokenizer.encode_parts([*answer_of(tokenizer, messages)])
        return [*read, *ids], len(read)
    before, ids = tokenizer.encode_parts([prompt, response])
    return [*tokenizer.bos_ids, *before, *ids, tokenizer.eos_id], len(tokenizer.bos_ids) + len(before)


def turns_of(text: str) -> list[Message]:
    """The turns of a text of `User: …`, `Assistant: …` paragraphs, but for an empty last one; of another text the user's."""
    before, *pieces = PLAIN_TURN.split(text)
    if before.strip() or not pieces:
        return [{"role": "user", "content": text.strip()}]
    turns = [
        {"role": role.lower(), "content": content.strip()} for role, content in zip(pieces[::2], pieces[1::2])
    ]
    return turns[:-1] if turns[-1] == {"role": "assistant", "content": ""} else turns


def answered_texts(tokenizer: Tokenizer, messages: list[Message]) -> list[list[str]]:
    """A conversation by the tokenizer's template, as what is read and what is learnt in turns: read, learnt, read, learnt, …

    What is learnt is the assistant's, each answer with the stop token that the template writes behind it. It is one text
    where the template writes earlier turns as they were read. A template that rewrites them, as reasoning models' leave
    earlier thoughts out, gives a text for each answer that follows on rewritten turns: what the policy reads when it is
    asked. Raises what `answer_of` raises.
    """
    texts: list[list[str]] = []
    done = ""
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        head, answer = answer_of(tokenizer, messages[: i + 1])
        if texts and head.startswith(done):
            texts[-1] += [head[len(done) :], answer]
        else:
            texts.append([head, answer])
        done = head + answer
    return texts


def answer_of(tokenizer: Tokenizer, messages: list[Message]) -> tuple[str, str]:
    """What is read before a conversation's last turn, which is the assistant's, and what is learnt of that turn.

    Raises StopTokenError where the template ends an answer without a stop token, UserError where it writes what comes before
    the answer otherwise once there is one, ValueError for an answer that holds a stop token itself.
    """
    content = messages[-1]["content"]
    if held := next((stop for stop in stop_texts(tokenizer) if stop in content), None):
        raise ValueError(_holds_stop_token(held))
    head, whole = _apply(tokenizer, messages[:-1], True), _apply(tokenizer, messages, False)
    if not whole.startswith(head):
        raise UserError(
            f"{tokenizer.folder}: the chat template writes a conversation otherwise once it has been answered, so what "
            f"is learnt would not be what is asked for; give model.data.chat_template={PLAIN}"
        )
    return head, _up_to_stop(tokenizer, whole[len(head) :], content)


def _up_to_stop(tokenizer: Tokenizer, answer: str, content: str) -> str:
    """What a template writes of an answer, up to the first stop token, which is in it."""
    stops = stop_texts(tokenizer)
    found = [(answer.index(stop), stop) for stop in stops if stop in answer]
    if not found:
        raise StopTokenError(
            f"its stop token {' or '.join(map(repr, stops))} would not be learnt: the chat template of {tokenizer.folder} "
            f"ends an answer with {_ending(answer, content)!r}, and a policy that is trained so does not end its answers. "
            f"Make that the eos_token in {tokenizer.folder / 'tokenizer_config.json'}, name its id in eos_token_id of "
            f"{tokenizer.folder / 'generation_config.json'}, or give model.data.chat_template={PLAIN}"
        )
    place, stop = min(found)
    if tokenizer.encode_parts([stop])[0] != [stops[stop]]:
        raise StopTokenError(
            f"its stop token {stop!r} would not be learnt: {tokenizer.folder / 'tokenizer.json'} has it in its vocabulary, "
            f"but not among its added_tokens, so it is read as text; add it there, or give model.data.chat_template={PLAIN}"
        )
    return answer[: place + len(stop)]


def stop_token_within(tokenizer: Tokenizer, ids: list[int]) -> str | None:
    """Why a sample is left out whose answer has these token ids; None for one without a stop token."""
    stop = next((token_id for token_id in ids if token_id in tokenizer.stop_ids), None)
    return None if stop is None else _holds_stop_token(tokenizer.decode([stop], special_tokens=True))


def _holds_stop_token(stop: str) -> str:
    return f"an answer holds the stop token {stop!r}, behind which a policy writes nothing"


def stop_texts(tokenizer: Tokenizer) -> dict[str, int]:
    """The ids of the tokens that end a response, by their texts as a template writes them; the stop token is the first."""
    return {tokenizer.decode([token_id], special_tokens=True): token_id for token_id in tokenizer.stop_ids}


def answer_end(tokenizer: Tokenizer) -> int:
    """The id of the token with which answers that are learnt from end: the one of the tokenizer's template, or the stop token.

    Raises StopTokenError for a template that ends an answer otherwise.
    """
    if tokenizer.template != OWN:
        return tokenizer.eos_id
    row, _ = with_response(tokenizer, f"User: ?\n\n{ANSWER}", f" {RESPONSE}")
    return row[-1]


def answer_mark(tokenizer: Tokenizer) -> str:
    """What stands before an answer: `Assistant:`, or what the tokenizer's template gives for a generation prompt."""
    if tokenizer.template != OWN:
        return ANSWER
    asked = [{"role": "user", "content": "?"}]
    mark = _apply(tokenizer, asked, True).removeprefix(_apply(tokenizer, asked, False))
    if not mark:
        raise UserError(
            f"{tokenizer.folder}: the chat template writes nothing before an answer, so token files don't say where a "
            "response begins: give model.data.data_impl=jsonl"
        )
    return mark


def _ending(whole: str, content: str) -> str:
    return whole.rpartition(content.strip())[2].strip() or "nothing"


# ---- conversations --------------------------------------------------------------------------------------------------


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
    it is. stopped: the response ended with a stop token, which is not given again. Raises UserError when the
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
    stop = next((text for text in stop_texts(tokenizer) if after.lstrip().startswith(text)), "")
    return after.lstrip().removeprefix(stop) if stopped and stop else after


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
        return rendered(
            template,
            tokenizer.date,
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
    """The template that conversations are written by; None: plain."""
    return None if tokenizer.template == PLAIN else _own_template(tokenizer)


def _own_template(tokenizer: Tokenizer) -> str | None:
    """The template that the tokenizer brings; of several by name, the one named default."""
    template = tokenizer.config.get("chat_template")
    if isinstance(template, list):
        template = {one["name"]: one["template"] for one in template}.get("default")
    return template


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and the others by name, as a template reads them."""
    tokens = {name: value for name, value in config.items() if name.endswith("_token") and value}
    texts = {name: value["content"] if isinstance(value, dict) else value for name, value in tokens.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}
