"""`aligner cost`: operations, hours and assumptions of a job, from its settings."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from aligner_lib.cli.cost import Speed, flops_of
from aligner_lib.cli.main import app
from aligner_lib.cli.size import trained_models
from aligner_lib.config.compose import compose
from cluster.sizing import ModelShape, StepFlops, step_flops, token_flops

TINY = ModelShape("tiny", layers=2, hidden=4, feed_forward=8, heads=2, kv_heads=1, vocabulary=10, tied=True)
"""A layer's matrices have 4·4 + 4·4 + 2·4·2 + 3·4·8 = 144 weights, the output layer 10·4 = 40.

A token of a text of 5 tokens takes 2·(2·144 + 40) = 656 operations in matrices and 2 layers · 4·5·4 = 160 in attention: 816,
or 736 with a scalar head.
"""
SETTINGS = {
    "sft": ["model.data.train_ds.global_batch_size=3", "model.encoder_seq_length=10"],
    "rm": ["model.global_batch_size=3", "model.encoder_seq_length=10"],
    "dpo": ["model.global_batch_size=3", "model.encoder_seq_length=10"],
    "grpo": [
        "model.grpo.num_prompts_per_step=3",
        "model.grpo.num_generations_per_prompt=2",
        "model.global_batch_size=6",
    ],
    "ppo": [
        "model.ppo.num_rollout_samples=6",
        "model.global_batch_size=6",
        "critic.model.global_batch_size=6",
        "model.ppo.rollout_epochs=2",
        "model.ppo.critic_rollout_epochs=3",
    ],
}
PROGRAM, PROMPTS = "model.environments.sums.use=sums", "model.data.data_prefix={train: [a], validation: [b]}"

TEACHER = ["model.grpo.objective=distill", "model.grpo.teacher.restore_from_path=t"]


def test_operations_of_a_token_worked_by_hand():
    assert [token_flops(TINY, role, 5) for role in ("sft", "actor", "critic")] == [816, 816, 736]
    assert token_flops(TINY, "sft", 10) - token_flops(TINY, "sft", 5) == 160, "attention grows with the text"
    assert step_flops(TINY, "actor", 6, 5, trained=2, scored=2, generated=True) == StepFlops(
        training=6 * 5 * 816 * 3 * 2, scoring=6 * 5 * 816 * 2, generation=6 * 5 * 816
    )
    adapted = step_flops(TINY, "actor", 6, 5, trained=2, adapted=True)
    assert adapted.training == 6 * 5 * 816 * 2 * 2, "no gradients of the weights"
    frozen = step_flops(TINY, "critic", 6, 5, trained_share=0.5, recomputed_share=1.0)
    assert frozen.training == 6 * 5 * 736 * (1 + 2 * 0.5 + 1), "a frozen half, and all layers computed again"


@pytest.mark.parametrize(
    ("kind", "more", "passes"),
    [  # tokens of a step, operations of a token; passes that train, score and generate
        ("sft", [], [(3 * 5, 816, 1, 0, 0)]),
        ("rm", [], [(6 * 5, 736, 1, 0, 0)]),
        ("dpo", [], [(6 * 5, 816, 1, 1, 0)]),
        ("dpo", ["model.dpo.preference_loss=orpo"], [(6 * 5, 816, 1, 0, 0)]),
        ("grpo", [PROGRAM], [(6 * 5, 816, 1, 2, 1)]),  # scored by the policy and its reference
        ("grpo", [PROMPTS], [(6 * 5, 816, 1, 3, 1)]),  # and by a reward model
        ("grpo", [PROGRAM, *TEACHER], [(6 * 5, 816, 1, 3, 1)]),  # and by a teacher
        ("ppo", [], [(6 * 5, 816, 2, 2, 1), (6 * 5, 736, 3, 2, 0)]),  # and the critic with the reward model
    ],
)
def test_a_step_counts_the_passes_of_its_kind(kind, more, passes):
    models = trained_models(kind, compose(kind, [*SETTINGS[kind], *more], None))
    expected = [
        StepFlops(3 * tokens * each * trained, tokens * each * scored, tokens * each * generated)
        for tokens, each, trained, scored, generated in passes
    ]
    assert [flops_of(TINY, model, 5) for model in models] == expected


def test_texts_of_sft_are_as_long_as_its_training_data_are_cut():
    for longest, sequence in (("null", 10), (8, 8)):
        more = f"model.data.train_ds.max_seq_length={longest}"
        (model,) = trained_models("sft", compose("sft", [*SETTINGS["sft"], more]))
        assert model.sequence == sequence


def test_seconds_are_operations_by_the_assumed_speed():
    """Two GPUs of 100 TFLOP/s do 100e12 operations a second at half of the peak, and 20e12 at a tenth."""
    speed = Speed(tflops=100, mfu=0.5, generation_mfu=0.1)
    assert speed.seconds(StepFlops(300e12, 200e12, 40e12), gpus=2) == (3, 2, 2)


def command(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["cost", *arguments])


def test_the_command_shows_hours_and_assumptions_and_needs_steps_for_the_hours():
    result = command("ppo", "--profile", "gpu", "--gpus", "2x80")
    assert result.exit_code == 0, result.output
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert [line for line in result.output.splitlines() if line.rstrip() not in page] == []
    output = command("sft", "--model", "Llama-2-7B", "--tokens", "100", "--steps", "7", "--mfu", "0.2").output
    assert "7 steps of 128 texts of 100 tokens" in output
    assert "training and scoring reach 20% of the peak" in output and "--tokens" not in output
    assert "--steps N gives the hours" in command("sft", "trainer.sft.max_steps=-1").output
