"""Functions of the user's own in place of the library's, and what is refused before and while a job runs."""

import inspect
import json
import linecache
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf

from aligner_lib.algorithms.objective import PRESETS, SWITCHES
from aligner_lib.algorithms.policy_gradient import group_advantages, grpo_advantages
from aligner_lib.algorithms.ppo import clipped_surrogate
from aligner_lib.config.compose import compose, notices
from aligner_lib.config.function_hashes import hashes_of_functions
from aligner_lib.config.functions import (
    FunctionFile,
    LibraryFunction,
    _modules_in,
    library_functions,
    source_of,
    with_imports,
)
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError, FunctionError
from aligner_lib.kinds.functions import functions_of
from aligner_lib.kinds.grpo.settings import objective_of
from aligner_lib.models.hash import text_hash
from aligner_lib.tutorial import Workspace

SURROGATE = "aligner_lib.algorithms.ppo:clipped_surrogate"
PAGE = (Path(__file__).parents[2] / "docs" / "your-code.md").read_text()
width = 0.2


@pytest.fixture
def lab(smoke, tmp_path, monkeypatch, capsys) -> Workspace:
    monkeypatch.setattr(Workspace, "reward_model", lambda self: smoke)
    return Workspace(tmp_path, "smoke", where="print")


@pytest.mark.parametrize("kind", [kind.name for kind in kinds().values() if kind.functions])
def test_each_declared_function_is_there_read_without_running_it_and_on_the_page(kind):
    rows = [line for line in PAGE.splitlines() if f"`{kind}`" in line or line.startswith("| all")]
    for name, place in kinds()[kind].functions.items():
        function, declared = getattr(library_functions(kind), name), LibraryFunction(place)
        assert (declared.name, declared.docstring) == (function.__name__, inspect.getdoc(function))
        code = function.__code__
        taken = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        assert all(argument in declared.parameters for argument in taken)
        own = f"`{place.removeprefix('aligner_lib.').replace(':', '.')}`"
        parameters = f"`{declared.parameters[1:-1].partition(', max_steps')[0]}"
        assert any(f"`{name}`" in row and own in row and parameters in row for row in rows), (kind, name)


def test_a_cell_s_function_travels_as_its_text(lab):
    def mine(ratio, advantages, low, high):
        clipped = ratio.clamp(1 - low, math.inf)
        return torch.maximum(-advantages * ratio, -advantages * clipped), clipped

    words = lab.commands("ppo", "own", loss=mine)["main"]
    file = lab.run("own").path / "functions" / "loss.py"
    assert f"functions.loss={file}" in words and "\n    def mine" not in file.read_text()
    loaded = FunctionFile.read(str(file), SURROGATE).load()
    assert loaded(torch.tensor([3.0]), torch.tensor([1.0]), 0.2, 0.2)[0].item() == -3
    text, printed = file.read_text(), file.with_name("loss_printed.py")
    words = lab.commands("ppo", "own", loss=with_a_default)["main"]
    assert f"functions.loss={printed}" in words and "with_a_default" in printed.read_text()
    assert file.read_text() == text


def test_a_sweep_takes_functions_along(lab):
    def mine(chosen_rewards, rejected_rewards):
        return torch.relu(1 - chosen_rewards + rejected_rewards)

    plan = lab.submit_sweep("rm", "model.optim.lr", [1e-3, 3e-3], loss=mine)
    for value in ("0.001", "0.003"):
        file = lab.run(f"rm-lr/lr-{value}").path / "functions" / "loss.py"
        assert "torch.relu" in file.read_text() and f"functions.loss={file}" in plan.text


def with_a_default(ratio, advantages, low, high):
    return -advantages * ratio, ratio


def with_a_global(ratio, advantages, low, high):
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.maximum(-advantages * ratio, -advantages * clipped) * width, clipped


def with_other_arguments(ratio, advantages, eps):
    return ratio, ratio


