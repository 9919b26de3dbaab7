# %% [markdown]
# # Supervised fine-tuning
#
# You train the model to write answers, watch the validation loss fall, and see why only answer tokens count.
#
# {{map}}
#
# | goal | an SFT policy, from which the next stages start |
# | --- | --- |
# | needs | nothing (the steps of 01 and 02 are run where needed) |
# | downloads | the model, once |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm
lora = False  # True: adapters learn in place of all weights
start = "fresh"  # recorded: a bundle's run plays in place of the training, where it is the same one
seed = 1234  # of the order of the samples

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Chat, Monitor

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## What is the loss?
#
# The model gets input and answer as one sequence and predicts each next token. The loss is the mean negative
# log-probability of the tokens that count:
#
# $$ L = -\frac{1}{\sum_t m_t} \sum_t m_t \log p(x_{t+1} \mid x_{\le t}) $$
#
# The mask $m$ is 1 on the answer and its stop token and 0 on the input: the model is trained to answer, not to ask. Input
# and answer are tokenised as one text, and a token that spans both counts as the answer's.

# %% [markdown]
# ### By hand
#
# Five tokens; the answer is the last two and the stop token is the very last. Index $i$ predicts token $i+1$.

# %%
import torch

probabilities = torch.tensor([0.5, 0.25, 0.8, 0.5])  # of tokens 1, 2, 3, 4
mask = torch.tensor([0.0, 0.0, 1.0, 1.0])  # tokens 3 and 4 are the answer
print("all tokens ", -(probabilities.log()).mean().item())
print("answer only", -(probabilities.log() * mask).sum().item() / mask.sum().item())

# %% [markdown]
# $(-\ln 0.8 - \ln 0.5)/2 = 0.458$. Token 2, with its low probability of 0.25, belongs to the question and does
# not count.
#
# ### The mask
#
# Which predictions are of the answer? Counting from 0, a text of $L$ tokens whose first $P$ are the prompt has its answer at
# tokens $P \dots L-1$; the last one is the stop token. Prediction $i$ is of token $i+1$. This is where most home-made trainers
# go wrong, and nothing complains: the loss falls all the same.


# %% tags=["solution"]
def response_mask(prompt_lengths, lengths, size):
    """Which predictions are of a response's tokens, the stop token included.

    prompt_lengths, lengths: int64 [B], in tokens, whole texts in the second; size: S-1, predictions of the longest text
    → bool [B, S-1].
    """
    columns = torch.arange(size)
    return (columns >= prompt_lengths[:, None] - 1) & (columns < lengths[:, None] - 1)


# %%
from aligner_lib.tutorial import check, show_source

check("response_mask", response_mask)

# %% [markdown]
# ### In a sample
#
# The first sample of the training file: what is learnt is underlined, and the last of it is the stop token. A policy that
# never learnt the stop token would not end its answers.

# %%
from aligner_lib.datasets.chat_template import use_template
from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.tutorial.show_mask import show_mask

tokenizer = Tokenizer(lab.model())
samples, _ = load_sft([lab.sft_data() / "train.jsonl"], tokenizer, max_length=320)
display(show_mask(samples[0], tokenizer))

# %% [markdown]
# Written as turns of the model's own chat template (`model.data.chat_template=tokenizer`) it is longer, and what is learnt
# is the same answer. The laptop profile writes all its texts so, in every stage: the downloaded model has learnt to follow
# instructions in this form, and keeps what it knows. (`smoke` begins with a random model, and writes plainly.) A policy has
# to be asked as it has learnt; a run whose template differs from its policy's says so.

# %%
chatty = use_template(Tokenizer(lab.model()), "tokenizer")
samples, _ = load_sft(
    [lab.sft_data() / "train.jsonl"], chatty, max_length=320
)  # room for the turns' own tokens
display(show_mask(samples[0], chatty))

# %% [markdown]
# ## The run
#
# The job runs in a process of its own. Settings have NeMo-Aligner's names; these are some of the profile's values.

# %%
from aligner_lib.config.compose import compose

config = compose("sft", profile=profile)
print("steps        ", config.trainer.sft.max_steps)
print("global batch ", config.model.data.train_ds.global_batch_size, "samples")
seen = config.trainer.sft.max_steps * config.model.data.train_ds.global_batch_size
there = sum(1 for _ in open(lab.sft_data() / "train.jsonl"))
print("passes       ", f"{seen / there:.2f} over {there} samples")
print("learning rate", config.model.optim.lr)

