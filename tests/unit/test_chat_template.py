"""Conversations as text: transformers' apply_chat_template says the same, and a response goes on where it was read."""

import json
import shutil

import pytest

from aligner_lib.datasets.chat_template import encode, extend, render, render_observation
from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError

ASKED = [{"role": "user", "content": "What is 2 + 2?"}]
WORKED = [
    {"role": "system", "content": "Answer with a number."},
    {"role": "user", "content": "What is 1 + 1?"},
    {"role": "assistant", "content": "2"},
    *ASKED,
]
# as Llama 3's: BOS in the template, contents trimmed
TRIMMED = (
    "{{ bos_token }}{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] | trim + eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
# a system's turn is refused; a loop control, and white space that only trim_blocks takes away
STRICT = """{% for message in messages %}
    {% if message.role == 'system' %}{{ raise_exception('no system turn, please') }}{% endif %}
    {% if not message.content %}{% continue %}{% endif %}
{{ message.role }}={{ message | tojson }};
{% endfor %}
{% if add_generation_prompt %}assistant={% endif %}"""
# earlier answers are written otherwise than they were read
FORGETFUL = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[' ~ loop.index ~ '/' ~ messages | length ~ ']' }}"
    "{% endif %}{{ message['content'] }}{% endfor %}{% if add_generation_prompt %}{{ '>' }}{% endif %}"
)


@pytest.fixture
def with_template(smoke, tmp_path):
    """The smoke tokenizer with another template, or without one."""

    def make(template):
        shutil.copy(smoke / "tokenizer.json", tmp_path)
        config = json.loads((smoke / "tokenizer_config.json").read_text()) | {"chat_template": template}
        if template is None:
            del config["chat_template"]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return Tokenizer(tmp_path)

    return make


def as_transformers(folder, messages):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text, tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("messages", [ASKED, WORKED])
@pytest.mark.parametrize("folder", ["smoke", pytest.param("smollm2", marks=pytest.mark.model)])
def test_a_conversation_is_transformers_text_and_ids(folder, messages, request):
    tokenizer = Tokenizer(request.getfixturevalue(folder))
    text, ids = as_transformers(tokenizer.folder, messages)
    assert render(tokenizer, messages) == text
    assert encode(tokenizer, messages) == ids
    # an answer that is left open ends with its own text
    answered = [*messages, {"role": "assistant", "content": "It is"}]
    assert render(tokenizer, answered, continues=True) == f"{text}It is"


def test_other_templates_give_transformers_text_too(with_template):
    turns = [("user", " a “quoted” <word>\n"), ("assistant", "é"), ("user", "What is 2 + 2?")]
    messages = [{"role": role, "content": text} for role, text in turns]
    for template in (TRIMMED, STRICT):
        tokenizer = with_template(template)
        assert render(tokenizer, messages) == as_transformers(tokenizer.folder, messages)[0]


def test_without_a_template_it_is_the_form_that_sft_teaches(with_template, tmp_path):
    tokenizer = with_template(None)
    text = "System: Answer with a number.\n\nUser: What is 1 + 1?\n\nAssistant: 2\n\nUser: What is 2 + 2?\n\nAssistant:"
    assert render(tokenizer, WORKED) == text
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": extend(WORKED, "4", "")[:-1]}))
    [sample], _ = load_sft([tmp_path / "a.jsonl"], tokenizer, 512)
    assert tokenizer.decode(sample.tokens) == f"{text} 4"
    assert render(tokenizer, [*WORKED, {"role": "assistant", "content": "4"}], continues=True) == f"{text} 4"
    assert encode(tokenizer, WORKED) == tokenizer.encode(text)  # with what the tokenizer begins a text with


@pytest.mark.parametrize("template", ["its own", TRIMMED, None])
def test_an_observation_goes_on_where_the_response_ended(smoke, with_template, template):
    """Prompt, response and observation, one behind the other, are the conversation as it is rendered whole."""
    tokenizer = Tokenizer(smoke) if template == "its own" else with_template(template)
    response = " 3" if template is None else "3"
    whole = extend(ASKED, response, "Higher.")
    assert [turn["role"] for turn in whole] == ["user", "assistant", "user"]
    observation = render_observation(tokenizer, ASKED, "Higher.", stopped=False)
    assert render(tokenizer, ASKED) + response + observation == render(tokenizer, whole)
    further = render_observation(tokenizer, whole, [{"role": "user", "content": "Lower."}], stopped=False)
    longer = extend(whole, response, "Lower.")
    assert render(tokenizer, whole) + response + further == render(tokenizer, longer)


def test_a_stop_token_that_the_policy_wrote_is_not_repeated_and_text_follows_text(smoke):
    further = "\n<|im_start|>user\nHigher.<|im_end|>\n<|im_start|>assistant\n"
    for stopped, start in ((True, ""), (False, "<|im_end|>")):
        assert render_observation(Tokenizer(smoke), ASKED, "Higher.", stopped=stopped) == start + further
    assert render_observation(Tokenizer(smoke), "1, 2,", " 4,", stopped=False) == " 4,"
    assert extend("1, 2,", " 3,", " 4,") == "1, 2, 3, 4,"


def test_turns_that_a_template_can_not_write_are_refused(with_template):
    with pytest.raises(UserError, match="changes earlier turns"):
        render_observation(with_template(FORGETFUL), ASKED, "Higher.", stopped=False)
    with pytest.raises(UserError, match="no system turn, please"):
        render(with_template(STRICT), WORKED)
    with pytest.raises(UserError, match=r"'critic'.*system, user"):
        render(with_template(None), [{"role": "critic", "content": "4"}])
