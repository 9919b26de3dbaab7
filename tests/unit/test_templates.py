"""One template in SFT's samples, pairs and prompts: the ids of transformers, and a mask that ends with the stop token."""

import json
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat_template import FORGETFUL, TRIMMED
from tiny_tokenizers import llama_2

from aligner_lib.datasets.chat_template import (
    OWN,
    PLAIN,
    StopTokenError,
    answer_end,
    encode_prompt,
    recorded_template,
    render,
    render_observation,
    save_tokenizer,
    turns_of,
    use_template,
    with_response,
)
from aligner_lib.datasets.load import load_labelled, load_pairs, load_preferences, load_prompts, load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.tutorial import show_mask

# a turn ends otherwise than a text: Gemma's way, and of many base models with a chat template
OTHER_STOP = (
    "{% for message in messages %}{{ '<' + message['role'] + '>' + message['content'] + '<end_of_turn>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)
MESSAGES = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi?"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Well?"},
    {"role": "assistant", "content": "Yes, well."},
]
PROMPT = "User: Hi?\n\nAssistant: Hello.\n\nUser: Well?\n\nAssistant:"


@pytest.fixture
def tokenizer(smoke) -> Tokenizer:
    return use_template(Tokenizer(smoke), OWN)


@pytest.fixture
def with_template(smoke, tmp_path):
    """The smoke tokenizer with another template."""

    def make(template: str | None) -> Tokenizer:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(smoke / name, tmp_path)
        config = json.loads((smoke / "tokenizer_config.json").read_text()) | {"chat_template": template}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return Tokenizer(tmp_path)

    return make


@pytest.fixture
def jsonl(tmp_path):
    def write(*records: dict):
        path = tmp_path / "data.jsonl"
        path.write_text("\n".join(map(json.dumps, records)))
        return [path]

    return write


def as_transformers(folder, messages, ready=False) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ready)
    return tokenizer.encode(text, add_special_tokens=False)


def learnt(tokenizer, sample) -> list[str]:
    """The stretches that are learnt, as text."""
    shown = repr(show_mask(sample, tokenizer))
    return [part.partition("⟧")[0] for part in shown.split("⟦")[1:]]


# ---- samples --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("template", ["its own", TRIMMED])
def test_a_conversation_is_learnt_as_transformers_writes_it(smoke, with_template, jsonl, template):
    tokenizer = use_template(Tokenizer(smoke) if template == "its own" else with_template(template), OWN)
    (sample,), _ = load_sft(jsonl({"messages": MESSAGES}), tokenizer, 256)
    whole = as_transformers(tokenizer.folder, MESSAGES)
    assert sample.tokens == whole[: len(sample.tokens)] and sample.tokens[-1] == tokenizer.eos_id
    stop = tokenizer.config["eos_token"]
    assert learnt(tokenizer, sample) == [f"Hello.{stop}", f"Yes, well.{stop}"]


def test_input_and_output_are_two_turns(tokenizer, jsonl):
    (sample,), _ = load_sft(jsonl({"input": " Hi? ", "output": "Hello.\n"}), tokenizer, 64)
    asked, answered = MESSAGES[1:3]
    assert sample.tokens == as_transformers(tokenizer.folder, [asked, answered])[: len(sample.tokens)]
    assert sample.tokens[: sample.answer_start] == encode_prompt(tokenizer, "Hi?")
    assert learnt(tokenizer, sample) == ["Hello.<|im_end|>"]


def test_of_an_input_that_is_too_long_the_template_and_the_question_stay(tokenizer, jsonl):
    context = "The sky over the town was blue all day. " * 20
    record = {"input": f"{context}\n\nWhat colour was it?", "output": "Blue."}
    (sample,), report = load_sft(jsonl(record), tokenizer, 60)
    text = tokenizer.decode(sample.tokens, special_tokens=True)
    assert len(sample) == 60 and sum(report.cut.values()) == 1
    assert text.startswith("<|im_start|>user\nThe sky")
    assert text.endswith("What colour was it?<|im_end|>\n<|im_start|>assistant\nBlue.<|im_end|>")


