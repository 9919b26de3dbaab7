"""Frozen weights beside a model that trains: the model gets its own back, in the memory where the optimizer writes."""

from pathlib import Path

import pytest
import tiny
import torch

from aligner_lib.datasets.batches import TokenBatch
from aligner_lib.errors import ConfigError
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.rollouts.records import CriticExperience

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


@pytest.mark.parametrize("by_value", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_a_model_still_learns_after_its_weights_were_exchanged(starts, by_value):
    from aligner_lib.megatron.engine import FrozenWeights

    engine = tiny.new_engine("scalar", starts / "scalar")
    frozen = FrozenWeights(engine.module)
    frozen.by_value = by_value
    places = [parameter.data_ptr() for parameter in engine.module.parameters()]
    batches = tiny.Samples.draw(4, seed=0).micro_batches(2)

    def numbers() -> torch.Tensor:
        rows = engine.map(batches, lambda model, batch, hidden: model.values(hidden).t())
        return torch.cat([row.flatten() for row in rows])

    before = numbers()
    for _ in range(2):
        engine.train_step(batches, tiny.value_loss, lr=1e-2)
        learnt = numbers()
        assert not torch.allclose(learnt, before, atol=1e-3)
        with frozen.swap_in():
            assert torch.equal(numbers(), before)
        assert torch.equal(numbers(), learnt)
        assert [parameter.data_ptr() for parameter in engine.module.parameters()] == places


def test_the_last_layers_alone_have_gradients_and_moments_and_theirs_are_as_ever(starts, tmp_path):
    def engine(n: int | None):
        return tiny.new_engine("scalar", starts / "scalar", clip=0, num_layers_unfrozen=n)

    engines = [engine(1), engine(None)]
    batches = tiny.Samples.draw(6, seed=0).micro_batches(3)
    before = {name: weight.clone() for name, weight in engines[0].module.named_parameters()}
    for each in engines:
        each.train_step(batches, tiny.value_loss, lr=1e-9)
    top, whole = (dict(each.module.named_parameters()) for each in engines)
    trained = {name for name, weight in top.items() if weight.requires_grad}
    last = f"decoder.layers.{tiny.ARCHITECTURE.num_layers - 1}."
    assert trained == {name for name in top if name.startswith((last, "decoder.final", "value_head."))}
    for name in trained:
        torch.testing.assert_close(top[name].main_grad, whole[name].main_grad)
    moments = [weight for group in engines[0].optimizer.optimizer.param_groups for weight in group["params"]]
    assert sum(weight.numel() for weight in moments) == sum(top[name].numel() for name in trained)
    engines[0].train_step(batches, tiny.value_loss, lr=1e-2)
    assert {name for name, weight in top.items() if not torch.equal(weight, before[name])} == trained
    # and with more layers such a training does not go on
    engines[0].save(tmp_path)
    engine(1).load(tmp_path, with_optimizer=True)
    message = r"weights in training, such as .*: set num_layers_unfrozen"
    with pytest.raises(ConfigError, match=message):
        engines[1].load(tmp_path, with_optimizer=True)


def test_the_last_layers_learn_the_same_where_layers_are_recomputed(starts):
    plain, *recomputed = (
        tiny.new_engine("scalar", starts / "scalar", num_layers_unfrozen=2, recompute_granularity=granularity)
        for granularity in (None, "selective", "full")
    )
    batches = tiny.Samples.draw(4, seed=0).micro_batches(3)
    for _ in range(2):
        expected = plain.train_step(batches, tiny.value_loss, lr=1e-2)
        for engine in recomputed:
            assert engine.train_step(batches, tiny.value_loss, lr=1e-2) == pytest.approx(expected, rel=1e-5)


@pytest.fixture
def exchanges(monkeypatch) -> list[None]:
    """An item for each time that weights were exchanged."""
    from aligner_lib.megatron.engine import FrozenWeights

    seen, exchange = [], FrozenWeights._exchange
    monkeypatch.setattr(FrozenWeights, "_exchange", lambda weights: (seen.append(None), exchange(weights)))
    return seen


SCALE = RewardScale(0.5, 2.0)


def critic_of(starts, scale: RewardScale | None = SCALE, **more):
    from aligner_lib.rollouts.critic import Critic

    engine = tiny.new_engine("scalar", starts / "scalar", **more)
    critic = Critic(engine, 0.2, 2, 2, *([scale] if scale else []))
    engine.start = Path(starts) / "scalar"
    return critic


def batches_of(*rows: list[int]) -> list[TokenBatch]:
    samples = tiny.Samples.draw(sum(map(len, rows)), seed=0)
    return [TokenBatch(samples.tokens, samples.lengths).rows(numbers) for numbers in rows]


def learnable(batch: TokenBatch) -> CriticExperience:
    numbers = torch.ones(batch.size, batch.tokens.shape[1] - 1)
    return CriticExperience(batch.tokens, batch.lengths, numbers.bool(), values=numbers, returns=numbers)


def test_critic_and_reward_model_exchange_their_weights_once_a_step(starts, exchanges, tmp_path):
    critic, batches = critic_of(starts), batches_of([0, 1], [2, 3, 4], [5])
    reward_model = critic.reward_model()

    def judged() -> list[torch.Tensor]:
        values = [critic.values(batch) for batch in batches]
        rewards = [reward_model.score(batch) for batch in batches]
        collected = critic.collect(values), reward_model.collect(rewards)
        return [torch.cat([row.flatten() for row in rows]) for rows in collected]

    first_values, first_rewards = judged()
    assert len(exchanges) == 1  # until the critic wants its own weights
    critic.train(learnable(batches[0]), lr=1e-2)
    assert len(exchanges) == 2
    values, rewards = judged()
    assert not torch.allclose(values, first_values, atol=1e-3)
    assert torch.equal(rewards, first_rewards)
    critic.save(tmp_path)  # its own weights, though the reward model's were in use
    critic.train(learnable(batches[1]), lr=1e-2)
    judged()
    critic.load(tmp_path)
    assert torch.equal(judged()[0], values)
    critic.load(None)
    assert torch.equal(judged()[0], first_values)


def test_frozen_layers_are_computed_once_for_values_rewards_and_epochs(starts):
    """Beside a critic whose passes compute them each time: values, rewards and two epochs of two rollouts are the same."""
    rollouts = batches_of([0, 1, 2], [3, 4, 5])

    def learnt(once: bool) -> tuple[list[torch.Tensor], list[int]]:
        critic = critic_of(starts, num_layers_unfrozen=1)
        engine = critic.engine
        if not once:
            engine.module.frozen_outputs = None
        passes: list[int] = []  # of the lowest layer: the rows' tokens
        layers = engine.module.decoder.layers
        layers[0].register_forward_hook(lambda layer, arguments, output: passes.append(len(output[0])))
        reward_model, numbers = critic.reward_model(), []
        for batch in rollouts:
            numbers += [critic.values(batch).result(), reward_model.score(batch).result()]
            for _ in range(2):
                numbers.append(torch.tensor(critic.train(learnable(batch), lr=1e-2).result()["loss"]))
        assert engine.module.decoder.layers is layers
        return numbers, passes

    (numbers, passes), (expected, all_passes) = learnt(once=True), learnt(once=False)
    torch.testing.assert_close(numbers, expected)
    # two micro batches a rollout: once in place of values, rewards and two epochs
    assert len(passes) == 4 and len(all_passes) == 16
    assert not torch.allclose(numbers[0], numbers[4][:, : numbers[0].shape[1]], atol=1e-3)


def test_a_critic_begins_in_the_units_of_rewards(starts):
    """Rewards leave the reward model as (r − 0.5) / 2; what predicts them is not to learn that first."""
    from aligner_lib.rollouts.critic import RewardModel

    [batch] = batches_of([0, 1, 2])
    plain, critic = critic_of(starts, scale=None), critic_of(starts)
    alone = RewardModel(tiny.new_engine("scalar", starts / "scalar"), SCALE, 2)
    raw, values = plain.values(batch).result(), critic.values(batch).result()
    assert raw.abs().max() > 1e-3
    real = torch.arange(raw.shape[1]) < batch.lengths[:, None] - 1
    torch.testing.assert_close(values[real], (raw[real] - 0.5) / 2, atol=1e-6, rtol=0)
    rewards = critic.reward_model().score(batch).result()
    torch.testing.assert_close(rewards, alone.score(batch).result(), atol=1e-6, rtol=0)


def test_with_a_new_head_values_begin_at_0_and_rewards_are_the_reward_model_s(starts):
    [batch] = batches_of([0, 1, 2])
    new, copied = critic_of(starts), critic_of(starts)
    new.new_head = True
    judges = [critic.reward_model() for critic in (new, copied)]
    for critic in (new, copied):
        critic.begin()
    assert not new.values(batch).result().any() and copied.values(batch).result().any()
    rewards = [judge.score(batch).result() for judge in judges]
    assert torch.equal(*rewards) and rewards[0].any()
    new.train(learnable(batch), lr=1e-2)
    assert new.values(batch).result().any()
    new.load(None)
    assert not new.values(batch).result().any(), "back before the first step"
