"""What a good answer is, part by part; and no policy that cheats gives many."""

import json
import re
from statistics import fmean

import pytest

from aligner_lib.run_folder.turns import last_turn
from aligner_lib.tutorial.comparison.cheats import (
    best_constant,
    cheating_answers,
    cheats,
    fitted_answers,
    shares,
)
from aligner_lib.tutorial.comparison.gold import before_and_after
from benchmarks.cheats import BOUND, pairs
from data.forms import instruction_in, without_instruction
from data.gold import ENDINGS, SAMPLES, GoldParts, distinct_pairs, judge, judge_all, known_words, topic_of
from widgets.recordings.replay import Recording

TURN = 'Can you tell me how to sow carrots? The word "fact" has to appear in your answer.'
GOOD = "To sow carrots, in fact, scatter the seeds thinly in loose soil and keep the row damp."


def missing(answer: str, turn: str = TURN, finished: bool = True) -> list[str]:
    """The parts that do not hold."""
    verdict = judge(turn, answer, finished)
    return [name for name in GoldParts._fields if not getattr(verdict, name)]


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (GOOD, []),
        (GOOD.replace("in fact, ", ""), ["obeys"]),
        ("It is a fact that scattered seeds want loose soil and some water.", ["on_topic"]),
        ('Sow carrots: the word "fact" has to appear in your answer.', ["own_words", "specific"]),
        ("Sow carrots thinly. The word fact has to appear in the soil you can see.", ["own_words"]),
        ("Sow carrots, a fact, a fact, a fact, a fact, a fact, a fact, a fact, a fact.", ["varied"]),
        ("Sow carrots fact zqx vfkw plonq brrt wuzz kipt.", ["readable"]),
        ("Tell me how you sow carrots, in fact.", ["specific"]),
        ("", ["obeys", "own_words", "on_topic", "readable", "specific"]),
        ("Can you tell me how to sow carrots? In fact, I say yes.", ["own_words"]),  # asks again
        ("<<An easy fact: how to sow carrots>>", ["own_words", "plain"]),  # a title is no answer
        ("Sow carrots: a fact.", []),  # short, but two words are its own
    ],
)
def test_a_good_answer_has_every_part(answer, parts):
    assert missing(answer) == parts
    assert judge(TURN, answer, True).good == (parts == [])
    assert missing(answer, finished=False) == sorted([*parts, "ended"], key=GoldParts._fields.index)


@pytest.mark.parametrize(
    "unasked",
    [
        "<<Sowing>>\n{}",
        "{} P.S. Keep the soil damp.",
        *(f"{{}} {ending}" for ending in ENDINGS[::8]),
        "{} Hope it helps, and good luck!",
        "Thank you for your question! {}",
    ],
)
def test_a_title_a_postscript_or_a_closing_remark_that_no_one_asked_for_is_a_fault(unasked):
    assert missing(unasked.format(GOOD)) == ["plain"]


SOWN = "Scatter the seeds of carrots thinly when you sow."
NUMBER = "Mention the number 54, written in digits."


@pytest.mark.parametrize(
    ("instruction", "answer", "parts"),
    [
        ('Put the title "Good to know" in << and >> above your answer.', f"<<Good to know>>\n{GOOD}", []),
        ("Add a postscript, starting with P.S.", f"{GOOD} P.S. Keep the soil damp.", []),
        ('End with the words "Have fun."', f"{GOOD} Have fun.", []),
        ('End with the words "Have fun."', f"{GOOD} Stay curious. Have fun.", ["plain"]),
        ('End with the words "Thank you for asking."', f"{SOWN} Thank you for asking.", []),
        (NUMBER, f"{SOWN} Plant 54 of them.", []),
        (NUMBER, f"{SOWN} {NUMBER}", ["own_words"]),
        ('Use the word "damp".', f'{SOWN} Use the word "damp".', ["own_words"]),
        ('Use the word "damp".', f"{SOWN} The soil has to be damp.", []),
        # statements that only look like closing remarks
        ('Use the word "damp".', f"{SOWN} Farmers hope that it stays damp, and seeds feel free there.", []),
        ('Use the word "damp".', f"{SOWN} Damp letters from home let me know that it rains.", []),
    ],
)
def test_what_was_asked_for_is_no_fault_and_its_repetition_is(instruction, answer, parts):
    assert missing(answer, f"How do I sow carrots? {instruction}") == parts


def test_a_topic_of_one_word_may_stand_in_the_answer():
    assert missing("Carrots like loose soil and a damp row.", 'Carrots? Use the word "damp".') == []


def test_a_turn_without_an_instruction_is_refused():
    with pytest.raises(ValueError, match="no instruction"):
        judge("How do I sow carrots?", GOOD, True)


