"""`aligner size`: memory and layout of a job, from its settings."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aligner_lib.cli import size
from aligner_lib.cli.main import app
from aligner_lib.cli.size import GPUs, best_layout, shape_of, trained_models
from aligner_lib.config.compose import compose
from aligner_lib.errors import UserError
from aligner_lib.models.architecture import Architecture
from cluster.sizing import (
    GIB,
    MODELS,
    OVERHEAD_GIB,
    ModelShape,
    Parallelism,
    Recomputation,
    activation_bytes,
    layouts,
    memory,
)

SMALL, LARGE = MODELS["SmolLM2-1.7B"], MODELS["Llama-2-70B"]


def models_of(kind: str, *settings: str):
    return trained_models(kind, compose(kind, list(settings), None))


def test_pairs_losses_without_a_reference_and_actors_with_a_critic_have_their_size():
    assert models_of("dpo")[0].batch == models_of("rm")[0].batch == 2 * 64
    references = [models_of("dpo", f"model.dpo.preference_loss={loss}")[0].scored for loss in ("dpo", "orpo")]
    assert references == [1, 0]
    kto = models_of("dpo", "model.dpo.preference_loss=kto", "model.micro_batch_size=4")[0]
    assert (kto.micro_batch, kto.batch, kto.scored) == (4, 64, 3), "KTO learns from single responses"
    with pytest.raises(UserError, match="no size of 'evaluate'; the sized kinds are sft, rm"):
        models_of("evaluate")
    models = models_of("ppo")
    assert [model.role for model in models] == ["actor", "critic"]
    needs = [size.memory_of(SMALL, model, Parallelism(1, 1, 2)) for model in models]
    assert size.together(needs) == pytest.approx(sum(need.total for need in needs) - OVERHEAD_GIB)


def test_the_layout_with_the_least_communication_that_fits_is_chosen():
    sft = models_of("sft", "model.encoder_seq_length=4096", "model.sequence_parallel=true")
    assert best_layout(SMALL, sft, GPUs(1, 8, 80)) == (Parallelism(1, 1, 8), True)
    chosen, fits = best_layout(LARGE, sft, GPUs(4, 8, 80))
    assert fits and (chosen.tp, chosen.pp, chosen.dp) == (8, 2, 2), "as in docs/cluster.md"
    chosen, fits = best_layout(LARGE, sft, GPUs(1, 8, 80))
    assert not fits and size.enough_gpus(LARGE, sft, GPUs(1, 8, 80)) == 32
    assert size.enough_gpus(LARGE, sft, GPUs(1, 6, 80)) == 16 * 6, (
        "whole nodes of six, as TP 2 × PP 16 × DP 3"
    )
    assert best_layout(LARGE, sft, GPUs(16, 6, 80)) == (Parallelism(2, 16, 3), True)
    assert {split.gpus for split in layouts(LARGE, 32)} == {32}


def test_adapters_are_the_only_trained_weights():
    """Queries, keys and values of SmolLM2-1.7B: A is [2, 2048] and B is [3 · 2048, 2], in each of 24 layers."""
    (adapted,) = models_of("sft", "model.peft.peft_scheme=lora", "model.peft.lora_tuning.adapter_dim=2")
    (full,) = models_of("sft")
    need, whole = (size.memory_of(SMALL, model, Parallelism(1, 1, 2)) for model in (adapted, full))
    trained = 24 * 2 * (2048 + 3 * 2048)
    assert need.gradients * GIB == pytest.approx(4 * trained)
    assert need.optimizer * GIB == pytest.approx(12 * trained / 2)
    assert need.weights * GIB == pytest.approx(2 * (SMALL.parameters + trained), rel=1e-3)
    assert need.activations == whole.activations and need.total < whole.total - 10


def test_frozen_layers_have_no_gradients_and_store_no_activations():
    """Six of SmolLM2-1.7B's 24 layers: 67,108,864 weights in matrices and 2 · 2048 in norms each, then a norm and a scalar head."""
    (frozen,), (whole,) = models_of("rm", "model.num_layers_unfrozen=6"), models_of("rm")
    need, all_layers = (size.memory_of(SMALL, model, Parallelism(1, 1, 2)) for model in (frozen, whole))
    trained = 6 * (67_108_864 + 2 * 2048) + 2048 + 2049
    assert need.gradients * GIB == pytest.approx(4 * trained)
    assert need.optimizer * GIB == pytest.approx(12 * trained / 2)
    assert need.weights == all_layers.weights
    assert need.activations == pytest.approx(all_layers.activations / 4)
    # the last stage trains its 12 layers, the first one 6 of 12, of which two micro batches are stored: both store as much
    halves = size.memory_of(SMALL, replace(frozen, last_layers=18), Parallelism(1, 2, 1))
    assert halves.activations == pytest.approx(all_layers.activations / 2)
    assert halves.gradients * GIB == pytest.approx(4 * (12 * (67_108_864 + 2 * 2048) + 2048 + 2049))


