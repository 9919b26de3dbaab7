"""One process, tensor, pipeline and data parallel: the same losses, gradients, checkpoints and responses."""

import pytest
import torch
from layouts import GLOBAL_BATCH, LAYOUTS, MAPPED, MORE_STEPS, STEPS, continued, train
from tiny import ARCHITECTURE, CLIP, MODELS, Samples, language_loss, new_engine, value_loss

from aligner_lib.models.tensor_store import StoreReader

pytestmark = pytest.mark.megatron
CLOSE = 1e-5

each_model = pytest.mark.parametrize("name", MODELS)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def assert_same_steps(got: list[dict], expected: list[dict]) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected):
        assert ours == pytest.approx(theirs, abs=CLOSE, rel=CLOSE)


@each_model
def test_the_steps_are_real_ones(figures, name):
    """Else equality would say little: losses move, and the gradients are clipped."""
    steps = figures["one"][name]["steps"]
    assert len(steps) == STEPS
    assert len({round(step["loss"], 3) for step in steps}) == STEPS
    assert min(step["grad_norm"] for step in steps) > 0.5


@each_model
@each_layout
def test_losses_and_gradient_norms_are_those_of_one_process(figures, layout, name):
    for kind in ("steps", "more_steps"):
        assert_same_steps(figures[layout][name][kind], figures["one"][name][kind])
    assert figures[layout][name]["evaluated"] == pytest.approx(figures["one"][name]["evaluated"], abs=CLOSE)


@each_layout
def test_the_last_layers_alone_learn_the_same_in_every_layout(figures, measured, layout):
    one = figures["one"]["scalar"]
    assert_same_steps(figures[layout]["scalar"]["top_layers"], one["top_layers"])
    assert one["top_layers"][0]["grad_norm"] < one["steps"][0]["grad_norm"] - 1e-3
    folder = measured / layout / "scalar" / "top_layers"
    kept = [StoreReader(folder / part).names() for part in ("weights", "optimizer")]
    assert kept == [
        StoreReader(measured / "one" / "scalar" / "top_layers" / part).names()
        for part in ("weights", "optimizer")
    ]
    assert len(kept[0]) == len(StoreReader(measured / "one" / "scalar" / "weights").names()), (
        "a model folder is whole"
    )


@each_model
@each_layout
def test_every_stage_and_rank_maps_its_tokens(figures, layout, name):
    ours, theirs = figures[layout][name]["mapped"], figures["one"][name]["mapped"]
    assert len(ours) == len(theirs)
    for row, expected in zip(ours, theirs):
        assert row == pytest.approx(expected, abs=CLOSE)


@each_model
def test_sequence_parallel_ranks_keep_half_of_what_tensor_parallel_ones_keep_twice(figures, name):
    """For each token nine norms keep H + 1 numbers, and the eight products after them their H inputs."""
    tokens, hidden = int(Samples.draw(GLOBAL_BATCH, MAPPED).lengths.sum()), ARCHITECTURE.hidden_size
    assert tokens % 2 == 0  # each rank has half of them
    kept = {layout: figures[layout][name]["kept"] for layout in ("tp2", "tp2_sequence")}
    assert kept["tp2"] - kept["tp2_sequence"] == tokens / 2 * 4 * (9 * (hidden + 1) + 8 * hidden)


@each_layout
def test_the_split_kernels_are_torch_s(figures, layout):
    assert max(figures[layout]["kernels"].values()) < CLOSE


@pytest.mark.parametrize("kind", ["greedy", "sampled"])
@pytest.mark.parametrize("name", ["untied", "tied"])
@each_layout
def test_responses_are_those_of_one_process(figures, layout, name, kind):
    assert figures[layout][name][kind] == figures["one"][name][kind]


@each_layout
def test_ranks_tell_each_other_what_is_drawn_and_no_more(figures, layout):
    """At each of 4 tokens, of a batch of 3, ids and log-probabilities: no logits, and nothing that is pickled."""
    drawn = figures[layout]["untied"]["broadcast"]
    assert drawn == ([] if layout == "dp2" else [[[2, 3], "torch.float64"]] * 4)


