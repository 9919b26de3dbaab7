"""How widgets look and answer in a browser: one style sheet, no wider than a column, and texts of a model as text.

The pages hold JupyterLab's style sheets and this process as the kernel (kernelless.py).
"""

import json
import re
import time

import pytest
from run_folders import write_run

from aligner_lib.run_folder.reader import step_name
from widgets import Chat, Classroom, Completions, JobPanel, Monitor, Pairs

PAIR = {"prompt": "p", "chosen": "c", "rejected": "r"}
ALIVE = {"status": "running", "host": "another machine", "max_steps": 12}


def seat(room, number: int, status: str, step: int, run="ppo", alarms=(), **info) -> None:
    """A seat of a classroom with one more run."""
    heartbeat = {"time": time.time(), "step": step}
    info = {"kind": "ppo", "created": 1.0, "heartbeat": heartbeat} | ALIVE | {"status": status} | info
    folder = write_run(room / f"seat-{number:02d}" / "runs" / run, **info)
    records = [json.dumps({"name": title, "title": title, "step": 5}) + "\n" for title in alarms]
    (folder / "alarms.jsonl").write_text("".join(records))


# ---- sizes and styles -----------------------------------------------------------------------------------------------


@pytest.fixture
def room(tmp_path):
    """Three seats: one failed with a long message, one with alarms and a name, one without anything to say."""
    message = "out of memory after step 3: lower model.micro_batch_size and start the job again"
    seat(tmp_path, 0, "failed", 3, message=message)
    seat(tmp_path, 1, "running", 4, alarms=("Far from the reference", "Reward hacking?"))
    seat(tmp_path, 2, "running", 5)
    (tmp_path / "seat-01" / "participant.json").write_text('{"name": "Ada Countess of Lovelace"}')
    return Classroom(tmp_path)


def test_a_page_has_one_style_sheet_and_every_widget_fits_a_phone(show, room, healthy):
    pairs = Pairs([{"prompt": "a question " * 20, "chosen": "c" * 90, "rejected": "r"}], scores=[(1, 0)])
    desk = show(room, Monitor([healthy] * 2), Completions(healthy), Chat({"a": str.upper}), pairs, width=360)
    page = desk.page
    page.locator(".lab-chart").first.wait_for()
    assert desk.overflow() == []
    assert page.locator(".lab-classroom .lab-scroll").evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0
    for text in (
        "Ada Countess of Lovelace · seat-01",
        "model.micro_batch_size",
        "Reward hacking? (step 5)",
        "4/12",
    ):
        box = page.locator(".lab-classroom").get_by_text(text).last.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 360, text
    sheets = "() => [...document.styleSheets].filter((s) => [...s.cssRules].some((r) => r.selectorText === '.lab-widget')).length"
    assert page.evaluate(sheets) == 1


def test_a_control_s_keys_stay_in_its_widget_and_those_that_run_cells_reach_the_notebook(show, room, healthy):
    """In JupyterLab ArrowLeft on a slider did nothing, and x in a list cut the cell."""
    page = show(room, Monitor(healthy), Completions(healthy), Pairs([PAIR] * 12)).page
    page.evaluate("() => { window.heard = []; onkeydown = (event) => heard.push(event.key); }")
    for control in page.locator("select:visible, input:visible, button:visible").all():
        if control.is_enabled():
            control.press("x")
    assert page.evaluate("heard") == []
    page.get_by_label("sorted by").first.press("Shift+Enter")
    assert page.evaluate("heard") == ["Enter"]


