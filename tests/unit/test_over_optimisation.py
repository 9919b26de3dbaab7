"""Over-optimisation: reward and true quality against the KL, by hand and by trying every choice."""

import json
from itertools import combinations
from math import log
from statistics import fmean

import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.comparison.over_optimisation import (
    best_of_n_points,
    best_of_n_weights,
    compare_at_step,
    ppo_points,
)


def answer(split, step, group, reward, obeys, token_kl=(), finished=True):
    record = {"split": split, "step": step, "group": group, "reward": reward, "metrics": {"obeys": obeys}}
    return record | {"token_kl": list(token_kl), "length": 4, "finished": finished}


def folder(path, records, alarms=()):
    path.mkdir()
    for name, lines in {"rollouts": records, "alarms": alarms}.items():
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunFolder(path)


def trained(path, last, alarms=()):
    """Validated at steps 0, 2 and `last`; the KL of a response to a training prompt is its step less one, on average."""
    kl = {0: 0.25, 1: 0.75}  # of a token, by prompt
    records = [
        answer("train", step, group, 0.0, 0.0, [kl[group] * (step - 1)] * 2)
        for step in range(1, last + 1)
        for group in kl
    ]
    for step in {0, 2, last}:
        records += [answer("validation", step, i, (2 * i + 1) * step, float(i)) for i in (0, 1)]
    return folder(path, records, alarms)


@pytest.mark.parametrize("n", [1, 3, 6])
def test_every_choice_of_n_counts(n):
    values = [3.0, 5.0, 6.5, 8.0, 13.0, 21.0]
    by_trying = fmean(max(choice) for choice in combinations(values, n))
    assert sum(w * v for w, v in zip(best_of_n_weights(6, n), values)) == pytest.approx(by_trying, rel=1e-12)
    assert sum(best_of_n_weights(6, n)) == pytest.approx(1)


def test_best_of_n_is_chosen_by_the_judge_and_measured_by_the_program(tmp_path):
    drawn = {0: [(1.0, 1.0), (3.0, 0.0), (2.0, 1.0)], 1: [(0.0, 0.0), (-1.0, 1.0), (-2.0, 0.0)]}
    records = [answer("evaluation", 0, 0, None, None)]  # its environment failed
    for group, judged in drawn.items():
        records += [answer("evaluation", 0, group, *figures, finished=group == 0) for figures in judged]
    of_1, of_2, of_3 = best_of_n_points(folder(tmp_path / "answers", records), (1, 2, 3))
    assert of_1.reward.value == pytest.approx((2 - 1) / 2) and of_1.obeys.value == pytest.approx((2 + 1) / 6)
    # of two: 3 wins in two choices of three, 2 in one; 0 wins in two, −1 in one
    assert of_2.reward.value == pytest.approx(((3 + 3 + 2) / 3 + (0 + 0 - 1) / 3) / 2)
    assert of_2.obeys.value == pytest.approx((1 / 3 + 1 / 3) / 2)
    assert of_3.reward.value == 1.5 and of_3.obeys.value == 0.0
    assert (of_1.kl.value, of_2.kl.value, of_3.kl.value) == (0.0, log(2) - 1 / 2, log(3) - 2 / 3)
    assert of_1.ended.value == of_3.ended.value == 0.5 and of_2.tokens.value == 4
    assert of_2.name == "best of 2" and of_2.reward.low < of_2.reward.value < of_2.reward.high


def test_best_of_more_answers_than_a_prompt_has_is_refused(tmp_path):
    records = [answer("evaluation", 0, 0, 1.0, 1.0)] * 2 + [answer("evaluation", 0, 1, 1.0, 1.0)]
    words = r"with only 1 answers with a reward, .* best of 2. Set evaluation.num_generations_per_prompt=2"
    with pytest.raises(ValueError, match=words):
        best_of_n_points(folder(tmp_path / "too-few", records), (1, 2))


def test_a_validation_has_the_kl_of_the_answers_that_the_same_policy_wrote_next(tmp_path):
    points = ppo_points(trained(tmp_path / "run", last=4))
    assert [point.name for point in points] == ["step 0", "step 2", "step 4"]
    assert [point.kl.value for point in points] == [0.0, 2.0, 3.0]  # of steps 1, 3, and 4 for want of a fifth
    half = 12.7062 * 2**0.5  # Student's t of two prompts times the standard error by HC3
    assert points[1].kl[1:] == pytest.approx((2 - half, 2 + half), abs=1e-3)
    assert [point.reward.value for point in points] == [0.0, 4.0, 8.0]
    assert [point.obeys.value for point in points] == [0.5] * 3


def test_runs_are_compared_after_equally_many_steps(tmp_path):
    heard = [{"name": "kl", "step": 3}, {"name": "entropy", "step": 4}]
    runs = {"leashed": trained(tmp_path / "a", 5), "not": trained(tmp_path / "b", 4, heard)}
    table = compare_at_step(runs)
    assert list(table.figures) == ["SFT", "leashed", "not"] and "after 2 steps" in table.caption
    assert table.figures["SFT"]["reward"].value == 0 and table.figures["not"]["reward"].value == 4
    assert table.figures["leashed"]["KL, nats per response"].value == 2
    assert [table.figures[name]["alarms"] for name in runs] == ["none", "kl at step 3, entropy at step 4"]
    with pytest.raises(ValueError, match="step 5: leashed, not were all validated at step 0, step 2 alone"):
        compare_at_step(runs, 5)
    assert "after 5 steps" in compare_at_step({"leashed": runs["leashed"]}).caption
