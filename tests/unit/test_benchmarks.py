"""The benchmarks' bookkeeping: medians, ratios, tables, equal work. How fast anything is, no test says."""

import json
import multiprocessing
import platform
import re
import sys
from importlib import import_module

import pytest
from rich.console import Console

from benchmarks import __main__ as bench
from benchmarks import busy, disk, engines, growth, kept, page, precision, wrong_answers
from benchmarks.contest import Contestant, Rounds, compete
from benchmarks.measure import Comparison, RemoteCriticBench, Round, Side, StepCost, WaitTimes
from benchmarks.setting import Setting, evenly, reward
from benchmarks.table import table_of, verdict


def side(name, seconds, tokens=100, losses=(2.0, 1.0), grad_norms=(), generated=0):
    warm_up = Round(9.0, tokens, losses, grad_norms, generated)
    return Side(name, "", warm_up, [Round(s, tokens, generated=generated) for s in seconds])


def comparison(*sides):
    return Comparison("SFT", "real tokens/s", list(sides), aim=1.5)


def shown(table) -> str:
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    return console.export_text()


def test_ratio_is_the_median_over_neighbouring_rounds_without_the_warm_up():
    ours, theirs = side("ours", [1.0, 2.0, 4.0]), side("theirs", [2.0, 3.0, 10.0])
    # 2/1, 3/2 and 10/4: the machine was slower in each round, for both
    assert comparison(ours, theirs).ratio(theirs) == 2.0
    medians = [entry["median"] for entry in comparison(ours, theirs).as_dict()["sides"]]
    assert medians == pytest.approx([50.0, 100 / 3])  # real tokens a second


STEPS = {"losses": (2.0, 1.0), "grad_norms": (3.0,), "generated": 40}


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({}, None),
        ({"losses": (2.0001, 1.0005), "grad_norms": (3.0002,)}, None),
        ({"losses": ()}, None),  # a side with its own order of samples
        ({"tokens": 101}, "ours counted 100 real tokens, theirs 101"),
        ({"generated": 39}, "ours generated 40 tokens, theirs 39"),
        ({"losses": (2.0, 1.01)}, r"step 2: the loss of ours is 1\.000000, that of theirs 1\.010000"),
        ({"losses": (2.001, 1.0)}, "step 1: the loss"),  # of equal weights: it has to agree better
        # DPO's first loss is ln 2 whatever the weights, and GRPO's is 0
        ({"grad_norms": (3.1,)}, r"gradient's norm of ours is 3\.000000, that of theirs 3\.100000"),
    ],
)
def test_only_equal_work_is_compared(theirs, words):
    result = comparison(side("ours", [1.0], **STEPS), side("theirs", [2.0], **STEPS | theirs))
    if words is None:
        result.check_equal_work()
        return
    with pytest.raises(AssertionError, match=words):
        result.check_equal_work()
    with pytest.raises(ValueError):  # another number of rounds
        comparison(side("ours", [1.0, 1.0]), side("theirs", [2.0])).check_equal_work()


def test_step_cost_by_hand():
    passes = [{"generate": 1.0, "train": 1.0}] * 2 + [{"generate": 2.0, "train": 3.0}]
    cost = StepCost([3.0, 2.4, 5.0], passes)
    assert cost.bare == [2.0, 2.0, 5.0]
    assert cost.ratio == pytest.approx(1.2)
    assert cost.as_dict()["passes"] == {"generate": 1.0, "train": 1.0}


def test_tables_show_figures_and_verdicts():
    text = shown(table_of(comparison(side("Aligner Lab", [1.0, 2.0]), side("TRL", [1.4, 2.8]))))
    assert "75" in text and "50 – 100" in text and "1.40 ×" in text and "≥ 1.5 missed" in text
    text = shown(table_of(StepCost([2.2], [{"generate": 2.0}])))
    assert "generate" in text and "1.10 ×" in text and "≤ 1.25 reached" in text
    code = "import this; [x]"  # brackets are no markup
    text = shown(table_of(WaitTimes("imports", {code: [6.0, 4.0, 5.0]}, {code: 5.0})))
    assert code in text and "4.00" in text and "4.00 – 6.00" in text and "≤ 5 reached" in text


def test_an_aim_is_reached_at_its_value_and_results_are_json():
    assert verdict(1.5, 1.5, at_least=True).endswith("reached")
    assert verdict(1.26, 1.25, at_least=False).endswith("missed")
    result = comparison(side("ours", [1.0]), side("theirs", [2.0])).as_dict()
    assert json.loads(json.dumps(result))["sides"][1]["ours_is_times_as_fast"] == 2.0


