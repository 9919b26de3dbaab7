"""One template in SFT's samples, pairs and prompts: the ids of transformers, and a mask that ends with the stop token."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chat_template import FORGETFUL, TRIMMED
from tiny_tokenizers import llama_2, with_settings

from aligner_lib.config.functions import library_functions
from aligner_lib.datasets import chat_template
from aligner_lib.datasets.chat_template import OWN, PLAIN, StopTokenError, encode_prompt, render, use_template
from aligner_lib.datasets.load import load_labelled, load_pairs, load_preferences, load_prompts, load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.jobs.inference import as_prompt, row_of
from aligner_lib.tutorial import show_mask
from aligner_lib.tutorial.displays.show_mask import Mask

# a turn ends with another token than a text, as in Gemma and many base models with a chat template
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
def of_two_stops(smoke, tmp_path) -> Tokenizer:
    """As Gemma's instruct models: a text ends with one token, a turn with another, which generation_config.json names."""
    folder = with_settings(smoke, tmp_path, eos_token="<|endoftext|>")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    return Tokenizer(folder)


def as_transformers(folder, messages, ready=False) -> list[int]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=ready)
    return tokenizer.encode(text, add_special_tokens=False)


def learnt(tokenizer, sample) -> list[str]:
    """The stretches with a loss, as text."""
    shown = repr(show_mask(sample, tokenizer))
    return [part.partition("⟧")[0] for part in shown.split("⟦")[1:]]


@pytest.mark.parametrize("template", [OWN, TRIMMED])
def test_a_conversation_has_the_tokens_of_transformers_and_its_answers_are_learnt(
    smoke, with_template, jsonl, template
):
    tokenizer = use_template(Tokenizer(smoke), OWN) if template == OWN else with_template(template)
    (sample,), _ = load_sft(jsonl({"messages": MESSAGES}), tokenizer, 256)
    whole = as_transformers(tokenizer.folder, MESSAGES)
    assert sample.tokens == whole[: len(sample.tokens)] and sample.tokens[-1] == tokenizer.eos_id
    stop = tokenizer.config["eos_token"]
    assert learnt(tokenizer, sample) == [f"Hello.{stop}", f"Yes, well.{stop}"]


# as SmolLM2's: a conversation without a system's turn gets one
OWN_SYSTEM = (
    "{% if messages and messages[0].role != 'system' %}{{ 'Be kind.' + eos_token }}{% endif %}" + TRIMMED
)


def test_a_conversation_may_begin_with_an_answer(with_template, jsonl):
    tokenizer, turns = with_template(OWN_SYSTEM), [MESSAGES[2], *MESSAGES[1:3]]
    whole, stop = as_transformers(tokenizer.folder, turns), tokenizer.config["eos_token"]
    for weight in (0, 1):
        (sample,), _ = load_sft(
            jsonl({"messages": [turns[0] | {"weight": weight}, *turns[1:]]}), tokenizer, 64
        )
        assert sample.tokens == whole and learnt(tokenizer, sample) == [f"Hello.{stop}"] * (1 + weight)


def test_input_and_output_are_two_turns_and_a_long_input_keeps_its_question(tokenizer, jsonl):
    (sample,), _ = load_sft(jsonl({"input": " Hi? ", "output": "Hello.\n"}), tokenizer, 64)
    assert sample.tokens == as_transformers(tokenizer.folder, MESSAGES[1:3])[: len(sample.tokens)]
    assert sample.tokens[: sample.answer_start] == encode_prompt(tokenizer, "Hi?")
    assert learnt(tokenizer, sample) == ["Hello.<|im_end|>"]
    context = "The sky over the town was blue all day. " * 20
    record = {"input": f"{context}\n\nWhat colour was it?", "output": "Blue."}
    (sample,), report = load_sft(jsonl(record), tokenizer, 60)
    text = tokenizer.decode(sample.tokens, special_tokens=True)
    assert len(sample) == 60 and sum(report.cut.values()) == 1
    assert text.startswith("<|im_start|>user\nThe sky")
    assert text.endswith("What colour was it?<|im_end|>\n<|im_start|>assistant\nBlue.<|im_end|>")