def test_verdicts_are_marks_and_arabic_begins_on_the_right(show, tmp_path):
    record = {"step": 1, "prompt": "p", "response": "مرحبا بالعالم", "reward": 0.5, "length": 3}
    judged = [{"exact": 1.0, "words": 3.0}, {"exact": 0.0, "words": 1.0}]
    rollouts = [record | {"metrics": metrics} for metrics in judged]
    completions = Completions(write_run(tmp_path / "run", rollouts=rollouts, kind="grpo"))
    completions.query = {"beside": False}
    page = show(completions).page
    assert page.locator(".lab-verdict").all_inner_texts() == ["✓ exact", "✗ exact"]
    first = page.locator(".lab-box").first
    assert first.locator(".lab-figures").inner_text().split() == ["tokens", "3", "words", "3"]
    assert first.locator(".lab-text").evaluate("(e) => getComputedStyle(e).direction") == "rtl"


# ---- completions, pairs, chat ---------------------------------------------------------------------------------------


def rewards(page) -> list[float]:
    return [float(text) for text in page.locator(".lab-box:last-child .lab-reward b").all_inner_texts()]


def test_completions_are_text_and_all_of_the_history(show, healthy):
    desk = show(Completions(healthy))
    page = desk.page
    page.get_by_text("validation · step 120", exact=True).first.wait_for()
    page.get_by_label("tokens by").select_option("KL")
    page.get_by_text("These responses have no KL of their tokens").wait_for()
    page.get_by_label("prompts").select_option("train")
    page.get_by_text("train · step 120", exact=True).first.wait_for()
    for side in page.locator(".lab-card").first.locator(".lab-box").all():
        side.locator("span[title^='KL']").first.wait_for()
    assert page.locator(".lab-card").count() == 4
    assert "<script>window.stolen = 2</script>" in page.locator(".lab-cards").inner_text()
    assert page.evaluate("() => window.stolen") is None
    assert page.locator(".lab-cards script, .lab-cards img").count() == 0
    page.get_by_label("step", exact=True).press("Home")
    page.get_by_text("train · step 1", exact=True).first.wait_for()
    page.get_by_label("every step").check()
    page.get_by_text("1 to 8 of 480").wait_for()
    page.get_by_label("find text").fill("boil an egg")
    page.get_by_text("1 to 8 of 120").wait_for()
    page.get_by_label("sorted by").select_option("best reward")
    desk.wait(lambda: len(shown := rewards(page)) == 8 and shown == sorted(shown, reverse=True))
    page.get_by_text("first answer · step 1").first.wait_for()
    page.get_by_label("first answer beside it").uncheck()
    page.get_by_text("first answer · step 1").first.wait_for(state="detached")


def test_colours_of_tokens_grow_evenly_on_both_sides_and_their_sign_is_a_line(show, tmp_path):
    tokens = {"tokens": ["a", "b", "c", "d", "e"], "token_kl": [-2.0, -1.0, 0.0, 1.0, 2.0]}
    record = {"step": 1, "prompt": "p", "response": "abcde", "reward": 1.0, "length": 5, "finished": True}
    diverged = record | tokens | {"step": 2, "token_kl": [float("nan")] * 5}
    completions = Completions(write_run(tmp_path / "run", rollouts=[record | tokens, diverged], kind="ppo"))
    completions.query = {"step": 1, "colour": "KL", "end": True, "beside": False}
    page = show(completions).page
    coloured = page.locator(".lab-text [title^=KL]").all()
    lines = [token.evaluate("(e) => getComputedStyle(e).textDecorationLine") for token in coloured]
    assert lines == ["underline", "underline", "none", "overline", "overline"]
    for sign, strengths in {"minus": [45, 22.5, 0], "plus": [0, 22.5, 45]}.items():
        style = page.locator(f".lab-ramp i[data-sign={sign}]").first.get_attribute("style")
        assert [float(part) for part in re.findall(r"([\d.]+)%, transparent", style)] == strengths
    assert page.locator(".lab-ramp b").all_inner_texts() == ["-2", "0", "2"]
    page.get_by_label("step", exact=True).press("End")
    page.locator(".lab-card").get_by_text("step 2").wait_for()
    assert page.locator(".lab-text [title^=KL]").count() == 0, "weights that are no numbers have no colour"


