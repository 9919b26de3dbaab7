"""Functions of the user's own in the real trainers: a right one gives the reference run's figures to the last digit."""

import json
from pathlib import Path

import pytest
import torch
from smoke_jobs import assert_same_first_steps, first_steps, run_smoke_job, steps

from aligner_lib.algorithms import policy_gradient
from aligner_lib.config.functions import with_imports
from aligner_lib.errors import FunctionError, UserError

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


PPO = dict(loss="clipped_loss", token_rewards="token_rewards", advantages="gae", loss_mask="loss_mask")


def test_right_functions_give_the_reference_run_s_figures_to_the_last_digit(jobs, ppo, here):
    """PPO with four functions of a learner's. run.json names them, and the run does not go on with another text."""
    file = jobs.out / "own.py"
    file.write_text(solutions("05") + LOSS_MASK)
    own = jobs.run("ppo", "own", **used(file, **PPO), **first_steps("ppo", 3))
    assert_same_first_steps(own, ppo)
    assert own.info["config"]["functions"]["loss"].endswith("own.py:clipped_loss")
    assert own.info["hashes"].keys() - ppo.info["hashes"].keys() == {f"functions.{name}" for name in PPO}
    file.write_text(file.read_text().replace("ratio.clamp(", "ratio.clip("))
    with pytest.raises(UserError, match=r"was begun with other inputs \(functions\.loss,"):
        run_smoke_job("ppo", jobs.settings("ppo", "own", **used(file, **PPO), **first_steps("ppo", 8)))


def test_dpo_s_loss(jobs, dpo):
    file = jobs.out / "dpo.py"
    file.write_text(solutions("06"))
    own = jobs.run("dpo", "own_dpo", **used(file, loss="dpo_losses"), **first_steps("dpo", 2))
    assert_same_first_steps(own, dpo)


def test_group_advantages(jobs):
    """In an objective that would not divide: GRPO's deviation comes with the function."""
    file = jobs.out / "grpo.py"
    file.write_text(solutions("07"))
    settings = used(file, advantages="grpo_advantages") | {"trainer__grpo__max_steps": 1}
    run = jobs.run("grpo", "own_grpo", **settings)
    records = [record for record in run.rollouts() if record["split"] == "train"]
    rewards, group = (torch.tensor([record[name] for record in records]) for name in ("reward", "group"))
    expected = policy_gradient.grpo_advantages(rewards, group)
    assert [record["token_advantage"][0] for record in records] == pytest.approx(expected.tolist(), abs=1e-3)
    assert expected.std() > 0.5


def test_a_mask_that_leaves_no_token_is_named():
    from aligner_lib.kinds.sft.trainer import SFTTrainer

    with pytest.raises(FunctionError, match=r"functions\.loss_mask leaves no token of the train batch"):
        SFTTrainer.figures(None, "train", {})


def test_a_function_that_fails_in_training_is_told_with_the_step(jobs, here):
    """Until then, the critic has the learning rate of the user's other function."""
    file = jobs.out / "raises.py"
    file.write_text(
        "CALLS = []\n\n\ndef mine(rewards, kl, mask, coefficient):\n    CALLS.append(1)\n"
        "    return -coefficient * kl / (0 if len(CALLS) == 2 else 1)\n"
        "def rate(step, *, peak, max_steps, warmup_steps, constant_steps, min_lr, name):\n    return 0.125 * peak\n"
    )
    own = used(file, token_rewards="mine", learning_rate="rate")
    with pytest.raises(UserError, match="at step 2, mine"):
        run_smoke_job("ppo", jobs.settings("ppo", "raises", **own))
    run = jobs.run_folder("raises")
    place = f"(functions.token_rewards: {file}, line 4) returns nan at [0, 0]"
    assert run.status == "failed" and run.info["message"].startswith(f"at step 2, mine {place}")
    assert steps(run) == [0, 1]
    assert run.metrics()[1]["critic/lr"] == 0.125 * 1e-3
