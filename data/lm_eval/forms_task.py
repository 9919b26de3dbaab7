"""What forms.yaml asks of a pair of `forms-test.jsonl`, and whether an answer obeys. Needs the repository's root in
`sys.path`, as `python -m lm_eval` has it there, and no aligner_lib."""

from data.forms import obeys
from data.hh import parse_conversation


def question(doc: dict) -> str:
    """The only turn of a pair's prompt, without the speakers' names: the chat template writes its own."""
    return parse_conversation(doc["chosen"]).prompt.removeprefix("User: ").removesuffix("\n\nAssistant:")


def judged(doc: dict, answers: list[str]) -> dict[str, float]:
    """lm-eval's `process_results`: by metric, what `data.forms` says of the one answer."""
    (answer,) = answers
    return {"obeys": float(obeys(question(doc), answer))}