def with_a_width(prompt, response):
    return len(response) < width


def short(prompt, response):
    return -len(response) / 100


@pytest.mark.parametrize(
    ("kind", "setting", "function", "words"),
    [
        ("ppo", "loss", with_a_global, r"line 3: with_a_global uses 'width', which is not .*with a default"),
        ("ppo", "loss", with_other_arguments, r"can't stand in for .*write def with_other_arguments\(rat"),
        ("ppo", "loss", print, "give a function defined with def"),
        ("sft", "reward", short, "reward=short: sft has no function of the name"),
        ("dpo", "los", short, r"los=short: dpo has no function of the name.*loss, learning_rate"),
    ],
)
def test_a_function_that_could_not_run_elsewhere_is_refused_at_once(lab, kind, setting, function, words):
    with pytest.raises(ConfigError, match=words):
        lab.submit(kind, "own", **{setting: function})
    assert not (lab.run("own").path / "functions").exists()


def test_a_file_s_function_is_checked_before_a_missing_run_is_trained(lab, tmp_path, monkeypatch):
    monkeypatch.setattr(Workspace, "policy", lambda self: pytest.fail("an SFT policy is trained"))
    for settings in (
        {"functions.loss": tmp_path / "none.py"},
        {"functions": {"loss": str(tmp_path / "none.py")}},
    ):
        with pytest.raises(ConfigError, match=r"functions.loss: .*none.py can't be read"):
            lab.submit("ppo", "own", **settings)


def test_a_reward_becomes_an_environment_on_the_preference_prompts(lab):
    for setting, name in (("reward", "reward"), ("model.environments.in-brief.use", "in-brief")):
        words = lab.commands("grpo", "own", **{setting: short})["main"]
        file = lab.run("own").path / "functions" / f"{name}.py"
        assert f"model.environments.{name}.use={file}" in words
        with pytest.raises(ConfigError, match=rf"{setting}=with_a_width, line 2: .*uses 'width'"):
            lab.commands("grpo", "own", **{setting: with_a_width})
        assert "def short" in file.read_text()
    nested = {"in-brief": {"use": short, "weight": 0.5}}
    more = {"model.environments.in-brief.weight=0.5"}
    assert {*words, *more} == {*lab.commands("grpo", "own", **{"model.environments": nested})["main"]}
    words = " ".join(lab.commands("grpo", reward=short)["main"])
    assert re.search(r"model.environments.reward.args.prompts=.*hh/test_prompts.jsonl", words)


def test_a_run_that_was_made_with_other_code_begins_anew_and_that_is_said(lab, capsys):
    def words_with(returned: str) -> list[str]:
        """The command of a run whose cell defines a loss that returns this."""
        text = f"def mine(chosen_rewards, rejected_rewards):\n    return {returned}\n"
        names = {}
        exec(compile(text, "cell", "exec"), names)
        linecache.cache["cell"] = (0, None, text.splitlines(keepends=True), "cell")
        return lab.commands("rm", "own", loss=names["mine"])["main"]

    anew = "exp_manager.resume_if_exists=false"
    assert anew not in words_with("chosen_rewards")
    run = lab.run("own").path
    config = {"functions": {"loss": f"{run / 'functions' / 'loss.py'}"}}
    record = {"config": config, "hashes": hashes_of_functions(config) | {"model": "m"}}
    (run / "run.json").write_text(json.dumps(record))
    assert anew not in words_with("chosen_rewards")
    assert anew in words_with("rejected_rewards") and anew in lab.commands("rm", "own")["main"]
    assert "own was trained with other code (functions.loss): the printed job" in capsys.readouterr().out
    config["functions"]["loss"] = "elsewhere.py"  # not of a cell: the job compares it itself
    (run / "run.json").write_text(json.dumps(record))
    assert anew not in lab.commands("rm", "own")["main"]


