"""One process, tensor, pipeline and data parallel: the same losses, gradients, checkpoints and responses."""

import pytest
import torch
from layouts import GLOBAL_BATCH, LAYOUTS, MAPPED, RUNS, STEPS, continued, train
from safetensors.torch import load_file
from tiny import ARCHITECTURE, CLIP, MODELS, Samples, language_loss, new_engine, value_loss
from twins import stored_tensors

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.megatron.whole_weights import WholeWeights
from aligner_lib.models.export import export
from aligner_lib.models.merge import merge
from aligner_lib.models.tensor_store import StoreReader

pytestmark = pytest.mark.megatron
CLOSE = 1e-5

each_run = pytest.mark.parametrize("run", RUNS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)
each_split = pytest.mark.parametrize("layout", [*LAYOUTS][1:])  # tp2_sequence splits each weight as tp2 does


def assert_same_steps(got: list[dict], expected: list[dict]) -> None:
    for ours, theirs in zip(got, expected, strict=True):
        assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE)


@each_run
def test_compared_steps_and_responses_are_worth_comparing(figures, run):
    """Else equality would say little: losses move, gradients are clipped, and responses differ. In one process a checkpoint
    goes on to the bit."""
    alone = figures["one"][run]
    assert len({round(step["loss"], 3) for step in alone["steps"]}) == STEPS
    assert min(step["grad_norm"] for step in alone["steps"]) > (0.05 if "lora" in run else CLIP)
    for kind in ("greedy", "sampled") if "scalar" not in run else ():
        responses = [tokens for tokens, _ in alone[kind]]
        assert len({tuple(tokens) for tokens in responses}) == len(responses)
        assert max(len(set(tokens)) for tokens in responses) > 3
    assert alone["after_loading"] == alone["more_steps"]


@each_run
@each_layout
def test_losses_gradient_norms_and_predictions_are_those_of_one_process(figures, layout, run):
    ours, theirs = figures[layout][run], figures["one"][run]
    for kind in ("steps", "more_steps"):
        assert_same_steps(ours[kind], theirs[kind])
    assert ours["evaluated"] == pytest.approx(theirs["evaluated"], abs=CLOSE)
    for kind in ("mapped", "learnt"):
        for row, expected in zip(ours[kind], theirs[kind], strict=True):
            assert row == pytest.approx(expected, abs=CLOSE, rel=CLOSE)


@each_layout
def test_the_last_layers_alone_learn_the_same_in_every_layout(figures, measured, layout):
    alone = figures["one"]["scalar"]
    assert_same_steps(figures[layout]["scalar"]["top_layers"], alone["top_layers"])
    assert alone["top_layers"][0]["grad_norm"] < alone["steps"][0]["grad_norm"] - 1e-3
    names = {
        where: [StoreReader(measured / where / "scalar" / "top_layers" / part).names() for part in PARTS]
        for where in (layout, "one")
    }
    assert names[layout] == names["one"]
    whole = StoreReader(measured / "one" / "scalar" / "weights").names()
    assert len(names[layout][0]) == len(whole), "a model folder is whole"


def test_sequence_parallel_ranks_keep_half_of_what_tensor_parallel_ones_keep_twice(figures):
    """For each token nine norms keep H + 1 numbers, and the eight products after them their H inputs."""
    tokens, hidden = int(Samples.draw(GLOBAL_BATCH, MAPPED).lengths.sum()), ARCHITECTURE.hidden_size
    assert tokens % 2 == 0  # each rank has half of them
    kept = {layout: figures[layout]["untied"]["kept"] for layout in ("tp2", "tp2_sequence")}
    assert kept["tp2"] - kept["tp2_sequence"] == tokens / 2 * 4 * (9 * (hidden + 1) + 8 * hidden)


@each_layout
def test_responses_are_those_of_one_process(figures, layout):
    for run in ("untied", "tied", "tied_lora"):
        for kind in ("greedy", "sampled"):
            assert figures[layout][run][kind] == figures["one"][run][kind], (run, kind)


PARTS = ("weights", "optimizer")


@each_run
@each_split
def test_checkpoints_of_one_process_and_of_any_layout_go_on_in_the_other(
    figures, measured, starts, layout, run
):
    expected = figures["one"][run]["more_steps"]
    assert_same_steps(figures[layout][run]["after_loading"], expected)  # of one process, in this layout
    assert_same_steps(continued(run, measured / layout / run, starts), expected)


