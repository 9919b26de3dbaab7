"""The model card: the exported model, its training, and the code for loading. The card contains no path of this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from aligner_lib.datasets.json_file import read_object
from aligner_lib.models.export.trained import Trained

MODELS = ("model", "reward_model", "reference", "adapters", "teacher")
"""The keys of models among run.json's hashes."""
NOT_SHOWN = ("exp_manager", "remote_critic_rm")  # settings of this machine: folders, addresses, accounts
PATH = re.compile(r"(~|\.{1,2})?/.+|[\w.@+-]+(/[\w.@+-]+)+/?")
TASKS = {"lm": "text-generation", "scalar": "text-classification"}
LOAD_POLICY = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
"""
LOAD_REWARD_MODEL = """\
from transformers import AutoModelForSequenceClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSequenceClassification.from_pretrained(folder, dtype="auto", trust_remote_code=True)
messages = [
    {"role": "user", "content": "How are you?"},
    {"role": "assistant", "content": "I am well."},
]
tokens = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
reward = model(input_ids=tokens["input_ids"]).logits.item()
"""


def write_card(trained: Trained, out: Path, config: dict) -> None:
    """Write README.md into an exported folder. config: the folder's config.json."""
    sections = [_front_matter(trained), *_what_it_is(trained, config)]
    if trained.run:
        sections += [*_how_it_was_trained(trained), *_figures(trained), *_settings(trained)]
    (out / "README.md").write_text("\n".join([*sections, *_licence(trained)]) + "\n", encoding="utf-8")


def lineage(trained: Trained) -> list[Trained | str]:
    """The model and its ancestors: the starting model of each run, back to a model without a run here."""
    ancestors: list[Trained | str] = [trained]
    while isinstance(ancestors[-1], Trained) and (origin := ancestors[-1].origin()) is not None:
        ancestors.append(origin)
    return ancestors


def source_of(trained: Trained) -> dict:
    """The origin of the first ancestor: source.json of the ancestor's model folder; only a `name` if the folder is gone."""
    first = lineage(trained)[-1]
    if isinstance(first, str):
        return {"name": first}
    path = first.folder / "source.json"
    return read_object(path) if path.exists() else {"name": first.folder.name}


# ---- sections -------------------------------------------------------------------------------------------------------


def _front_matter(trained: Trained) -> str:
    source = source_of(trained)
    lines = ["library_name: transformers", f"pipeline_tag: {TASKS[trained.architecture.head]}"]
    if repository := _repository(source):
        lines.append(f"base_model: {repository}")
    lines.append(
        f"license: {source['license']}" if source.get("license") else "# license: not known; see below"
    )
    tags = ["aligner-lab", *([trained.run.kind] if trained.run else [])]
    return "\n".join(["---", *lines, f"tags: [{', '.join(tags)}]", "---"])


def _what_it_is(trained: Trained, config: dict) -> Iterator[str]:
    is_policy = trained.architecture.head == "lm"
    source = source_of(trained)
    is_merged = not trained.run and "merged_from" in source
    own = trained.run.name if trained.run else trained.folder.name
    yield f"\n# {own if trained.run or is_merged else _base_name(source)}\n"
    yield (
        f"A {'language' if is_policy else 'reward'} model of {trained.architecture.num_parameters:,} parameters "
        f"({config['model_type']}), exported by Aligner Lab."
        + (f" Adapters are merged into the weights of {_described(source)}." if is_merged else "")
    )
    yield f"\n```python\n{LOAD_POLICY if is_policy else LOAD_REWARD_MODEL}```"
    if not is_policy:
        yield from _how_it_scores(config)


def _how_it_scores(config: dict) -> Iterator[str]:
    yield (
        "\nThe reward is read at the text's last token, which is the stop token of a response that has ended. The chat template "
        "writes it behind the last answer: add no second one. `pipeline` takes such a text with `add_special_tokens=False` and "
        "returns the reward itself. Rewards are standardised: they have "
        "mean 0 and standard deviation 1 on the validation pairs, if the run measured them. `reward_model.py` in this "
        f"folder adds the constant {config['reward_constant']:.9g} (`reward_constant` of config.json), which transformers' "
        "own class can't represent, and computes the head in float32. Without `trust_remote_code=True` every reward is lower by "
        "that constant, and differences of rewards are the same."
    )
    if config["pad_token_id"] is None:
        yield "\nThe vocabulary has no token for padding: score one text at a time."
    else:
        yield (
            f"\nPad with token {config['pad_token_id']}, as this folder's tokenizer does: the score is read before "
            "the padding, which is recognised only by that id."
        )


