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


def values(model, batch, hidden):
    return model.values(hidden).t()


@pytest.mark.parametrize("by_value", [False, True], ids=["as on a CPU", "as on a GPU"])
def test_a_model_still_learns_after_its_weights_were_exchanged(starts, by_value):
    from aligner_lib.megatron.engine import FrozenWeights

    engine = tiny.new_engine("scalar", starts / "scalar")
    frozen = FrozenWeights(engine.module)
    frozen.by_value = by_value
    places = [parameter.data_ptr() for parameter in engine.module.parameters()]
    batches = tiny.Samples.draw(4, seed=0).micro_batches(2)

    def numbers() -> torch.Tensor:
        return torch.cat([rows.flatten() for rows in engine.map(batches, values)])

    before = numbers()
    for _ in range(2):
        engine.train_step(batches, tiny.value_loss, lr=1e-2)
        learnt = numbers()
        assert not torch.allclose(learnt, before, atol=1e-3)
        with frozen.swap_in():
            assert torch.equal(numbers(), before)
        assert torch.equal(numbers(), learnt)
        assert [parameter.data_ptr() for parameter in engine.module.parameters()] == places


def test_the_last_layers_alone_have_gradients_and_moments_and_theirs_are_as_ever(starts):
    engines = [tiny.new_engine("scalar", starts / "scalar", clip=0, num_layers_unfrozen=n) for n in (1, None)]
    batches = tiny.Samples.draw(6, seed=0).micro_batches(3)
    before = {name: one.clone() for name, one in engines[0].module.named_parameters()}
    for engine in engines:
        engine.train_step(batches, tiny.value_loss, lr=1e-9)
    top, whole = (dict(engine.module.named_parameters()) for engine in engines)
    trained = {name for name, one in top.items() if one.requires_grad}
    last = f"decoder.layers.{tiny.ARCHITECTURE.num_layers - 1}."
    assert trained == {name for name in top if name.startswith((last, "decoder.final", "value_head."))}
    for name in trained:
        torch.testing.assert_close(top[name].main_grad, whole[name].main_grad)
    moments = [one for group in engines[0].optimizer.optimizer.param_groups for one in group["params"]]
    assert sum(one.numel() for one in moments) == sum(top[name].numel() for name in trained)
    engines[0].train_step(batches, tiny.value_loss, lr=1e-2)
    assert {name for name, one in top.items() if not torch.equal(one, before[name])} == trained


def test_what_began_with_fewer_layers_is_not_taken_up_with_more(starts, tmp_path):
    batches = tiny.Samples.draw(6, seed=0).micro_batches(3)

    def engine(n: int | None):
        return tiny.new_engine("scalar", starts / "scalar", num_layers_unfrozen=n)

    began = engine(1)
    began.train_step(batches, tiny.value_loss, lr=1e-2)
    began.save(tmp_path)
    engine(1).load(tmp_path, with_optimizer=True)
    message = r"weights that are trained now, such as .*: set num_layers_unfrozen"
    with pytest.raises(ConfigError, match=message):
        engine(None).load(tmp_path, with_optimizer=True)


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


def learnable(batch: TokenBatch) -> CriticExperience:
    numbers = torch.ones(batch.size, batch.tokens.shape[1] - 1)
    return CriticExperience(
        tokens=batch.tokens,
        lengths=batch.lengths,
        response_mask=numbers.bool(),
        values=numbers,
        returns=numbers,
    )


def test_critic_and_reward_model_exchange_their_weights_once_a_step(starts, exchanges, tmp_path):
    from aligner_lib.rollouts.critic import Critic

    critic = Critic(tiny.new_engine("scalar", starts / "scalar"), 0.2, 2, 2, RewardScale(0.5, 2.0))
    critic.engine.start = Path(starts) / "scalar"
    reward_model = critic.reward_model()
    samples = tiny.Samples.draw(6, seed=0)
    batches = [TokenBatch(samples.tokens, samples.lengths).rows(rows) for rows in ([0, 1], [2, 3, 4], [5])]

    def judged() -> tuple[torch.Tensor, ...]:
        values = [critic.values(batch) for batch in batches]
        rewards = [reward_model.score(batch) for batch in batches]
        return tuple(
            torch.cat([x.flatten() for x in m.collect(y)])
            for m, y in ((critic, values), (reward_model, rewards))
        )

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
    from aligner_lib.rollouts.critic import Critic

    samples = tiny.Samples.draw(6, seed=0)
    rollouts = [TokenBatch(samples.tokens, samples.lengths).rows(rows) for rows in ([0, 1, 2], [3, 4, 5])]

    def learnt(once: bool) -> tuple[list[torch.Tensor], list[int]]:
        engine = tiny.new_engine("scalar", starts / "scalar", num_layers_unfrozen=1)
        if not once:
            engine.module.frozen_outputs = None
        passes: list[int] = []  # of the lowest layer: the rows' tokens
        layers = engine.module.decoder.layers
        layers[0].register_forward_hook(lambda layer, arguments, output: passes.append(len(output[0])))
        critic = Critic(engine, 0.2, 2, 2, RewardScale(0.5, 2.0))
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
    from aligner_lib.rollouts.critic import Critic, RewardModel

    samples = tiny.Samples.draw(3, seed=0)
    batch = TokenBatch(samples.tokens, samples.lengths)
    plain = Critic(tiny.new_engine("scalar", starts / "scalar"), 0.2, 2, 2)
    critic = Critic(tiny.new_engine("scalar", starts / "scalar"), 0.2, 2, 2, RewardScale(0.5, 2.0))
    alone = RewardModel(tiny.new_engine("scalar", starts / "scalar"), RewardScale(0.5, 2.0), 2)
    raw, values = plain.values(batch).result(), critic.values(batch).result()
    assert raw.abs().max() > 1e-3
    real = torch.arange(raw.shape[1]) < batch.lengths[:, None] - 1
    torch.testing.assert_close(values[real], (raw[real] - 0.5) / 2, atol=1e-6, rtol=0)
    rewards = critic.reward_model().score(batch).result()
    torch.testing.assert_close(rewards, alone.score(batch).result(), atol=1e-6, rtol=0)


def test_with_a_new_head_values_begin_at_0_and_rewards_are_the_reward_model_s(starts):
    from aligner_lib.rollouts.critic import Critic

    samples = tiny.Samples.draw(3, seed=0)
    batch = TokenBatch(samples.tokens, samples.lengths)

    def critic(new_head: bool) -> Critic:
        made = Critic(tiny.new_engine("scalar", starts / "scalar"), 0.2, 2, 2, RewardScale(0.5, 2.0))
        made.new_head, made.engine.start = new_head, Path(starts) / "scalar"
        return made

    new, copied = critic(True), critic(False)
    judges = [one.reward_model() for one in (new, copied)]
    for one in (new, copied):
        one.begin()
    assert not new.values(batch).result().any() and copied.values(batch).result().any()
    rewards = [judge.score(batch).result() for judge in judges]
    assert torch.equal(*rewards) and rewards[0].any()
    new.train(learnable(batch), lr=1e-2)
    assert new.values(batch).result().any()
    new.load(None)
    assert not new.values(batch).result().any(), "back before the first step"