def test_a_file_may_have_helpers_and_imports(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from torch import Tensor\nSHARE = 0.5\n\n\ndef _half(x: Tensor):\n    return SHARE * x\n\n\n"
        "def other(x):\n    return x\n\n\ndef mine(ratio, advantages, *, low=0, high=0, **rest):\n    pass\n\n\n"
        "def mean(ratio, advantages, low, high):\n    return [_half(r) for r in ratio], ratio\n",
        encoding="utf-8-sig",  # some editors write a byte order mark
    )
    assert FunctionFile.read(f"{file}:mean", SURROGATE).load()([4.0], 0, 0, 0)[0] == [2.0]
    for name in ("mine", "_half"):
        with pytest.raises(ConfigError, match=f"{name}.* can't stand in"):
            FunctionFile.read(f"{file}:{name}", SURROGATE)
    file.write_text(f"def _only{CLIP}:\n    pass\n")
    assert FunctionFile.read(str(file), SURROGATE).name == "_only"


def test_a_file_runs_like_an_environment_s_with_dataclasses_and_its_neighbours(tmp_path):
    (tmp_path / "neighbour_of_own.py").write_text("SCALE = 2.0\n")
    loss = watched(
        tmp_path,
        "from __future__ import annotations\nfrom dataclasses import dataclass\nfrom neighbour_of_own import SCALE\n\n\n"
        "@dataclass\nclass Pairs:\n    margin: float\n\n\n"
        "def margin(c, r, rc, rr, beta):\n    return Pairs((c - rc - r + rr) * beta)\n\n\n"
        "def loss(c, r, rc, rr, beta):\n    return SCALE * margin(c, r, rc, rr, beta).margin\n",  # named like its setting
        "dpo",
    )
    assert loss(*(torch.tensor([x]) for x in (3.0, 1.0, 0.0, 0.0)), 0.5).tolist() == [2.0]
    with pytest.raises(
        ConfigError, match=r"functions.loss: .*own.py, line 2, raises an .*: ZeroDivisionError"
    ):
        watched(tmp_path, "def mine(c, r, rc, rr, beta): pass\n1 / 0\n", "dpo")


def test_neighbours_of_one_name_in_two_folders_are_refused_and_an_edited_neighbour_is_other_code(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        (folder / "own.py").write_text(f"from namesake import SCALE\n\n\ndef mine{CLIP}:\n    return SCALE\n")
        (folder / "namesake.py").write_text("from further import SCALE\n")
        (folder / "further.py").write_text(f"SCALE = '{folder.name}'\n")
    assert FunctionFile.read(str(first / "own.py"), SURROGATE).load()(0, 0, 0, 0) == "a"
    config = {"functions": {"loss": str(second / "own.py")}}
    before = hashes_of_functions(config)
    (second / "further.py").write_text("SCALE = 2.0\n")
    assert hashes_of_functions(config) != before
    with pytest.raises(ConfigError, match=f"b/own.py imports .*a/.*rename {second}"):
        FunctionFile.read(str(second / "own.py"), SURROGATE).load()


def test_a_function_of_the_library_that_has_helpers_is_imported():
    place = "aligner_lib.algorithms.policy_gradient:group_advantages"
    text = "from aligner_lib.algorithms.policy_gradient import group_advantages\n"
    assert source_of(group_advantages, "advantages", place) == text
    with pytest.raises(
        ConfigError, match=r"grpo_advantages\(rewards, group\) can't stand in for clipped_surrogate"
    ):
        source_of(grpo_advantages, "loss", SURROGATE)
    assert source_of(clipped_surrogate, "loss", SURROGATE).startswith("from __future__")


def test_the_file_of_a_cell_s_reward_imports_what_the_reward_names():
    for text, imported in (
        ("def reward(response):\n    import torch\n    return torch.ones(1).item()\n", []),
        (
            "def f(x):\n    def g(y):\n        return torch.exp(y) * math.pi\n    return g(x)\n",
            ["math", "torch"],
        ),
    ):
        written = with_imports(text, _modules_in(text))
        assert re.findall(r"^import (\w+)$", written, re.MULTILINE) == imported
        assert written.endswith("\n\n\n" + text)


def test_a_judge_s_cache_is_no_input_because_the_run_writes_it(tmp_path):
    environment = {"use": "judge", "args": {"cache": str(tmp_path / "c"), "prompts": str(tmp_path / "p")}}
    for name in "cp":
        (tmp_path / name).write_text("x")
    config = OmegaConf.create({"model": {"environments": {"judge": environment}}})
    assert list(hashes_of_functions(config)) == ["model.environments.judge.args.prompts"]


CLIP = LibraryFunction(SURROGATE).parameters


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"def f{CLIP}:\n    return x", "own.py, line 2: f uses 'x'"),
        ("def f(ratio, advantages, low, high: return 1", "own.py, line 1: "),
        ("x = 1", "own.py has no function: write def clipped_surrogate(ratio, adv"),
        ("def f(): pass\ndef g(): pass", "2 functions (f, g): choose a function as FILE.py:f"),
    ],
)
def test_a_file_without_a_function_that_can_be_called_is_refused(tmp_path, text, words):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(words)):
        compose("ppo", [f"functions.loss='{tmp_path / 'own.py'}'"])