def test_pairs_and_prompts_are_the_same_conversation(tokenizer, jsonl):
    texts = [f"{PROMPT} {answer}" for answer in ("Yes, well.", "No.")]
    files = jsonl(*({"text": text} for text in texts))
    messages = MESSAGES[1:]
    prompt = as_transformers(tokenizer.folder, messages[:-1], ready=True)
    whole = as_transformers(tokenizer.folder, messages)
    for load in (load_pairs, load_preferences):
        (pair,), _ = load(files, tokenizer, 256)
        assert pair.chosen == whole[: len(pair.chosen)] and pair.chosen[-1] == tokenizer.eos_id
        assert pair.chosen[: len(prompt)] == pair.rejected[: len(prompt)] == prompt
    assert learnt(tokenizer, pair) == ["Yes, well.<|im_end|>", "No.<|im_end|>"]
    (asked,), _ = load_prompts(jsonl({"text": PROMPT}), tokenizer, 256)
    assert asked.tokens == prompt and asked.text == render(tokenizer, messages[:-1])
    other = {"prompt": "User: A?\n\nAssistant:", "response": "B", "label": False}
    labelled, _ = load_labelled(
        jsonl({"prompt": PROMPT, "response": "No.", "label": True}, other), tokenizer, 256
    )
    assert labelled[0].rows[0] == pair.rejected and labelled[0].starts[0] == pair.rejected_start


def test_a_text_without_turns_is_a_user_s(tokenizer):
    assert turns_of("What now?\n") == [{"role": "user", "content": "What now?"}]
    assert encode_prompt(tokenizer, "What now?") == encode_prompt(tokenizer, "User: What now?\n\nAssistant:")


contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(str.strip)


