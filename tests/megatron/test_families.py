"""Each family as in transformers: logits, greedy text and gradients, in one process and in layouts of two; and back."""

import math
from functools import partial
from types import SimpleNamespace

import family_layouts as layouts
import forks
import pytest
import tiny_families
import torch
from safetensors.torch import load_file
from tiny_families import CONFIGS, NAMES, on_disk, stored

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.models import import_hf
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.export import export
from aligner_lib.models.names import weights

pytestmark = [pytest.mark.megatron, pytest.mark.usefixtures("one_process")]
LOGITS_CLOSE, GRADIENTS_CLOSE = 1e-4, 1e-4  # the latter relative to a weight's largest


@pytest.fixture(scope="module")
def references(smoke, tmp_path_factory):
    """By name, the reference model; and where the imported models lie."""
    folder = tmp_path_factory.mktemp("families")
    models = {name: tiny_families.make(name, smoke, folder / name) for name in NAMES}
    return SimpleNamespace(folder=folder, models=models)


@pytest.fixture(scope="module")
def measured(references, tmp_path_factory):
    """Where every layout left what it found."""
    out = tmp_path_factory.mktemp("layouts")
    for name in NAMES:
        layouts.measure(references.folder / name / "imported", out / "one" / name)
    forks.run_ranks(2, layouts.measure_all, references.folder, out, folder=out)
    return out


@pytest.fixture(scope="module")
def expected(references):
    """By name, the reference's logits of each row, what it goes on with, and its gradients."""
    return {name: expectation(model) for name, model in references.models.items()}


def expectation(model) -> SimpleNamespace:
    rows = [torch.tensor([row]) for row in layouts.rows()]
    logits = [model(row).logits[0] for row in rows]
    cross_entropy = partial(torch.nn.functional.cross_entropy, reduction="sum")
    losses = [cross_entropy(of_row[:-1], row[0, 1:]) for of_row, row in zip(logits, rows)]
    (sum(losses) / sum(row.shape[1] - 1 for row in rows)).backward()
    gradients = on_disk({name: parameter.grad for name, parameter in model.named_parameters()})
    greedy = {"max_new_tokens": layouts.NEW_TOKENS, "do_sample": False}
    with torch.no_grad():
        whole = [model.generate(row, attention_mask=torch.ones_like(row), **greedy)[0] for row in rows]
    continuations = [tokens[row.shape[1] :].tolist() for tokens, row in zip(whole, rows)]
    return SimpleNamespace(
        logits=[row.detach() for row in logits], continuations=continuations, gradients=gradients
    )


@pytest.mark.parametrize("layout", ["one", *layouts.LAYOUTS])
@pytest.mark.parametrize("name", NAMES)
def test_logits_text_and_gradients_are_the_references(measured, expected, references, name, layout):
    figures = torch.load(measured / layout / name / "figures.pt")
    rows = [row for group in figures["logits"] for row in group]
    for ours, theirs in zip(rows, expected[name].logits, strict=True):
        assert theirs.std() > 0.05
        torch.testing.assert_close(ours[: len(theirs)], theirs, atol=LOGITS_CLOSE, rtol=0)
    for ours, theirs in zip(figures["continuations"], expected[name].continuations, strict=True):
        assert ours == (theirs[: theirs.index(layouts.STOP) + 1] if layouts.STOP in theirs else theirs)
    arch = Architecture.load(references.folder / name / "imported")
    gradients = stored(measured / layout / name / "gradients", arch)
    assert gradients.keys() == expected[name].gradients.keys()
    for weight, theirs in expected[name].gradients.items():
        largest = theirs.abs().max()
        assert largest > 0, weight
        assert (gradients[weight] - theirs).abs().max() <= GRADIENTS_CLOSE * largest, weight


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_goes_back_as_it_came(references, tmp_path, name):
    """Exported weights to the bit, and transformers computes the same with them and the exported configuration."""
    from transformers import AutoModelForCausalLM

    imported = references.folder / name / "imported"
    arch = Architecture.load(imported)
    assert sum(math.prod(weight.shape) for weight in weights(arch)) == arch.num_parameters
    export(imported, "hf", tmp_path / "out")
    tensors, reference = load_file(tmp_path / "out/model.safetensors"), references.models[name]
    state = on_disk(reference.state_dict())
    assert set(state) - set(tensors) <= {"lm_head.weight"}
    for weight, tensor in tensors.items():
        assert torch.equal(tensor, state[weight]), weight
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    row = torch.tensor([layouts.rows()[0]])
    with torch.no_grad():
        assert torch.equal(again(row).logits, reference(row).logits)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "granite"])  # without such a class
def test_a_reward_model_is_a_classifier_of_one_label(references, smoke, tmp_path, name):
    from transformers import AutoModelForSequenceClassification

    from aligner_lib.megatron.engine import Engine
    from aligner_lib.megatron.model import Numerics

    config = tiny_families.hf_config(name, num_labels=1)
    theirs = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager").eval()
    theirs.base_model.load_state_dict(references.models[name].base_model.state_dict())
    theirs.save_pretrained(tmp_path / "hf")
    Tokenizer(smoke).save(tmp_path / "hf")
    engine = Engine(Architecture.load(import_hf(tmp_path / "hf", tmp_path / "imported")), Numerics())
    engine.load(tmp_path / "imported")
    batch = layouts.batch()
    with torch.no_grad():
        values = engine.module.eval().values(engine.module(batch.tokens, batch.lengths)).t()  # [B, S]
        for row, value in zip(layouts.rows(), values):
            score = theirs(torch.tensor([row])).logits.item()
            assert value[len(row) - 1].item() == pytest.approx(score, abs=LOGITS_CLOSE)
