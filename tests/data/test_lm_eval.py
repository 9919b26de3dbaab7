"""lm-eval's task of the bundled instructions, without lm-eval: what it asks, how it judges, and that its files exist."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

from data.forms import instruction_in, obeys
from data.hh import parse_pair
from data.sources import BUNDLED, SAMPLES

TASK = Path(__file__).parents[2] / "data" / "lm_eval" / "forms.yaml"


class Loader(yaml.SafeLoader):
    """Reads the task as lm-eval does."""


def function_beside_the_task(loader: yaml.Loader, node: yaml.Node):
    """`!function module.name`: a function of module.py."""
    module, _, name = loader.construct_scalar(node).rpartition(".")
    spec = importlib.util.spec_from_file_location(module, TASK.parent / f"{module}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


Loader.add_constructor("!function", function_beside_the_task)


@pytest.fixture(scope="module")
def task() -> dict:
    return yaml.load(TASK.read_text(), Loader)


@pytest.fixture(scope="module")
def docs(task) -> list[dict]:
    """The task's records, from the path as it stands there."""
    path = TASK.parents[2] / task["dataset_kwargs"]["data_files"][task["test_split"]]
    assert path == SAMPLES / BUNDLED["forms"]["hh"].format(split="test")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_question_is_what_the_user_wrote(task, docs):
    assert task["doc_to_text"](docs[0]) == (
        "Can you tell me how to sow carrots? Your answer must begin and end with a double quotation mark."
    )
    for doc in docs:
        prompt = parse_pair(doc).chosen.prompt
        assert prompt == f"User: {task['doc_to_text'](doc)}\n\nAssistant:"
        assert instruction_in(task["doc_to_text"](doc)) == instruction_in(prompt)


def test_its_judge_is_the_forms_own(task, docs):
    """Of every pair one answer obeys; and each answer judged as another question's, where either may."""
    (metric,) = (entry["metric"] for entry in task["metric_list"])
    pairs = [parse_pair(doc) for doc in docs]
    for doc, pair, other in zip(docs, pairs, pairs[1:] + pairs[:1], strict=True):
        assert task["process_results"](doc, [pair.chosen.response]) == {metric: 1.0}
        assert task["process_results"](doc, [pair.rejected.response]) == {metric: 0.0}
        assert task["process_results"](doc, [""]) == {metric: 0.0}
        judged = task["process_results"](doc, [other.chosen.response])
        assert judged == {metric: float(obeys(pair.chosen.prompt, other.chosen.response))}


def test_answers_are_the_likeliest_and_end_with_the_stop_token_alone(task):
    """Unset, lm-eval's `until` is an empty line: answers with a title or a postscript would lose it."""
    settings = task["generation_kwargs"]
    assert settings["until"] == [] and not settings["do_sample"] and settings["temperature"] == 0
