"""What a good answer is, part by part; and no policy that cheats gives many."""

import json
import re
from statistics import fmean

import pytest

from aligner_lib.run_folder.turns import turns_of
from aligner_lib.tutorial.comparison.cheats import best_constant, cheating_answers, cheats, shares
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
    ],
)
def test_a_good_answer_has_every_part(answer, parts):
    assert missing(answer) == parts
    assert judge(TURN, answer, True).good == (parts == [])


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        ("Can you tell me how to sow carrots? In fact, I say yes.", ["own_words"]),  # asks again
        ("<<An easy fact: how to sow carrots>>", ["own_words", "plain"]),  # a title is no answer
        ("Sow carrots: a fact.", []),  # short, but two words are its own
    ],
)
def test_the_question_again_and_a_title_alone_are_no_answers(answer, parts):
    assert missing(answer) == parts


@pytest.mark.parametrize(
    "unasked",
    [
        "<<Sowing>>\n{}",
        "{} P.S. Keep the soil damp.",
        *(f"{{}} {ending}" for ending in ENDINGS),
        "{} Hope it helps, and good luck!",
        "Thank you for your question! {}",
    ],
)
def test_a_title_a_postscript_or_a_closing_remark_that_no_one_asked_for_is_a_fault(unasked):
    assert missing(unasked.format(GOOD)) == ["plain"]
    title = 'How do I sow carrots? Put the title "Good to know" in << and >> above your answer.'
    assert missing(f"<<Good to know>>\n{GOOD}", title) == []
    assert (
        missing(
            f"{GOOD} P.S. Keep the soil damp.", "How do I sow carrots? Add a postscript, starting with P.S."
        )
        == []
    )


def test_requested_last_words_are_no_fault_and_a_second_closing_remark_is():
    turn = 'How do I sow carrots? End with the words "Have fun."'
    assert missing(f"{GOOD} Have fun.", turn) == []
    assert missing(f"{GOOD} Stay curious. Have fun.", turn) == ["plain"]


def test_an_answer_that_the_limit_of_tokens_cut_is_not_good():
    assert missing(GOOD, finished=False) == ["ended"]


def test_a_phrase_that_was_asked_for_may_be_quoted():
    turn = 'Can you tell me how to sow carrots? End with the words "Thank you for asking."'
    assert missing("Scatter the seeds of carrots thinly when you sow. Thank you for asking.", turn) == []


@pytest.mark.parametrize("instruction", ["Mention the number 54, written in digits.", 'Use the word "damp".'])
def test_an_instruction_is_repeated_whatever_it_asks_for(instruction):
    answer = f"Scatter the seeds of carrots thinly when you sow. {instruction}"
    assert missing(answer, f"How do I sow carrots? {instruction}") == ["own_words"]
    said = 'To sow carrots, note number 54: the soil has to be damp when you use the word "sow".'
    assert missing(said, f"How do I sow carrots? {instruction}") == []


def test_a_turn_without_an_instruction_is_refused():
    with pytest.raises(ValueError, match="no instruction"):
        judge("How do I sow carrots?", GOOD, True)


def test_a_topic_is_what_the_question_is_about_in_any_form_of_its_words():
    assert topic_of("Can you tell me how to sow carrots?") == topic_of("Sowing a carrot") == {"sow", "carrot"}
    assert without_instruction(TURN) == "Can you tell me how to sow carrots?"


def test_repetition_and_known_words_by_hand():
    assert distinct_pairs("a b a b a b") == 2 / 5
    assert distinct_pairs("word") == 1.0
    assert known_words("carrots zqx") == 0.5


def test_words_that_only_a_policy_wrote_are_not_known():
    written = (SAMPLES / "drawn-train.jsonl").read_text(encoding="utf-8")
    unknown = {word for word in re.findall(r"\b[a-z]{5,}\b", written) if known_words(word) == 0.0}
    assert len(unknown) > 100


# ---- beside the policy's other answers ------------------------------------------------------------------------------

CATS = 'Why do cats purr? Use the word "calm".'
BREAD = 'What is a good way to bake bread? Use the word "crust".'
STOCK = "People have known this for a very long time."


