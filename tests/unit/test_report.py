"""The top of the tutorial's report, and the portfolio: what is on them, and what must not be."""

import html
import json
import math
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_markdown_cell, new_notebook
from pages import external_references

from aligner_lib.errors import UserError
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial import Workspace, write_portfolio
from aligner_lib.tutorial.comparison.evaluation import evaluate_policies, recorded_evaluation
from aligner_lib.tutorial.comparison.statistics import NOT_IDENTIFIABLE
from aligner_lib.tutorial.execution import run_notebooks
from aligner_lib.tutorial.report.html_page import STYLE
from aligner_lib.tutorial.report.html_report import write_report
from aligner_lib.tutorial.report.stages import stages_table
from aligner_lib.tutorial.report.summary import summary_section
from aligner_lib.tutorial.workspace import learning_progress
from aligner_lib.tutorial.workspace.learning_progress import record_answer, record_exercise
from aligner_lib.tutorial.workspace.results import read_results
from widgets.share.page import write_page


def write_run(folder: Path, metrics: list[dict], rollouts: list[dict] = ()) -> None:
    folder.mkdir(parents=True)
    for name, records in (("metrics", metrics), ("rollouts", rollouts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def answers(step: int, *rewards: float, **more) -> list[dict]:
    """A validation in which prompt i got rewards[i]."""
    record = {"step": step, "split": "validation", "finished": True} | more
    return [
        record
        | {"prompt": f"Question {i}\n\nAssistant:", "response": f"<b>answer {i} of step {step}</b>"}
        | {"reward": reward}
        for i, reward in enumerate(rewards)
    ]


def top_of(summary: dict, folder: Path) -> str:
    return summary_section(summary, folder).split("<details>")[0]


SUMMARY = {
    "profile": "laptop",
    "seconds": {"03": 90.0, "05": 150.0},
    "sft": {"val_loss_before": 2.5, "val_loss_after": 2.0},
    "rm": {"val_acc": 0.875},
    "ppo": {"val_reward_sft": -0.25, "val_reward_ppo": 0.5, "val_reward_sft_std": 0.5, "kl_per_token": 0.08},
}


def test_the_report_opens_with_a_row_for_each_stage_that_was_reached(tmp_path):
    top = top_of(SUMMARY, tmp_path)
    figures = ["2.50 → 2.00", "88 %", "a coin: 50 %", "−0.25 → 0.50", "+1.5 standard deviations", "0.08 nats"]
    assert [figure for figure in [*figures, "profile laptop · 4 min"] if figure not in top] == []
    assert re.findall(r'<th scope="rowgroup"[^>]*>([^<]*)</th>', top) == ["SFT", "Reward model", "PPO"]
    without_figure = ("scores higher", "DPO", "GRPO", "checked by a program", "end before the length limit")
    assert [words for words in (*without_figure, "val_loss_before") if words in top] == []


def test_a_row_is_drawn_to_its_scale(tmp_path):
    """Of the loss from 0, of shares from 0 to 100 %, of rewards within two deviations of the first one."""
    grpo = {"val_accuracy_before": 0.25, "val_accuracy_after": 0.75, "val_best_of_4_before": 0.5}
    top = top_of(SUMMARY | {"grpo": grpo}, tmp_path)
    drawings = re.findall(r'<svg viewBox="0 0 260 26".*?</svg>', top)
    places = [[float(x) for x in re.findall(r'cx="([\d.]+)"', drawing)] for drawing in drawings]
    assert places == [[252, 203.2], [221.5], [130, 221.5], [69, 191]]  # the axis is from 8 to 252
    baselines = [re.findall(r'class="baseline" d="M([\d.]+)', drawing) for drawing in drawings]
    assert baselines == [[], ["130.0"], [], ["130.0"]]
    label = "GRPO, held-out sums right: 25 % → 75 %; untrained, the best of 4: 50 %"
    assert f'aria-label="{label}"' in drawings[3]


@pytest.mark.parametrize("figure", [None, math.nan, math.inf])
def test_a_figure_of_a_diverged_run_has_no_row(tmp_path, figure):
    """results/NN.json has null for NaN."""
    stages = {"sft": {"val_loss_before": 2.0, "val_loss_after": figure}, "rm": {"val_acc": figure}}
    stages["ppo"] = {
        "val_reward_sft": 0.1,
        "val_reward_ppo": figure,
        "win_rate": figure,
        "kl_per_token": figure,
    }
    stages["dpo"] = {"val_acc": 0.5, "val_margin": figure}
    (row,) = re.findall(r'<th scope="rowgroup".*?</tr>', stages_table(stages))
    assert ">50 %<" in row and "margin" not in row
    assert "price" not in stages_table(stages)


@pytest.mark.parametrize(
    ("low", "verdict"),
    [(0.06, "a gain of at least 6 points"), (-0.01, "includes 0 or lies below 0, so no gain is shown")],
)
def test_figures_of_the_gold_standard_stand_beside_what_is_had_for_nothing(tmp_path, low, verdict):
    ppo = {"good_sft": 0.41, "good_ppo": 0.555, "good_gain_low": low, "ended_sft": 0.9}
    rm = {"val_acc": 0.78, "best_baseline": 0.68}
    top = top_of({"rm": rm, "ppo": ppo, "gold": {"best_constant": 0.01}}, tmp_path)
    baselines = ("the best trivial judge: 68 %", "the best constant answer: 1 %")
    for words in ("41 % → 56 %", "90 %", "78 %", verdict, *baselines):
        assert words in top, words
    assert "a coin: 50 %" not in top


def test_the_report_s_picture_is_of_the_runs_that_are_there(tmp_path):
    records = [{"step": 0, "validation/loss": 2.54}, {"step": 12, "validation/loss": 2.47}]
    write_run(tmp_path / "sft", records)
    section = summary_section(SUMMARY, tmp_path)
    assert (
        section.count("<polyline") == 1 and 'aria-label="SFT: loss: 2.54 at first, 2.47 at last"' in section
    )
    assert re.findall(r'dy="0.32em" text-anchor="end">([^<]*)<', section) == ["2.47", "2.54"]
    (points,) = re.findall(r'class="strong" points="([^"]*)"', section)
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points.split())
    assert x0 < x1 and y0 < y1, "from the upper left to the lower right: the loss falls"
    shutil.rmtree(tmp_path / "sft")
    write_run(
        tmp_path / "sft", [*records, {"step": 13, "validation/loss": math.nan}, records[0] | {"step": 24}]
    )
    split = summary_section(SUMMARY, tmp_path)
    assert split.count("<polyline") == 2 and "nan" not in split
    assert 'points="242.0,8.0 242.0,8.0"' in split, "the point alone is a dot"
    shutil.rmtree(tmp_path / "sft")
    write_run(tmp_path / "sft", [{"step": step, "validation/loss": -0.6931 - step / 1e4} for step in (0, 1)])
    labels = re.findall(r'<text x="(.*?)" .*? dy="0.32em" .*?>(.*?)<', summary_section(SUMMARY, tmp_path))
    assert labels == [("44.8", "-0.6932"), ("44.8", "-0.6931")], "7 characters of 6.4 pixels"


LINKS = {
    "[next](01_next.ipynb#part)": '<a href="#01_next">next</a>',
    "[**gone**](./07_grpo.ipynb)": "<strong>gone</strong>",
    "[docs](../../docs/data.md)": "docs",
    "[web](https://a.org)": '<a href="https://a.org">web</a>',
}


def test_a_link_in_the_report_leads_within_the_page_or_to_the_web_or_is_text(tmp_path):
    for name, text in (("00_start", " | ".join(LINKS)), ("01_next", "")):
        nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), tmp_path / f"{name}.ipynb")
    write_report(tmp_path / "report.html", sorted(tmp_path.glob("*.ipynb")), {}, tmp_path / "runs")
    assert f"<p>{' | '.join(LINKS.values())}</p>" in (tmp_path / "report.html").read_text()