def test_full_recomputation_stores_the_input_of_a_part_and_the_activations_of_one_part():
    """Four layers with 34 bytes for each token and hidden unit, of which 2 are the input, and a scalar head without logits."""
    tiny = ModelShape("tiny", layers=4, hidden=8, feed_forward=16, heads=2, kv_heads=2, vocabulary=10)

    def stored(recomputation, stages=1):
        needed = activation_bytes(tiny, Parallelism(1, stages, 1), 5, "critic", recomputation=recomputation)
        return needed / (5 * 8)

    assert stored(None) == 4 * 34
    assert stored(Recomputation(1)) == 4 * 2 + 34
    assert stored(Recomputation(2)) == 2 * 2 + 2 * 34
    assert stored(Recomputation(3, block=True)) == 3 * 2 + 34 + 34
    assert stored(Recomputation(1), stages=2) == 2 * 2 * 2 + 34, "two micro batches of two layers"
    (full,), (usual,) = models_of("sft", "model.activations_checkpoint_granularity=full"), models_of("sft")
    recomputed, kept = (size.memory_of(SMALL, model, Parallelism(1, 1, 2)) for model in (full, usual))
    assert recomputed.activations < 0.5 * kept.activations


def test_packed_micro_batches_have_the_tokens_of_the_settings_and_at_least_the_longest_sample():
    packed = ["model.encoder_seq_length=1024", "model.data.packed_sequence=true"]
    for kind, setting, tokens in (
        ("sft", 8192, 8192),
        ("rm", 8192, 8192),
        ("sft", 512, 1024),
        ("rm", 512, 2048),
    ):
        (model,) = models_of(kind, *packed, f"model.data.packed_sequence_size={setting}")
        need = size.memory_of(SMALL, model, Parallelism(1, 1, 1)).activations * GIB
        assert need == activation_bytes(SMALL, Parallelism(1, 1, 1), tokens, model.role), (kind, setting)


@pytest.mark.parametrize(("installed", "words"), [(True, "on, because"), (False, "off, because")])
def test_sequence_parallelism_is_the_settings_or_else_the_engines(monkeypatch, installed, words):
    monkeypatch.setattr(size, "find_spec", lambda name: name if installed else None)
    needs = {}
    for setting in ("null", "true", "false"):
        (model,) = models_of("sft", f"model.sequence_parallel={setting}")
        needs[setting] = size.memory_of(LARGE, model, Parallelism(8, 1, 1)).activations
    assert needs["true"] < needs["false"] and needs["null"] == needs["true" if installed else "false"]
    sized = command("sft", "--gpus", "4x8x80", "--model", "Llama-2-70B")
    assert f"the table has sequence parallelism {words} Transformer Engine is" in sized.output