def specific(*said: tuple[str, str]) -> list[bool]:
    turns, answers = zip(*said)
    return [parts.specific for parts in judge_all(turns, answers, [True] * len(said))]


def test_a_sentence_that_stands_under_three_questions_says_nothing():
    assert specific((CATS, f"calm cats purr. {STOCK}"), (BREAD, f"crust bread bake. {STOCK}")) == [True, True]
    constant = [
        (CATS, f"cats purr, calm. {STOCK}"),
        (BREAD, f"bake bread, crust. {STOCK}"),
        (TURN, f"sow carrots, fact. {STOCK}"),
    ]
    assert specific(*constant) == [False, False, False]
    assert specific(*constant[:2], (TURN, f"Scatter the carrots' seeds thinly. {STOCK}")) == [
        False,
        False,
        True,
    ]


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


@pytest.mark.parametrize("name", WIN_ALONE)
def test_words_of_the_prompt_before_a_constant_sentence_win_alone_and_not_beside_the_other_answers(name):
    low, high = WIN_ALONE[name]
    figures = shares(TURNS, cheating_answers(TURNS)[name])
    assert low < figures["good_alone"].value < high and figures["good"].value == figures["specific"] == 0


@pytest.mark.parametrize("name", sorted(cheating_answers(TURNS[:1]).keys() - WIN_ALONE.keys()))
def test_echoes_obey_and_are_never_good(name):
    figures = shares(TURNS, cheating_answers(TURNS)[name])
    assert figures["obeys"] > 0.1 and figures["good_alone"].value == figures["good"].value == 0


def test_the_best_constant_of_the_training_answers_is_good_for_few_prompts():
    constant = best_constant(TURNS, [answer for _, *both in TRAIN[::8] for answer in both])
    assert shares(TURNS, [constant] * len(TURNS))["good_alone"].value <= BOUND


def test_answers_to_other_prompts_are_good_for_few():
    assert shares(TURNS, [chosen for _, chosen, _ in TEST[1:] + TEST[:1]])["good"].value <= BOUND


def test_written_answers_are_mostly_good_and_rejected_ones_never():
    assert shares(TURNS, [chosen for _, chosen, _ in TEST])["good"].value > 0.8
    assert shares(TURNS, [rejected for *_, rejected in TEST])["good"].value == 0


def test_the_table_shows_every_cheat_with_its_parts():
    table = cheats(TURNS[:8], [GOOD])
    assert "best constant" in repr(table) and "8 prompts" in repr(table)
    assert {
        "good",
        "good_alone",
        "obeys",
        "own_words",
        "on_topic",
        "varied",
        "readable",
        "plain",
        "specific",
    } == set(table.figures["the question"])


