"""Each example of docs/extending.md at its extension point, and run for real."""

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from smoke_jobs import REWARD_E, UNEXPORTED, SmokeJobs

from aligner_lib.errors import UserError
from aligner_lib.run_folder.exporters import services, tail
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from aligner_lib.tutorial.exercises import registry
from aligner_lib.tutorial.report.progress_table import ProgressTable

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ON_THE_PATH = {"PYTHONPATH": os.pathsep.join([str(HERE), str(ROOT)])}


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", ON_THE_PATH["PYTHONPATH"])


# ---- the page -------------------------------------------------------------------------------------------------------


def test_the_page_shows_or_links_every_example():
    """tests/unit/test_figures.py compares a shown file with the page."""
    page = (ROOT / "docs" / "extending.md").read_text()
    examples = {path.name for path in HERE.iterdir() if path.is_file()} - {Path(__file__).name}
    assert {name for name in examples if f"tests/extending/{name}" not in page} == set()


# ---- training -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ppo(smoke, formatted, rm, tmp_path_factory) -> RunFolder:
    """Two steps of PPO with the reward term, the clipping and the generation engine."""
    jobs = SmokeJobs(smoke, formatted, tmp_path_factory.mktemp("extending"), rm.path)
    settings = {
        "trainer.ppo.max_steps": 2,
        "trainer.ppo.critic_warmup_steps": 0,
        "model.ppo.sampling_params.end_strings": "[]",
        "functions.token_rewards": f"'{HERE / 'length_cost.py'}:token_rewards'",
        "functions.loss": f"'{HERE / 'dual_clip.py'}'",
        "functions.trainer": f"'{HERE / 'transformers_generator.py'}:trainer'",
    }
    return jobs.run("ppo", "ppo", **settings)


def test_a_reward_term_is_subtracted_from_each_response(ppo):
    first = ppo.metrics()[1]
    assert first["train_rollouts/kl"] == 0
    cost = first["train_rollouts/rewards"] - first["train_rollouts/rlhf_rewards"]
    assert cost == pytest.approx(0.01 * first["train_rollouts/generation_length"], abs=1e-4)


def test_a_generation_engine_has_the_policy_s_weights_at_every_step(ppo):
    steps = ppo.metrics()[1:]
    assert len(steps) == 2 and steps[1]["train_rollouts/kl"] != 0
    assert all(step["train_rollouts/sampler_mismatch"] < 1e-4 for step in steps)


def test_a_clipping_bounds_the_loss_of_negative_advantages():
    from dual_clip import loss

    ratio, advantages = torch.tensor([5.0, 2.0, 2.0]), torch.tensor([-1.0, -1.0, 1.0])
    losses, clipped = loss(ratio, advantages, 0.2, 0.2)
    assert losses.tolist() == pytest.approx([3.0, 2.0, -1.2])
    assert clipped.tolist() == pytest.approx([1.2, 1.2, 1.2])


@pytest.fixture(scope="module")
def grpo(smoke, formatted, tmp_path_factory) -> RunFolder:
    """A step of GRPO with the objective, on the environment and on prompts whose reward is the share of the letter e."""
    folder = tmp_path_factory.mktemp("extending")
    settings = UNEXPORTED | {
        "pretrained_checkpoint.restore_from_path": smoke,
        "model.environments.backwards.use": f"'{HERE / 'backwards.py'}'",
        "model.environments.e.use": f"'{REWARD_E}'",
        "model.environments.e.args.prompts.train": f"'{formatted / 'train_prompts.jsonl'}'",
        "model.environments.e.args.prompts.validation": f"'{formatted / 'test_prompts.jsonl'}'",
        "model.grpo.objective": "reinforce_group",
        "model.grpo.num_prompts_per_step": 4,
        "model.grpo.num_generations_per_prompt": 4,
        "model.global_batch_size": 16,
        "model.micro_batch_size": 8,
        "model.grpo.num_val_samples": 4,
        "model.grpo.length_params.max_length": 12,
        "trainer.grpo.max_steps": 1,
    }
    # a process of its own: an objective has to be there before the settings of GRPO are imported
    start = "import reinforce_group; from aligner_lib.cli.main import main; main()"
    command = [sys.executable, "-c", start, "grpo", "--profile", "smoke", "--run", str(folder / "run")]
    command += [f"{key}={value}" for key, value in settings.items()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | ON_THE_PATH)
    assert done.returncode == 0, done.stderr
    return RunFolder(folder / "run")


def test_an_objective_makes_the_advantages_of_its_switches(grpo):
    """The reward minus the group's mean, divided by nothing."""
    rollouts = [rollout for rollout in grpo.rollouts() if rollout["split"] == "train"]
    groups = {rollout["group"] for rollout in rollouts}
    assert len(groups) == 4
    for group in groups:
        members = [rollout for rollout in rollouts if rollout["group"] == group]
        mean = sum(rollout["reward"] for rollout in members) / len(members)
        for rollout in members:
            learned = [value for value in rollout["token_advantage"] if value is not None]
            assert learned == pytest.approx([rollout["reward"] - mean] * len(learned), abs=2e-5)