@pytest.mark.parametrize(
    ("stages", "setting", "reason"),
    [
        (1, "num_layers_unfrozen=6", ""),
        (2, "num_layers_unfrozen=40", "40 layers without a trained layer: set at least 41"),
        (2, "num_layers_unfrozen=41", ""),
        (2, "activations_checkpoint_num_layers=24", "num_layers=24 does not divide the 40 layers"),
        (2, "activations_checkpoint_num_layers=20", ""),
    ],
)
def test_stages_that_the_engine_refuses_are_not_proposed(stages, setting, reason):
    """The trained layers of 80 lie in the last of two stages, and chunks of 24 divide neither 80 layers nor 40."""
    settings = ["model.global_batch_size=512", f"model.{setting}"]
    if "checkpoint" in setting:
        settings.append("model.activations_checkpoint_granularity=full")
    config = compose("rm", settings, None)
    models, split = trained_models("rm", config), Parallelism(8, stages, 8 // stages)
    refusal = size.refusal("rm", config, LARGE, models, GPUs(8, 8, 80), split)
    assert reason in refusal and bool(reason) == bool(refusal)


def test_ranks_that_do_not_divide_the_model_are_in_no_layout():
    """Qwen2.5-1.5B has 12 heads and 2 key/value heads, and the engine gives each rank the same number."""
    assert {split.tp for split in layouts(MODELS["Qwen2.5-1.5B"], 8)} == {1, 2}
    assert {split.tp for split in layouts(LARGE, 12, gpus_per_node=6)} == {1, 2}, "TP stays in a node"
    with pytest.raises(ValueError, match=r"2 key/value heads, .* over 4 ranks"):
        memory(MODELS["Qwen2.5-1.5B"], Parallelism(4, 1, 1), "sft")


def test_heads_wider_than_the_hidden_size_and_a_mlp_without_gate_count():
    """Qwen 3's heads, in small: 2 heads and 1 key/value head of 8 values, with 4 hidden values."""
    shape = ModelShape("wide", 1, 4, 8, heads=2, kv_heads=1, vocabulary=10, tied=True, head_size=8)
    assert shape.layer == 4 * 16 + 16 * 4 + 2 * 4 * 8 + 3 * 4 * 8
    assert replace(shape, gated=False).layer == shape.layer - 4 * 8
    cache = memory(shape, Parallelism(1, 1, 1), "actor", sequence=3, rollout_batch=5).kv_cache
    assert cache * GIB == pytest.approx(2 * 2 * 8 * 3 * 5), "keys and values of 8 values, 2 bytes each"


def test_gpus_are_written_as_number_and_memory():
    assert (GPUs.parse("8x80"), GPUs.parse("4X8x80")) == (GPUs(1, 8, 80), GPUs(4, 8, 80))
    for wrong in ("8", "8x", "x80", "0x80", "8x0", "1x2x3x4", "eight", "-8x80"):
        with pytest.raises(UserError, match=f"--gpus {wrong}: write GPUsxGB or NODESxGPUsxGB, such as 8x80"):
            GPUs.parse(wrong)


def test_a_shape_is_that_of_the_table_or_of_a_model_folder(smoke):
    for name in ("SmolLM2-1.7B", "smollm2-1.7b", "HuggingFaceTB/SmolLM2-1.7B-Instruct"):
        assert shape_of(name) is SMALL
    for name in ("nvidia/GPT-2B-001", "meta-llama/Meta-Llama-3-8B-Instruct"):  # of NeMo-Aligner's guides
        assert shape_of(name) is MODELS[name.removesuffix("-Instruct").partition("/")[2]]
    arch, shape = Architecture.load(smoke), shape_of(str(smoke))
    expected = (arch.num_layers, arch.hidden_size, arch.vocab_size, arch.num_parameters)
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.parameters) == expected
    with pytest.raises(UserError, match=r"The sizing table has .*; did you mean Llama-2-7B\?"):
        shape_of("Lama-2-7B")


def command(*arguments: str):
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["size", *arguments])


def test_the_command_shows_memory_and_settings_and_fails_where_the_job_does_not_fit():
    result = command("ppo", "--profile", "gpu", "--gpus", "2x80")
    assert result.exit_code == 0, result.output
    assert "ppo of SmolLM2-1.7B (1.71 billion parameters)" in result.output
    assert "trainer.devices=2" in result.output and "critic.trainer.devices=2" in result.output
    page = (Path(__file__).parents[2] / "docs" / "cluster.md").read_text()
    assert [line for line in result.output.splitlines() if line.rstrip() not in page] == []
    for arguments, words in (
        (
            ("ppo", "--gpus", "1x80"),
            "does not fit: 2 such GPUs are enough; 2 jobs on 1 GPU of 80 GB each fit",
        ),
        (("ppo", "--gpus", "8x5"), "the overhead alone needs 5 GiB of each GPU, so no model is small enough"),
        (("dpo", "--gpus", "6x80"), "the job does not start in any layout of 6 GPUs of 80 GB"),
    ):
        result = command(*arguments, "--profile", "gpu" if arguments[0] == "ppo" else "slurm")
        assert result.exit_code == 1 and words in result.output
    sized = command("sft", "model.restore_from_path=Llama-2-7B", "trainer.precision=32")
    assert "sft of Llama-2-7B" in sized.output and "the table is for trainer.precision=bf16" in sized.output


def test_the_proposed_layout_is_one_in_which_the_job_starts():
    """Twelve pairs a step can't be shared by eight copies of the model, and by four copies of two ranks each they can."""
    result = command("rm", "--gpus", "8x80", "model.global_batch_size=12", "model.micro_batch_size=1")
    assert result.exit_code == 0, result.output
    assert "TP 2 × PP 1 × DP 4" in result.output and "model.tensor_model_parallel_size=2" in result.output