def test_pairs_prompts_and_labelled_responses_have_the_tokens_of_transformers(tokenizer, jsonl):
    answers = "Yes, well.", "No."
    files = jsonl(*({"text": f"{PROMPT} {answer}"} for answer in answers))
    prompt = as_transformers(tokenizer.folder, MESSAGES[1:-1], ready=True)
    whole = as_transformers(tokenizer.folder, MESSAGES[1:])
    ends = ["<|im_end|>"] * 2  # a reward model's pair learns at its end alone
    for load, parts in ((load_pairs, ends), (load_preferences, [f"{a}<|im_end|>" for a in answers])):
        (pair,), _ = load(files, tokenizer, 256)
        assert pair.chosen == whole[: len(pair.chosen)] and pair.chosen[-1] == tokenizer.eos_id
        assert pair.chosen[: len(prompt)] == pair.rejected[: len(prompt)] == prompt
        assert learnt(tokenizer, pair) == parts
    (sample,), _ = load_prompts(jsonl({"text": PROMPT}), tokenizer, 256)
    assert sample.tokens == prompt and sample.text == render(tokenizer, MESSAGES[1:-1])
    assert learnt(tokenizer, sample) == []
    labelled, _ = load_labelled(jsonl(*LABELLED), tokenizer, 256)
    assert labelled[0].rows[0] == pair.rejected and labelled[0].starts[0] == pair.rejected_start


TURNS = MESSAGES[1:4]
OH = [{"role": "user", "content": "Oh?"}]
LABELLED = [
    {"prompt": PROMPT, "response": "No.", "label": True},
    {"prompt": "User: Oh?\n\nAssistant:", "response": "B", "label": False},
]
ANSWERS = {name: [{"role": "assistant", "content": text}] for name, text in zip(("chosen", "rejected"), "AB")}


@pytest.mark.parametrize("template", [OWN, PLAIN])
@pytest.mark.parametrize(
    ("loaders", "texts", "turns"),
    [
        ([load_pairs, load_preferences], PAIR, [{"prompt": TURNS, "chosen": "A", "rejected": "B"}]),
        ([load_pairs, load_preferences], PAIR, [{"prompt": TURNS} | ANSWERS]),
        ([load_prompts], [{"text": PROMPT}], [{"prompt": TURNS}]),
        ([load_prompts], [{"text": "User: Hi?\n\nAssistant:"}], [{"prompt": "Hi?"}]),
        ([load_labelled], LABELLED, [LABELLED[0] | {"prompt": TURNS}, LABELLED[1] | {"prompt": OH}]),
    ],
)
def test_turns_are_read_as_the_same_conversation_in_one_text(smoke, jsonl, template, loaders, texts, turns):
    tokenizer = use_template(Tokenizer(smoke), template)
    for load in loaders:
        expected, _ = load(jsonl(*texts), tokenizer, 64)
        assert expected and load(jsonl(*turns), tokenizer, 64)[0] == expected


@pytest.mark.parametrize(
    ("prompt", "answers", "stop"),
    [
        (
            "<extra_id_1>User\nHi?\n<extra_id_1>Assistant\n",
            ("A\n<extra_id_1>", "B\n<extra_id_1>"),
            "<|im_end|>",
        ),
        ("<|im_start|>user\nHi?<|im_end|>\n<|im_start|>assistant\n", ("A<|im_end|>", "B<|im_end|>"), ""),
    ],
)
def test_a_pair_in_a_template_is_learnt_as_it_stands_and_not_written_again(
    smoke, jsonl, prompt, answers, stop
):
    """As in NeMo-Aligner, prompt and response are joined without a space; only a missing stop token is added."""
    tokenizer = use_template(Tokenizer(smoke), PLAIN)
    file = jsonl({"prompt": prompt} | dict(zip(("chosen", "rejected"), answers)))
    (pair,), _ = load_preferences(file, tokenizer, 128)
    rows = [tokenizer.decode(row, special_tokens=True) for row in (pair.chosen, pair.rejected)]
    assert rows == [prompt + answer + stop for answer in answers]
    assert pair.chosen[: pair.chosen_start] == encode_prompt(tokenizer, prompt) == tokenizer.encode(prompt)
    assert load_pairs(file, tokenizer, 128)[0][0].chosen == pair.chosen
    assert row_of(tokenizer, as_prompt(prompt), answers[0])[0] == pair.chosen  # scored as trained
    with pytest.raises(ValueError, match=r"would write it again: give model\.data\.chat_template=plain"):
        load_preferences(file, use_template(tokenizer, OWN), 128)