def test_an_environment_gives_a_second_try(grpo):
    from backwards import Backwards

    environment = Backwards()
    environment.reset(0)
    word = environment.word
    assert environment.step(word).observation == "No. Try again."
    assert environment.step(word[::-1]).reward == 0.5
    step = grpo.metrics()[1]
    assert step["train_environments/backwards/samples"] == 8
    assert step["train_environments/backwards/failed"] == step["train_environments/backwards/reward"] == 0


def test_a_preference_loss_takes_the_log_ratios_of_pairs(monkeypatch):
    from types import SimpleNamespace

    from aligner_lib.algorithms.preference import PairLogprobs
    from aligner_lib.algorithms.preference_losses import LOSSES
    from aligner_lib.kinds.dpo.trainer import DPOTrainer

    monkeypatch.setitem(LOSSES, "hinge", None)  # so that the test's end removes the entry
    import hinge_loss  # noqa: F401

    settings = SimpleNamespace(preference_loss="hinge", ref_policy_kl_penalty=0.2)
    policy, reference = (
        PairLogprobs(*map(torch.tensor, sides))
        for sides in (([-1.0, -1.0], [-3.0, -9.0]), ([-2.0] * 2, [-2.0] * 2))
    )
    # margins 2 and 8, of which the second is above 1 / 0.2
    losses = DPOTrainer._losses(SimpleNamespace(settings=settings), policy, reference)
    assert losses.tolist() == pytest.approx([0.6, 0])


# ---- models ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("here")
def test_a_model_family_has_the_logits_of_transformers(smoke, tmp_path, monkeypatch):
    import arcee
    from tiny_families import SIZES
    from transformers import AutoConfig, AutoModelForCausalLM

    from aligner_lib.datasets.tokenizer import Tokenizer
    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics
    from aligner_lib.models import families, import_hf
    from aligner_lib.models.architecture import Architecture

    monkeypatch.setitem(families.FAMILIES, "arcee", arcee.FAMILY)
    monkeypatch.setitem(families.BY_MODEL_TYPE, "arcee", arcee.FAMILY)
    torch.manual_seed(0)
    config = AutoConfig.for_model("arcee", **SIZES, initializer_range=0.2)
    reference = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    reference.save_pretrained(tmp_path / "hf")
    Tokenizer(smoke).save(tmp_path / "hf")
    import_hf(tmp_path / "hf", tmp_path / "imported")
    arch = Architecture.load(tmp_path / "imported")
    assert families.from_hf(families.to_hf(arch)) == arch
    engine = Engine(arch, Numerics(), None)
    engine.load(tmp_path / "imported")
    tokens = torch.randint(2, 1024, (1, 20))
    with torch.no_grad():
        expected = reference(tokens).logits
    assert expected.std() > 0.05
    torch.testing.assert_close(_logits(engine, tokens), expected, atol=1e-4, rtol=0)


def _logits(engine, tokens):
    """float [B, S, V]."""
    from aligner_lib.datasets.batches import TokenBatch

    batch = TokenBatch(tokens, torch.tensor([tokens.shape[1]]))

    def logits(model, _, hidden):
        return model.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1).transpose(0, 1)

    return engine.map([batch], logits)[0]


# ---- around a run ---------------------------------------------------------------------------------------------------


def _log(folder: Path, name: str, values: dict[int, float]) -> None:
    with RunWriter(folder, kind="sft", config={}, seed=1, hashes={}, max_steps=9) as writer:
        writer.start(min(values))
        for step, value in values.items():
            writer.log(step, {name: value})
        writer.finish("finished")


def test_an_exporter_sends_each_step_once(tmp_path, monkeypatch):
    import csv_exporter

    # the file lies where the page puts it, and the page's entry is the table's
    monkeypatch.setitem(sys.modules, "aligner_lib.run_folder.exporters.csv_exporter", csv_exporter)
    page = (ROOT / "docs" / "extending.md").read_text()
    entry = re.search(r'`"csv": (ServiceEntry\(.*?\))`', page)[1]
    monkeypatch.setitem(services.SERVICES, "csv", eval(entry, vars(services)))
    # a job without the new settings
    assert "csv" not in services.requested({"create_tensorboard_logger": True})
    for steps in (range(3), range(3, 5)):
        _log(tmp_path / "run", "train/loss", {step: 1 / (step + 1) for step in steps})
        tail.follow(RunFolder(tmp_path / "run"), "csv", until_over=False)
    (file,) = (tmp_path / "run").glob("metrics-*.csv")
    lines = list(csv.reader(file.open()))
    assert lines == [[str(step), "train/loss", str(1 / (step + 1))] for step in range(5)]


def test_a_chart_and_its_metric_are_a_kind_s(tmp_path, monkeypatch):
    from aligner_lib.config import glossary, kinds
    from aligner_lib.config.metrics_file import declared_in
    from widgets.runs.feed import open_feed

    kind = replace(kinds.kinds()["sft"], **declared_in(HERE))
    monkeypatch.setattr(kinds, "_kinds", lambda further: {"sft": kind})
    _log(tmp_path / "run", "train/words", {0: 7.0, 1: 7.0})
    (chart,) = open_feed(RunFolder(tmp_path / "run"), None, "step", None, 0).charts
    assert (chart.title, chart.unit) == ("Length", "words")
    assert "| `train/words` | words | mean number of words in a response |" in glossary.glossary()