def test_a_few_samples_stand_for_all_by_their_sizes():
    assert evenly(["cccccc", "b", "aa", "dddd", "eeeee", "fff"], 3, len) == ["aa", "dddd", "cccccc"]
    assert evenly([3, 1, 2], 3, abs) == [1, 2, 3]
    with pytest.raises(AssertionError, match="4 samples are asked for and there are 3"):
        evenly([3, 1, 2], 4, abs)


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    setting = Setting(tmp_path_factory.mktemp("setting"), steps=2, group_size=4, new_tokens=20)
    setting.prepare()
    return setting


def test_grpo_learns_from_responses_of_one_length_that_are_not_worth_the_same(setting):
    prompts = setting.grpo_prompts(range(30, 40))
    assert [len(prompt) in range(30, 40) for prompt in prompts] == [True, True]
    longest = setting.grpo_prompts(range(9000, 9001))  # none is as long: the nearest are taken
    assert all(len(longest[0]) >= len(prompt) for prompt in prompts)
    responses = setting.learnt_responses()
    assert [len(response) for response in responses] == [20] * 8
    for first in (0, 4):  # else all of a group's advantages, and so its gradients, would be 0
        assert len({reward(response) for response in responses[first : first + 4]}) > 1


def test_a_pair_is_one_prompt_and_two_responses_as_trl_s_trainer_takes_it(setting):
    from benchmarks.theirs import _preference

    pair = setting.pairs(3)[1]
    row = _preference(pair)
    assert row["prompt_ids"] + row["chosen_ids"] == pair.chosen
    assert row["prompt_ids"] + row["rejected_ids"] == pair.rejected
    assert setting.tokenizer().decode(row["prompt_ids"]).endswith("Assistant:")


def counts(setting, connection):
    rounds = Rounds(setting, connection)
    while True:
        rounds.begin()
        sum(range(1000))
        rounds.end(tokens=10, losses=(1.0,))


def fails(setting, connection):
    Rounds(setting, connection).begin()
    raise RuntimeError("out of memory, say")


def test_sides_take_turns_in_processes_of_their_own(tmp_path):
    said, others = [], {process.pid for process in multiprocessing.active_children()}
    sides = [Contestant(name, "", counts) for name in "ab"]
    result = compete("nothing", sides, Setting(tmp_path, repeats=2), aim=1.0, say=said.append)
    assert [len(side.rounds) for side in result.sides] == [2, 2]
    assert all(side.warm_up.tokens == 10 for side in result.sides)
    assert len(said) == 2
    assert {process.pid for process in multiprocessing.active_children()} <= others
    with pytest.raises(RuntimeError, match=r"the side 'b' ended early(.|\n)*out of memory, say"):
        compete("nothing", [Contestant("b", "", fails)], Setting(tmp_path), aim=1.0)


def test_forced_stops_draw_the_stop_token_then_and_not_before():
    import torch

    from benchmarks.forced_stops import StopsAtProcessor

    processor = StopsAtProcessor([1, 2], prompt_width=3, stop_id=0)
    first = processor(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 5))
    assert first.softmax(-1)[:, 0].tolist() == [1.0, 0.0]
    second = processor(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 5))
    assert second.softmax(-1)[1, 0] == 1.0


def test_two_jobs_are_compared_with_one_and_round_trips_with_a_step():
    result = RemoteCriticBench(
        in_process=[2.0, 4.0, 3.0],
        remote_critic=[3.0, 3.6, 3.3],
        waits=[0.5, 0.6, 0.7],
        round_trips={"status": [0.001], "values": [0.01, 0.02, 0.03], "train": [0.04]},
        calls={"values": 2, "train": 1},
    )
    assert result.ratio == pytest.approx(1.1)
    assert result.transport_share == pytest.approx((2 * 0.02 + 0.04) / 3.3)
    text = shown(table_of(result))
    assert all(words in text for words in ("1.10 ×", "≤ 1.3 reached", "2.4%", "≤ 0.02 missed"))


def test_an_exponent_is_the_slope_in_logarithms_and_quantities_grow_at_tiny_sizes(tmp_path, capsys):
    assert growth.exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)  # proportional
    assert growth.exponent([2, 4, 8], [12, 48, 192]) == pytest.approx(2.0)  # 3 x²
    assert growth.exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0.0)  # a fixed cost alone
    options = growth.parse(["--smoke"])
    assert options.only == list(growth.QUANTITIES)
    assert all(len(growth.works(quantity, options)) > 1 for quantity in options.only)
    grown = growth.main(["--smoke", "--steps", "1", "--only", "ranks,data", "--out", str(tmp_path)])
    ranks, data = grown
    assert [point["size"] for point in data["points"]] == [20, 40, 80]
    assert [point["size"] for point in ranks["points"]] == [1, 2]
    assert (
        ranks["points"][1]["gib"] > 1.5 * ranks["points"][0]["gib"]
    )  # the second rank has a model of its own
    assert json.loads((tmp_path / "growth.json").read_text())["growth"] == grown
    assert (tmp_path / "growth.png").stat().st_size > 10_000
    options = growth.parse(["--memory", "0.4", "--only", "parameters"])
    assert growth.points_of("parameters", options, tmp_path) == []
    assert "parameters 29,106,688: left out, it needs 0.4 GiB of 0.4" in capsys.readouterr().out