@given(
    st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), contents), min_size=1, max_size=5)
)
def test_the_turns_of_a_plain_text_are_found_again(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    text = "\n\n".join(f"{one['role'].title()}: {one['content']}" for one in messages)
    expected = messages[:-1] if messages[-1] == {"role": "assistant", "content": ""} else messages
    assert turns_of(text) == expected


def test_plain_is_what_it_was(smoke, jsonl):
    """Of a tokenizer that has a template, too."""
    chosen, unset = use_template(Tokenizer(smoke), PLAIN), Tokenizer(smoke)
    for load, records in (
        (load_sft, [{"input": "Hi?", "output": "Hello."}, {"messages": MESSAGES}]),
        (load_preferences, [{"text": f"{PROMPT} A"}, {"text": f"{PROMPT} B"}]),
        (load_prompts, [{"text": PROMPT}]),
    ):
        assert load(jsonl(*records), chosen, 128)[0] == load(jsonl(*records), unset, 128)[0]
    assert render(chosen, MESSAGES[:2]) == "System: Be kind.\n\nUser: Hi?\n\nAssistant:"
    assert render(unset, MESSAGES[:2]).startswith("<|im_start|>")


# ---- the stop token -------------------------------------------------------------------------------------------------


def test_a_template_that_ends_a_turn_otherwise_is_refused_with_place_and_cure(with_template, jsonl):
    tokenizer = use_template(with_template(OTHER_STOP), OWN)
    files = jsonl({"input": "Hi?", "output": "Hello."})
    cure = r"data\.jsonl:1: the loss would not cover its stop token '<\|im_end\|>': .*ends an answer with '<end_of_turn>'.*eos_token.*plain"
    with pytest.raises(StopTokenError, match=cure):
        load_sft(files, tokenizer, 64)
    with pytest.raises(StopTokenError):
        load_preferences(jsonl({"text": f"{PROMPT} A"}, {"text": f"{PROMPT} B"}), tokenizer, 64)


def test_a_stop_token_that_is_read_as_text_is_refused(tmp_path, jsonl):
    """It has an id, but no place among the added tokens: a template's text would have `<`, `/`, `s` in its stead."""
    folder = llama_2(tmp_path / "model")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TRIMMED}))
    files = jsonl({"input": "Hi?", "output": "Hello."})
    (sample,), _ = load_sft(files, use_template(Tokenizer(folder), OWN), 64)
    assert sample.tokens[-1] == Tokenizer(folder).eos_id
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["added_tokens"] = [one for one in stored["added_tokens"] if one["content"] != "</s>"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    with pytest.raises(
        StopTokenError, match=r"data\.jsonl:1: the loss would not cover its stop token '</s>': .*added_tokens"
    ):
        load_sft(files, use_template(Tokenizer(folder), OWN), 64)


@pytest.mark.parametrize("template", [PLAIN, OWN])
@pytest.mark.parametrize(
    "record",
    [
        {"input": "Hi?", "output": "Hello.<|im_end|>"},
        {"input": "Hi?", "output": "Hel<|im_end|>lo."},
        {"messages": [MESSAGES[1], {"role": "assistant", "content": "Hello.<|im_end|>"}]},
    ],
)
def test_an_answer_with_a_stop_token_of_its_own_is_left_out(smoke, jsonl, template, record):
    """Behind the first one a policy writes nothing, so the second would never be learnt to any use."""
    tokenizer = use_template(Tokenizer(smoke), template)
    samples, report = load_sft(jsonl({"input": "Hi?", "output": "Hello."}, record), tokenizer, 64)
    assert len(samples) == 1
    assert report.lines()[0].startswith(
        "1 of 2 samples left out: an answer contains the stop token '<|im_end|>'"
    )


@pytest.fixture
def of_two_stops(smoke, tmp_path) -> Tokenizer:
    """As Gemma's instruct models: a text ends with one token, a turn with another, which generation_config.json names."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(smoke / name, tmp_path)
    config = json.loads((smoke / "tokenizer_config.json").read_text()) | {"eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("named", "ids"), [([2, 0], (0, 2)), (2, (0, 2)), (None, (0,)), ([], (0,)), ([0], (0,))]
)
def test_stop_tokens_are_those_of_the_tokenizer_and_of_the_generation_settings(of_two_stops, named, ids):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert Tokenizer(of_two_stops.folder).stop_ids == ids


@pytest.mark.parametrize("wrong", [[0, 10**6], ["<|im_end|>"], [-1], [True]])
def test_a_stop_token_that_is_not_in_the_vocabulary_is_refused(of_two_stops, wrong):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    with pytest.raises(
        ValueError, match=r"generation_config\.json: eos_token_id contains .*, which is not a token of"
    ):
        Tokenizer(of_two_stops.folder).stop_ids  # noqa: B018


def test_what_is_learnt_ends_with_the_stop_token_that_the_template_writes(of_two_stops, jsonl):
    """Plain texts have the tokenizer's stop token; ChatML's answers end with <|im_end|> (2), not with <|endoftext|> (0)."""
    record = {"input": "Hi?", "output": "Hello."}
    for template, end in ((PLAIN, 0), (OWN, 2)):
        tokenizer = use_template(Tokenizer(of_two_stops.folder), template)
        (sample,), _ = load_sft(jsonl(record), tokenizer, 64)
        assert sample.tokens[-1] == end and sample.learnt[-1]
        (conversation,), _ = load_sft(jsonl({"messages": MESSAGES}), tokenizer, 128)
        assert conversation.tokens[-1] == end
        (pair,), _ = load_preferences(jsonl({"text": f"{PROMPT} A"}, {"text": f"{PROMPT} B"}), tokenizer, 128)
        assert pair.chosen[-1] == pair.rejected[-1] == answer_end(tokenizer) == end


@pytest.mark.parametrize("template", [PLAIN, OWN])
@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_that_holds_any_stop_token_is_left_out(of_two_stops, jsonl, template, stop):
    tokenizer = use_template(of_two_stops, template)
    records = [{"input": "Hi?", "output": "Hello."}, {"input": "Hi?", "output": f"Hel{stop}lo."}]
    samples, report = load_sft(jsonl(*records), tokenizer, 64)
    assert len(samples) == 1 and f"contains the stop token '{stop}'" in report.lines()[0]


def test_an_observation_behind_any_stop_token_does_not_end_the_turn_twice(of_two_stops):
    asked = [{"role": "user", "content": "Hi?"}]
    assert render_observation(of_two_stops, asked, "Well?", stopped=True).startswith("\n<|im_start|>user")
    assert render_observation(of_two_stops, asked, "Well?", stopped=False).startswith(
        "<|im_end|>\n<|im_start|>user"
    )


@given(contents.filter(bool))
def test_every_answer_is_learnt_whole_with_its_stop_token(smoke, answer):
    tokenizer = use_template(Tokenizer(smoke), OWN)
    tokens, start = with_response(tokenizer, PROMPT, f" {answer}")
    assert tokens[:start] == encode_prompt(tokenizer, PROMPT)
    assert tokenizer.decode(tokens[start:], special_tokens=True, continues=True) == f"{answer}<|im_end|>"
    assert tokens[start:].count(tokenizer.eos_id) == 1


def test_a_template_that_rewrites_what_was_learnt_from_leaves_samples_out(with_template, jsonl):
    with pytest.raises(ValueError, match="writes a conversation differently once it has an answer"):
        load_sft(jsonl({"messages": MESSAGES}), use_template(with_template(FORGETFUL), OWN), 64)


# ---- which template -------------------------------------------------------------------------------------------------


def test_it_is_recorded_beside_the_tokenizer(smoke, tmp_path):
    assert recorded_template(smoke) is None
    for name in (OWN, PLAIN):
        save_tokenizer(use_template(Tokenizer(smoke), name), tmp_path)
        assert recorded_template(tmp_path) == name
    (tmp_path / "template.json").write_text("{")
    with pytest.raises(UserError, match=r"template\.json is damaged"):
        recorded_template(tmp_path)


def test_a_tokenizer_without_one_has_none_to_use(with_template):
    with pytest.raises(UserError, match=r"has no chat template: give model\.data\.chat_template=plain"):
        use_template(with_template(None), OWN)


# ---- what is shown is what is learnt --------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [PLAIN, OWN])
def test_the_mask_that_is_shown_is_the_trainers(smoke, formatted, template):
    pytest.importorskip("torch")
    from aligner_lib.config.functions import own_functions
    from aligner_lib.kinds.dpo.trainer import DPOTrainer
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    tokenizer = use_template(Tokenizer(smoke), template)
    trainer = SimpleNamespace(tokenizer=tokenizer, answer_only_loss=True, functions=own_functions("sft"))
    samples, _ = load_sft([formatted / "train.jsonl"], tokenizer, 128)
    batch = SFTTrainer.collate(trainer, samples[:16])
    for sample, mask in zip(samples, batch.mask):
        ((_, tokens),) = show_mask(sample, tokenizer).rows
        assert [on for *_, on in tokens][1:] == mask[: len(sample) - 1].tolist() and not mask[
            len(sample) - 1 :
        ].any()
    pairs, _ = load_preferences([formatted / "train_comparisons.jsonl"], tokenizer, 128)
    mask = DPOTrainer.collate(trainer, pairs[:16]).response_mask
    for row, pair in enumerate(pairs[:16]):
        for side, (_, tokens) in enumerate(show_mask(pair, tokenizer).rows):
            assert [on for *_, on in tokens][1:] == mask[16 * side + row, : len(tokens) - 1].tolist()


def test_it_is_told_by_more_than_colour_and_escaped(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    (sample,), _ = load_sft(jsonl({"input": "<b>Hi?</b>\n", "output": "Hello."}), tokenizer, 64)
    shown = show_mask(sample, tokenizer)
    html = shown._repr_html_()
    assert html.count('class="lab-learnt"') == sum(sample.learnt)
    assert "<b>Hi" not in html and "border-bottom" in html and "↵" in html
    assert repr(shown).startswith(
        f"sample: {sum(sample.learnt)} of {len(sample)} tokens are learnt\n<b>Hi?</b>"
    )


def test_of_a_prompt_nothing_is_learnt_and_of_a_reward_model_s_pair_the_end(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    (prompt,), _ = load_prompts(jsonl({"text": PROMPT}), tokenizer, 64)
    assert learnt(tokenizer, prompt) == []
    (pair,), _ = load_pairs(jsonl({"text": f"{PROMPT} A"}, {"text": f"{PROMPT} B"}), tokenizer, 64)
    assert learnt(tokenizer, pair) == ["<|im_end|>", "<|im_end|>"]