def test_the_responses_to_a_prompt_are_beside_each_other(show, tmp_path):
    """Of the first group's responses one failed; the second group's rewards are all alike."""
    rollouts = [
        {"step": 1, "split": "train", "prompt": f"prompt {group}", "response": "<b>x</b>", "reward": reward}
        | {"length": 2, "finished": True, "group": group, "environment": ["sums", "form"][group]}
        | {"tokens": ["<b>", "x"], "token_advantage": [0.0 if reward is None or group else reward - 0.5] * 2}
        | ({"failure": "timeout"} if reward is None else {})
        for group, of_group in enumerate([[0.0, 1.0, None, 0.5], [0.25] * 4])
        for reward in of_group
    ]
    desk = show(Completions(write_run(tmp_path / "groups", rollouts=rollouts, kind="grpo")))
    page, cards = desk.page, desk.page.locator(".lab-card")
    desk.wait(lambda: cards.count() == 2)
    first = cards.nth(0)
    assert first.locator(".lab-group .lab-name").all_inner_texts() == ["best", "", "worst", ""]
    assert "rewards 0 to 1, mean 0.5" in first.inner_text() and "failed: timeout" in first.inner_text()
    moves = [box.get_attribute("data-moves") for box in first.locator(".lab-group .lab-box").all()]
    assert moves == ["up", "not", "down", "failed"]
    assert "all 4 rewards are 0.25: nothing to learn from" in cards.nth(1).inner_text()
    page.get_by_label("environment").select_option("form")
    desk.wait(lambda: cards.count() == 1)
    page.get_by_label("environment").select_option("")
    desk.wait(lambda: cards.count() == 2)
    page.get_by_label("groups together").uncheck()
    desk.wait(lambda: cards.count() == 8)


@pytest.fixture
def of_five_steps(tmp_path):
    """A running run with ten responses to a prompt of two turns at each of five steps."""
    record = {"prompt": CHATML, "response": "r", "reward": 1.0, "length": 1, "finished": True}
    rollouts = [record | {"step": step} for step in range(1, 6) for _ in range(10)]
    return write_run(tmp_path / "steps", rollouts=rollouts, kind="ppo", **ALIVE)


def test_a_new_step_leaves_the_cards_of_the_shown_step_alone(show, of_five_steps):
    completions = Completions(of_five_steps)
    completions.query = {"step": 2}
    desk = show(completions)
    desk.page.locator(".lab-card summary").first.click()
    rollouts = of_five_steps / "rollouts.jsonl"
    rollouts.write_text(rollouts.read_text() + json.dumps({"step": 6, "prompt": "p", "response": "r"}) + "\n")
    slider = desk.page.get_by_label("step", exact=True)
    desk.wait(lambda: slider.get_attribute("max") == "5", "the new step did not come")
    assert desk.page.locator(".lab-card details[open]").count() == 1


HOLD = """() => {
    const kernel = window.kernel, held = window.held = [];
    window.kernel = (text) => new Promise((go) => held.push(go)).then(() => kernel(text));
}"""


def test_keys_and_clicks_count_while_the_kernel_has_not_answered_the_earlier_ones(show, of_five_steps):
    completions = Completions(of_five_steps)
    completions.query = {"step": 1}
    desk = show(completions)
    page, step = desk.page, desk.page.locator(".lab-step output")
    page.evaluate(HOLD)
    slider = page.get_by_label("step", exact=True)
    slider.press("ArrowRight")
    slider.press("ArrowRight")
    page.evaluate("held.shift()()")
    desk.wait(lambda: step.inner_text() == "step 2")
    assert slider.get_attribute("aria-valuetext") == "step 3"
    slider.press("ArrowRight")
    page.evaluate("held.splice(0).forEach((go) => go())")
    desk.wait(lambda: step.inner_text() == "step 4")
    page.get_by_label("every step").check()
    page.evaluate("held.shift()()")
    page.get_by_text("1 to 8 of 50").wait_for()
    for _ in range(3):
        page.get_by_role("button", name="Next").click()
    page.evaluate("held.splice(0).forEach((go) => go())")
    page.get_by_text("25 to 32 of 50").wait_for()