@pytest.mark.parametrize(
    ("kind", "name", "setting", "words"),
    [
        ("dpo", "loss", "model.dpo.preference_loss=ipo", "preference_loss=ipo selects another loss"),
        ("ppo", "normalize", "trainer.ppo.normalize_advantages=False", "nothing is normalised"),
        ("grpo", "kl", "model.grpo.objective=dapo", "objective=dapo has kl=none"),
        ("grpo", "loss", "model.grpo.objective=cispo", "clipping=stop_gradient"),
    ],
)
def test_a_function_that_the_settings_would_not_call_is_refused(tmp_path, kind, name, setting, words):
    parameters = LibraryFunction(kinds()[kind].functions[name]).parameters
    (tmp_path / "own.py").write_text(f"def f{parameters}:\n    return 0")
    settings = [f"functions.{name}='{tmp_path / 'own.py'}'"]
    compose(kind, settings)
    with pytest.raises(ConfigError, match=re.escape(words)):
        compose(kind, [*settings, setting])


def test_a_new_value_of_clipping_calls_no_own_loss(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(f"def f{CLIP}:\n    return 0")
    monkeypatch.setitem(SWITCHES, "clipping", (*SWITCHES["clipping"], "new"))
    monkeypatch.setitem(PRESETS, "grpo", replace(PRESETS["grpo"], clipping="new"))
    with pytest.raises(ConfigError, match="clipping=new: training does not minimise the clipped loss"):
        compose("grpo", [f"functions.loss='{tmp_path / 'own.py'}'"])


def test_null_stands_for_the_library_s_function_and_other_values_are_refused():
    # ipo calls no function for the loss
    config = compose("dpo", ["functions.loss=null", "model.dpo.preference_loss=ipo"])
    assert config.functions == {} == hashes_of_functions(config)
    for value, words in {
        "3": r"functions\.loss=3 is not a file: give FILE\.py",
        "[a.py]": "is not a file",
    }.items():
        with pytest.raises(ConfigError, match=words):
            compose("dpo", [f"functions.loss={value}"])


def test_advantages_of_one_s_own_stand_in_for_those_of_an_objective(tmp_path):
    (tmp_path / "own.py").write_text("def f(rewards, group):\n    return rewards")
    settings = [f"functions.advantages='{tmp_path / 'own.py'}'", "model.grpo.objective=rloo"]
    with_own, usual = objective_of(compose("grpo", settings)), objective_of(compose("grpo", settings[1:]))
    assert with_own == replace(usual, baseline="group_mean", scale="group_std") != usual
    (notice,) = notices("grpo", compose("grpo", [*settings, "model.grpo.scale=none"]))
    assert "model.grpo.scale=none: functions.advantages says what" in notice


def watched(tmp_path, text: str, kind: str = "ppo", name: str = "loss"):
    (tmp_path / "own.py").write_text(text)
    config = SimpleNamespace(functions={name: str(tmp_path / "own.py")})
    return getattr(functions_of(kind, config), name)


LOSS = """import torch


def mine(ratio, advantages, low, high):
    clipped = ratio.clamp(1 - low, 1 + high)
    return {}
"""


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        ("(ratio / 0, clipped)", r"line 4\) returns inf at \[0\] \(2 of 2 are not finite\) \(result 1\)"),
        ("(ratio[:1].double(), clipped)", r"returns float64 \[1\]; float32 \[2\] was expected \(result 1\)"),
        ("(ratio.detach(), clipped)", r"returns a result without a gradient: .detach\(\)"),
        ("None", r"returns None \(is a return missing\?\); a tuple"),
        ("1 // 0", r"own.py, line 6\) raises ZeroDivisionError: integer division or modulo by zero"),
        ("(-ratio, advantages.mul_(2))", "changes an input tensor in place"),
    ],
)
def test_a_function_s_fault_is_reported_with_its_file_and_line(tmp_path, returned, words):
    loss = watched(tmp_path, LOSS.format(returned))
    ratio = torch.tensor([1.0, 1.5], requires_grad=True)
    with pytest.raises(FunctionError, match=r"mine \(functions.loss: .*own.py, line \d") as error:
        loss(ratio * 1, torch.ones(2), 0.2, 0.2)
    assert error.match(words)