def test_notebooks_that_ran_elsewhere_get_a_report(tmp_path):
    with pytest.raises(UserError, match=r"has neither results/ nor runs/ of notebooks: give the folder"):
        run_notebooks.report(tmp_path, write_page)
    for folder in ("results", "notebooks"):
        (tmp_path / folder).mkdir()
    (tmp_path / "results" / "03.json").write_text(json.dumps({"sft": SUMMARY["sft"]}))
    write_run(tmp_path / "runs" / "sft", [{"step": 0, "time": 1.0, "validation/loss": 2.5}])
    (tmp_path / "runs" / "sft" / "run.json").write_text('{"name": "sft", "kind": "sft", "profile": "laptop"}')
    nbformat.write(
        new_notebook(cells=[new_markdown_cell("My cell")]), tmp_path / "notebooks" / "03_sft.ipynb"
    )
    page = run_notebooks.report(tmp_path, write_page).read_text()
    for words in ("2.50 → 2.00", "profile laptop", "My cell", 'href="pages/sft.html"'):
        assert words in page, words
    assert (tmp_path / "pages" / "sft.html").exists()


def test_answers_before_and_after_go_from_the_largest_gain_to_the_smallest(tmp_path):
    before, after = answers(0, *[0.0] * 9), answers(6, *[gain / 10 for gain in range(-4, 5)])
    write_run(tmp_path / "ppo", [], before + after)
    section = summary_section(SUMMARY, tmp_path)
    assert re.findall(r"Question (\d)", section) == ["8", "4", "0"]
    assert "&lt;b&gt;answer 8 of step 6&lt;/b&gt;" in section and "<b>answer" not in section
    assert "3 of 9 held-out prompts of PPO's validation" in section
    assert section.count('dir="auto">') == 3 * 3, (
        "Arabic begins on the right, in a prompt and its two answers"
    )