def test_the_kept_figures_are_replaced_by_whole_runs_alone():
    whole, only = growth.parse(["--memory", "2.5"]), ",".join(reversed(growth.QUANTITIES))
    assert whole.out == growth.parse(["--only", only]).out == kept.RESULTS
    partial = growth.parse(["--smoke"]), growth.parse(["--only", "batch"])
    assert kept.RESULTS not in [options.out for options in partial]
    assert growth.parse(["--smoke", "--out", "benchmarks/results"]).out.name == "results"


def test_a_quantity_without_two_points_is_left_out_of_the_growth(tmp_path, capsys, monkeypatch):
    points = {
        "batch": [growth.Point(1, 1.0, 1.0), growth.Point(2, 2.0, 2.0)],
        "length": [growth.Point(128, 1.0, 1.0)],
    }
    monkeypatch.setattr(growth, "points_of", lambda quantity, *_: points.get(quantity, []))
    arguments = ["--out", str(tmp_path), "--only"]
    (batch,) = growth.main([*arguments, "batch,length"])
    assert batch["seconds"]["exponent"] == pytest.approx(1.0)
    assert "length: left out, an exponent needs 2 points and there are 1" in capsys.readouterr().out
    (tmp_path / "growth.json").unlink()
    with pytest.raises(SystemExit, match="no quantity has two points"):
        growth.main([*arguments, "ranks"])
    assert not (tmp_path / "growth.json").exists()


WRONG_WORDS = [
    (growth.parse, "--only parameters,lenght", "lenght: there are batch, length"),
    (precision.parse, "--only srt", "srt: there are sft, rm"),
    (engines.parse, "--python p --only vllm", "vllm: there are llama.cpp, CTranslate2"),
    (wrong_answers.main, "--of nosuch", "invalid choice: 'nosuch'"),
    (wrong_answers.main, "--of gae --page", "--of gae: the page counts the answers of all exercises"),
    (busy.main, "--users 1", "--users 1: one user has nobody to train beside"),
    (bench._parse, "--only sfd", "sfd: there are sft, rm"),
    (bench._parse, "--only sft,disk --clock cpu", "--clock cpu has no effect on disk"),
    (bench._parse, "--only imports --precision bf16", "--precision bf16 has no effect on imports"),
]


@pytest.mark.parametrize(("parse", "words", "answer"), WRONG_WORDS)
def test_words_that_a_command_would_ignore_are_refused(parse, words, answer, capsys):
    with pytest.raises(SystemExit):
        parse(words.split())
    assert answer in " ".join(capsys.readouterr().err.split())


def test_without_only_the_bench_measures_what_its_clock_and_precision_apply_to():
    assert bench._parse([]).only == bench.NAMES
    assert bench._parse(["--clock", "cpu"]).only == [*bench.COMPARISONS, "ppo"]
    assert bench._parse(["--precision", "bf16"]).only == [*bench.COMPARISONS, "ppo", "remote-critic"]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("activations", "bytes are the same"),
        ("page", "between its two marks"),
        ("busy", "0 skips the users"),
        ("cheats", "the longest constant"),
        ("mutants", "how many mutants"),
        ("wrong_answers", "answers of one exercise alone"),
    ],
)
def test_help_says_what_the_options_mean_and_starts_nothing(module, words, capsys):
    with pytest.raises(SystemExit, match="0"):
        import_module(f"benchmarks.{module}").main(["--help"])
    assert words in " ".join(capsys.readouterr().out.split())


def test_the_seconds_of_steps_are_written_before_the_users_start(tmp_path, monkeypatch):
    seconds = {beside: {threads: [1.0] for threads in busy.THREADS} for beside in busy.BESIDE}
    monkeypatch.setattr(busy, "Workspace", lambda *_: None)
    monkeypatch.setattr(busy, "measure_steps", lambda *_: seconds)
    with pytest.raises(AttributeError):  # without a workspace no user can start
        busy.main(["--out", str(tmp_path)])
    assert json.loads((tmp_path / "busy.json").read_text()) == {"step_seconds": seconds}


