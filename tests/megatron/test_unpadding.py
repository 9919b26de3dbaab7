"""Rows without their padding and with common prefixes once: nothing is lost. test_families compares uneven rows with
transformers."""

import pytest
import tiny
import torch

from aligner_lib.datasets.batches import TokenBatch, pad_rows
from aligner_lib.megatron.engine import Engine
from aligner_lib.megatron.model import Numerics
from aligner_lib.megatron.unpadding import Unpadding

pytestmark = pytest.mark.megatron


def test_ranks_that_share_the_tokens_get_equally_many():
    unpadding = Unpadding(torch.tensor([3, 2]), 3, multiple=2)
    tokens = unpadding.remove(torch.tensor([[5, 6, 7], [8, 9, -1]]))
    assert tokens.tolist() == [5, 6, 7, 8, 9, 0]
    assert unpadding.columns.tolist() == [0, 1, 2, 0, 1, 0]
    assert unpadding.restore(tokens + 1).tolist() == [[6, 7, 8], [9, 10, 0]]
    assert Unpadding(torch.tensor([3, 1]), 3, multiple=2).remove(torch.ones(2, 3)).shape == (4,)


def module_of(starts, name: str = "untied", **numerics):
    """Without an optimizer, which would take the gradients."""
    engine = Engine(tiny.MODELS[name], Numerics(**numerics))
    engine.load(starts / name)
    return engine.module.train()


def sharing(*rows: list[int]):
    tokens, lengths = tiny.pad_rows(list(rows), 0)
    return tokens, Unpadding(lengths, tokens.shape[1], tokens)


@pytest.mark.parametrize(
    ("rows", "computed", "columns", "numbered"),
    [
        # a prompt 5 6 with the answers 7 and 8 9, and one that begins as the second does: five tokens in place of ten
        (
            [[5, 6, 7], [5, 6, 8, 9], [5, 6, 8]],
            *([5, 6, 7, 8, 9], [0, 1, 2, 2, 3]),
            [[1, 2, 3, 0], [1, 2, 4, 5], [1, 2, 4, 0]],
        ),
        # what is alike after a difference is not shared
        ([[5, 6, 7], [4, 6, 7]], [5, 6, 7, 4, 6, 7], [0, 1, 2, 0, 1, 2], [[1, 2, 3], [4, 5, 6]]),
        # 0 is padding, and a token: padding is none to share
        ([[5, 0, 0], [5], [5, 0]], [5, 0, 0], [0, 1, 2], [[1, 2, 3], [1, 0, 0], [1, 2, 0]]),
    ],
)
def test_rows_by_hand(rows, computed, columns, numbered):
    tokens, unpadding = sharing(*rows)
    assert unpadding.remove(tokens).tolist() == computed
    assert unpadding.columns.tolist() == columns
    assert unpadding.restore(torch.arange(1, len(computed) + 1)).tolist() == numbered


@pytest.mark.parametrize("name", ["tied", "scalar"])
def test_sharing_changes_neither_loss_nor_gradient(starts, one_process, name):
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(0, 96, (2, 12), generator=generator).tolist()
    answers = torch.randint(0, 96, (6, 5), generator=generator).tolist()
    rows = [prompts[i % 2] + answers[i][: 2 + i // 2] for i in range(6)]
    tokens, lengths = tiny.pad_rows(rows, 0)
    weights = (torch.arange(tokens.shape[1] - 1) < lengths[:, None] - 1).float()
    results = []
    for share in (True, False):
        module = module_of(starts, name, share_prefix=share)
        terms = tiny.loss_of(name)(module, tiny.Samples(tokens, lengths, weights), module(tokens, lengths))
        terms.loss_sum.backward()
        results.append((terms.loss_sum.detach(), [p.grad.clone() for p in module.parameters()]))
    (shared, shared_grads), (alone, alone_grads) = results
    torch.testing.assert_close(shared, alone, rtol=1e-5, atol=0)
    for ours, expected in zip(shared_grads, alone_grads):
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())


def test_responses_are_scored_alike_beside_others_and_a_prompt_is_computed_once(starts, one_process):
    """Four responses to each of three prompts, shuffled: the figures of rows alone, and a third of the tokens."""
    draw = torch.Generator().manual_seed(1)
    prompts = torch.randint(0, 96, (3, 12), generator=draw).tolist()
    answers = torch.randint(0, 96, (12, 5), generator=draw).tolist()
    rows = [prompts[number % 3] + answers[number][: 1 + number % 5] for number in range(12)]
    batch = TokenBatch(*pad_rows(rows, 0))
    engine = Engine(tiny.MODELS["untied"], Numerics())
    engine.load(starts / "untied")
    computed: list[int] = []
    engine.module.decoder.register_forward_pre_hook(
        lambda _, args, given: computed.append(given["hidden_states"].shape[0]), with_kwargs=True
    )

    def logits_sum(model, micro_batch, hidden):
        return model.logits(hidden[:-1]).sum(dim=-1).t()

    together = engine.map_rows(batch, logits_sum, 4)
    assert sum(computed) <= 3 * 12 + int(batch.lengths.sum()) - 12 * 12
    alone = engine.map_rows(batch, logits_sum, 1)
    real = torch.arange(batch.tokens.shape[1] - 1) < (batch.lengths - 1)[:, None]
    torch.testing.assert_close(together[real], alone[real], atol=1e-4, rtol=0)
