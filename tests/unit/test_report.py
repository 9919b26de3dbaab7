"""The top of the tutorial's report, and the portfolio: what is on them, and what must not be."""

import json
import os
import re
from pathlib import Path

import pytest
from pages import external_references

from aligner_lib.tutorial import Workspace, write_portfolio
from aligner_lib.tutorial.report.summary import summary_section
from aligner_lib.tutorial.workspace import learning_progress
from aligner_lib.tutorial.workspace.learning_progress import record_answer, record_exercise


def write_run(folder: Path, metrics: list[dict], rollouts: list[dict] = ()) -> None:
    folder.mkdir(parents=True)
    for name, records in (("metrics", metrics), ("rollouts", rollouts)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def answers(step: int, *rewards: float, prompt="Question {}\n\nAssistant:", **more) -> list[dict]:
    """A validation in which prompt i got rewards[i]."""
    record = {"step": step, "split": "validation", "finished": True} | more
    texts = [(prompt.format(i), f"<b>answer {i} of step {step}</b>") for i in range(len(rewards))]
    return [
        record | {"prompt": text, "response": response, "reward": reward}
        for (text, response), reward in zip(texts, rewards)
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


@pytest.mark.parametrize(
    ("low", "said"),
    [
        (0.06, "a gain of at least 6 points"),
        (-0.01, "95 % interval of the gain includes 0, so the gain may be chance"),
    ],
)
def test_figures_of_the_gold_standard_stand_beside_what_is_had_for_nothing(tmp_path, low, said):
    ppo = {"good_sft": 0.41, "good_ppo": 0.555, "good_gain_low": low, "ended_sft": 0.9}
    gold = {"best_constant": 0.01}
    top = top_of({"rm": {"val_acc": 0.78, "best_baseline": 0.68}, "ppo": ppo, "gold": gold}, tmp_path)
    cheat = "the best constant answer: 1 %"
    for figure in ("41 % → 56 %", "90 %", "78 %", "the best trivial judge: 68 %", said, cheat):
        assert figure in top, figure
    assert "a coin: 50 %" not in top


def test_the_report_s_picture_is_of_the_runs_that_are_there(tmp_path):
    write_run(tmp_path / "sft", [{"step": 0, "validation/loss": 2.5}, {"step": 12, "validation/loss": 2.0}])
    section = summary_section(SUMMARY, tmp_path)
    assert section.count("<polyline") == 1 and 'aria-label="SFT: loss: 2.5 at first, 2 at last"' in section
    (points,) = re.findall(r'class="strong" points="([^"]*)"', section)
    (x0, y0), (x1, y1) = (tuple(map(float, point.split(","))) for point in points.split())
    assert x0 < x1 and y0 < y1, "from the upper left to the lower right: the loss falls"


def test_answers_before_and_after_go_from_the_largest_gain_to_the_smallest(tmp_path):
    before, after = answers(0, *[0.0] * 9), answers(6, *[gain / 10 for gain in range(-4, 5)])
    write_run(tmp_path / "ppo", [], before + after)
    section = summary_section(SUMMARY, tmp_path)
    assert re.findall(r"Question (\d)", section) == ["8", "4", "0"]
    assert "&lt;b&gt;answer 8 of step 6&lt;/b&gt;" in section and "<b>answer" not in section
    assert "3 of 9 held-out prompts" in section


def test_three_policies_answer_beside_each_other_where_they_were_evaluated(tmp_path):
    for name, rewards in {"sft": (0, 0), "dpo": (0.5, -1), "ppo": (1, 2), "grpo": (0, 0)}.items():
        records = answers(0, *rewards, environment="conversations")
        sums = answers(0, 0.0, environment="sums", prompt="3 + 5 =")
        write_run(tmp_path / f"evaluate-{name}", [], sums + records + records[:1])
    section = summary_section(SUMMARY, tmp_path)
    assert re.findall(r"<h3>(\w+) ", section) == ["SFT", "PPO", "DPO"] * 2
    rewards = ["+0.00", "+2.00", "−1.00", "+0.00", "+1.00", "+0.50"]
    assert re.findall(r"reward ([+−][^<]+)<", section) == rewards
    assert re.findall(r"Question (\d)", section) == ["1", "0"] and "3 + 5" not in section


CHATML = "system\nYou are a helpful AI assistant\nuser\nWhy?\nassistant\n"


@pytest.mark.parametrize("prompt", [CHATML, "user\nWhy?\nassistant", "Why?\n\nAssistant:"])
def test_a_prompt_is_shown_without_its_template(tmp_path, prompt):
    write_run(tmp_path / "ppo", [], answers(0, 0.0, prompt=prompt) + answers(6, 0.0, prompt=prompt))
    assert '<p class="prompt">Why?</p>' in summary_section({}, tmp_path)


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
        write_run(folder, [{"step": 0, "validation/loss": 2.5}, {"step": 9, "validation/loss": 2.0}])
        info = {"kind": kind, "status": "finished", "seed": 7, "profile": "smoke", "created": 1.0, "pid": 1}
        info |= {"heartbeat": {"step": 9, "time": 1.0}, "message": f"at {home}"}
        info |= {"hashes": {f"{home}/a": TOKEN}, "versions": {"torch": "2.15.0", "host": HOST}} | private
        info |= {"config": {"model": {"optim": {"lr": 5e-5}} | private}}
        (folder / "run.json").write_text(json.dumps(info))
    for name, reward in {"sft": 0.0, "ppo": 1.0, "dpo": 0.5}.items():
        write_run(lab.out / "runs" / f"evaluate-{name}", [], answers(0, reward, prompt_file=f"{home}/data"))
    lab.record("01", {"model": {"name": f"{home}/models/own", "parameters": 3}})
    lab.record("03", {"sft": {"val_loss_before": 2.5, "val_loss_after": 2.0, "run": f"{home}/x"}})
    record_exercise("gae", True)
    record_exercise("masked_loss", False)
    record_answer("03", "stop-token", 0, True)
    return lab


def test_the_portfolio_shows_results_opens_offline_and_names_neither_machine_nor_user(lab, tmp_path):
    page = write_portfolio(tmp_path / "p.html", lab.out).read_text()
    assert external_references(page) == [] and "<h1>Portfolio</h1>" in page
    assert "<code>gae</code>" in page and "masked_loss" not in page
    assert "1 of 5" in page and "2.50 → 2.00" in page and page.count("reward +") == 3
    assert 'aria-label="SFT: loss: 2.5 at first, 2 at last"' in page
    assert "finished, step 9, learning rate 5e-05, seed 7, profile smoke" in page and "torch 2.15.0" in page
    for private in (USER, HOST, TOKEN, str(tmp_path), "/home", os.uname().nodename + ".", os.getcwd()):
        assert private not in page, private
    named = write_portfolio(tmp_path / "p.html", lab.out, "Grace <Hopper>").read_text()
    assert "<h1>Grace &lt;Hopper&gt;</h1>" in named


def test_an_empty_workspace_has_a_portfolio_too(tmp_path):
    page = write_portfolio(tmp_path / "p.html", tmp_path).read_text()
    assert "Progress" in page and "Results" not in page and "Answers of the policies" not in page