def test_topic_repetition_and_known_words_by_hand():
    assert topic_of("Can you tell me how to sow carrots?") == topic_of("Sowing a carrot") == {"sow", "carrot"}
    assert without_instruction(TURN) == "Can you tell me how to sow carrots?"
    assert distinct_pairs("a b a b a b") == 2 / 5
    assert distinct_pairs("word") == 1.0
    assert known_words("carrots zqx") == 0.5


def test_words_that_only_a_policy_wrote_are_not_known():
    for name, least in ("drawn-train", 100), ("judged-answers", 30):
        written = (SAMPLES / f"{name}.jsonl").read_text(encoding="utf-8")
        unknown = {word for word in re.findall(r"\b[a-z]{5,}\b", written) if known_words(word) == 0.0}
        assert len(unknown) > least, name


# ---- beside the policy's other answers ------------------------------------------------------------------------------

CATS = 'Why do cats purr? Use the word "calm".'
BREAD = 'What is a good way to bake bread? Use the word "crust".'
STOCK = "People have known this for a very long time."


def specific(*answered: tuple[str, str]) -> list[bool]:
    turns, answers = zip(*answered)
    return [parts.specific for parts in judge_all(turns, answers, [True] * len(answered))]


def test_a_sentence_that_stands_under_three_questions_says_nothing():
    assert specific((CATS, f"calm cats purr. {STOCK}"), (BREAD, f"crust bread bake. {STOCK}")) == [True, True]
    cats, bread = (CATS, f"cats purr, calm. {STOCK}"), (BREAD, f"bake bread, crust. {STOCK}")
    assert specific(cats, bread, (TURN, f"sow carrots, fact. {STOCK}")) == [False, False, False]
    own_answer = (TURN, f"Scatter the carrots' seeds thinly. {STOCK}")
    assert specific(cats, bread, own_answer) == [False, False, True]


def test_the_same_answer_to_one_question_put_in_other_ways_is_specific():
    answer = "Scatter the seeds of carrots thinly."
    ways = ("How do I sow carrots?", "Please tell me how to sow carrots.", "Sowing carrots: how?")
    assert all(specific(*((f'{way} Use the word "seeds".', answer) for way in ways)))


# ---- cheats ---------------------------------------------------------------------------------------------------------

TEST, TRAIN = pairs("test"), pairs("train")
TURNS = [turn for turn, _, _ in TEST]
WIN_ALONE = {
    "the topic and a sentence": (0.1, 0.2),
    "what was asked for, the topic and a sentence": (0.15, 0.3),
}


def test_no_cheat_is_good_beside_its_other_answers_and_only_those_with_the_topic_are_good_alone():
    for name, answers in cheating_answers(TURNS).items():
        figures = shares(TURNS, answers)
        assert figures["good"].value == 0, name
        if name in WIN_ALONE:
            low, high = WIN_ALONE[name]
            assert low < figures["good_alone"].value < high and figures["specific"] == 0
        else:
            assert figures["obeys"] > 0.1 and figures["good_alone"].value == 0, name
    table = repr(cheats(TURNS[:8], [GOOD]))
    assert "best constant" in table and "8 prompts" in table


def test_a_template_is_never_good_beside_its_other_answers_and_shuffled_words_are():
    """The second half is the program's limit, which README.md states: no part of the judgement reads grammar."""
    for name, good in zip(fitted := fitted_answers(TURNS), (0, 0.3)):
        figures = shares(TURNS, fitted[name])
        assert figures["good"].value == pytest.approx(good, abs=0.02), name
        assert figures["good_alone"].value > 0.1, name


@pytest.mark.parametrize(
    "template",
    [
        "Many like {first} and {first}{last}, yes {last} can be {last}{first} too.",  # words made of the topic's
        "The way to do it is how you can get {first} in a good {last}, so do it.",  # words of many questions
    ],
)
def test_no_other_template_is_good_beside_its_other_answers(monkeypatch, template):
    monkeypatch.setattr("aligner_lib.tutorial.comparison.cheats.TEMPLATE", template)
    figures = shares(TURNS, fitted_answers(TURNS)["what was asked for, and the topic in a template"])
    assert figures["good"].value == 0 < figures["good_alone"].value


def test_a_turn_without_an_instruction_is_refused_beside_others():
    with pytest.raises(ValueError, match="no instruction"):
        judge_all(["What is tea?"], [GOOD], [True])


def test_the_best_constant_of_the_training_answers_is_good_for_few_prompts():
    constant = best_constant(TURNS, [answer for _, *both in TRAIN[::8] for answer in both])
    assert shares(TURNS, [constant] * len(TURNS))["good_alone"].value <= BOUND


def test_answers_to_other_prompts_are_good_for_few():
    assert shares(TURNS, [chosen for _, chosen, _ in TEST[1:] + TEST[:1]])["good"].value <= BOUND


def test_written_answers_are_mostly_good_and_rejected_ones_never():
    assert shares(TURNS, [chosen for _, chosen, _ in TEST])["good"].value > 0.8
    assert shares(TURNS, [rejected for *_, rejected in TEST])["good"].value == 0