def test_a_right_function_is_used_as_it_is(tmp_path):
    loss = watched(tmp_path, "def mine(c, r, rc, rr, beta):\n    return (c - rc - r + rr) * beta\n", "dpo")
    assert loss(*(torch.tensor([x]) for x in (3.0, 1.0, 0.0, 0.0)), 0.5).tolist() == [1.0]
    # infinities that the library's own function has, too, are no fault
    text = "def mine(logprobs, reference, estimator):\n    return logprobs - reference\n"
    kl = watched(tmp_path, text, "grpo", "kl")
    assert kl(torch.tensor([-1.0, -math.inf]), torch.zeros(2), "k1").tolist() == [-1, -math.inf]


def test_a_learning_rate_is_a_finite_number(tmp_path):
    rate = watched(tmp_path, "def mine(step, **rest):\n    return 1e999\n", "sft", "learning_rate")
    with pytest.raises(FunctionError, match="a finite number"):
        rate(1, peak=1.0, max_steps=2, warmup_steps=0, constant_steps=0, min_lr=0.0, name="constant")


def test_a_run_records_hashes_of_its_functions_and_of_its_environments_files(tmp_path):
    own, train = tmp_path / "own.py", tmp_path / "train.jsonl"
    args = {"prompts": {"train": str(train), "validation": str(tmp_path / "missing")}, "lists": [str(train)]}
    environments = {
        "short": {"use": str(own), "args": {"rubric": ["a" * 5000, "~50 words at most"], "count": 3}},
        "answers": {"use": "", "args": args},
    }
    config = {"functions": {"loss": f"{own}:f"}, "model": {"environments": environments}}
    of_own = ["functions.loss", "model.environments.short.use"]
    of_train = [f"model.environments.answers.args.{name}" for name in ("prompts.train", "lists.0")]
    own.write_text("a")
    for content in ("p", "q"):
        train.write_text(content)
        expected = dict.fromkeys(of_own, text_hash("a")) | dict.fromkeys(of_train, text_hash(content))
        assert hashes_of_functions(config) == hashes_of_functions(OmegaConf.create(config)) == expected
    assert hashes_of_functions({}) == {}
