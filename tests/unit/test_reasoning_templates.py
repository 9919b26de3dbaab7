"""Chat templates of reasoning models: a mark around what is generated, thoughts that later turns leave out, and a date.

The templates are small ones with the constructs of SmolLM3's and Qwen3's.
"""

import re
from datetime import date

import pytest
from test_chat_template import as_transformers

from aligner_lib.config.compose import load
from aligner_lib.datasets import chat_template
from aligner_lib.datasets.chat_template import OWN, render, use_template
from aligner_lib.datasets.load import load_preferences, load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.kinds.inputs import policy_tokenizer

MARKED = """{%- set mode = namespace(thinks=enable_thinking is not defined or enable_thinking) -%}
{{- "<|im_start|>system\nToday: " ~ strftime_now("%d %B %Y") ~ "<|im_end|>\n" -}}
{%- for message in messages -%}
    {%- set content = message.content if message.content is string else "" -%}
    {%- if message.role == "user" -%}
        {{- "<|im_start|>user\n" + content + "<|im_end|>\n" -}}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- set shown = content.lstrip("\n") -%}
        {{- "<|im_start|>assistant\n" + ("" if mode.thinks else "<think>\n\n</think>\n") + shown + "<|im_end|>\n" -}}
        {% endgeneration %}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
# the thoughts of a turn stand there until a user's turn follows
FORGETS_THOUGHTS = """{%- set seen = namespace(last=0) -%}
{%- for message in messages -%}
    {%- if message.role == "user" -%}{%- set seen.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
    {%- set content, thought = message.content, "" -%}
    {%- if message.role == "assistant" and "</think>" in content -%}
        {%- set thought = content.split("</think>")[0].split("<think>")[-1].strip("\n") -%}
        {%- set content = content.split("</think>")[-1].lstrip("\n") -%}
    {%- endif -%}
    {{- "<|im_start|>" + message.role + "\n" -}}
    {%- if message.role == "assistant" and loop.index0 > seen.last -%}
        {{- "<think>\n" + thought + "\n</think>\n\n" -}}
    {%- endif -%}
    {{- content + "<|im_end|>\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\n" -}}{%- endif -%}
"""
TURNS = [
    {"role": "user", "content": "One and one?"},
    {"role": "assistant", "content": "<think>\n1+1\n</think>\n\nTwo."},
    {"role": "user", "content": "And one?"},
    {"role": "assistant", "content": "<think>\n2+1\n</think>\n\nThree."},
]
FIRST = "<|im_start|>user\nOne and one?<|im_end|>\n<|im_start|>assistant\n"
SECOND = f"{FIRST}Two.<|im_end|>\n<|im_start|>user\nAnd one?<|im_end|>\n<|im_start|>assistant\n"


def learnt_text(tokenizer: Tokenizer, sample) -> str:
    ids = [token for token, learnt in zip(sample.tokens, sample.learnt) if learnt]
    return tokenizer.decode(ids, special_tokens=True, continues=True)


@pytest.mark.parametrize("template", [MARKED, FORGETS_THOUGHTS])
@pytest.mark.parametrize("turns", [1, 3])
def test_a_conversation_is_transformers_text(with_template, template, turns):
    tokenizer = with_template(template)
    reference, _ = as_transformers(tokenizer.folder, TURNS[:turns])
    same_day = [re.sub("Today: .*", "Today:", text) for text in (reference, render(tokenizer, TURNS[:turns]))]
    assert same_day[0] == same_day[1]


def test_a_marked_template_s_loss_begins_where_the_policy_does(with_template, jsonl):
    """The marked part includes the turn's head, which is not learnt."""
    tokenizer = with_template(MARKED)
    (sample,), _ = load_sft(jsonl({"messages": TURNS}), tokenizer, 256)
    assert learnt_text(tokenizer, sample) == "".join(turn["content"] + "<|im_end|>" for turn in TURNS[1::2])


def test_a_template_that_leaves_thoughts_out_gives_a_sample_for_each_answer(with_template, jsonl):
    tokenizer = with_template(FORGETS_THOUGHTS)
    texts = [[FIRST, f"{TURNS[1]['content']}<|im_end|>"], [SECOND, f"{TURNS[3]['content']}<|im_end|>"]]
    assert chat_template.answered_texts(tokenizer, TURNS) == texts
    assert [render(tokenizer, TURNS[:turns]) for turns in (1, 3)] == [FIRST, SECOND]
    samples, report = load_sft(jsonl({"messages": TURNS}), tokenizer, 256)
    assert report.total == 1 and not report.dropped
    assert [learnt_text(tokenizer, sample) for sample in samples] == [answer for _, answer in texts]
    for sample, text in zip(samples, texts):
        assert tokenizer.decode(sample.tokens, special_tokens=True) == "".join(text)


def test_a_pair_learns_its_last_answer_alone(with_template, jsonl):
    tokenizer = with_template(FORGETS_THOUGHTS)
    prompt = "User: One and one?\n\nAssistant: Two.\n\nUser: And one?\n\nAssistant:"
    (pair,), _ = load_preferences(
        jsonl({"text": f"{prompt} Three."}, {"text": f"{prompt} Four."}), tokenizer, 256
    )
    assert tokenizer.decode(pair.chosen[: pair.chosen_start], special_tokens=True) == SECOND
    row, begins = chat_template.with_response(tokenizer, prompt, " Three.")
    assert (row, begins) == (pair.chosen, pair.chosen_start)
    assert tokenizer.decode(row[begins:], special_tokens=True) == "<think>\n\n</think>\n\nThree.<|im_end|>"


def test_the_day_in_a_prompt_is_the_setting_s_and_not_today(with_template):
    folder = with_template(MARKED).folder
    config = load("sft", {"model": {"data": {"chat_template": "tokenizer"}}})
    assert "Today: 01 January 2025<" in render(policy_tokenizer(config, folder), TURNS[:1])
    config.model.data.chat_template_date = "2024-02-29"
    tokenizer = policy_tokenizer(config, folder)
    assert "Today: 29 February 2024<" in render(tokenizer, TURNS[:1])
    tokenizer.date, before = None, date.today()
    text = render(tokenizer, TURNS[:1])
    assert any(f"Today: {day:%d %B %Y}<" in text for day in (before, date.today()))


def test_a_model_folder_says_which_day_it_has_learnt_from(with_template, smoke, tmp_path):
    tokenizer = with_template(MARKED)
    tokenizer.date = date(2024, 2, 29)
    (tmp_path / "out").mkdir()
    for saved, day in ((tokenizer, date(2024, 2, 29)), (use_template(Tokenizer(smoke), OWN), None)):
        chat_template.save_tokenizer(saved, tmp_path / "out")  # the second template writes no date
        assert chat_template.recorded_date(tmp_path / "out") == day
    assert chat_template.recorded_date(smoke) is None
