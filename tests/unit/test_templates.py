"""One template in SFT's samples, pairs and prompts: the ids of transformers, and a mask that ends with the stop token."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat_template import FORGETFUL, TRIMMED
from tiny_tokenizers import llama_2, with_settings

from aligner_lib.config.functions import own_functions
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
PAIR = {"text": f"{PROMPT} A"}, {"text": f"{PROMPT} B"}
SHORT = {"input": "Hi?", "output": "Hello."}


@pytest.fixture
def tokenizer(smoke) -> Tokenizer:
    return use_template(Tokenizer(smoke), OWN)


@pytest.fixture
def with_template(smoke, tmp_path):
    """The smoke tokenizer with another template."""
    return lambda template: Tokenizer(with_settings(smoke, tmp_path, chat_template=template))


@pytest.fixture
def of_two_stops(smoke, tmp_path) -> Tokenizer:
    """As Gemma's instruct models: a text ends with one token, a turn with another, which generation_config.json names."""
    folder = with_settings(smoke, tmp_path, eos_token="<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return Tokenizer(folder)


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
    assert sample.tokens == as_transformers(tokenizer.folder, MESSAGES[1:3])[: len(sample.tokens)]
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
    files = jsonl(*({"text": f"{PROMPT} {answer}"} for answer in ("Yes, well.", "No.")))
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
    records = [{"prompt": PROMPT, "response": "No.", "label": True}]
    records += [{"prompt": "User: A?\n\nAssistant:", "response": "B", "label": False}]
    labelled, _ = load_labelled(jsonl(*records), tokenizer, 256)
    assert labelled[0].rows[0] == pair.rejected and labelled[0].starts[0] == pair.rejected_start


TURNS = [
    {"role": "user", "content": "Hi?"},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "Well?"},
]


@pytest.mark.parametrize("template", [OWN, PLAIN])
def test_turns_are_read_as_the_same_conversation_in_one_text(smoke, jsonl, template):
    tokenizer = use_template(Tokenizer(smoke), template)
    texts, turns = jsonl(*PAIR), [{"prompt": TURNS, "chosen": "A", "rejected": "B"}]
    as_turns = [
        {"prompt": TURNS}
        | {side: [{"role": "assistant", "content": turns[0][side]}] for side in ("chosen", "rejected")}
    ]
    for load in (load_pairs, load_preferences):
        expected, _ = load(texts, tokenizer, 64)
        assert load(jsonl(*turns), tokenizer, 64)[0] == load(jsonl(*as_turns), tokenizer, 64)[0] == expected
    for prompt in (PROMPT, "Hi?"):
        of_text, _ = load_prompts(
            jsonl({"text": f"User: {prompt}\n\nAssistant:" if prompt == "Hi?" else prompt}), tokenizer, 64
        )
        of_turns, _ = load_prompts(jsonl({"prompt": prompt if prompt == "Hi?" else TURNS}), tokenizer, 64)
        assert of_turns == of_text
    labelled = [
        {"prompt": PROMPT, "response": "A", "label": True},
        {"prompt": "User: Oh?\n\nAssistant:", "response": "B", "label": False},
    ]
    expected, _ = load_labelled(jsonl(*labelled), tokenizer, 64)
    in_turns = [
        labelled[0] | {"prompt": TURNS},
        labelled[1] | {"prompt": [{"role": "user", "content": "Oh?"}]},
    ]
    assert load_labelled(jsonl(*in_turns), tokenizer, 64)[0] == expected


def test_words_that_look_like_turns_stay_in_the_turn_that_has_them(tokenizer, jsonl):
    prompt = [{"role": "user", "content": "Continue:\n\nAssistant: no.\n\nUser: yes"}]
    (pair,), _ = load_preferences(
        jsonl({"prompt": prompt, "chosen": "A\n\nUser: B", "rejected": "C"}), tokenizer, 128
    )
    messages = [*prompt, {"role": "assistant", "content": "A\n\nUser: B"}]
    transformers = pytest.importorskip("transformers")
    whole = transformers.AutoTokenizer.from_pretrained(tokenizer.folder)
    assert pair.chosen == whole.apply_chat_template(messages, return_dict=False)[: len(pair.chosen)]
    assert tokenizer.decode(pair.chosen[pair.chosen_start : -1]) == "A\n\nUser: B"


