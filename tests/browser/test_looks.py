"""How widgets look: one style sheet a page, and nothing wider than its column. Kernelless pages (kernelless.py)."""

import json
import re

import pytest
from kernelless import Desk
from test_classroom_page import write_run

from widgets import Chat, Classroom, Completions, Monitor, Pairs, Quiz


@pytest.fixture
def desk(browser):
    """Makes desks: desk(width=…, theme=…)."""
    desks = []

    def make(**options) -> Desk:
        desks.append(Desk(browser, **options))
        return desks[-1]

    yield make
    for one in desks:
        one.__exit__()
        assert one.errors == []


@pytest.fixture
def room(tmp_path):
    """Three seats: one failed with a long message, one with alarms and a name, one without anything to say."""
    for number, status in enumerate(("failed", "running", "running")):
        message = "out of memory after step 3: lower model.micro_batch_size and start the job again"
        write_run(tmp_path / f"seat-{number}" / "runs" / "ppo", status, number + 3, message=message)
    alarms = [
        {"name": name, "title": name, "step": 5} for name in ("Far from the reference", "Reward hacking?")
    ]
    (tmp_path / "seat-1" / "runs" / "ppo" / "alarms.jsonl").write_text(
        "".join(json.dumps(alarm) + "\n" for alarm in alarms)
    )
    (tmp_path / "seat-1" / "participant.json").write_text('{"name": "Ada Countess of Lovelace"}')
    return Classroom(tmp_path)


ALIGNED = "() => getComputedStyle(document.querySelector('.lab-classroom tbody td')).textAlign"


def test_a_page_has_one_style_sheet_and_a_later_widget_does_not_undo_an_earlier_one_s(desk, room):
    page = desk()
    page.show(room)
    assert page.page.evaluate(ALIGNED) == "left"
    page.show(Pairs([{"prompt": "p", "chosen": "c", "rejected": "r"}]))
    page.show(Quiz("03"))
    assert page.page.evaluate(ALIGNED) == "left"
    sheets = "() => [...document.styleSheets].filter((s) => [...s.cssRules].some((r) => r.selectorText === '.lab-widget')).length"
    assert page.page.evaluate(sheets) == 1


@pytest.mark.parametrize("width", [838, 360])
def test_the_classroom_fits_its_column(desk, room, width):
    page = desk(width=width)
    page.show(room)
    scroll = page.page.locator(".lab-classroom .lab-scroll")
    assert scroll.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0
    assert page.overflow() == []
    for text in (
        "Ada Countess of Lovelace · seat-1",
        "model.micro_batch_size",
        "Reward hacking? (step 5)",
        "4/12",
    ):
        box = page.page.get_by_text(text).last.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width, text


@pytest.mark.parametrize("width", [838, 360])
def test_every_widget_fits_its_column(desk, healthy, width):
    page = desk(width=width)
    pairs = [{"prompt": "a question " * 20, "chosen": "c" * 90, "rejected": "r"}]
    for widget in (
        Monitor([healthy, healthy]),
        Completions(healthy),
        Chat({"a": str.upper}),
        Pairs(pairs, scores=[(1, 0)]),
    ):
        page.show(widget)
    page.page.locator(".lab-chart").first.wait_for()
    assert page.overflow() == []


def shades(page, selector: str) -> list[float]:
    """The strengths of the colours of an element's background, per cent."""
    style = page.page.locator(selector).first.get_attribute("style")
    return [float(part) for part in re.findall(r"([\d.]+)%, transparent", style)]


def test_colours_of_tokens_grow_evenly_on_both_sides_and_their_sign_is_a_line(desk, tmp_path):
    tokens = {"tokens": ["a", "b", "c", "d", "e"], "token_kl": [-2.0, -1.0, 0.0, 1.0, 2.0]}
    record = {"step": 1, "prompt": "p", "response": "abcde", "reward": 1.0, "length": 5, "finished": True}
    (tmp_path / "run.json").write_text('{"kind": "ppo", "status": "finished"}')
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(record | tokens) + "\n")
    completions = Completions(tmp_path)
    completions.query = {"colour": "KL", "end": True}
    page = desk()
    page.show(completions)
    tokens = page.page.locator(".lab-text [title^=KL]")
    lines = [token.evaluate("(e) => getComputedStyle(e).textDecorationLine") for token in tokens.all()]
    assert lines == ["underline", "underline", "none", "overline", "overline"]
    assert shades(page, ".lab-ramp i[data-sign=minus]") == [45, 22.5, 0]
    assert shades(page, ".lab-ramp i[data-sign=plus]") == [0, 22.5, 45]
    assert page.page.locator(".lab-ramp b").all_inner_texts() == ["-2", "0", "2"]