def test_an_alarm_sounds_after_three_records():
    from few_words import few_words

    from aligner_lib.run_folder.alarms import active

    records = [{"step": step, "train/words": words} for step, words in enumerate([9, 1, 0, 1])]
    assert active([few_words], records[:1], records[:3]) == []
    (alarm,) = active([few_words], records[:1], records)
    assert (alarm.name, alarm.step) == ("few_words", 3)


def test_a_scheduler_runs_a_job(tmp_path, monkeypatch):
    from cluster import submit

    monkeypatch.setenv("ALIGNER_SCHEDULERS", "nice_scheduler")
    command = [sys.executable, "-c", "import os; print(os.nice(0))"]
    job = submit(command, tmp_path / "run", where="nice")
    assert job.wait(60) == "FINISHED"
    assert job.tail(1) == "19"
    printed = submit(command, tmp_path / "printed", where="print:nice")
    assert "nice -n 19" in printed.text


# ---- for learners ---------------------------------------------------------------------------------------------------


@pytest.fixture
def exercise(monkeypatch):
    """The example is registered as the exercises of notebook 20."""
    import entropy_exercise

    monkeypatch.setitem(sys.modules, "aligner_lib.tutorial.exercises.notebook_20", entropy_exercise)
    monkeypatch.setattr(registry, "NOTEBOOKS", (*registry.NOTEBOOKS, "20"))
    return registry.exercise("entropy")


def test_an_exercise_accepts_its_reference_and_names_each_mistake(exercise):
    from aligner_lib.tutorial.checking.check import judge

    assert judge(exercise, lambda logits: exercise.reference(logits), 1)
    assert len(exercise.mistakes) >= 5
    for mistake in exercise.mistakes:
        assert judge(exercise, mistake.answer, 1).mistake is mistake


def test_an_exercise_with_the_name_of_another_is_refused(exercise, monkeypatch):
    import entropy_exercise

    monkeypatch.setattr(entropy_exercise, "EXERCISES", (replace(exercise, name="gae"),))
    with pytest.raises(UserError, match="the notebooks 05 and 20 both have an exercise 'gae': rename one"):
        registry.exercises()


def test_an_exercise_of_a_notebook_without_a_quiz_counts_in_the_progress(exercise, tmp_path):
    (row,) = (row for row in ProgressTable(tmp_path).rows if row.number == exercise.notebook)
    assert (row.name, str(row.exercises), str(row.quiz)) == ("20", "0 of 1", "–")


def test_a_quiz_s_questions_are_read(tmp_path, monkeypatch):
    from aligner_lib.tutorial.quiz import quiz_file

    monkeypatch.setattr(quiz_file, "FOLDER", tmp_path)
    (tmp_path / "20.toml").write_text((HERE / "entropy_quiz.toml").read_text())
    (question,) = quiz_file.load_quiz("20").questions
    assert question.choices[0].text == "The uniform distribution" and len(question.choices) == 4


def test_a_notebook_is_built_and_its_cells_run(exercise, tmp_path, monkeypatch):
    import build

    monkeypatch.setitem(build.FURTHER, "20", ("20_entropy", "entropy"))
    monkeypatch.chdir(tmp_path)
    for solved in (False, True):
        notebook = json.loads(build.build(HERE / "20_entropy.py", build.read_figures(ROOT), solved))
        code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        prose = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
        assert "**entropy**" in prose[0] and exercise.hint in prose[1]
        names = {}
        for cell in code:
            exec(cell, names)
        assert bool(names["verdict"]) == solved
        assert float(names["verdict"].function(torch.zeros(1, 8))) == pytest.approx(2.0794, abs=1e-4)  # ln 8


@pytest.mark.parametrize(
    ("name", "right", "wrong", "message"),
    [
        ("20_entropy", '    """logits: float [B, V] → float [B], in nats."""\n', "", "entropy needs a docstring"),
        ("20_entropy", "(-1)\n\n\n", "(-1)\n\n\nmost = 3\n", "ends with `most = 3`: end the cell with the"),
        ("20_entropy", "def entropy", "def gini", "there is no exercise 'gini'; .* NOTEBOOKS of registry.py"),
        ("21_entropy", "", "", "STAGES and FURTHER in notebooks/build.py lack '21'"),
    ],
    ids=["docstring", "end", "name", "map"],
)  # fmt: skip
def test_a_notebook_that_a_learner_could_not_use_is_refused(
    name, right, wrong, message, exercise, tmp_path, monkeypatch
):
    import build

    monkeypatch.setitem(build.FURTHER, "20", ("20_entropy", "entropy"))
    monkeypatch.setattr(build, "HERE", tmp_path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / f"{name}.py").write_text((HERE / "20_entropy.py").read_text().replace(right, wrong))
    with pytest.raises(SystemExit, match=message):
        build.main(check=False)
    assert not [*tmp_path.glob("*.ipynb")]