def _how_it_was_trained(trained: Trained) -> Iterator[str]:
    yield "\n## Training\n"
    yield f"1. {_described(source_of(trained))}"
    trained_here = [model for model in lineage(trained) if isinstance(model, Trained) and model.run]
    for number, model in enumerate(reversed(trained_here), start=2):
        yield f"{number}. `aligner {model.run.kind}`, {model.step} steps"
    info = trained.run.info
    versions = ", ".join(f"{name} {version}" for name, version in info["versions"].items())
    yield f"\nSeed {info['seed']}; commit {info['git_commit'] or 'not known'}; {versions}."
    data = {
        _without_folders(name): digest
        for name, digest in info["hashes"].items()
        if name not in MODELS and not _is_code(name, trained.config)
    }
    if data:
        yield "\n| data | BLAKE2b |\n| --- | --- |"
        yield from (f"| {name} | `{digest}` |" for name, digest in data.items())


def _is_code(key: str, config: dict) -> bool:
    """Whether a key of run.json's hashes is a setting that names code."""
    environments = (config.get("model") or {}).get("environments") or {}
    functions = config.get("functions") or {}
    return key in {f"functions.{name}" for name in functions} | {
        f"model.environments.{name}.use" for name in environments
    }


def _figures(trained: Trained) -> Iterator[str]:
    series: dict[str, list[tuple[int, float]]] = {}
    for record in trained.run.metrics():
        if record["step"] <= trained.step:
            for name, value in record.items():
                if "/" in name and not name.startswith("timers/") and not name.endswith("step_time"):
                    series.setdefault(name, []).append((record["step"], value))
    if series:
        yield f"\n## Figures up to step {trained.step}\n"
        yield "| metric | first | last |\n| --- | --- | --- |"
    for name, ((first_step, first), *_) in sorted(series.items()):
        last_step, last = series[name][-1]
        yield f"| {name} | {first:.4g} (step {first_step}) | {last:.4g} (step {last_step}) |"


def _settings(trained: Trained) -> Iterator[str]:
    shown = json.dumps(without_machine(trained.config), indent=2)
    yield f"\n## Settings\n\n<details>\n<summary>all of them</summary>\n\n```json\n{shown}\n```\n</details>"


def _licence(trained: Trained) -> Iterator[str]:
    yield "\n## Licence\n"
    if licence := source_of(trained).get("license"):
        yield f"The model that this one started from is under `{licence}`; see there for its terms, and those of the data."
    else:
        yield "Not known. Fill in the licence of the model that this one started from, and mind the terms of the data."


# ---- names without this machine's paths -----------------------------------------------------------------------------


def _repository(source: dict) -> str | None:
    kind, _, rest = source.get("origin", "").partition(" ")
    return rest.split()[0] if kind == "hub" else None


def _base_name(source: dict) -> str:
    return source.get("name") or _without_folders(source.get("imported_from", "model"))


def _described(source: dict) -> str:
    kind, _, rest = source.get("origin", "").partition(" ")
    if kind == "hub":
        repository, revision = rest.split()[:2]
        return f"{repository} at {revision}"
    if kind == "package":
        return f"{source['name']}, from the Python package {rest}"
    return _base_name(source)


def without_machine(value):
    """Settings without the machine's own settings. A path is reduced to the last part."""
    if isinstance(value, dict):
        return {key: without_machine(inner) for key, inner in value.items() if key not in NOT_SHOWN}
    if isinstance(value, list):
        return [without_machine(inner) for inner in value]
    return _without_folders(value) if isinstance(value, str) else value


def _without_folders(text: str) -> str:
    """The last part of a path; other texts stay unchanged."""
    return (Path(text).name or text) if PATH.fullmatch(text) else text
