"""Functions of the user's own in the real trainers: a right one gives the reference run's figures to the last digit."""

import json
from pathlib import Path

import pytest
from smoke_jobs import checkpoint_files, figures, first_steps, run_smoke_job, steps

from aligner_lib.config.functions import source_of, with_imports
from aligner_lib.errors import UserError
from aligner_lib.tutorial.hunt.faults import FAULTS

SOLVED = Path(__file__).parents[2] / "notebooks" / "solved"
# and one that is no exercise, in other words than the library's
LOSS_MASK = """
def loss_mask(response_mask, learnt):
    return torch.logical_and(response_mask, learnt.unsqueeze(1))
"""


def solutions(number: str) -> str:
    """The solutions of a notebook's exercises, as one file."""
    (path,) = SOLVED.glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text())["cells"]
    solved = [cell["source"] for cell in cells if "solution" in cell["metadata"].get("tags", [])]
    return with_imports("\n\n\n".join(map("".join, solved)))


def used(file: Path, **names: str) -> dict[str, str]:
    """Settings: a function of the file in place of each of these."""
    return {f"functions__{setting}": f"'{file}:{name}'" for setting, name in names.items()}


PPO = {
    "loss": "clipped_loss",
    "token_rewards": "token_rewards",
    "advantages": "gae",
    "loss_mask": "loss_mask",
}


def test_right_functions_give_the_reference_run_s_figures_to_the_last_digit(jobs, ppo, here):
    """PPO with four functions of a learner's. run.json names them, and the run does not go on with another text."""
    file = jobs.out / "own.py"
    file.write_text(solutions("05") + LOSS_MASK)
    own = jobs.run("ppo", "own", **used(file, **PPO), **first_steps("ppo", 4))
    assert figures(own) == figures(ppo)[:5]
    assert own.info["config"]["functions"]["loss"].endswith("own.py:clipped_loss")
    assert own.info["hashes"].keys() - ppo.info["hashes"].keys() == {f"functions.{name}" for name in PPO}
    file.write_text(file.read_text().replace("ratio.clamp(", "ratio.clip("))
    with pytest.raises(UserError, match=r"was begun with other inputs \(functions\.loss,"):
        run_smoke_job("ppo", jobs.settings("ppo", "own", **used(file, **PPO), **first_steps("ppo", 8)))


def test_dpo_s_loss(jobs, dpo):
    file = jobs.out / "dpo.py"
    file.write_text(solutions("06"))
    own = jobs.run("dpo", "own_dpo", **used(file, loss="dpo_losses"), **first_steps("dpo", 2))
    for ours, theirs in zip(figures(own), figures(dpo)):
        assert ours.items() >= theirs.items()  # ours has validated after its last step, too


def test_group_advantages(jobs):
    """In an objective that would not divide: GRPO's deviation comes with the function."""
    file = jobs.out / "grpo.py"
    file.write_text(solutions("07"))
    settings = {"trainer__grpo__max_steps": 2}
    divided = jobs.run("grpo", "divided", model__grpo__scale="group_std", **settings)
    own = jobs.run("grpo", "own_grpo", **used(file, advantages="grpo_advantages"), **settings)
    assert figures(own) == figures(divided)
    assert checkpoint_files(own) == checkpoint_files(divided)
    assert 0.5 < figures(own)[1]["train_rollouts/advantages_std"] < 1


def test_a_fault_changes_the_figures(jobs, ppo):
    """The penalty counts from step 2 on: before that, policy and reference are equal."""
    (function,) = FAULTS["kl_sign"].functions.values()
    file = jobs.out / "fault.py"
    file.write_text(source_of(function, "token_rewards", "aligner_lib.algorithms.ppo:rewards_with_kl"))
    wrong = jobs.run("ppo", "fault", functions__token_rewards=f"'{file}'", trainer__ppo__max_steps=3)
    assert wrong.info["config"]["functions"] == {"token_rewards": str(file)}
    broken, healthy = figures(wrong), figures(ppo)
    assert broken[1]["train_rollouts/rlhf_rewards"] == healthy[1]["train_rollouts/rlhf_rewards"]
    assert broken[3]["train_rollouts/rlhf_rewards"] > broken[3]["train_rollouts/rewards"]
    assert healthy[3]["train_rollouts/rlhf_rewards"] < healthy[3]["train_rollouts/rewards"]


def test_a_function_that_fails_in_training_is_told_with_the_step(jobs, here):
    file = jobs.out / "raises.py"
    file.write_text(
        "CALLS = []\n\n\ndef mine(rewards, kl, mask, coefficient):\n    CALLS.append(1)\n"
        "    return -coefficient * kl / (0 if len(CALLS) == 2 else 1)\n"
    )
    with pytest.raises(UserError, match="at step 2, mine"):
        run_smoke_job("ppo", jobs.settings("ppo", "raises", functions__token_rewards=f"'{file}'"))
    run = jobs.run_folder("raises")
    place = f"(functions.token_rewards: {file}, line 4) returns nan at [0, 0]"
    assert run.status == "failed" and run.info["message"].startswith(f"at step 2, mine {place}")
    assert steps(run) == [0, 1]