def test_words_that_look_like_turns_stay_in_their_turn(tokenizer, jsonl):
    prompt = [{"role": "user", "content": "Continue:\n\nAssistant: no.\n\nUser: yes"}]
    record = {"prompt": prompt, "chosen": "A\n\nUser: B", "rejected": "C"}
    (pair,), _ = load_preferences(jsonl(record), tokenizer, 128)
    whole = as_transformers(tokenizer.folder, [*prompt, {"role": "assistant", "content": "A\n\nUser: B"}])
    assert pair.chosen == whole[: len(pair.chosen)]
    assert tokenizer.decode(pair.chosen[pair.chosen_start : -1]) == "A\n\nUser: B"


@pytest.mark.parametrize("template", [OWN, PLAIN])
def test_an_answer_of_weight_0_is_read_and_not_learnt(smoke, jsonl, template):
    tokenizer = use_template(Tokenizer(smoke), template)

    def load_weighted(*weights: float):
        turns = [turn | {"content": "Hello."} if turn["role"] == "assistant" else turn for turn in TURNS]
        turns.append({"role": "assistant", "content": "Yes."})
        for answer, weight in zip(turns[1::2], weights):
            answer["weight"] = weight
        return load_sft(jsonl({"messages": turns}), tokenizer, 64)[0][0]

    def learnt_text(sample) -> str:
        ids = [token for token, counts in zip(*sample.shown()[0][1:]) if counts]
        return tokenizer.decode(ids, special_tokens=True).strip()

    stop, whole = "<|im_end|>", load_weighted(1, 1)
    assert learnt_text(load_weighted(0, 1)) == f"Yes.{stop}"
    assert load_weighted(0, 1).tokens == whole.tokens
    if template == OWN:  # what follows the last learnt answer is read and not learnt
        assert learnt_text(load_weighted(1, 0)) == f"Hello.{stop}"
        assert load_weighted(1, 0).tokens == whole.tokens
    for weights, reason in (((0, 0), "every answer has the weight 0"), ((1, 0.5), "must be 0 or 1")):
        with pytest.raises(ValueError, match=reason):
            load_weighted(*weights)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": TURNS[:2]}, "the last turn of 'prompt' is not the user's"),
        ({"chosen": [*TURNS, *ANSWERS["chosen"]]}, "not a single turn of the assistant: .*`aligner data`"),
        ({"rejected": " "}, "'rejected' is empty"),
    ],
)
def test_turns_that_are_no_pair_are_left_out_with_the_reason(tokenizer, jsonl, change, reason):
    with pytest.raises(ValueError, match=reason):
        load_pairs(jsonl({"prompt": TURNS, "chosen": "A", "rejected": "B"} | change), tokenizer, 64)


contents = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(str.strip)
turns = st.tuples(st.sampled_from(["system", "user", "assistant"]), contents)


@given(st.lists(turns, min_size=1, max_size=5))
def test_the_turns_of_a_plain_text_are_found_again(turns):
    messages = [{"role": role, "content": content} for role, content in turns]
    text = "\n\n".join(f"{role.title()}: {content}" for role, content in turns)
    expected = messages[:-1] if turns[-1] == ("assistant", "") else messages
    assert chat_template.turns_of(text) == expected
    assert chat_template.turns_of("What now?\n") == [{"role": "user", "content": "What now?"}]


def test_plain_is_the_default_even_of_a_tokenizer_with_a_template(smoke, jsonl):
    chosen, unset = use_template(Tokenizer(smoke), PLAIN), Tokenizer(smoke)
    records = [SHORT, {"messages": MESSAGES}]
    for load, contents in ((load_sft, records), (load_preferences, PAIR)):
        assert load(jsonl(*contents), chosen, 128)[0] == load(jsonl(*contents), unset, 128)[0]
    assert render(chosen, MESSAGES[:2]) == "System: Be kind.\n\nUser: Hi?\n\nAssistant:"
    assert render(unset, MESSAGES[:2]).startswith("<|im_start|>")


# ---- the stop token -------------------------------------------------------------------------------------------------


def test_a_template_with_another_end_of_turn_is_refused_with_place_and_cure(with_template, jsonl):
    tokenizer = with_template(OTHER_STOP)
    words = r"data\.jsonl:1: the loss would not cover the stop token '<\|im_end\|>': .*'<end_of_turn>'.*copy.*eos_token.*plain"
    for load, records in ((load_sft, [SHORT]), (load_preferences, PAIR)):
        with pytest.raises(StopTokenError, match=words):
            load(jsonl(*records), tokenizer, 64)