def test_the_table_of_precisions_says_whether_bounds_are_held(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    job = {name: [[precision.Step(seconds, 100, 1.0)]] for name, seconds in (("32", 19.0), ("bf16", 10.0))}
    precision.show({"sft": job, "rm": job})  # 19 / 10 = 1.9
    sft, rm = capsys.readouterr().out.splitlines()[1:]
    assert "≥ 1.8 held" in sft and "≥ 2.0 missed" in rm


def test_the_disk_formats_as_many_lines_as_its_label_says_and_times_no_clean_up(monkeypatch):
    assert disk.repeated(b"a\nb\nc\n", 5) == b"a\nb\nc\na\nb\n"
    now = [0.0]
    monkeypatch.setattr(disk.time, "perf_counter", lambda: now[0])
    passing = [lambda seconds=seconds: now.__setitem__(0, now[0] + seconds) for seconds in (2.0, 5.0)]
    assert disk._times(passing[0], 2, clean_up=passing[1]) == [2.0, 2.0]


def test_a_step_of_ppo_trains_the_critic_in_each_of_its_epochs():
    from aligner_lib.config.compose import compose
    from benchmarks.remote_critic import calls_of

    settings = {
        "model.ppo.num_rollout_samples": 12,
        "model.global_batch_size": 6,
        "model.ppo.rollout_micro_batch_size": 4,
        "model.ppo.critic_rollout_epochs": 2,
    }
    config = compose("ppo", [f"{key}={value}" for key, value in settings.items()])
    assert calls_of(config) == {"values": 3, "rewards": 3, "train": 4}  # 12 / 4, and 2 · 12 / 6


def test_the_bare_passes_of_ppo_compute_in_the_step_s_precision(tmp_path):
    from benchmarks import ppo

    setting = Setting(tmp_path, precision="bf16", global_batch=2, micro_batch=1)
    setting.prepare()
    passes = ppo.BarePasses(setting, ppo._trainer(setting))
    dtypes = [next(module.parameters()).dtype for module in (passes.actor, passes.critic)]
    assert [str(dtype) for dtype in dtypes] == ["torch.bfloat16"] * 2


@pytest.mark.parametrize(("beside", "number"), [((0,), "0"), ((1, 2, 3), "2,3")])
def test_numbers_without_a_side_are_refused_with_the_sides(beside, number, tmp_path):
    sides = [Contestant("ours", "", counts), Contestant("theirs", "as it comes", counts)]
    with pytest.raises(
        SystemExit, match=f"--beside {number}: the other sides of SFT are 1: theirs, as it comes$"
    ):
        compete("SFT", sides, Setting(tmp_path, beside=beside), aim=None)


def test_engines_of_another_environment_have_their_versions_and_results_their_sizes():
    assert engines.their_versions(sys.executable, ["torch"]) == {"torch": kept.versions()["torch"]}
    result = comparison(side("ours", [1.0]))
    result.sizes = {"prompts": 4}
    assert result.as_dict()["sizes"] == {"prompts": 4}


def test_a_label_names_one_length_once():
    assert bench.span([140, 140]) == "140" and bench.span([13, 10, 12]) == "10 to 13"


def test_the_page_has_the_kept_figures_and_no_file_names_the_machine_or_its_folders():
    text = page.PAGE.read_text(encoding="utf-8")
    files = page.read_results()
    assert files and page.page_with(page.tables(files), text) == text, "run `python -m benchmarks.page`"
    for path in kept.RESULTS.glob("*.json"):
        stored = path.read_text(encoding="utf-8")
        assert platform.node() not in stored and not re.search(r'[" ]/(?!lab)\w', stored), path.name
        assert json.loads(stored)["machine"].keys() == kept.machine().keys()


def test_a_table_has_a_row_for_each_side_and_a_column_for_each_precision():
    described = {
        "model": "6m", "threads": 1, "clock": "cpu", "date": "2026-11-28", "commit": "abc", "versions": {"trl": "1.0"},
        "machine": {"processor": "P", "units": ["avx2"], "gpu": None},
    }  # fmt: skip
    files = [
        described | {"precision": precision, "results": [comparison(side("ours", [1.0]), side("TRL", [seconds])).as_dict()]}
        for precision, seconds in (("32", 1.25), ("bf16", 2.0))
    ]  # fmt: skip
    assert page.tables(files).splitlines() == [
        "6m; 1 thread; CPU time; P (avx2); 2026-11-28; commit abc; trl 1.0.",
        "",
        "|  | beside | float32 | bf16 | aim |",
        "| --- | --- | --- | --- | --- |",
        "| SFT | TRL | 1.25 | 2.00 | 1.5 |",
    ]


def test_the_share_of_common_tokens_ends_at_the_first_difference():
    assert engines.common_share([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == pytest.approx(4 / 6)
    assert engines.common_share([[1]], [[1]]) == 1.0
