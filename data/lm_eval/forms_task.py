"""The functions of forms.yaml: the question of a pair in `forms-test.jsonl`, and whether an answer obeys. They need the
repository's root in `sys.path`, as with `python -m lm_eval`, and do not need aligner_lib."""

from data.forms import obeys
from data.hh import parse_conversation


def question(doc: dict) -> str:
    """The only turn of a pair's prompt, without the speakers' names, because the chat template adds its own names."""
    return parse_conversation(doc["chosen"]).prompt.removeprefix("User: ").removesuffix("\n\nAssistant:")


def judged(doc: dict, answers: list[str]) -> dict[str, float]:
    """lm-eval's `process_results`: the metric `obeys` of the only answer, computed by `data.forms`."""
    (answer,) = answers
    return {"obeys": float(obeys(question(doc), answer))}