@each_run
@each_split
def test_checkpoints_and_exports_hold_each_value_once(measured, smoke, tmp_path, layout, run):
    """The exporter reads blocks of several ranks by code of its own."""
    checkpoint = measured / layout / run
    for part, halves in {"weights": [""], "optimizer": ["exp_avg.", "exp_avg_sq."]}.items():
        ours, theirs = (StoreReader(folder / part) for folder in (checkpoint, measured / "one" / run))
        assert ours.names() == theirs.names()
        if "lora" in run:
            kinds = {name.rpartition(".")[2] if "lora_" in name else name for name in ours.names()}
            head = {f"{half}value_head.{kind}" for half in halves for kind in ("weight", "bias")}
            assert kinds == {"lora_a", "lora_b"} | (head if "scalar" in run else set())
        for name in ours.names():
            torch.testing.assert_close(ours.read_whole(name), theirs.read_whole(name), atol=5e-4, rtol=0)
    if "lora" not in run:
        Tokenizer(smoke).save(checkpoint)
        export(checkpoint, "hf", tmp_path / "out")
        exported, expected = load_file(tmp_path / "out/model.safetensors"), stored_tensors(checkpoint)
        assert exported.keys() == expected.keys()
        assert all(torch.equal(exported[key], expected[key]) for key in exported)


@pytest.mark.parametrize("run", ["untied", "tied", "tied_lora"])
@each_split
def test_the_first_rank_puts_every_weight_together_under_transformers_names(measured, tmp_path, layout, run):
    first, second = (torch.load(measured / layout / f"{run}-{rank}.pt") for rank in (0, 1))
    checkpoint = measured / layout / run
    expected = stored_tensors(merge(checkpoint, tmp_path / "merged") if "lora" in run else checkpoint)
    assert first.keys() == expected.keys() and not second
    rounding = 1e-6 if "lora" in run else 0.0  # of one product, which is computed in other pieces here
    for key, tensor in expected.items():
        torch.testing.assert_close(first[key], tensor, atol=rounding, rtol=0.0)


def test_a_name_that_the_model_has_not_is_refused(starts, one_process):
    whole = WholeWeights(new_engine("tied", starts / "tied").module)
    assert "decoder.final_layernorm.weight" in whole.names
    with pytest.raises(KeyError, match=r"no weight output_layer\.weight"):
        whole.read("output_layer.weight")


def test_a_scalar_model_starts_from_a_language_model_with_a_head_of_zeros_or_a_drawn_one(starts, one_process):
    engines = [new_engine("scalar") for _ in range(3)]
    for engine, seed in zip(engines, (7, 7, 8)):
        engine.load(starts / "untied", new_head=True)
        assert not engine.module.value_head.weight.any()
        engine.draw_head(0.02, seed)
    embedding = StoreReader(starts / "untied" / "weights").read_whole("embedding.word_embeddings.weight")
    assert torch.equal(engines[0].module.embedding.word_embeddings.weight, embedding)
    first, same, other = (engine.module.value_head.weight.detach().clone() for engine in engines)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.3) and engines[0].module.value_head.bias == 0
    engines[0].train_step(Samples.draw(4, seed=3).micro_batches(4), value_loss, lr=1e-5)
    assert (engines[0].module.value_head.weight - first).abs().max() < 1.1e-5, "not from zeros"


def test_checkpoints_that_do_not_fit_are_refused(starts, one_process):
    for name, start, message in (
        ("scalar", "untied", r"has no value_head\.weight: the checkpoint is of another arch"),
        ("untied", "tied", r"no output_layer\.weight: the checkpoint is of another architecture"),
        ("tied", "untied", r"without a place in the model: output_layer\.weight"),
    ):
        with pytest.raises(ValueError, match=message):
            new_engine(name, starts / start)
    with pytest.raises(FileNotFoundError, match="no weights in"):
        new_engine("untied").load(starts / "untied", with_optimizer=True)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("micro_batch", [1, GLOBAL_BATCH])
def test_the_micro_batch_size_changes_nothing(figures, starts, name, micro_batch):
    steps = train(new_engine(name, starts / name), name, range(STEPS), micro_batch)
    assert_same_steps(steps, figures["one"][name]["steps"])


def test_without_clipping_the_norm_is_measured_all_the_same(starts, one_process):
    clipped, free = (new_engine("untied", starts / "untied", clip) for clip in (CLIP, 0))
    batches = Samples.draw(4, seed=3).micro_batches(4)
    norms = [engine.train_step(batches, language_loss, lr=0.0)["grad_norm"] for engine in (clipped, free)]
    assert norms[0] == norms[1] > CLIP
