# %% [markdown]
# # Entropy
#
# How certain is a model about the next token? The entropy of the distribution is 0 for certainty and ln V for a guess.
#
# {{map}}

# %% tags=["parameters"]
out = "../runs/tutorial"

# %%
import torch

from aligner_lib.tutorial import check


# %% tags=["solution"]
def entropy(logits):
    """logits: float [B, V] → float [B], in nats."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs).sum(-1)


# %%
verdict = check("entropy", entropy)
verdict.function(torch.zeros(1, 8))  # ln 8
