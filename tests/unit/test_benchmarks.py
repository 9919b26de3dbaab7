"""The benchmarks' bookkeeping: medians, ratios, tables, equal work. How fast anything is, no test says."""

import json
import multiprocessing
import platform
import re
from argparse import Namespace
from pathlib import Path

import pytest
from rich.console import Console

from aligner_lib.run_folder.reader import RunFolder
from benchmarks import __main__ as commands
from benchmarks import engines, gpu, growth, kept, page, precision, real_hh
from benchmarks.contest import Contestant, Rounds, compete
from benchmarks.measure import Comparison, RemoteCriticBench, Round, Side, StepCost, WaitTimes
from benchmarks.setting import Setting, reward
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
    stored = json.loads(json.dumps(comparison(ours, theirs).as_dict()))["sides"]
    assert [entry["median"] for entry in stored] == pytest.approx([50.0, 100 / 3])  # real tokens a second
    assert stored[1]["ours_is_times_as_fast"] == 2.0


STEPS = {"losses": (2.0, 1.0), "grad_norms": (3.0,), "generated": 40}


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        ({"losses": (2.0001, 1.0005), "grad_norms": (3.0002,)}, None),
        ({"losses": None, "grad_norms": None}, None),  # a side with its own order of samples
        ({"grad_norms": ()}, "ours has the gradient's norm of 1 steps, theirs of 0"),
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
        ours, compared = (stored["equal_work"] for stored in result.as_dict()["sides"])
        figures = {"losses": [1e-4, 1e-3], "grad_norms": [1e-4]} if theirs["losses"] else {}
        every_round = dict.fromkeys(("tokens", "generated"), "equal in every round")
        assert (ours, compared) == (None, every_round | figures)
    else:
        with pytest.raises(AssertionError, match=words):
            result.check_equal_work()


def test_the_costs_of_a_step_and_of_a_remote_critic_by_hand():
    passes = [{"generate": 1.0, "train": 1.0}] * 2 + [{"generate": 2.0, "train": 3.0}]
    cost = StepCost([3.0, 2.4, 5.0], passes)
    assert cost.bare == [2.0, 2.0, 5.0] and cost.ratio == pytest.approx(1.2)
    generate = {"median": 1.0, "low": 1.0, "high": 2.0, "seconds": [1.0, 1.0, 2.0]}
    assert cost.as_dict()["passes"]["generate"] == generate
    remote = RemoteCriticBench(
        in_process=[2.0, 4.0, 3.0],
        remote_critic=[3.0, 3.6, 3.3],
        waits=[0.5, 0.6, 0.7],
        round_trips={"status": [0.001], "values": [0.01, 0.02, 0.03], "train": [0.04]},
        calls={"values": 2, "train": 1},
    )
    assert remote.ratio == pytest.approx(1.1)
    assert remote.transport_share == pytest.approx((2 * 0.02 + 0.04) / 3.3)
    text = shown(table_of(remote))
    assert all(words in text for words in ("1.10 ×", "≤ 1.3 reached", "2.4%", "≤ 0.02 missed"))


def test_tables_show_figures_and_an_aim_is_reached_at_its_value():
    text = shown(table_of(comparison(side("Aligner Lab", [1.0, 2.0]), side("TRL", [1.4, 2.8]))))
    assert "75" in text and "50 – 100" in text and "1.40 ×" in text and "≥ 1.5 missed" in text
    assert verdict(1.5, 1.5, at_least=True).endswith("reached")
    assert verdict(1.26, 1.25, at_least=False).endswith("missed")


@pytest.fixture(scope="module")
def setting(tmp_path_factory):
    setting = Setting(tmp_path_factory.mktemp("setting"), steps=2, group_size=4, new_tokens=20)
    setting.prepare()
    return setting


def test_grpo_learns_from_responses_of_one_length_that_are_not_worth_the_same(setting):
    prompts = setting.grpo_prompts(range(30, 40))
    assert [len(prompt) in range(30, 40) for prompt in prompts] == [True, True]
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


def test_sides_take_turns_in_processes_of_their_own_and_a_failure_names_its_side(tmp_path):
    lines, others = [], {process.pid for process in multiprocessing.active_children()}
    sides = [Contestant("a", "", counts), Contestant("b", "as it comes", counts)]
    result = compete("nothing", sides, Setting(tmp_path, repeats=2), aim=1.0, say=lines.append)
    assert [len(side.rounds) for side in result.sides] == [2, 2]
    assert all(side.warm_up.tokens == 10 for side in result.sides) and len(lines) == 2
    assert {process.pid for process in multiprocessing.active_children()} <= others
    with pytest.raises(RuntimeError, match=r"the side 'b' ended early(.|\n)*out of memory, say"):
        compete("nothing", [Contestant("b", "", fails)], Setting(tmp_path), aim=1.0)


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """Runs `./lab bench` with words. disk cannot be measured, and nothing is prepared."""

    def measure(name, setting, say):
        assert name != "disk", "the disk is full"
        return WaitTimes(name, {"one": [1.0]}, {"one": 2.0})

    def run(*words):
        monkeypatch.setattr("sys.argv", ["bench", "--json", str(tmp_path / "bench.json"), *words])
        commands.main()

    monkeypatch.setattr(commands, "_run", measure)
    monkeypatch.setattr(commands, "described", lambda *_: {})
    monkeypatch.setattr(commands, "_title", lambda _: "")
    monkeypatch.setattr(Setting, "prepare", lambda self: None)
    monkeypatch.setattr(commands, "find_spec", lambda name: True)
    return run