def test_the_colours_of_a_terminal_s_output_have_a_dark_variant():
    light, dark = (set(re.findall(r"(--\w+):", block)) for block in STYLE.split("@media")[:2])
    colours = re.findall(r"\.ansi-\w+-fg { color: ([^;]+)", STYLE)
    assert len(colours) == 4 and {colour[4:-1] for colour in colours} <= light & dark


QUESTIONS = [
    f'How do I sow {plant}? Use the word "damp".'
    for plant in ("carrots", "beans", "peas", "kale", "leeks", "beets")
]


def evaluated(lab: Workspace, good: dict[str, int]) -> dict[str, RunFolder]:
    """Evaluations in which a policy's first answers are good. good: their number of the six, by policy."""
    runs = {}
    common = {"step": 0, "split": "evaluation", "finished": True, "length": 9, "token_kl": [0.1] * 9}
    for name, count in good.items():
        records = []
        for i, question in enumerate(QUESTIONS):
            plant, is_good = question.split()[4].rstrip("?").title(), float(i < count)
            answer = f"{plant}: sow {'damp' if is_good else 'dry'} seed {i} rows apart."
            for environment, group, turn, response, metric in (
                ("conversations", i, question, answer, "obeys"),
                ("sums", 6 + i, "3 + 5 =", "8", "exact"),
            ):
                texts = {"prompt": f"User: {turn}\n\nAssistant:", "response": response}
                judgement = {"reward": is_good, "metrics": {metric: is_good}}
                records.append(common | texts | judgement | {"environment": environment, "group": group})
        runs[name] = lab.run(f"evaluate-{name.lower()}")
        write_run(runs[name].path, [], records)
    return runs


