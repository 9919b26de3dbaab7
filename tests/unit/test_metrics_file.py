"""A kind's metrics.toml becomes the metrics, charts and alarms of a JobKind."""

import re

import pytest

from aligner_lib.config.kind import Chart, Line, Metric, MetricGroup
from aligner_lib.config.metrics_file import declared_in
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder import alarms

SHARED = """
[least]
share = 0.05
[section.seconds]
title = "Seconds"
metrics = [{ names = ["step_time"], definition = "a step" }, { names = ["val_time"], unit = "s", definition = "a validation" }]
[chart.margin]
title = "Margin of another kind"
lines = [["x", "x"]]
"""
OWN = """
include = ["../shared/metrics.toml"]
sections = ["pairs", { name = "seconds", only = ["val_time"] }]
charts = ["margin", "accuracy"]
alarms = ["not_finite", "kl"]
[section.pairs]
title = "Pairs"
[[section.pairs.metrics]]
names = ["train/acc", "validation/acc"]
definition = "share of pairs"
healthy = "above 0.5"
setting = "`model.optim.lr`"
[chart.accuracy]
title = "Accuracy"
lines = [["train", "train/acc"], ["validation", "validation/acc", "old/acc"]]
hint = "Rises."
least = "share"
[chart.margin]
title = "Margin"
lines = [{ label = "train", metrics = ["train/chosen"], minus = "train/rejected" }]
least = 0.5
"""


def test_a_kind_names_its_own_and_included_sections_and_charts(tmp_path):
    for folder, text in (("shared", SHARED), ("own", OWN)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.toml").write_text(text)
    declared = declared_in(tmp_path / "own")
    accuracy = Metric(("train/acc", "validation/acc"), "", "share of pairs", "above 0.5", "`model.optim.lr`")
    assert declared["metrics"] == (
        MetricGroup("Pairs", "", (accuracy,)),
        MetricGroup("Seconds", "", (Metric(("val_time",), "s", "a validation"),)),
    )
    lines = Line("train", ("train/acc",)), Line("validation", ("validation/acc", "old/acc"))
    assert declared["charts"] == (
        Chart("Margin", (Line("train", ("train/chosen",), "train/rejected"),), least=0.5),
        Chart("Accuracy", lines, "Rises.", least=0.05),
    )
    assert declared["alarms"] == (alarms.not_finite, alarms.kl)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sections = [", "Invalid value (at end of document)"),
        (
            OWN.replace('["pairs", ', '["margins", '),
            "there is no section 'margins'; there are seconds, pairs",
        ),
        (OWN.replace('"accuracy"]', '"acc"]'), "there is no chart 'acc'; there are margin, accuracy"),
        (OWN.replace('"kl"', '"kll"'), "there is no alarm 'kll'; there are not_finite, "),
        (OWN.replace('"share"', '"shares"'), "there is no size in [least] 'shares'; there are share"),
        (
            OWN.replace('title = "Pairs"', 'titel = "Pairs"'),
            "[section.pairs]: got an unexpected keyword argument 'titel'",
        ),
        (
            OWN.replace('label = "train", ', ""),
            "[chart.margin]: missing 1 required positional argument: 'label'",
        ),
        (OWN.replace(', only = ["val_time"]', ""), "missing 1 required positional argument: 'only'"),
        (OWN.replace('["val_time"]', '["val"]'), "there is no metric 'val'; there are step_time, val_time"),
        (
            OWN.replace("[chart.accuracy]", "[chart]"),
            "chart.title is 'Accuracy', not a table: write a header",
        ),
        ('chart = ["accuracy"]', "chart is ['accuracy'], not a table"),
        (
            OWN.replace('["train/acc", "validation/acc"]\ndef', '"acc"\ndef'),
            "names = 'acc' is not a list: write names = ['acc']",
        ),
        ('charts = "margin"', "charts = 'margin' is not a list"),
        ('sectons = ["pairs"]', "there is no key 'sectons'; there are include, sections, "),
        (OWN.replace("shared/", ""), "metrics.toml: [Errno 2] No such file"),
    ],
)
def test_a_slip_is_refused_with_its_file(tmp_path, text, words):
    for folder, content in (("shared", SHARED), ("own", text)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.toml").write_text(content)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))) as refusal:
        declared_in(tmp_path / "own")
    assert words in str(refusal.value)