@pytest.fixture(scope="module")
def read() -> list[dict]:
    """A hundred answers of three recorded policies (seed 20261124), with the parts that a reader found missing, who had not
    seen the program's verdicts. An answer that does not answer the question counts as off its topic."""
    lines = (SAMPLES / "judged-answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_the_program_agrees_with_a_reader(read):
    verdicts = [judge(answer["turn"], answer["answer"], answer["finished"]) for answer in read]
    agreed = {
        part: sum(
            getattr(verdict, part) == (part not in answer["missing"])
            for verdict, answer in zip(verdicts, read)
        )
        for part in GoldParts._fields
        if part
        not in ("specific", "plain")  # the reader saw each answer alone, and was not asked about titles
    }
    good = sum(verdict.good == (not answer["missing"]) for verdict, answer in zip(verdicts, read))
    assert len(read) == 100 and good >= 95
    assert min(agreed.values()) >= 85


def test_the_program_agrees_with_a_reader_of_today_s_policies_in_every_part():
    """A hundred answers (seed 20261128) of the recorded SFT and PPO policies and of a policy that writes titles. The reader saw
    neither policy nor verdict. docs/decisions/results.md lists the disagreements."""
    lines = (SAMPLES / "judged-drawn-answers.jsonl").read_text(encoding="utf-8").splitlines()
    answers, verdicts = [json.loads(line) for line in lines], {}
    for name, step in {(answer["recording"], answer["step"]) for answer in answers}:
        rollouts = Recording(name, speed=float("inf")).rollouts()
        records = [r for r in rollouts if (r["split"], r["step"]) == ("validation", step)]
        turns = [turns_of(r["prompt"])[-1]["text"] for r in records]
        of_all = judge_all(turns, [r["response"] for r in records], [r["finished"] for r in records])
        verdicts |= {(name, step, r["group"]): verdict for r, verdict in zip(records, of_all)}
    both = [
        (verdicts[answer["recording"], answer["step"], answer["group"]], answer["missing"])
        for answer in answers
    ]
    agreed = {
        part: sum(getattr(verdict, part) == (part not in missing) for verdict, missing in both)
        for part in GoldParts._fields
    }
    assert agreed == {
        "obeys": 99,
        "ended": 100,
        "own_words": 98,
        "on_topic": 91,
        "varied": 99,
        "plain": 99,
    } | dict.fromkeys(("readable", "specific"), 100)
    assert sum(verdict.good == (not missing) for verdict, missing in both) == 92
    assert sum("plain" in missing for _, missing in both) == 25


def test_the_program_without_a_part_for_titles_praised_a_policy_that_writes_nothing_else():
    """The figures of notebook 05: by step, good without `plain`, good, and titles where no prompt asks for one."""
    rollouts = Recording("ppo-titles", speed=float("inf")).rollouts()
    for step, figures in {0: (0.30, 0.30, 0.03), 14: (0.50, 0.21, 0.88)}.items():
        records = [r for r in rollouts if (r["split"], r["step"]) == ("validation", step)]
        turns = [turns_of(record["prompt"])[-1]["text"] for record in records]
        verdicts = judge_all(turns, [r["response"] for r in records], [r["finished"] for r in records])
        unasked = [
            "<<" in r["response"]
            for turn, r in zip(turns, records)
            if instruction_in(turn).form != "this_title"
        ]
        of_all = [[v._replace(plain=True).good for v in verdicts], [v.good for v in verdicts], unasked]
        assert [round(fmean(part), 2) for part in of_all] == pytest.approx(figures)


@pytest.mark.parametrize(
    ("recording", "obeys", "good"),
    [
        ("ppo-forms", (0.28, 0.41), (0.25, 0.23)),  # as notebook 05 says: more obey, and no more are good
        ("ppo-forms-both", (0.28, 0.42), (0.25, 0.03)),  # echoes
    ],
)
def test_the_recorded_runs_obey_more_and_are_no_better(recording, obeys, good):
    before, after = before_and_after(Recording(recording, speed=float("inf"))).figures.values()
    assert [round(figures["obeys"].value, 2) for figures in (before, after)] == list(obeys)
    assert [round(figures["good"].value, 2) for figures in (before, after)] == list(good)


def test_the_recorded_default_run_has_more_good_answers_and_hardly_any_echoes_or_titles():
    before, after = before_and_after(Recording("ppo-drawn", speed=float("inf"))).figures.values()
    assert [round(figures["good"].value, 2) for figures in (before, after)] == [0.28, 0.46]
    assert after["good_gain"].low > 0.1 and after["own_words"] > 0.97
    assert after["plain"] > 0.97 and 0.67 < after["tokens"] / before["tokens"] < 1.33


@pytest.mark.parametrize(
    ("change", "obeys", "good", "on_topic"),
    [("no-kl", 0.62, 0.52, 0.94), ("high-lr", 0.70, 0.40, 0.66), ("both", 0.38, 0.27, 0.82)],
)
def test_the_runs_with_a_setting_changed_end_where_notebook_05_says(change, obeys, good, on_topic):
    before, after = before_and_after(Recording(f"ppo-drawn-{change}", speed=float("inf"))).figures.values()
    assert round(before["good"].value, 2) == 0.28, "all of them begin as the default run does"
    assert [round(after[name].value, 2) for name in ("obeys", "good")] == [obeys, good]
    assert round(after["on_topic"], 2) == on_topic
