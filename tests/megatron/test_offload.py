"""model.offload_adam_states: Adam's moments wait on the CPU while the model computes, and are back for what needs them."""

import pytest
import tiny

from aligner_lib.megatron import adam, checkpoint

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]


@pytest.fixture
def events(monkeypatch):
    """Where the moments were moved to, and what was done then: on a CPU both places are the same."""
    from aligner_lib.megatron import engine

    happened = []

    def note(where: object, name: str, what: str) -> None:
        work = getattr(where, name)
        monkeypatch.setattr(
            where, name, lambda *args, **more: (happened.append(what), work(*args, **more))[1]
        )

    note(adam, "to_cpu", "to the CPU")
    note(adam, "to_device", "to the device")
    note(engine.Engine, "_schedule", "compute")
    note(checkpoint, "save_optimizer", "save")
    return happened


def values(model, batch, hidden):
    return model.values(hidden).t()


@pytest.mark.parametrize("offloads", [True, False])
def test_moments_are_on_the_cpu_for_inference_alone(starts, events, tmp_path, offloads):
    engine = tiny.new_engine("scalar", starts / "scalar")
    engine.offloads_adam = offloads
    batches = tiny.Samples.draw(4, seed=0).micro_batches(2)
    events.clear()
    engine.map(batches, values)
    engine.train_step(batches, tiny.value_loss, lr=1e-3)
    engine.map(batches, values)
    engine.save(tmp_path)
    inference, training = ["to the CPU", "compute"], ["to the device", "compute"]
    moves = [*inference, *training, *inference, "to the device", "save"]
    assert events == (moves if offloads else [event for event in moves if not event.startswith("to the")])


def test_generation_makes_room_too(starts, events, monkeypatch):
    from aligner_lib.rollouts import policy
    from aligner_lib.rollouts.generators import megatron

    monkeypatch.setattr(megatron.ContinuousBatch, "run", lambda *_: events.append("generate"))
    engine = tiny.new_engine("untied", starts / "untied")
    engine.offloads_adam = True
    events.clear()
    tokenizer = type("Tokenizer", (), {"eos_id": 1, "stop_ids": [1], "pad_id": 0, "decode": str})
    policy.Policy(engine, tokenizer, None, forward_micro_batch_size=2).respond([], [])
    assert events == ["to the CPU", "generate"]


@pytest.mark.parametrize("offloads", [True, False])
def test_the_setting_reaches_the_critic(starts, offloads, monkeypatch):
    from aligner_lib.config.compose import compose
    from aligner_lib.kinds import build_models

    monkeypatch.setattr(build_models, "Tokenizer", lambda folder: None)  # these models have none
    config = compose("critic", [f"model.offload_adam_states={offloads}"], profile="smoke")
    critic = build_models.build_critic(config, starts / "scalar", judges=False)[0]
    assert critic.engine.offloads_adam is offloads
