"""On which pairs a reward model is right, by fault."""

from aligner_lib.tutorial.comparison.pair_faults import PAIRS, RIGHT, right_by_fault

TURN = 'How do I sow carrots? Use the word "damp".'
GOOD = "To sow carrots, keep the soil damp and scatter the seeds thinly."


def pair(rejected: str, turn: str = TURN) -> dict[str, str]:
    return {"prompt": f"User: {turn}\n\nAssistant:", "chosen": GOOD, "rejected": rejected}


def test_each_fault_has_its_share():
    pairs = [
        pair(TURN),
        pair('Use the word "damp".'),
        pair("To sow carrots, scatter the seeds thinly in loose soil."),
    ]
    table = right_by_fault(pairs, [(1.0, 0.0), (0.0, 0.0), (1.0, -1.0)])
    assert table.figures[PAIRS] == {"all": 3, "echo": 2, "form": 1}
    right = {fault: share.value for fault, share in table.figures[RIGHT].items()}
    assert right == {"all": 2 / 3, "echo": 0.5, "form": 1.0}  # a tie is not right


def test_pairs_that_no_program_can_judge_have_no_table():
    assert right_by_fault([pair(GOOD), pair(GOOD, "How do I sow carrots?")], [(1.0, 0.0)] * 2) is None
