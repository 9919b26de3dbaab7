# %% [markdown]
# # Entropy
#
# How certain is a model about the next token? This notebook computes the entropy of a distribution.
#
# {{map}}

# %% tags=["parameters"]
out = "../runs/tutorial"

# %%
import torch

from aligner_lib.tutorial import check


# %% tags=["solution"]
def entropy(logits):
    """logits: float [B, V]; returns nats, float [B]."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


# %%
verdict = check("entropy", entropy)
verdict.function(torch.zeros(1, 8))  # ln 8