def test_a_stop_token_that_is_read_as_text_is_refused(tmp_path, jsonl):
    """The token has an id, but is no added token: a template's text would be read as `<`, `/`, `s`."""
    folder = with_settings(llama_2(tmp_path / "model"), tmp_path, chat_template=TRIMMED)
    (sample,), _ = load_sft(jsonl(SHORT), use_template(Tokenizer(folder), OWN), 64)
    assert sample.tokens[-1] == Tokenizer(folder).eos_id
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["added_tokens"] = [token for token in stored["added_tokens"] if token["content"] != "</s>"]
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    words = r"data\.jsonl:1: the loss would not cover the stop token '</s>': .*added_tokens"
    with pytest.raises(StopTokenError, match=words):
        load_sft(jsonl(SHORT), use_template(Tokenizer(folder), OWN), 64)


@pytest.mark.parametrize("template", [PLAIN, OWN])
@pytest.mark.parametrize("stop", ["<|im_end|>", "<|endoftext|>"])
def test_an_answer_that_contains_any_stop_token_is_left_out(of_two_stops, jsonl, template, stop):
    """A policy stops at the first stop token, so the rest of the answer would be learnt in vain."""
    tokenizer = use_template(of_two_stops, template)
    samples = [SHORT, *(SHORT | {"output": answer} for answer in (f"Hello.{stop}", f"Hel{stop}lo."))]
    samples += [{"messages": [MESSAGES[1], {"role": "assistant", "content": f"Hello.{stop}"}]}]
    pairs = [{"prompt": "Hi?", "chosen": good, "rejected": "No."} for good in ("Yes.", f"Y{stop}es.")]
    labels = [("Hi?", "Yes."), ("Oh?", "No."), ("?", f"Y{stop}")]
    labels = [{"prompt": prompt, "response": answer, "label": True} for prompt, answer in labels]
    for load, records, left_out, total in (
        (load_sft, samples, 3, 4), (load_pairs, pairs, 1, 2), (load_preferences, pairs, 1, 2), (load_labelled, labels, 1, 3),
    ):  # fmt: skip
        loaded, report = load(jsonl(*records), tokenizer, 64)
        words = f"{left_out} of {total} samples left out: an answer contains the stop token '{stop}'"
        assert len(loaded) == total - left_out and report.lines()[0].startswith(words)


def test_a_stop_token_in_a_plain_prompt_is_no_reason_to_leave_a_pair_out(of_two_stops, jsonl):
    answers = "Yes.", "No.", "Yes.", "N<|im_end|>o."
    texts = [{"text": f"User: <|im_end|>\n\nAssistant: {answer}"} for answer in answers]
    pairs, report = load_pairs(jsonl(*texts), use_template(of_two_stops, PLAIN), 64)
    assert len(pairs) == 1 and report.lines()[0].startswith("1 of 2 samples left out: an answer contains")


@pytest.mark.parametrize(("named", "ids"), [([2, 0], (0, 2)), (2, (0, 2)), (None, (0,)), ([], (0,))])
def test_stop_tokens_are_those_of_the_tokenizer_and_of_the_generation_settings(of_two_stops, named, ids):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": named}))
    assert Tokenizer(of_two_stops.folder).stop_ids == ids