def test_the_other_parts_figures_are_kept_when_a_part_fails(bench, tmp_path):
    with pytest.raises(SystemExit, match=r"disk failed, .* --only disk again"):
        bench("--only", "imports,disk,ppo")
    results = json.loads((tmp_path / "bench.json").read_text())["results"]
    assert [result["name"] for result in results] == ["imports", "ppo"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "--only sft,generation --beside 1,2",
            r"--beside 2: the other sides of generation are 1: transformers",
        ),
        ("--only sft,ppo --beside 1", "--beside has no effect on ppo: measure ppo without it"),
        ("--repeats 0", "--repeats: 0 is not a whole number of at least 1"),
        ("--only imports,monitor", "monitor needs a browser, .* install the system's package `chromium`"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_the_first_part(
    bench, tmp_path, monkeypatch, capsys, words, message
):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as ended:
        bench(*words.split())
    assert re.search(message, f"{ended.value} {capsys.readouterr().err}")
    assert not (tmp_path / "bench.json").exists()


def test_forced_stops_draw_the_stop_token_then_and_not_before():
    import torch

    from benchmarks.forced_stops import StopsAtProcessor

    processor = StopsAtProcessor([1, 2], prompt_width=3, stop_id=0)
    first = processor(torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 5))
    assert first.softmax(-1)[:, 0].tolist() == [1.0, 0.0]
    second = processor(torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 5))
    assert second.softmax(-1)[1, 0] == 1.0


def test_a_second_call_with_the_same_folder_measures_new_steps():
    assert precision.settings_of(None, "sft", "32", steps=2)["exp_manager.resume_if_exists"] is False


def test_an_exponent_is_the_slope_in_logarithms():
    assert growth.exponent([1, 10, 100], [3, 30, 300]) == pytest.approx(1.0)  # proportional
    assert growth.exponent([2, 4, 8], [12, 48, 192]) == pytest.approx(2.0)  # 3 x²
    assert growth.exponent([1, 2, 4], [5, 5, 5]) == pytest.approx(0.0)  # a fixed cost alone


def test_the_kept_figures_are_replaced_by_whole_runs_alone():
    whole, every_quantity = growth.parse(["--memory", "2.5"]), ",".join(reversed(growth.QUANTITIES))
    assert whole.out == growth.parse(["--only", every_quantity]).out == kept.RESULTS
    partial = growth.parse(["--smoke"]), growth.parse(["--only", "batch"])
    assert kept.RESULTS not in [options.out for options in partial]


def test_the_page_has_the_kept_figures_and_no_file_names_the_machine_or_its_folders():
    files = page.read_results()
    assert files and page.PAGE.text_with(page.tables(files)) == page.PAGE.text(), (
        "run `python -m benchmarks.page`"
    )
    for path in kept.RESULTS.glob("*.json"):
        stored = path.read_text(encoding="utf-8")
        assert platform.node() not in stored and not re.search(r'[" ]/(?!lab)\w', stored), path.name


def test_the_page_names_every_version_and_refuses_two_figures_for_one_cell():
    [first, *_] = page.read_results()
    other = first | {"precision": "bf16", "versions": first["versions"] | {"trl": "0.1"}}
    assert f"trl 0.1, {first['versions']['trl']};" in page.table([first, other])
    with pytest.raises(
        ValueError, match=r"two files of results/ have DPO beside .* in float32: remove the older"
    ):
        page.table([first, first])


def test_a_command_is_kept_with_its_settings_and_without_folders():
    options = Namespace(users=0, out=Path("/home/me/runs"), policies=["a=/m/sft", "b=c/d=e"], only=["a", "b"])
    words = "bench a=sft b=d=e --users 0 --out runs --only a,b"
    assert kept.command_line("bench", options, ["policies"]) == words


def test_a_kept_command_of_the_gpu_s_benchmark_gives_the_same_settings():
    options = gpu.parse(["--only", "kinds", "--quick"])
    assert gpu.parse(kept.command_line("gpu", options).split()[1:]).only == options.only


def test_without_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert kept.commit() == "unknown"


def test_the_share_of_common_tokens_ends_at_the_first_difference():
    assert engines.common_share([[1, 2, 3], [4, 5, 6]], [[1, 2, 3], [4, 9, 6]]) == pytest.approx(4 / 6)


def test_a_run_on_other_real_pairs_is_refused(tmp_path):
    run, raw = RunFolder(tmp_path / "rm-1"), tmp_path / "raw.jsonl"
    raw.write_text("first")
    real_hh.check_pairs(run, raw)
    run.path.mkdir()
    (run.path / "run.json").write_text('{"status": "finished"}')
    real_hh.check_pairs(run, raw)
    raw.write_text("second")
    with pytest.raises(SystemExit, match=r"rm-1 has learned from another file than --raw .*raw\.jsonl"):
        real_hh.check_pairs(RunFolder(run.path), raw)


def test_a_job_has_a_step_after_its_warm_up(capsys):
    with pytest.raises(SystemExit):
        precision.parse(["--steps", str(precision.WARM_UP)])
    assert "--steps: 1 is not a whole number of at least 2" in capsys.readouterr().err