NAN = float("nan")


def write_metrics(folder, values: dict[str, list], **info) -> str:
    """A finished run folder with a record a step of each metric's values; returns its path."""
    folder.mkdir()
    (folder / "run.json").write_text(
        json.dumps({"kind": "sft", "status": "finished", "name": folder.name} | info)
    )
    records = [
        {"step": i + 1, "time": 1e9 + i} | {name: of_metric[i] for name, of_metric in values.items()}
        for i in range(len(next(iter(values.values()))))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_a_nan_is_marked_the_line_is_broken_and_the_rest_stays(desk, tmp_path):
    loss = [1.0, 0.9, NAN, 0.7, 1e300, 0.5, 0.4]
    spread = [0.1, 0.1, 0.1, 0.1, 0.1, NAN, 0.1]
    run = write_metrics(tmp_path / "run", {"train/loss": loss, "train/loss_std": spread})
    page = desk()
    page.show(Monitor(run, ["train/loss"]))
    chart = page.page.locator(".lab-chart")
    chart.locator(".lab-gap").first.wait_for(state="attached")
    titles = chart.locator(".lab-gap title").all_text_contents()
    assert titles == ["loss: NaN at step 3", "loss: 1e300 at step 5"]
    assert chart.locator(".lab-line").get_attribute("d").count("M") == 3
    assert chart.locator(".lab-band").get_attribute("d").count("Z") == 1
    assert "NaN" not in chart.locator(".lab-plot").inner_html().replace("loss: NaN", "")
    labels = [float(text) for text in chart.locator(".lab-grid text[dy]").all_text_contents()]
    assert min(labels) >= 0 and max(labels) <= 1.2, "the axis is that of the values that can be drawn"
    slider = page.page.get_by_role("slider", name="train/loss")
    slider.focus()
    for key in ("Home", "ArrowRight", "ArrowRight"):
        page.page.keyboard.press(key)
    assert slider.get_attribute("aria-valuetext") == "step 3: loss NaN"


def test_a_run_that_ends_in_nan_says_so_in_place_of_its_last_number(desk, tmp_path):
    page = desk()
    page.show(Monitor(write_metrics(tmp_path / "run", {"train/loss": [1.0, NAN, NAN]}), ["train/loss"]))
    value = page.page.locator(".lab-chart .lab-value b")
    value.wait_for()
    assert value.inner_text() == "NaN"


def test_a_resume_is_a_mark_on_the_chart_and_its_value_is_not_bold(desk, tmp_path):
    run = write_metrics(tmp_path / "run", {"train/loss": [3.0, 2.0, 1.0]}, resumed_at=[2])
    page = desk()
    page.show(Monitor(run, ["train/loss"]))
    value = page.page.locator(".lab-chart .lab-value b")
    value.wait_for()
    assert value.evaluate("(e) => getComputedStyle(e).fontWeight") == "400"
    mark = page.page.locator('.lab-mark[data-kind="resume"]')
    assert mark.locator("title").text_content() == "resumed, step 2"
    assert mark.locator("path").bounding_box()["width"] > 4


ASKED = [("system", "Be kind."), ("user", "Why?"), ("assistant", "So."), ("user", "And then?")]
CHATML = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in ASKED)


def test_a_prompt_is_shown_as_turns_with_the_system_s_folded(desk):
    page = desk()
    page.show(Pairs([{"prompt": CHATML, "chosen": "c", "rejected": "r"}]))
    turns = page.page.locator(".lab-turn").all()
    shown = [(turn.get_attribute("data-role"), turn.locator(".lab-text").text_content()) for turn in turns]
    assert shown == ASKED
    folded = [turn.locator(".lab-text").is_visible() for turn in turns]
    assert folded == [False, True, True, True]


def test_a_prompt_without_a_template_stays_as_it_is(desk):
    page = desk()
    page.show(Pairs([{"prompt": "The user\nuser\nis <|odd|>", "chosen": "c", "rejected": "r"}]))
    assert page.page.locator(".lab-turn .lab-text").all_text_contents() == ["The user\nuser\nis <|odd|>"]


