"""The other widgets in the browser: completions, job panel, pairs, chat."""

import json

import pytest
from lab import wait_for

from aligner_lib.run_folder.reader import RunFolder

JOB = """
class Job:
    state, reason, nodes = "RUNNING", "", ("node7",)
    def tail(self, n=20): return "step 1\\n<b>step 2</b>"
    def cancel(self): self.state = "CANCELLED"
job = Job()
"""


def test_completions_are_text_and_all_of_the_history(page, trainer):
    run = trainer("run", steps=30)
    wait_for(lambda: run.is_over, 60)
    page.show("texts.ipynb", f"from widgets import Completions\nCompletions({str(run.path)!r})")
    cards = page.page.locator(".lab-card")
    wait_for(lambda: cards.count() == 4, 60)
    assert "<script>window.stolen = 2</script>" in page.page.locator(".lab-cards").inner_text()
    assert page.page.evaluate("() => window.stolen") is None
    assert page.page.locator(".lab-cards script, .lab-cards img").count() == 0
    page.page.get_by_label("step", exact=True).press("Home")
    page.page.get_by_text("train · step 1", exact=True).first.wait_for()
    page.page.get_by_label("every step").check()
    page.page.get_by_text("1 to 8 of 120").wait_for()
    page.page.get_by_label("find text").fill("boil an egg")
    page.page.get_by_text("1 to 8 of 30").wait_for()
    page.page.get_by_label("sorted by").select_option("best reward")
    wait_for(lambda: len(found := rewards(page)) == 8 and found == sorted(found, reverse=True), 60)
    page.page.get_by_text("first answer · step 1").first.wait_for()
    page.page.get_by_label("first answer beside it").uncheck()
    page.page.get_by_text("first answer · step 1").first.wait_for(state="detached")


def test_colours_have_one_scale_with_its_numbers_on_both_sides(page, trainer):
    run = trainer("run", steps=30, validate=10)
    wait_for(lambda: run.is_over, 60)
    page.show("colours.ipynb", f"from widgets import Completions\nCompletions({str(run.path)!r})")
    page.page.get_by_text("validation · step 30", exact=True).first.wait_for()
    page.page.get_by_label("tokens by").select_option("KL")
    page.page.get_by_text("These responses have no KL of their tokens").wait_for()
    page.page.get_by_label("prompts").select_option("train")
    card = page.page.locator(".lab-card").first
    wait_for(lambda: card.locator(".lab-box").count() == 2, 60)
    sides = card.locator(".lab-box").all()
    wait_for(
        lambda: all(side.locator("span[title^='KL']").count() for side in sides),
        60,
        "one side has no colours",
    )
    low, middle, high = page.page.locator(".lab-ramp b").all_inner_texts()
    assert float(low) == -float(high) < float(middle) == 0
    strengths = page.page.evaluate(
        """() => [...document.querySelectorAll('.lab-text span[title^=KL]')].map(
            (e) => [Math.abs(Number(e.title.slice(3).replace('−', '-'))), Number(e.style.background.match(/([\\d.]+)%/)[1])])"""
    )
    by_weight = [strength for _, strength in sorted(strengths)]
    assert by_weight == sorted(by_weight), "the same weight has the same colour in every response"