@pytest.mark.parametrize("wrong", [[0, 10**6], ["<|im_end|>"], [-1]])
def test_a_stop_token_that_is_not_in_the_vocabulary_is_refused(of_two_stops, wrong):
    (of_two_stops.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": wrong}))
    words = r"generation_config\.json: eos_token_id contains .*, which is not a token of"
    with pytest.raises(ValueError, match=words):
        Tokenizer(of_two_stops.folder).stop_ids  # noqa: B018


@pytest.mark.parametrize(("template", "end"), [(PLAIN, 0), (OWN, 2)])
def test_answers_end_with_the_stop_token_that_the_template_writes(of_two_stops, jsonl, template, end):
    """Plain texts have the tokenizer's stop token; ChatML's answers end with <|im_end|> (2), not with <|endoftext|> (0)."""
    tokenizer = use_template(of_two_stops, template)
    samples, _ = load_sft(jsonl(SHORT, {"messages": MESSAGES}), tokenizer, 128)
    assert [sample.tokens[-1] for sample in samples] == [end, end] and samples[0].learnt[-1]
    (pair,), _ = load_preferences(jsonl(*PAIR), tokenizer, 128)
    assert pair.chosen[-1] == pair.rejected[-1] == chat_template.answer_end(tokenizer) == end


def test_an_observation_after_a_stop_token_does_not_end_the_turn_twice(of_two_stops):
    for stopped, end in ((True, "\n"), (False, "<|im_end|>\n")):
        observation = chat_template.render_observation(of_two_stops, MESSAGES[1:2], "Well?", stopped)
        assert observation.startswith(f"{end}<|im_start|>user")


@given(contents.filter(bool))
def test_every_answer_is_learnt_whole_with_its_stop_token(smoke, answer):
    tokenizer = use_template(Tokenizer(smoke), OWN)
    tokens, start = chat_template.with_response(tokenizer, PROMPT, f" {answer}")
    assert tokens[:start] == encode_prompt(tokenizer, PROMPT)
    assert tokenizer.decode(tokens[start:], special_tokens=True, continues=True) == f"{answer}<|im_end|>"
    assert tokens[start:].count(tokenizer.eos_id) == 1


# ---- the choice of a template, and the mask as it is shown ----------------------------------------------------------


def test_an_unusable_template_is_refused_and_another_recorded_beside_the_tokenizer(
    with_template, jsonl, smoke, tmp_path
):
    with pytest.raises(ValueError, match="changes a prompt once an answer follows"):
        load_sft(jsonl({"messages": MESSAGES}), with_template(FORGETFUL), 64)
    with pytest.raises(UserError, match=r"has no chat template: give model\.data\.chat_template=plain"):
        with_template(None)
    assert chat_template.recorded_template(smoke) is None
    for name in (OWN, PLAIN):
        chat_template.save_tokenizer(use_template(Tokenizer(smoke), name), tmp_path)
        assert chat_template.recorded_template(tmp_path) == name
    (tmp_path / "template.json").write_text("{")
    with pytest.raises(UserError, match=r"template\.json is damaged"):
        chat_template.recorded_template(tmp_path)


@pytest.mark.parametrize("template", [PLAIN, OWN])
def test_the_displayed_mask_is_the_trainers(smoke, formatted, template):
    from aligner_lib.kinds.dpo.trainer import DPOTrainer
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    tokenizer = use_template(Tokenizer(smoke), template)
    trainer = SimpleNamespace(tokenizer=tokenizer, answer_only_loss=True, functions=library_functions("sft"))
    samples, _ = load_sft([formatted / "train.jsonl"], tokenizer, 128)
    pairs, _ = load_preferences([formatted / "train_comparisons.jsonl"], tokenizer, 128)
    shown = [show_mask(sample, tokenizer).rows[0] for sample in samples[:16]]
    masks = [*SFTTrainer.collate(trainer, samples[:16]).mask]
    for place in (0, 1):  # all chosen responses, then all rejected ones
        shown += [show_mask(pair, tokenizer).rows[place] for pair in pairs[:16]]
    masks += DPOTrainer.collate(trainer, pairs[:16]).response_mask
    for (_, tokens), mask in zip(shown, masks, strict=True):
        assert [is_learnt for *_, is_learnt in tokens][1:] == mask[: len(tokens) - 1].tolist()
        assert not mask[len(tokens) - 1 :].any()


def test_the_mask_is_shown_by_more_than_colour_and_escaped(smoke, jsonl):
    tokenizer = Tokenizer(smoke)
    (sample,), _ = load_sft(jsonl({"input": "<b>Hi?</b>\n", "output": "Hello."}), tokenizer, 64)
    shown, count = show_mask(sample, tokenizer), sum(sample.learnt)
    html = shown._repr_html_()
    assert html.count('class="lab-learnt"') == count
    assert "<b>Hi" not in html and "border-bottom" in html and "↵" in html
    assert repr(shown).startswith(f"sample: {count} of {len(sample)} tokens are learnt\n<b>Hi?</b>")
    row = ("sample", tuple((text, 0, text.isupper()) for text in "abcdefgHIJ"))
    assert Mask((row,)).text(2) == "sample: 3 of 10 tokens are learnt\nab … 3 tokens … fg⟦HIJ⟧"