TURNS = [("system", "Be kind."), ("user", "Why?"), ("assistant", "So."), ("user", "And then?")]
CHATML = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in TURNS)


def test_a_prompt_is_shown_as_turns_with_the_system_s_folded(show):
    turns = show(Pairs([PAIR | {"prompt": CHATML}])).page.locator(".lab-turn").all()
    shown = [(turn.get_attribute("data-role"), turn.locator(".lab-text").text_content()) for turn in turns]
    assert shown == TURNS
    assert [turn.locator(".lab-text").is_visible() for turn in turns] == [False, True, True, True]


def test_pairs_and_chat_show_texts_as_text(show):
    pairs = [{"prompt": f"question {i}", "chosen": "<i>good</i>", "rejected": "bad"} for i in range(12)]
    models = {"SFT": str.upper, "broken": lambda prompt: 1 / 0}
    desk = show(Pairs(pairs, scores=[(1, 0)] * 11 + [(0, 1)]), Chat(models, score=lambda p, r: len(r)))
    page = desk.page
    page.get_by_text("1 to 5 of 12").wait_for()
    page.get_by_label("where the reward model disagrees").check()
    page.get_by_text("1 to 1 of 1", exact=True).wait_for()
    assert "<i>good</i>" in page.locator(".lab-paged .lab-card").inner_text()
    page.get_by_label("your message").fill("say <b>hello</b>")
    page.get_by_label("your message").press("Enter")
    desk.wait(lambda: page.get_by_text("SAY <B>HELLO</B>", exact=True).is_visible())
    assert page.get_by_label("your message").input_value() == ""
    desk.wait(lambda: page.get_by_text("ZeroDivisionError: division by zero").is_visible())
    desk.wait(lambda: page.get_by_role("button", name="Send").is_enabled())
    page.evaluate("() => { document.querySelector('.lab-chat li').isFirst = true; }")
    page.get_by_label("your message").fill("にほん")
    page.get_by_label("your message").dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    page.get_by_label("your message").fill("again")
    page.get_by_label("your message").press("Enter")
    desk.wait(lambda: page.get_by_text("AGAIN", exact=True).is_visible())
    assert page.locator(".lab-chat li").count() == 2, "the composed text was not sent"
    first_stays = page.evaluate("document.querySelector('.lab-chat li').isFirst")
    assert first_stays, "an old answer would be read out again"
    desk.wait(lambda: page.get_by_role("button", name="Send").is_enabled())
    page.evaluate("() => { window.kernel = () => new Promise(() => {}); }")  # busy with a cell
    page.get_by_label("your message").fill("a long question")
    page.get_by_role("button", name="Send").click()
    assert page.get_by_label("your message").input_value() == "a long question", "no kernel has it yet"
    assert page.get_by_role("button", name="Send").is_disabled()


# ---- the job panel and the classroom --------------------------------------------------------------------------------


class Job:
    state, reason, nodes = "RUNNING", "", ("node7",)

    def tail(self, n=20):
        return "step 1\n<b>step 2</b>"

    def cancel(self):
        self.state = "CANCELLED"


def test_the_panel_cancels_at_the_second_press_and_has_no_button_for_a_run_that_is_over(show, tmp_path):
    run = write_run(tmp_path / "run", {"train/loss": [1.0]}, **ALIVE | {"heartbeat": {"time": 9e12}})
    desk = show(JobPanel(run, Job()))
    page = desk.page
    assert "<b>step 2</b>" in page.get_by_role("region", name="end of the log").inner_text()
    page.get_by_role("button", name="Cancel").dblclick()
    page.get_by_role("button", name="Cancel without a checkpoint?").click()
    page.get_by_text("cancelled").first.wait_for()
    page.get_by_role("button", name="Cancel").wait_for(state="hidden")
    page.get_by_role("button", name="Stop after this step").click()
    page.get_by_text("It ends after this step").wait_for()
    assert (run / "control" / "stop").exists()
    write_run(run, status="stopped")
    panel = page.locator(".lab-panel")
    desk.wait(lambda: panel.locator("button:visible").count() == 0, "a button of a run that is over")
    assert "It ends after this step" not in panel.inner_text()