def grouped_run(path):
    """Two groups of four responses: one of them failed, and one group is alike."""
    path.mkdir()
    (path / "run.json").write_text(json.dumps({"name": "groups", "kind": "grpo", "status": "finished"}))
    rewards = [[0.0, 1.0, None, 0.5], [0.25] * 4]
    records = [
        {
            "step": 1,
            "split": "train",
            "prompt": f"prompt {group}",
            "response": f"<b>{reward}</b>",
            "reward": reward,
        }
        | {"length": 2, "finished": True, "group": group, "environment": ["sums", "form"][group], "turns": 1}
        | {"metrics": {"exact": reward or 0}, "kl": 0.0, "tokens": ["<b>", "x"], "token_kl": [0.0, 0.1]}
        | {"token_advantage": [0.0 if reward is None or group else reward - 0.5] * 2}
        | ({"failure": "timeout"} if reward is None else {})
        for group, of_group in enumerate(rewards)
        for reward in of_group
    ]
    (path / "rollouts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_responses_to_a_prompt_are_beside_each_other(page, tmp_path):
    run = grouped_run(tmp_path / "groups")
    page.show("groups.ipynb", f"from widgets import Completions\nCompletions({str(run)!r})")
    cards = page.page.locator(".lab-card")
    wait_for(lambda: cards.count() == 2, 60)
    first = cards.nth(0)
    assert first.locator(".lab-group .lab-name").all_inner_texts() == ["best", "", "worst", ""]
    assert "rewards 0 to 1, mean 0.5" in first.inner_text() and "failed: timeout" in first.inner_text()
    moves = [box.get_attribute("data-moves") for box in first.locator(".lab-group .lab-box").all()]
    assert moves == ["up", "not", "down", "failed"]
    assert "all 4 rewards are 0.25: nothing to learn from" in cards.nth(1).inner_text()
    page.page.get_by_label("environment").select_option("form")
    wait_for(lambda: cards.count() == 1, 60)
    page.page.get_by_label("environment").select_option("")
    wait_for(lambda: cards.count() == 2, 60)  # the page is written anew; a click before that is lost
    page.page.get_by_label("groups together").uncheck()
    wait_for(lambda: cards.count() == 8, 60)


TABLES = """
from IPython.display import HTML, display
from widgets import compare_runs, show_completions
display(HTML("<p id='formula'>$x^2$</p>"), show_completions({run!r}), compare_runs([{run!r}, {run!r}]))
"""


def test_static_tables_are_readable_in_jupyterlab_and_dollars_are_no_formula(page, tmp_path):
    text = "It costs $5 at first, and $10 later. " * 4
    record = {"step": 1, "prompt": "Why $5 and not $10?", "response": text, "reward": 0.5, "length": 3}
    run = tmp_path / "$5 or $10"
    run.mkdir()
    (run / "run.json").write_text('{"kind": "sft", "status": "finished"}')
    (run / "rollouts.jsonl").write_text(json.dumps(record) + "\n")
    (run / "metrics.jsonl").write_text('{"step": 1, "time": 1.0, "train/loss": 2.0}\n')
    page.lab.write("tables.ipynb", TABLES.format(run=str(run)))
    page.open("tables.ipynb").run_all()
    page.page.locator("#formula mjx-container").wait_for(state="attached")  # MathJax has been here
    table, compared = page.page.locator("table.lab-table").all()
    assert page.page.locator("table.lab-table mjx-container").count() == 0
    cells = table.locator("tbody td")
    assert cells.nth(0).inner_text() == "Why $5 and not $10?" and cells.nth(1).inner_text() == text
    style = "(e) => { const s = getComputedStyle(e); return [s.textAlign, s.verticalAlign]; }"
    assert [cells.nth(i).evaluate(style) for i in (0, 1)] == [["start", "top"]] * 2
    assert cells.nth(2).evaluate(style) == ["right", "top"]
    assert {one.evaluate("(e) => getComputedStyle(e).tableLayout") for one in (table, compared)} == {"auto"}
    widths = [cell.bounding_box()["width"] for cell in cells.all()]
    assert widths[1] > 2 * widths[2], "a text has more room than a number"
    assert "$5 or $10 − $5 or $10" in compared.inner_text()


def rewards(page) -> list[float]:
    return [float(text) for text in page.page.locator(".lab-box:last-child .lab-reward b").all_inner_texts()]


def test_completions_follow_the_run_and_survive_a_reload(page, trainer):
    run = trainer("run", steps=300, seconds=0.2)
    page.show("follow.ipynb", f"from widgets import Completions\nCompletions({str(run.path)!r})")
    first = page.page.locator(".lab-step output").inner_text()
    wait_for(lambda: page.page.locator(".lab-step output").inner_text() != first, 60, "no new step came")
    page.save()
    page.reload()
    page.page.get_by_text(", the latest").wait_for()
    assert page.page.locator(".lab-card").count() == 4


def test_the_panel_steers_a_running_job(page, trainer):
    run = trainer("run", steps=3000, seconds=0.1)
    page.show("panel.ipynb", JOB, f"from widgets import JobPanel\nJobPanel({str(run.path)!r}, job)")
    assert "<b>step 2</b>" in page.page.get_by_role("region", name="end of the log").inner_text()
    page.page.get_by_role("button", name="Checkpoint now").click()
    wait_for(run.latest_checkpoint, 60, "no checkpoint")
    page.page.get_by_label("KL coefficient", exact=True).fill("0.05")
    page.page.get_by_label("KL coefficient", exact=True).press("Enter")
    wait_for(lambda: run.metrics()[-1]["train_rollouts/kl_coef"] == 0.05, 60, "the run did not take it over")
    page.page.get_by_label("KL coefficient", exact=True).fill("0.02")
    page.page.get_by_role("button", name="set KL coefficient").click()
    wait_for(lambda: run.metrics()[-1]["train_rollouts/kl_coef"] == 0.02, 60, "the run did not take it over")
    assert not (run.path / "control" / "set.json").exists()
    page.page.get_by_role("button", name="Cancel").click()
    page.page.get_by_role("button", name="Cancel without a checkpoint?").click()
    page.page.get_by_text("cancelled").first.wait_for()
    page.page.get_by_role("button", name="Cancel").wait_for(state="hidden")
    page.page.get_by_role("button", name="Stop after this step").click()
    wait_for(lambda: run.status == "stopped", 60, "the run did not stop")
    panel = page.page.locator(".lab-panel")
    wait_for(lambda: panel.locator("button:visible").count() == 0, 60, "a button of a run that is over")
    assert "It ends after this step" not in panel.inner_text()


def test_pairs_and_chat(page, tmp_path):
    pairs = [{"prompt": f"question {i}", "chosen": "<i>good</i>", "rejected": "bad"} for i in range(12)]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    code = f"import json\nfrom widgets import Pairs, Chat\npairs = json.load(open({str(tmp_path / 'pairs.json')!r}))"
    pairs_cell = "Pairs(pairs, scores=[(1, 0)] * 11 + [(0, 1)])"
    chat_cell = "Chat({'SFT': str.upper, 'broken': lambda p: 1 / 0}, score=lambda p, r: len(r))"
    page.show("talk.ipynb", code, pairs_cell, chat_cell)
    page.page.get_by_text("1 to 5 of 12").wait_for()
    page.page.get_by_label("where the reward model disagrees").check()
    page.page.get_by_text("1 to 1 of 1", exact=True).wait_for()
    assert "<i>good</i>" in page.page.locator(".lab-paged .lab-card").inner_text()
    page.page.get_by_label("your message").fill("say <b>hello</b>")
    page.page.get_by_label("your message").press("Enter")
    page.page.get_by_text("SAY <B>HELLO</B>", exact=True).wait_for()
    page.page.get_by_text("ZeroDivisionError: division by zero").wait_for()


def test_a_finished_run_can_be_explored_offline(page, healthy):
    page.lab.write("explore.ipynb", f"from widgets import explore\nexplore({str(healthy)!r})")
    page.open("explore.ipynb").run_all()
    drag = page.page.locator(".jp-RenderedPlotly .nsewdrag").first
    drag.wait_for()
    x = "() => document.querySelector('.jp-RenderedPlotly').calcdata[0].map(point => point.x)"
    assert page.page.evaluate(x) == list(range(1, 21))
    drag.hover(position={"x": 120, "y": 60})
    page.page.locator(".hoverlayer .legend, .hoverlayer .hovertext").first.wait_for()
    assert page.beyond() == []


def test_explore_keeps_its_height_when_the_sidebar_or_the_window_changes(page, healthy):
    page.lab.write("height.ipynb", f"from widgets import explore\nexplore({str(healthy)!r})")
    page.open("height.ipynb").run_all()
    page.page.locator(".jp-RenderedPlotly .nsewdrag").first.wait_for()
    plot = page.page.locator(".jp-RenderedPlotly .svg-container")
    width, height = (plot.bounding_box()[side] for side in ("width", "height"))
    assert height > 300
    page.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    wait_for(lambda: plot.bounding_box()["width"] != width, 60, "the plot did not take the room")
    assert plot.bounding_box()["height"] == height
    wide = plot.bounding_box()["width"]
    page.page.set_viewport_size({"width": 900, "height": 700})
    wait_for(lambda: plot.bounding_box()["width"] < wide, 60, "the plot did not follow the window")
    assert plot.bounding_box()["height"] == height
    page.page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_accessible(page, healthy, theme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    run = str(RunFolder(healthy).path)
    code = f"from widgets import *\nfrom IPython.display import display\ndisplay(Monitor({run!r}), Completions({run!r}), JobPanel({run!r}, job))"
    talk = "display(Chat({'a': str.upper}), Pairs([{'prompt': 'p', 'chosen': 'c', 'rejected': 'r'}], scores=[(1, 0)]))"
    page.show("axe2.ipynb", JOB, code, talk)
    page.page.locator(".lab-chat").wait_for()
    page.page.get_by_label("tokens by").select_option("KL")
    page.page.locator(".lab-text span[title^='KL']").first.wait_for()
    page.theme(theme)
    found = axe.Axe().run(page.page, context=".lab-widget").response["violations"]
    assert [
        (v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")
    ] == []


REACH = """() => {
    const all = "button, input, select, textarea, summary, a[href], [tabindex='0']";
    return [...document.querySelectorAll(".lab-widget")].flatMap((widget) => [...widget.querySelectorAll(all)])
        .filter((e) => !e.disabled && e.checkVisibility() && !(e.type === "radio" && !e.checked));
}"""


def test_every_control_is_reached_by_tab_and_nothing_is_cut_at_800_pixels(page, healthy):
    run = str(RunFolder(healthy).path)
    code = f"from widgets import *\nfrom IPython.display import display\ndisplay(Monitor({run!r}), Completions({run!r}), JobPanel({run!r}, job))"
    talk = "display(Chat({'a': str.upper}), Pairs([{'prompt': 'p', 'chosen': 'c', 'rejected': 'r'}] * 12, scores=[(1, 0)] * 12))"
    page.page.set_viewport_size({"width": 800, "height": 900})
    page.show("keys.ipynb", JOB, code, talk)
    page.page.locator(".lab-chat").wait_for()
    page.page.locator(".lab-paged .lab-card").first.wait_for()
    for name, count in {"lab-paged": 2, "lab-panel": 1, "lab-chat": 1}.items():
        assert page.page.locator(f".{name}").count() == count, name
    wide = "() => [...document.querySelectorAll('.lab-widget')].filter((w) => w.scrollWidth > w.clientWidth).map((w) => w.className)"
    assert page.page.evaluate(wide) == []
    controls = page.page.evaluate(f"() => (window.controls = ({REACH})()).length")
    assert controls > 20
    page.page.evaluate("() => window.controls[0].focus()")
    reached = {0}
    for _ in range(2 * controls):
        page.page.keyboard.press("Tab")
        reached.add(page.page.evaluate("() => window.controls.indexOf(document.activeElement)"))
    names = page.page.evaluate("() => window.controls.map((e) => e.ariaLabel || e.textContent || e.id)")
    assert [name for i, name in enumerate(names) if i not in reached] == []