def test_the_reward_is_large_verdicts_are_marks_and_arabic_begins_on_the_right(desk, tmp_path):
    metrics = [{"exact": 1.0, "words": 3.0}, {"exact": 0.0, "words": 1.0}]
    records = [
        {"step": 1, "prompt": "p", "response": "مرحبا بالعالم", "reward": 0.5, "length": 3, "metrics": judged}
        for judged in metrics
    ]
    (tmp_path / "run.json").write_text('{"kind": "grpo", "status": "finished"}')
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    completions = Completions(tmp_path)
    completions.query = {"beside": False}
    page = desk()
    page.show(completions)
    assert page.page.locator(".lab-verdict").all_inner_texts() == ["✓ exact", "✗ exact"]
    first = page.page.locator(".lab-box").first
    assert first.locator(".lab-figures").inner_text().split() == ["tokens", "3", "words", "3"]
    size = "(e) => parseFloat(getComputedStyle(e).fontSize)"
    sizes = [first.locator(where).evaluate(size) for where in (".lab-reward b", ".lab-text", ".lab-figures")]
    assert sizes[0] > sizes[1] > sizes[2]
    assert first.locator(".lab-text").evaluate("(e) => getComputedStyle(e).direction") == "rtl"


def test_a_long_name_is_whole_where_there_is_room(desk, tmp_path):
    names = ["ppo-forms-with-a-long-name-and-seed-1", "ppo-forms-with-a-long-name-and-seed-2"]
    page = desk()
    page.show(
        Monitor(
            [write_metrics(tmp_path / name, {"train/loss": [1.0, 2.0]}) for name in names], ["train/loss"]
        )
    )
    page.page.locator(".lab-chart").first.wait_for()
    cut = "() => [...document.querySelectorAll('.lab-monitor *')].filter((e) => e.checkVisibility() && e.textContent.startsWith('ppo-') && getComputedStyle(e).textOverflow === 'ellipsis' && e.scrollWidth > e.clientWidth).length"
    assert page.page.evaluate(cut) == 0


def test_nine_runs_have_nine_pens_and_their_names_stand_in_one_legend(desk, tmp_path):
    runs = [write_metrics(tmp_path / f"run-{i}", {"train/loss": [1.0, 2.0 + i, 3.0]}) for i in range(9)]
    page = desk()
    page.show(Monitor(runs, ["train/loss"]))
    values = page.page.locator(".lab-chart .lab-value")
    values.nth(8).wait_for()
    pens = values.evaluate_all("(all) => all.map((e) => e.querySelector('svg').outerHTML)")
    assert len(set(pens)) == 9
    visible = [
        name for name in page.page.get_by_text("run-3", exact=True).all() if name.bounding_box()["width"] > 2
    ]
    assert sum(name.evaluate("(e) => Boolean(e.closest('.lab-runs'))") for name in visible) == 1
    assert sum(name.evaluate("(e) => Boolean(e.closest('.lab-chart'))") for name in visible) == 0


def test_a_run_of_three_steps_has_whole_steps_on_its_axis(desk, tmp_path):
    page = desk()
    page.show(Monitor(write_metrics(tmp_path / "run", {"train/loss": [3.0, 2.0, 1.0]}), ["train/loss"]))
    labels = page.page.locator(".lab-chart .lab-grid text[text-anchor=middle]")
    labels.first.wait_for()
    assert labels.all_text_contents() == ["1", "2", "3"]


def test_a_click_brings_the_completions_into_view_and_focus(desk, healthy):
    page = desk(height=420)
    page.show(Monitor(healthy))
    chart = page.page.get_by_role("slider", name="Reward", exact=True)
    chart.focus()
    for key in ("Home", "Enter"):
        page.page.keyboard.press(key)
    page.page.wait_for_function("() => document.activeElement.className === 'lab-texts'")
    top = page.page.locator(".lab-texts").bounding_box()["y"]
    assert 0 <= top < 420


def test_a_change_of_settings_is_a_mark_on_every_chart_and_rounding_is_no_mountain(desk, tmp_path):
    rates, kl = [1e-5, 1e-5, 2e-6, 2e-6], [1e-8, 3e-8, 0.0, 2e-8]
    values = {
        "train_optim/lr": rates,
        "train_rollouts/kl": kl,
        "train_rollouts/rewards": [0.1, 0.2, 0.3, 0.4],
    }
    page = desk()
    page.show(Monitor(write_metrics(tmp_path / "run", values, kind="ppo")))
    charts = page.page.locator(".lab-chart")
    charts.first.locator(".lab-mark").wait_for(state="attached")
    titles = [chart.locator(".lab-mark title").all_text_contents() for chart in charts.all()]
    assert len(titles) >= 2 and all(of == ["learning rate 1e-05 → 2e-06, step 3"] for of in titles)
    line = (
        page.page.locator(".lab-chart", has_text="KL to the reference").locator(".lab-raw").get_attribute("d")
    )
    heights = [float(y) for y in re.findall(r"[ML]\S+ (\S+?)(?=L|$)", line)]
    assert len(heights) == 4 and max(heights) - min(heights) < 1, "of 128 pixels"