def test_the_responses_that_were_compared_are_worth_comparing(figures):
    for kind in ("greedy", "sampled"):
        responses = [tokens for tokens, _ in figures["one"]["untied"][kind]]
        assert len({tuple(tokens) for tokens in responses}) == len(responses)
        assert max(len(set(tokens)) for tokens in responses) > 3


# ---- checkpoints ----------------------------------------------------------------------------------------------------


@each_model
@each_layout
def test_a_checkpoint_of_one_process_goes_on_in_any_layout(figures, layout, name):
    assert_same_steps(figures[layout][name]["after_loading"], figures["one"][name]["more_steps"])


@each_model
@each_layout
def test_a_checkpoint_of_any_layout_goes_on_in_one_process(figures, measured, layout, name):
    assert_same_steps(continued(name, measured / layout / name), figures["one"][name]["more_steps"])


@each_model
@each_layout
@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_checkpoints_hold_each_value_once_whatever_the_layout(measured, layout, name, part):
    ours, theirs = (StoreReader(measured / where / name / part) for where in (layout, "one"))
    assert ours.names() == theirs.names()
    for tensor in ours.names():
        torch.testing.assert_close(ours.read_whole(tensor), theirs.read_whole(tensor), atol=5e-4, rtol=0)


@each_model
def test_in_one_process_a_checkpoint_goes_on_to_the_bit(figures, measured, name):
    assert continued(name, measured / "one" / name) == figures["one"][name]["more_steps"]


def test_a_scalar_model_starts_from_a_language_model_with_a_head_of_zeros(starts, one_process):
    engine = new_engine("scalar")
    engine.load(starts / "untied", new_head=True)
    store = StoreReader(starts / "untied" / "weights")
    embedding = engine.module.embedding.word_embeddings.weight
    assert torch.equal(embedding, store.read_whole("embedding.word_embeddings.weight"))
    assert not engine.module.value_head.weight.any()


def test_a_new_head_is_drawn_and_trained_from_there(starts, one_process):
    engines = [new_engine("scalar") for _ in range(3)]
    for engine, seed in zip(engines, (7, 7, 8)):
        engine.load(starts / "untied", new_head=True)
        engine.draw_head(0.02, seed)
    first, same, other = (engine.module.value_head.weight.detach().clone() for engine in engines)
    assert torch.equal(first, same) and not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.3) and engines[0].module.value_head.bias == 0
    batches = Samples.draw(8, seed=3).micro_batches(4)
    engines[0].train_step(batches, value_loss, lr=1e-5)
    assert (engines[0].module.value_head.weight - first).abs().max() < 1.1e-5, "not from zeros"


def test_a_head_that_is_missing_is_not_taken_for_a_new_one(starts, one_process):
    with pytest.raises(ValueError, match=r"has no value_head\.weight: the checkpoint is of another arch"):
        new_engine("scalar", starts / "untied")


def test_a_checkpoint_of_another_architecture_is_refused(starts, one_process):
    with pytest.raises(
        ValueError, match=r"no output_layer\.weight: the checkpoint is of another architecture"
    ):
        new_engine("untied", starts / "tied")
    with pytest.raises(ValueError, match=r"no place for: output_layer\.weight"):
        new_engine("tied", starts / "untied")


def test_a_checkpoint_without_optimizer_state_is_refused_where_it_is_needed(starts, one_process):
    with pytest.raises(FileNotFoundError, match="no weights in"):
        new_engine("untied").load(starts / "untied", with_optimizer=True)


# ---- micro batches --------------------------------------------------------------------------------------------------


@each_model
@pytest.mark.parametrize("micro_batch", [1, 3, 7])
def test_the_micro_batch_size_changes_nothing(figures, starts, name, micro_batch):
    steps = train(new_engine(name, starts / name), name, range(STEPS), micro_batch)
    assert_same_steps(steps, figures["one"][name]["steps"])


def test_without_clipping_the_norm_is_measured_all_the_same(starts, one_process):
    clipped, free = (new_engine("untied", starts / "untied", clip) for clip in (CLIP, 0))
    batches = Samples.draw(8, seed=3).micro_batches(4)
    norms = [engine.train_step(batches, language_loss, lr=0.0)["grad_norm"] for engine in (clipped, free)]
    assert norms[0] == norms[1] > CLIP


def test_there_are_steps_after_the_checkpoint(figures):
    assert len(figures["one"]["tied"]["more_steps"]) == MORE_STEPS
