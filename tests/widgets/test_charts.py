"""Charts of the reader's own."""

import pytest
from run_folders import write_lines, write_run

from aligner_lib.config.kinds import charts_of
from aligner_lib.run_folder.reader import RunFolder
from widgets import chart
from widgets.figures.static_figure import curves
from widgets.runs.charts import OWN_CHARTS, Line, charts_for, timers
from widgets.runs.feed import Feed

MARGIN = Line("margin", ("train/chosen",), minus="train/rejected")


@pytest.mark.parametrize(
    "line, metrics",
    [
        (("loss", "train/loss"), ("train/loss",)),
        (["loss", "train/loss", "loss"], ("train/loss", "loss")),
        ("train/loss", ("train/loss",)),
    ],
)
def test_a_line_is_a_label_and_its_metrics(line, metrics):
    made = chart("Loss", line, MARGIN, unit="nats", exact=True)
    assert made.lines == (Line("loss", metrics), MARGIN) and (made.unit, made.exact) == ("nats", True)
    hash(made)  # as frozen as it says


def test_settings_are_drawn_as_they_were_and_measurements_are_smoothed():
    settings, measured = ["train/lr", "critic/lr"], ["train/lr", "train/loss"]
    assert [chart("Some", *names).exact for names in (settings, measured)] == [True, False]


def test_names_become_charts_and_charts_stay():
    own_chart = chart("Mine", "train/loss")
    single, together, same = charts_for(
        [], "sft", ["train/loss", ["train/loss", "validation/loss"], own_chart]
    )
    assert single.hint.startswith("Falls") and [line.label for line in single.lines] == ["loss"]
    assert together.title == "loss"
    assert [line.label for line in together.lines] == ["train/loss", "validation/loss"]
    assert same is own_chart


def test_dollar_signs_in_names_are_no_formulas(tmp_path):
    runs = [write_run(tmp_path / name, {"train/loss": [1.0, 2.0]}) for name in (r"$\frac$", "plain")]
    assert curves(runs, [chart(r"$\frac$", "train/loss")]).png()


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legend(tmp_path):
    runs = [write_run(tmp_path / name, {"train/loss": [1.0, 2.0]}) for name in ("_first", "second")]
    (axes,) = curves(runs, ["train/loss"]).figure.axes
    names = [text.get_text().strip("\N{ZERO WIDTH SPACE}") for text in axes.get_legend().get_texts()]
    assert names == ["_first", "second"]


# ---- names of the user's --------------------------------------------------------------------------------------------


def steps(*records: dict) -> list[dict]:
    return [{"step": step, "time": 1000.0 + step} | record for step, record in enumerate(records)]


def feed_of(path, *records: dict, charts: list | None = None, kind: str = "grpo") -> Feed:
    feed = Feed([RunFolder(write_run(path, steps(*records), kind=kind))], charts)
    feed.poll()
    return feed


def lines_of(feed: Feed) -> dict[str, list[str]]:
    return {chart.title: [line.label for line in chart.lines] for chart in feed.charts}


BEFORE = {"val_environments/sums/reward": 0.2, "val_environments/sums/samples": 8}
STEP = {"train_environments/sums/reward": 0.1, "train_environments/form/reward": 0.5}


@pytest.mark.parametrize("kind", ["grpo", "ppo"])
def test_each_environment_has_a_line_for_each_split_also_when_it_is_drawn_later(tmp_path, kind):
    """The page is told by a whole message: an update would have points of lines that it does not know."""
    feed = feed_of(tmp_path, BEFORE, kind=kind)
    feed.snapshot()
    assert lines_of(feed) == {"Environments": ["sums, validation"]}
    write_lines(tmp_path / "metrics.jsonl", steps(BEFORE, STEP))
    feed.poll()
    assert b'"snapshot"' in feed.update()
    assert lines_of(feed) == {"Environments": ["sums, train", "sums, validation", "form, train"]}


def test_an_environment_s_own_metrics_have_a_few_charts_and_the_others_can_be_added(tmp_path):
    own = {f"train_environments/form/form/{rule}": 0.5 for rule in ("bullets", "short", "upper")}
    own |= {"train_environments/form/samples": 8, "train_environments/form/turns": 1}
    own |= {"train_environments/form/words": 20, "train_environments/sums/exact": 1}
    feed = feed_of(tmp_path, STEP | own, {"val_environments/form/words": 30})
    charts = lines_of(feed)
    charts.pop("Environments")
    assert len(charts) == OWN_CHARTS and charts.pop("words") == ["form, train", "form, validation"]
    assert charts == {"exact": ["sums, train"], "form/bullets": ["form, train"]}
    feed.add("train_environments/form/form/upper")
    assert [line.label for line in feed.charts[-1].lines] == ["upper"]


def test_several_rewards_share_a_chart_of_their_means_and_one_of_their_groups(tmp_path):
    names = [f"train_environments/form/{name}" for name in "rewards/a rewards/b groups_alike/a c".split()]
    charts = lines_of(feed_of(tmp_path, STEP | dict.fromkeys(names, 0.5)))
    assert charts["Several rewards"] == ["form/a, train", "form/b, train"]
    assert charts["Groups that are alike in a reward"] == ["form/a, alike"]
    assert charts["c"] == ["form, train"] and len(charts) == 4


def test_a_chart_of_the_reader_s_may_name_all_environments(tmp_path):
    bullets = chart("Bullets", ("train", "train_environments/*/form/bullets"))
    metrics = {"train_environments/a/form/bullets": 1.0, "train_environments/a/x": 1}
    assert lines_of(feed_of(tmp_path, metrics, charts=[bullets])) == {"Bullets": ["a, train"]}


def test_a_vllm_server_s_weights_are_a_stage_of_a_step_and_a_hundredth_of_a_rollout_is_not(tmp_path):
    seconds = {"refresh_generator": 1.0, "generate": 2.0, "environments": 0.03, "rollout_time": 4.0}
    [series] = feed_of(tmp_path, {f"timers/{name}": value for name, value in seconds.items()}).series
    assert timers(series) == [("sending weights", 1.0), ("generate", 2.0), ("other rollout", 1.0)]


def test_every_chart_of_a_measurement_has_a_least_height():
    for kind in ("sft", "rm", "dpo", "ppo", "grpo"):
        without = {chart.title for chart in charts_of(kind) if not chart.least}
        assert without <= {"Learning rate", "*"}, (
            kind
        )  # a schedule, and metrics of the user's own, of any size
