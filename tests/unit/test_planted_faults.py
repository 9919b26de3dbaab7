"""Each planted fault, on tensors by hand: it does what its title says, and nothing else."""

from types import SimpleNamespace

import pytest
import torch

from aligner_lib.algorithms import ppo
from aligner_lib.algorithms.schedule import learning_rate
from aligner_lib.config.functions import source_of
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.megatron.generate import Sampling
from aligner_lib.tutorial import Workspace
from aligner_lib.tutorial.hunt.faults import FAULTS, fault_of

# two responses of 3 and 1 tokens after a prompt of 2, S = 5
MASK = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0]]).bool()
KL = torch.tensor([[0.0, 1, 2, 3], [0, 4, 0, 0]])
REWARDS = torch.tensor([10.0, 20.0])
BOTH = torch.tensor([True, True])


def planted(name: str):
    """The function that a fault puts in place of another."""
    (function,) = FAULTS[name].functions.values()
    return function


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_stored_like_a_learner_s_function(name):
    for replaced, function in FAULTS[name].functions.items():
        text = source_of(function, replaced, kind_of(FAULTS[name].kind).functions[replaced])
        assert function.__name__ == name and f"def {name}(" in text


def test_faults_of_rewards_masks_and_padding_by_hand():
    right, wrong = ppo.rewards_with_kl(REWARDS, KL, MASK, 0.5), planted("kl_sign")(REWARDS, KL, MASK, 0.5)
    assert right.tolist() == [[0, -0.5, -1, 8.5], [0, 18, 0, 0]]
    assert wrong.tolist() == [[0, 0.5, 1, 11.5], [0, 22, 0, 0]]
    assert planted("reward_token")(REWARDS, KL, MASK, 0.5).tolist() == [[0, 9.5, -1, -1.5], [0, 18, 0, 0]]
    # Shifted, the last prediction of the first row falls out; behind the second response, padding is learnt.
    assert planted("mask_shift")(MASK, BOTH).int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]
    assert not planted("mask_shift")(MASK, ~BOTH).any()
    assert planted("stop_token")(MASK, BOTH).int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]
    # Over all 8 places, of which 4 are 0 for nothing: mean 1.25, variance 2.1875.
    advantages = torch.tensor([[0.0, 1, 2, 3], [0, 4, 0, 0]])
    normal = planted("padding")(advantages, MASK, lambda x: x)
    assert normal[MASK].tolist() == pytest.approx([(a - 1.25) / 2.1875**0.5 for a in (1, 2, 3, 4)])
    assert not normal[~MASK].any()
    assert ppo.normalize(advantages, MASK)[MASK].mean().abs() < 1e-6 < normal[MASK].mean()


def test_faults_of_the_learning_rate_and_the_reward_s_scale():
    schedule = {"peak": 2.0, "max_steps": 10, "warmup_steps": 2, "constant_steps": 1, "min_lr": 0.5}
    schedule["name"] = "CosineAnnealing"
    trainer = SimpleNamespace(lr_schedule=SimpleNamespace(function=learning_rate))
    planted("learning_rate")(trainer)
    for step in (1, 5, 11):
        assert trainer.lr_schedule.function(step, **schedule) == 30 * learning_rate(step, **schedule)
    source = SimpleNamespace(collect=lambda rewards: [torch.tensor([reward]) for reward in rewards])
    planted("reward_scale")(SimpleNamespace(collector=SimpleNamespace(reward_source=source)))
    assert [reward.tolist() for reward in source.collect([1.0, -2.0])] == [[10], [-20]]


def test_a_moving_reference_is_the_trained_policy():
    from aligner_lib.megatron.engine import FrozenWeights

    module = torch.nn.Linear(2, 2)
    trainer = SimpleNamespace(policy=SimpleNamespace(reference=FrozenWeights(module)))
    assert planted("moving_reference")(trainer) is trainer
    with torch.no_grad():
        module.weight.add_(1)
    trained = module.weight.clone()
    with trainer.policy.reference.swap_in():
        assert torch.equal(module.weight, trained)
    assert torch.equal(module.weight, trained)


def test_only_the_training_rollouts_have_another_temperature():
    policy = SimpleNamespace(sampling=Sampling(max_length=4), engine=object())
    trainer = planted("temperature")(SimpleNamespace(policy=policy, collector=SimpleNamespace(policy=policy)))
    assert trainer.policy.sampling.temperature == 1
    assert trainer.collector.policy.sampling == Sampling(max_length=4, temperature=0.7)
    assert trainer.collector.policy.engine is policy.engine


def test_stale_rollouts_are_drawn_from_the_first_weights():
    module, drawn_from = torch.nn.Linear(2, 2), []
    first = module.weight.clone()

    class Batch:
        add = None

        def __init__(self, rows: int):
            pass

        def run(self, *enough):
            drawn_from.append(module.weight.clone())

    policy = SimpleNamespace(generator=SimpleNamespace(batch=Batch), engine=SimpleNamespace(module=module))
    planted("stale_rollouts")(SimpleNamespace(policy=policy))
    with torch.no_grad():
        module.weight.add_(1)
    policy.generator.refresh(None)
    policy.generator.batch(3).run()
    assert torch.equal(drawn_from[0], first) and torch.equal(module.weight, first + 1)


def test_a_run_with_a_fault_has_its_own_folder_named_after_the_fault(smoke, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Workspace, "reward_model", lambda self: smoke)
    plan = Workspace(tmp_path, "smoke", where="print").submit("ppo", fault="kl_sign")
    file = tmp_path / "runs" / "ppo-kl_sign" / "functions" / "token_rewards.py"
    assert f"functions.token_rewards={file}" in plan.text
    assert "def kl_sign(" in file.read_text()


def test_an_unknown_fault_raises_and_lists_the_faults():
    with pytest.raises(UserError, match="fault='kl': ppo has kl_sign, mask_shift"):
        fault_of("kl", "ppo")
    with pytest.raises(UserError, match="fault='kl_sign': sft has none"):
        fault_of("kl_sign", "sft")