@pytest.mark.parametrize("template", [OWN, PLAIN])
def test_an_answer_of_weight_0_is_read_and_not_learnt(smoke, jsonl, template):
    tokenizer = use_template(Tokenizer(smoke), template)
    turns = [*TURNS, {"role": "assistant", "content": "Yes."}]
    silent = [turn | {"weight": 0} if turn["content"] == "Hello." else turn for turn in turns]
    (both,), _ = load_sft(jsonl({"messages": turns}), tokenizer, 64)
    (one,), _ = load_sft(jsonl({"messages": silent}), tokenizer, 64)
    assert one.tokens == both.tokens
    learnt = [token for token, counts in zip(*one.shown()[0][1:]) if counts]
    assert tokenizer.decode(learnt).strip() == "Yes."
    for weights, reason in (((0, 0), "every answer has the weight 0"), ((1, 0.5), "it must be 0 or 1")):
        weighed = [turn | {"weight": weights[i // 2]} if i % 2 else turn for i, turn in enumerate(turns)]
        with pytest.raises(ValueError, match=reason):
            load_sft(jsonl({"messages": weighed}), tokenizer, 64)


BAD_PAIRS = {
    "an answer first": ({"prompt": TURNS[:2]}, "the last turn of 'prompt' is not the user's"),
    "the prompt again": ({"chosen": [*TURNS, {"role": "assistant", "content": "A"}]}, "not a single turn of the assistant's; `aligner data`"),
    "no answer": ({"rejected": " "}, "'rejected' is empty"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_a_pair_of_turns_that_is_none_is_left_out_with_the_reason(tokenizer, jsonl, case):
    wrong, reason = BAD_PAIRS[case]
    with pytest.raises(ValueError, match=reason):
        load_pairs(jsonl({"prompt": TURNS, "chosen": "A", "rejected": "B"} | wrong), tokenizer, 64)


def test_a_text_without_turns_is_a_user_s(tokenizer):
    assert turns_of("What now?\n") == [{"role": "user", "content": "What now?"}]
    assert encode_prompt(tokenizer, "What now?") == encode_prompt(tokenizer, "User: What now?\n\nAssistant:")


contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(str.strip)
turns = st.tuples(st.sampled_from(["system", "user", "assistant"]), contents)


@given(st.lists(turns, min_size=1, max_size=5))
def test_the_turns_of_a_plain_text_are_found_again(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    text = "\n\n".join(f"{role.title()}: {content}" for role, content in turns)
    expected = messages[:-1] if turns[-1] == ("assistant", "") else messages
    assert turns_of(text) == expected


def test_plain_is_what_it_was(smoke, jsonl):
    """Of a tokenizer that has a template, too."""
    chosen, unset = use_template(Tokenizer(smoke), PLAIN), Tokenizer(smoke)
    for load, records in (
        (load_sft, [SHORT, {"messages": MESSAGES}]),
        (load_preferences, PAIR),
        (load_prompts, [{"text": PROMPT}]),
    ):
        assert load(jsonl(*records), chosen, 128)[0] == load(jsonl(*records), unset, 128)[0]
    assert render(chosen, MESSAGES[:2]) == "System: Be kind.\n\nUser: Hi?\n\nAssistant:"
    assert render(unset, MESSAGES[:2]).startswith("<|im_start|>")


# ---- the stop token -------------------------------------------------------------------------------------------------


def test_a_template_that_ends_a_turn_otherwise_is_refused_with_place_and_cure(with_template, jsonl):
    tokenizer = use_template(with_template(OTHER_STOP), OWN)
    words = r"data\.jsonl:1: the loss would not cover its stop token '<\|im_end\|>': .*'<end_of_turn>'.*eos_token.*plain"
    with pytest.raises(StopTokenError, match=words):
        load_sft(jsonl(SHORT), tokenizer, 64)
    with pytest.raises(StopTokenError):
        load_preferences(jsonl(*PAIR), tokenizer, 64)


def test_a_stop_token_that_is_read_as_text_is_refused(tmp_path, jsonl):
    """It has an id, but no place among the added tokens: a template's text would have `<`, `/`, `s` in its stead."""
    folder = with_settings(llama_2(tmp_path / "model"), tmp_path, chat_template=TRIMMED)
    (sample,), _ = load_sft(jsonl(SHORT), use_template(Tokenizer(folder), OWN), 64)
    assert sample.tokens[-1] == Tokenizer(folder).eos_id
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["added_tokens"] = [token for token in stored["added_tokens"] if token["content"] != "</s>"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    words = r"data\.jsonl:1: the loss would not cover its stop token '</s>': .*added_tokens"
    with pytest.raises(StopTokenError, match=words):
        load_sft(jsonl(SHORT), use_template(Tokenizer(folder), OWN), 64)


@pytest.mark.parametrize("template", [PLAIN, OWN])
@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_that_holds_any_stop_token_is_left_out(of_two_stops, jsonl, template, stop):
    """Behind the first one a policy writes nothing, so the rest would never be learnt to any use."""
    tokenizer = use_template(of_two_stops, template)
    answers = [f"Hello.{stop}", f"Hel{stop}lo."]
    records = [SHORT | {"output": answer} for answer in answers]
    records += [{"messages": [MESSAGES[1], {"role": "assistant", "content": answers[0]}]}]
    samples, report = load_sft(jsonl(SHORT, *records), tokenizer, 64)
    assert len(samples) == 1
    assert report.lines()[0].startswith(
        f"3 of 4 samples left out: an answer contains the stop token '{stop}'"
    )


@pytest.mark.parametrize(
    ("named", "ids"), [([2, 0], (0, 2)), (2, (0, 2)), (None, (0,)), ([], (0,)), ([0], (0,))]
)
def test_stop_tokens_are_those_of_the_tokenizer_and_of_the_generation_settings(of_two_stops, named, ids):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert Tokenizer(of_two_stops.folder).stop_ids == ids


@pytest.mark.parametrize("wrong", [[0, 10**6], ["<|im_end|>"], [-1], [True]])
def test_a_stop_token_that_is_not_in_the_vocabulary_is_refused(of_two_stops, wrong):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    words = r"generation_config\.json: eos_token_id contains .*, which is not a token of"
    with pytest.raises(ValueError, match=words):
        Tokenizer(of_two_stops.folder).stop_ids  # noqa: B018


def test_what_is_learnt_ends_with_the_stop_token_that_the_template_writes(of_two_stops, jsonl):
    """Plain texts have the tokenizer's stop token; ChatML's answers end with <|im_end|> (2), not with <|endoftext|> (0)."""
    for template, end in ((PLAIN, 0), (OWN, 2)):
        tokenizer = use_template(Tokenizer(of_two_stops.folder), template)
        samples, _ = load_sft(jsonl(SHORT, {"messages": MESSAGES}), tokenizer, 128)
        assert [sample.tokens[-1] for sample in samples] == [end, end] and samples[0].learnt[-1]
        (pair,), _ = load_preferences(jsonl(*PAIR), tokenizer, 128)
        assert pair.chosen[-1] == pair.rejected[-1] == answer_end(tokenizer) == end


def test_an_observation_behind_any_stop_token_does_not_end_the_turn_twice(of_two_stops):
    for stopped, end in ((True, "\n"), (False, "<|im_end|>\n")):
        observation = render_observation(of_two_stops, MESSAGES[1:2], "Well?", stopped)
        assert observation.startswith(f"{end}<|im_start|>user")


@given(contents.filter(bool))
def test_every_answer_is_learnt_whole_with_its_stop_token(smoke, answer):
    tokenizer = use_template(Tokenizer(smoke), OWN)
    tokens, start = with_response(tokenizer, PROMPT, f" {answer}")
    assert tokens[:start] == encode_prompt(tokenizer, PROMPT)
    assert tokenizer.decode(tokens[start:], special_tokens=True, continues=True) == f"{answer}<|im_end|>"
    assert tokens[start:].count(tokenizer.eos_id) == 1


# ---- which template -------------------------------------------------------------------------------------------------


def test_templates_that_can_t_be_used_are_refused(with_template, jsonl):
    with pytest.raises(ValueError, match="writes a conversation differently once it has an answer"):
        load_sft(jsonl({"messages": MESSAGES}), use_template(with_template(FORGETFUL), OWN), 64)
    with pytest.raises(UserError, match=r"has no chat template: give model\.data\.chat_template=plain"):
        use_template(with_template(None), OWN)


def test_the_template_is_recorded_beside_the_tokenizer(smoke, tmp_path):
    assert recorded_template(smoke) is None
    for name in (OWN, PLAIN):
        save_tokenizer(use_template(Tokenizer(smoke), name), tmp_path)
        assert recorded_template(tmp_path) == name
    (tmp_path / "template.json").write_text("{")
    with pytest.raises(UserError, match=r"template\.json is damaged"):
        recorded_template(tmp_path)


# ---- what is shown is what is learnt --------------------------------------------------------------------------------


@pytest.mark.parametrize("template", [PLAIN, OWN])
def test_the_mask_that_is_shown_is_the_trainers(smoke, formatted, template):
    from aligner_lib.kinds.dpo.trainer import DPOTrainer
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    tokenizer = use_template(Tokenizer(smoke), template)
    trainer = SimpleNamespace(tokenizer=tokenizer, answer_only_loss=True, functions=own_functions("sft"))
    samples, _ = load_sft([formatted / "train.jsonl"], tokenizer, 128)
    pairs, _ = load_preferences([formatted / "train_comparisons.jsonl"], tokenizer, 128)
    masks = SFTTrainer.collate(trainer, samples[:16]).mask
    shown = [(show_mask(sample, tokenizer).rows[0], mask) for sample, mask in zip(samples, masks)]
    mask = DPOTrainer.collate(trainer, pairs[:16]).response_mask
    for row, pair in enumerate(pairs[:16]):
        shown += zip(show_mask(pair, tokenizer).rows, (mask[row], mask[16 + row]))
    assert len(shown) == 48
    for (_, tokens), mask in shown:
        assert [on for *_, on in tokens][1:] == mask[: len(tokens) - 1].tolist()
        assert not mask[len(tokens) - 1 :].any()


def test_the_mask_is_shown_by_more_than_colour_and_escaped(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    (sample,), _ = load_sft(jsonl({"input": "<b>Hi?</b>\n", "output": "Hello."}), tokenizer, 64)
    shown, count = show_mask(sample, tokenizer), sum(sample.learnt)
    html = shown._repr_html_()
    assert html.count('class="lab-learnt"') == count
    assert "<b>Hi" not in html and "border-bottom" in html and "↵" in html
    assert repr(shown).startswith(f"sample: {count} of {len(sample)} tokens are learnt\n<b>Hi?</b>")


def test_of_a_prompt_nothing_is_learnt_and_of_a_reward_model_s_pair_the_end(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    (prompt,), _ = load_prompts(jsonl({"text": PROMPT}), tokenizer, 64)
    (pair,), _ = load_pairs(jsonl(*PAIR), tokenizer, 64)
    assert (learnt(tokenizer, prompt), learnt(tokenizer, pair)) == ([], ["<|im_end|>", "<|im_end|>"])