def test_a_double_click_undoes_one_change_and_the_button_then_offers_the_earlier_one(show, tmp_path):
    run = write_run(tmp_path / "run", status="stopped")
    for step, before in ((10, {}), (20, {"lr": 1e-5})):
        (run / "checkpoints" / step_name(step)).mkdir(parents=True)
        state = json.dumps({"changes": {"lr": 1e-4}, "before": before})
        (run / "checkpoints" / step_name(step) / "trainer.json").write_text(state)
    page = show(JobPanel(run)).page
    undo = page.get_by_role("button", name="Undo the change")
    undo.dblclick()
    page.get_by_text("goes on from step_000020 with lr = 1e-05").wait_for()
    assert "step_000010" in undo.get_attribute("title") and undo.is_enabled()


def test_a_teacher_s_wrong_clock_makes_no_seat_quiet(show, tmp_path):
    seat(tmp_path, 0, "finished", 12)
    desk = show()
    desk.page.evaluate("() => { const now = Date.now; Date.now = () => now() + 3600e3; }")
    desk.show(Classroom(tmp_path))
    assert desk.page.locator(".lab-classroom .lab-said").inner_text() == "1 seats. All is well."


def test_a_room_that_is_not_there_is_named(show, tmp_path):
    page = show(Classroom(tmp_path / "not mounted")).page
    page.get_by_text(f"The folder {tmp_path}/not mounted does not exist on this machine.").wait_for()


def test_seats_with_one_folder_name_have_a_row_each(show, tmp_path):
    for group, step in (("morning", 3), ("evening", 7)):
        seat(tmp_path / group, 1, "running", step)
    rows = show(Classroom(tmp_path, "*/seat-*")).page.locator(".lab-classroom tbody tr")
    rows.nth(1).wait_for()
    assert [("7/12" in text, "3/12" in text) for text in rows.all_inner_texts()] == [
        (True, False),
        (False, True),
    ]


def test_who_may_need_help_comes_first_and_news_arrive(show, tmp_path):
    """Thirty seats, of which one has failed, one has an alarm and a name, and the others train."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    for number in range(30):
        seat(tmp_path, number, "running", number % 12)
    seat(tmp_path, 21, "failed", 3, message="out of memory")
    seat(tmp_path, 11, "running", 6, alarms=["Far from the reference"])
    for number in (11, 12):
        (tmp_path / f"seat-{number}" / "participant.json").write_text('{"name": "<b>Ada</b>"}')
    desk = show(Classroom(tmp_path))
    page, rows = desk.page, desk.page.locator(".lab-classroom tbody tr")
    desk.wait(lambda: rows.count() == 30)
    page.get_by_text(
        "30 seats. 2 may need a look: seat-21 (failed), <b>Ada</b> · seat-11 (alarm)."
    ).wait_for()
    assert "out of memory" in rows.nth(0).inner_text()
    assert "Far from the reference (step 5)" in rows.nth(1).inner_text()
    seat(tmp_path, 21, "running", 1, run="ppo-2", created=2.0)
    ada_first = lambda: rows.nth(0).inner_text().startswith("<b>Ada</b>")  # noqa: E731
    desk.wait(ada_first, "the seat that began anew is still first")
    page.get_by_label("first").select_option("seat")
    desk.wait(lambda: rows.nth(0).inner_text().startswith("seat-00"))
    violations = axe.Axe().run(page, context=".lab-widget").response["violations"]
    assert [fault["id"] for fault in violations if fault["impact"] in ("serious", "critical")] == []
