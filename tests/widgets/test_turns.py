"""The turns of a prompt are read out of its chat template."""

import pytest

from aligner_lib.run_folder.turns import last_turn, turns_of
from widgets import Chat, Pairs, show_completions
from widgets.frontend.table import PromptCell

TURNS = [
    ("system", "Be kind."),
    ("user", "<s>: why not </s>"),
    ("assistant", "So."),
    ("user", "And <b>then</b>?"),
]
TEMPLATES = {
    "ChatML": "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in TURNS)
    + "<|im_start|>assistant\n",
    "ChatML without its marks": "".join(f"{role}\n{text}\n" for role, text in TURNS) + "assistant\n",
    "Llama 3": "<|begin_of_text|>"
    + "".join(f"<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>" for role, text in TURNS),
    "NeMo": "\n".join(f"<extra_id_1>{role.title()}\n{text}" for role, text in TURNS),
    "plain": "\n\n".join(f"{role.title()}: {text}" for role, text in TURNS) + "\n\nAssistant:",
}


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_turns_are_read_out_of_the_template(template):
    assert [(turn["role"], turn["text"]) for turn in turns_of(TEMPLATES[template])] == TURNS


def test_gemma_s_model_and_hh_s_human_are_the_assistant_and_the_user():
    gemma = "<bos><start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\nSo.<end_of_turn>\n"
    for prompt in (gemma, "\n\nHuman: Why?\n\nAssistant: So."):
        assert turns_of(prompt) == [{"role": "user", "text": "Why?"}, {"role": "assistant", "text": "So."}]


@pytest.mark.parametrize("prompt", ["The user\nuser\nis <|odd|>", ""])
def test_a_prompt_without_a_template_is_one_turn(prompt):
    assert turns_of(prompt) == [{"role": "", "text": prompt}]


def test_the_question_of_a_recorded_prompt():
    assert last_turn("system\nYou help.\nuser\nWhy?\nassistant\n") == "Why?"


def test_widgets_and_tables_show_the_turns(healthy):
    prompt = TEMPLATES["ChatML"]
    pairs = Pairs([{"prompt": prompt, "chosen": "c", "rejected": "r"}])
    assert pairs.page["rows"][0]["prompt_turns"] == turns_of(prompt)
    chat = Chat({"echo": str.upper})
    chat.ask(prompt)
    assert chat.turns[0]["prompt_turns"] == turns_of(prompt)
    for table in (pairs.table(), chat.table()):
        assert (
            table.rows[0][0]
            == "system: Be kind.\nuser: <s>: why not </s>\nassistant: So.\nuser: And <b>then</b>?"
        )
        html = table._repr_html_()
        assert "<summary>system</summary>" in html and "And &lt;b&gt;then&lt;/b&gt;?" in html
        assert "im_start" not in html and "im_start" not in repr(table)
    assert all(isinstance(row[0], PromptCell) for row in show_completions(healthy).rows)


def test_long_turns_of_a_table_are_cut_and_the_last_question_stays():
    prompt = PromptCell("Human: " + "a" * 30 + "\n\nAssistant: So.\n\nHuman: Why?\n\nAssistant:", 10)
    assert prompt == "user: " + "a" * 10 + " …\nassistant: So.\nuser: Why?"
