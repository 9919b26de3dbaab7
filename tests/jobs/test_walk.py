"""How many hands a step of PPO goes through, from notebook 05's cell on; tests/walk.py says what counts."""

from walk import walk


def test_from_the_cell_to_the_optimiser_step_are_few_calls_and_process_starts(rm, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "rm").symlink_to(rm.path)
    traced = walk(tmp_path)
    assert traced.calls[0].endswith(" Workspace.submit_ppo")
    assert traced.calls[-1].endswith(" Engine.train_step")
    assert any(call.endswith(" PolicyGradientTrainer._update") for call in traced.calls), "the policy's step"
    assert len(traced.calls) <= 18, str(traced)
    assert traced.process_starts <= 2, str(traced)