def test_notebook_08_the_report_and_the_portfolio_show_one_record(tmp_path):
    """PPO's validation has other prompts and other figures, which must not stand beside those of the evaluation."""
    lab = Workspace(tmp_path, "smoke")
    write_run(tmp_path / "runs" / "ppo", [], answers(0, *[0.0] * 9) + answers(6, *[1.0] * 9))
    validation = {"good_sft": 0.11, "good_ppo": 0.99, "val_reward_sft": -7.0, "val_reward_ppo": 7.0}
    lab.record("05", {"ppo": validation})
    lab.record("07", {"grpo": {"val_accuracy_before": 0.07, "val_accuracy_after": 0.93}})
    runs = evaluated(lab, {"downloaded": 1, "SFT": 2, "DPO": 3, "GRPO": 6, "PPO": 5})
    evaluation = evaluate_policies({name: [run] for name, run in runs.items()}, seed=1)
    results = evaluation.results()
    results["evaluation"]["captions"]["sums"] = "5 answers to 3 held-out prompts; wins against SFT"
    lab.record("08", results)
    report = top_of(read_results(tmp_path, print), tmp_path / "runs")
    portfolio = write_portfolio(tmp_path / "p.html", tmp_path).read_text()
    texts = [*evaluation.conclusion.splitlines()]
    texts += [answer.verdict for prompt in evaluation.drawn for answer in prompt.answers.values()]
    # good: PPO, DPO; GRPO's sums; reward
    shares = ("33 % → 83 %", "33 % → 50 %", "17 % → 100 %", "0.33 → 0.83")
    for page in (report, portfolio):
        source = "conversations: 6 answers to 6 held-out prompts; sums: 5 answers to 3 held-out prompts)"
        assert source in page
        assert evaluation.table._repr_html_() in page and evaluation.picture._repr_html_() in page
        assert [text for text in texts if html.escape(text) not in page] == []
        plants = [prompt.turn.split()[4][:-1] for prompt in evaluation.drawn]
        assert re.findall(r"How do I sow (\w+)\?", page) == plants
        assert [share for share in shares if share not in page] == []
        assert [other for other in ("99 %", "11 %", "7.00", "93 %", "Question") if other in page] == []


def test_a_record_without_an_interval_is_read_as_it_was_written(tmp_path):
    labs = [Workspace(folder, "smoke") for folder in (tmp_path / "seed-7", tmp_path)]
    good = {"downloaded": 0, "SFT": 0, "DPO": 3, "GRPO": 6, "PPO": 6}
    *_, lab = labs
    again, runs = (evaluated(lab, good) for lab in labs)
    evaluation = evaluate_policies({name: [run, again[name]] for name, run in runs.items()}, seed=1)
    evaluation.conversations.figures["PPO"]["win_rate_at_equal_length"] = NOT_IDENTIFIABLE
    lab.record("08", evaluation.results())
    recorded = recorded_evaluation(read_results(tmp_path, print))
    assert "not identifiable" in repr(evaluation.table)
    assert repr(recorded.table) == repr(evaluation.table) and recorded.drawn == evaluation.drawn
    older = {"evaluation": {"conversations": {}, "sums": {}}}  # of an older notebook
    assert recorded_evaluation(older) is None


CHATML = "system\nYou are a helpful AI assistant\nuser\nWhy?\nassistant\n"


@pytest.mark.parametrize("prompt", [CHATML, "user\nWhy?\nassistant", "Why?\n\nAssistant:"])
def test_a_prompt_is_shown_without_its_template(tmp_path, prompt):
    records = [record | {"prompt": prompt} for step in (0, 6) for record in answers(step, 0.0)]
    write_run(tmp_path / "ppo", [], records)
    assert '<p class="prompt" dir="auto">Why?</p>' in summary_section({}, tmp_path)


def test_an_answer_without_a_reward_is_in_no_comparison(tmp_path):
    before, (first, second) = answers(0, 0.0, 0.0), answers(6, 1.0, 2.0)
    write_run(tmp_path / "ppo", [], [*before, first, second | {"reward": None, "failure": "timeout"}])
    assert "1 of 1 held-out prompts" in summary_section(SUMMARY, tmp_path)