# %%
job = lab.submit("sft", **{"model.seed": seed})
monitor = Monitor(lab.run("sft"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains
#
# A global batch seldom fits into memory at once, so it is cut into micro batches. The loss shall not depend on how. Two micro
# batches, one with 2 answer tokens of loss 1 each, one with 8 of loss 2: the mean is $(2 \cdot 1 + 8 \cdot 2) / 10 = 1.8$; the
# mean of both means would be 1.5.


# %% tags=["solution"]
def masked_loss(logprobs, masks):
    """The mean loss of all tokens that count, in a batch that comes in micro batches.

    logprobs: a list of float [B, S-1], a micro batch each, of different sizes; masks: a list of bool of the same shapes
    → float [], with gradient.
    """
    total = sum((values * mask).sum() for values, mask in zip(logprobs, masks))
    return -total / sum(mask.sum() for mask in masks)


# %%
check("masked_loss", masked_loss)

# %% [markdown]
# The library's loss is a sum with a count, of one micro batch. Megatron adds both up over micro batches and over all ranks, and
# divides once. (The mask has been applied when the log-probabilities come: of other tokens none are computed.)

# %%
from aligner_lib.trainers.sft import SFTTrainer

show_source(SFTTrainer.loss)

# %% [markdown]
# What should the *first* loss be? Work it out before you look: it is the cheapest test there is. Four models that know nothing:
# a language model with random weights, a reward model whose head is 0 (notebook 04), a policy that is still its reference, with
# DPO's loss and with IPO's (06). For example: who doesn't know which of two answers is the better one is right with
# probability 1/2, and loses $-\ln \frac{1}{2} = 0.693$.


# %% tags=["solution"]
from math import log


def first_losses(vocabulary_size, beta):
    """What models that know nothing lose: a language model, a reward model, DPO and IPO with this beta.

    vocabulary_size: int; beta: float → four floats, in nats but for IPO's.
    """
    return log(vocabulary_size), log(2), log(2), (1 / (2 * beta)) ** 2


# %%
check("first_losses", first_losses)

# %%
await monitor

# %% [markdown]
# ### What you should see
#
# The held-out loss falls from {{laptop.sft.val_loss_before}} to about {{laptop.sft.val_loss_after}} with the laptop
# profile ({{smoke.sft.val_loss_before}} to {{smoke.sft.val_loss_after}} with `smoke`), fast at first.
#
# | you see | it means | change |
# | --- | --- | --- |
# | it falls, then flattens | healthy | |
# | it does not change | the learning rate is too low | `model.optim.lr` up |
# | it jumps or becomes NaN | the learning rate is too high | `model.optim.lr` down, `trainer.sft.gradient_clip_val` down |
# | train falls, validation rises (the monitor has an alarm for it) | overfitting | fewer steps, or more data |
#
# With the parameter `lora = True` the weights stay as they are, and adapters of rank 16 beside every linear layer learn, at
# ten times the learning rate. With the laptop profile the held-out loss fell from {{laptop.sft.val_loss_before}} to
# {{lora.sft.val_loss_after}} with them and to {{laptop.sft.val_loss_after}} without, in a run each; a checkpoint has 49 MB in place of 1.6 GB.
#
# *Change settings*, above the charts, gives the run another learning rate while it goes on. Try it: the curve of the
# learning rate shows the step from which it holds.

# %%
from widgets import curves

curves(lab.run("sft"), metrics=[["train/loss", "validation/loss"], "train/grad_norm", "train/lr"])

# %% [markdown]
# You can stop a long run at any time: `aligner stop RUN` or the Stop button. It saves a checkpoint after the current
# step. Running the same cell again resumes from there and gives the same metrics as an uninterrupted run.
#
# ## What does it write now?
#
# A loss says little about texts. Here are answers of the model before and after this run, to instructions that it never
# saw. Ask your own, too: both models answer below.

# %%
import json

from aligner_lib.jobs.inference import answering

with open(lab.sft_data() / "validation.jsonl") as file:
    prompts = [json.loads(line)["input"] for line, _ in zip(file, range(2))]
chat = Chat({"before": answering(lab.model()), "after": answering(lab.run("sft").path)})
for prompt in prompts:
    chat.ask(prompt)
display(chat)

# %% [markdown]
# SmolLM2 answers before, too: it was trained to by those who published it. Its answers are long, few of them end in the space
# there is, and mostly they don't obey. After this run nearly all end, and some obey: SFT shows the form of an answer.
# (The tiny model of `smoke` learns the shape of answers, not their sense.)

# %%
steps, losses = lab.run("sft").series("validation/loss")
lab.record("03", {"sft": {"val_loss_before": losses[0], "val_loss_after": losses[-1], "steps": steps[-1]}})
print(f"validation loss {losses[0]:.3f} → {losses[-1]:.3f}  ({losses[-1] / losses[0] - 1:+.0%})")

# %% [markdown]
# ## What you learnt
#
# - The loss covers answers only; samples of similar length share a micro batch, so that little padding is computed.
# - The metric to watch is the validation loss.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("03")

# %% [markdown]
# Next: [04 · the reward model](04_reward_model.ipynb)