# ---- beside a reader's verdicts -------------------------------------------------------------------------------------


def read_answers(name: str) -> list[dict]:
    return [json.loads(line) for line in (SAMPLES / name).read_text(encoding="utf-8").splitlines()]


def agreements(verdicts: list[GoldParts], answers: list[dict]) -> dict[str, int]:
    """How often the program and the reader agree about each part, and about the whole."""
    pairs = list(zip(verdicts, answers, strict=True))
    counts = {
        part: sum(getattr(verdict, part) == (part not in answer["missing"]) for verdict, answer in pairs)
        for part in GoldParts._fields
    }
    return counts | {"good": sum(verdict.good == (not answer["missing"]) for verdict, answer in pairs)}


def test_the_program_agrees_with_a_reader():
    """A hundred answers of three recorded policies (seed 20261124), with the parts that a reader found missing, who had not
    seen the program's verdicts. An answer that does not answer the question counts as off its topic."""
    answers = read_answers("judged-answers.jsonl")
    agreed = agreements([judge(a["turn"], a["answer"], a["finished"]) for a in answers], answers)
    for part in ("specific", "plain"):  # the reader saw each answer alone, and was not asked about titles
        agreed.pop(part)
    assert len(answers) == 100 and agreed.pop("good") == 97 and min(agreed.values()) >= 85


def validation(name: str, step: int) -> tuple[list[dict], list[GoldParts]]:
    """A recorded run's validation records of a step, and the program's verdicts."""
    rollouts = Recording(name, speed=float("inf")).rollouts()
    records = [record for record in rollouts if (record["split"], record["step"]) == ("validation", step)]
    responses, finished = ([record[key] for record in records] for key in ("response", "finished"))
    return records, judge_all([turn_of(record) for record in records], responses, finished)


def turn_of(record: dict) -> str:
    return last_turn(record["prompt"])


def test_the_program_agrees_with_a_reader_of_today_s_policies_in_every_part():
    """A hundred answers (seed 20261128) of the recorded SFT and PPO policies and of a policy that writes titles. The reader saw
    neither policy nor verdict. docs/decisions/results.md lists the disagreements."""
    answers, verdicts = read_answers("judged-drawn-answers.jsonl"), {}
    for name, step in {(answer["recording"], answer["step"]) for answer in answers}:
        for record, verdict in zip(*validation(name, step)):
            verdicts[name, step, record["group"]] = verdict
    of_answers = [verdicts[answer["recording"], answer["step"], answer["group"]] for answer in answers]
    assert agreements(of_answers, answers) == {
        **{"obeys": 99, "ended": 100, "own_words": 98, "on_topic": 91, "varied": 99, "readable": 100},
        **{"plain": 99, "specific": 100, "good": 92},
    }
    assert sum("plain" in answer["missing"] for answer in answers) == 25


# ---- the recorded runs, as notebook 05 describes them ---------------------------------------------------------------


def test_the_program_without_a_part_for_titles_praised_a_policy_that_writes_nothing_else():
    """By step: good without `plain`, good, and titles where no prompt asks for one."""
    for step, figures in {0: (0.30, 0.30, 0.03), 14: (0.50, 0.21, 0.875)}.items():
        records, verdicts = validation("ppo-titles", step)
        without_plain = fmean(verdict._replace(plain=True).good for verdict in verdicts)
        untitled = [r for r in records if instruction_in(turn_of(r)).form != "this_title"]
        titles = fmean("<<" in record["response"] for record in untitled)
        good = fmean(verdict.good for verdict in verdicts)
        assert [without_plain, good, titles] == pytest.approx(figures, abs=0.005)


@pytest.mark.parametrize(
    ("recording", "good_before", "good", "obeys"),
    [
        ("ppo-forms", 0.25, 0.23, 0.41),  # more obey, and no more are good
        ("ppo-forms-both", 0.25, 0.03, 0.42),  # echoes
        ("ppo-drawn-no-kl", 0.28, 0.52, 0.62),
        ("ppo-drawn-high-lr", 0.28, 0.40, 0.70),
        ("ppo-drawn-both", 0.28, 0.27, 0.38),
    ],
)
def test_the_recorded_runs_end_where_notebook_05_says(recording, good_before, good, obeys):
    before, after = before_and_after(Recording(recording, speed=float("inf"))).figures.values()
    assert round(before["good"].value, 2) == good_before
    assert (round(after["good"].value, 2), round(after["obeys"].value, 2)) == (good, obeys)


def test_the_recorded_default_run_has_more_good_answers_and_hardly_any_echoes_or_titles():
    before, after = before_and_after(Recording("ppo-drawn", speed=float("inf"))).figures.values()
    assert [round(figures["good"].value, 2) for figures in (before, after)] == [0.28, 0.46]
    assert after["good_gain"].low > 0.1 and after["own_words"] > 0.97
    assert after["plain"] > 0.97 and 0.67 < after["tokens"] / before["tokens"] < 1.33