USER, HOST, TOKEN = "ada.lovelace", "seat-17.example.org", "hf_veryprivate"


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The workspace of a named user on a named machine, with everything in it."""
    monkeypatch.setattr(learning_progress, "_workspace", None)
    for variable, value in (("USER", USER), ("LOGNAME", USER), ("HF_TOKEN", TOKEN)):
        monkeypatch.setenv(variable, value)
    lab, home = Workspace(tmp_path / "home" / USER / "runs", "smoke"), f"/home/{USER}"
    private = {"path": f"{home}/models", "token": TOKEN, "host": HOST}
    for kind in ("sft", "ppo"):
        folder = lab.out / "runs" / kind
        drawn = answers(0, 0.0, prompt_file=f"{home}/data") + answers(9, 1.0, prompt_file=f"{home}/data")
        write_run(folder, [{"step": 0, "validation/loss": 2.5}, {"step": 9, "validation/loss": 2.0}], drawn)
        info = {"kind": kind, "status": "finished", "seed": 7, "profile": "smoke", "created": 1.0, "pid": 1}
        info |= {"heartbeat": {"step": 9, "time": 1.0}, "message": f"at {home}"}
        info |= {"hashes": {f"{home}/a": TOKEN}, "versions": {"torch": "2.15.0", "host": HOST}} | private
        info |= {"config": {"model": {"optim": {"lr": 5e-5}} | private}}
        (folder / "run.json").write_text(json.dumps(info))
    lab.record("01", {"model": {"name": f"{home}/models/own", "parameters": 3}})
    lab.record("03", {"sft": {"val_loss_before": 2.5, "val_loss_after": 2.0, "run": f"{home}/x"}})
    record_exercise("gae", True)
    record_exercise("masked_loss", False)
    record_answer("03", "stop-token", 0, True)
    return lab


def test_the_portfolio_shows_results_opens_offline_and_names_neither_machine_nor_user(lab, tmp_path):
    page = write_portfolio(tmp_path / "p.html", lab.out).read_text()
    assert external_references(page) == [] and "<h1>Portfolio</h1>" in page
    assert re.search('<div class="wide"><style>[^<]*</style><table class="lab-progress"', page)
    assert "<code>gae</code>" in page and "masked_loss" not in page
    assert "1 of 5" in page and "2.50 → 2.00" in page and page.count("reward +") == 2
    assert 'aria-label="SFT: loss: 2.5 at first, 2 at last"' in page
    assert "finished, step 9, learning rate 5e-05, seed 7, profile smoke" in page and "torch 2.15.0" in page
    for private in (USER, HOST, TOKEN, str(tmp_path), "/home", os.uname().nodename + ".", os.getcwd()):
        assert private not in page, private
    named = write_portfolio(tmp_path / "p.html", lab.out, "Grace <Hopper>").read_text()
    assert "<h1>Grace &lt;Hopper&gt;</h1>" in named


def test_half_of_a_surrogate_pair_in_an_answer_is_in_the_portfolio_and_the_report(tmp_path):
    before, after = answers(0, 0.0), answers(6, 1.0)
    write_run(tmp_path / "runs" / "ppo", [], before + [after[0] | {"response": "Great \ud83d"}])
    write_report(tmp_path / "report.html", [], SUMMARY, tmp_path / "runs")
    write_portfolio(tmp_path / "portfolio.html", tmp_path)
    for page in ("report", "portfolio"):
        assert r"Great \ud83d" in (tmp_path / f"{page}.html").read_text(encoding="utf-8")


def test_an_empty_workspace_has_a_portfolio_too(tmp_path):
    page = write_portfolio(tmp_path / "p.html", tmp_path).read_text()
    assert "Progress" in page and "Results" not in page and "Answers of the policies" not in page
