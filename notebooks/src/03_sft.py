# %% [markdown]
# # Supervised fine-tuning
#
# Train the model to write answers, watch the validation loss fall, and see why only answer tokens count.
#
# {{map}}
#
# | goal | an SFT policy, from which the next stages start |
# | --- | --- |
# | needs | nothing (missing steps of 01 and 02 run automatically) |
# | downloads | the model, once |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
lora = False  # True: train adapters instead of all weights
start = "fresh"  # recorded: play a bundle's run instead of training, if its settings are the same
seed = 1234  # for the order of the samples

# %%
from aligner_lib.tutorial import Diagram, Workspace
from widgets import Chat, Monitor

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## What is the loss?
#
# The model reads input and answer as one sequence and predicts each next token. The loss is the mean negative
# log-probability over the tokens with mask $m_t = 1$:
#
# $$ L = -\frac{1}{\sum_t m_t} \sum_t m_t \log p(x_{t+1} \mid x_{\le t}) $$
#
# The mask $m_t$ is 1 if token $t+1$ belongs to the answer or is its stop token, and 0 if the token belongs to the input, because
# the model should learn to answer and not to ask. Input and answer are tokenised as one text. A token that spans both counts as part of the answer.

# %%
Diagram("sft")

# %% [markdown]
# ### By hand
#
# Take a text of five tokens. The last two tokens are the answer, and the very last token is the stop token. Index $i$
# predicts token $i+1$.

# %%
import torch

probabilities = torch.tensor([0.5, 0.25, 0.8, 0.5])  # of tokens 1 to 4
mask = torch.tensor([0.0, 0.0, 1.0, 1.0])  # tokens 3 and 4 are the answer
print("all tokens ", -(probabilities.log()).mean().item())
print("answer only", -(probabilities.log() * mask).sum().item() / mask.sum().item())

# %% [markdown]
# The loss of the answer alone is $(-\ln 0.8 - \ln 0.5)/2 = 0.458$. Token 2, with its low probability of 0.25, belongs
# to the question and does not count.
#
# ### The mask
#
# Which predictions belong to the answer? Count from 0. In a text of $T$ tokens whose first $P$ tokens are the prompt,
# the answer consists of tokens $P \dots T-1$, and token $T-1$ is the stop token. A row of a batch is as long as the
# longest text. Most home-made trainers go wrong here, and no error appears: the loss falls all the same. Before you
# write the function, say for $P = 2$ and $T = 4$ which predictions count.


# %% tags=["solution"]
def response_mask(prompt_lengths, lengths, size):
    """True for each prediction of a response token, the stop token included.

    prompt_lengths: int64 [B], in tokens; lengths: int64 [B], of whole texts in tokens; size: S-1, the number of predictions
    of the longest text → bool [B, S-1].
    """
    columns = torch.arange(size)
    return (columns >= prompt_lengths[:, None] - 1) & (columns < lengths[:, None] - 1)


# %%
from aligner_lib.tutorial import check, show_source

check("response_mask", response_mask)

# %% [markdown]
# ### In a sample
#
# Below is the first sample of the training file. The trained tokens are underlined, and the last of them is the stop
# token. Without training on the stop token, a policy would not end its answers.

# %%
from aligner_lib.datasets.chat_template import use_template
from aligner_lib.datasets.load import load_sft
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.tutorial import show_mask

tokenizer = Tokenizer(lab.model())
samples, _ = load_sft([lab.sft_data() / "train.jsonl"], tokenizer, max_length=320)
display(show_mask(samples[0], tokenizer))

# %% [markdown]
# The same sample is longer when it is written as turns of the model's own chat template
# (`model.data.chat_template=tokenizer`). The trained answer stays the same. The laptop profile uses the chat template
# in every stage, because the downloaded model has learnt to follow instructions in the template's form, and keeps that
# knowledge. (`smoke` starts with a random model and uses plain text.) Prompt a policy in the form of its training data.
# If the template of a run differs from the template of its policy, the run reports the difference.

# %%
chatty = use_template(Tokenizer(lab.model()), "tokenizer")
samples, _ = load_sft(
    [lab.sft_data() / "train.jsonl"],
    chatty,
    max_length=320,  # leaves room for the template's own tokens
)
display(show_mask(samples[0], chatty))

# %% [markdown]
# ## The run
#
# The job runs in its own process. The settings have the names that NeMo-Aligner uses. Here are some values of the
# profile.

# %%
from aligner_lib.config.compose import compose

config = compose("sft", profile=profile)
print("steps        ", config.trainer.sft.max_steps)
print("global batch ", config.model.data.train_ds.global_batch_size, "samples")
seen = config.trainer.sft.max_steps * config.model.data.train_ds.global_batch_size
available = sum(1 for _ in open(lab.sft_data() / "train.jsonl"))
print("passes       ", f"{seen / available:.2f} over {available} samples")
print("learning rate", config.model.optim.lr)

# %%
job = lab.submit("sft", **{"model.seed": seed})
monitor = Monitor(lab.run("sft"), job=job, branch=lab.branch)
display(monitor)

# %% [markdown]
# ### While it trains
#
# A global batch rarely fits into memory at once, so the trainer cuts the batch into micro batches. The loss must not
# depend on the cut. For example, take one micro batch with 2 answer tokens of loss 1 each, and another with 8 answer
# tokens of loss 2 each. The mean over all tokens is $(2 \cdot 1 + 8 \cdot 2) / 10 = 1.8$. The mean of the two means
# would be 1.5, which is wrong.


# %% tags=["solution"]
def masked_loss(logprobs, masks):
    """The mean loss over all tokens with mask True, in a batch that is cut into micro batches.

    logprobs: a list of float [B, S-1], one for each micro batch, of different sizes; masks: a list of bool of the same
    shapes → float [], with gradient.
    """
    total = sum((values * mask).sum() for values, mask in zip(logprobs, masks))
    return -total / sum(mask.sum() for mask in masks)


# %%
check("masked_loss", masked_loss)

# %% [markdown]
# The library's loss function returns the sum and the count of one micro batch. Megatron adds up sums and counts over
# all micro batches and all processes, and divides once. (The log-probabilities that enter the function are already masked:
# no other log-probabilities are computed.)

# %%
from aligner_lib.kinds.sft.trainer import SFTTrainer

show_source(SFTTrainer.loss)

# %% [markdown]
# What should the *first* loss be? Work out the answer before you look, because a wrong first loss is the cheapest sign
# of a bug. Consider four models that know nothing: a language model with random weights, a reward model whose head is 0
# (notebook 04), and a policy that still equals its reference, with the DPO loss and with the IPO loss (notebook 06).
# For example, a model that cannot distinguish two answers gives the better answer the probability 1/2, and has the loss
# $-\ln \frac{1}{2} = 0.693$. The IPO loss of a pair is $(d - \frac{1}{2\beta})^2$, where $d$ is the difference of the two answers'
# gains over the reference. IPO's gain is a mean over the answer's tokens, and DPO's gain is a sum (notebook 06). While the policy
# equals its reference, $d$ is 0 for both.


# %% tags=["solution"]
from math import log


def first_losses(vocabulary_size, beta):
    """The losses of models that know nothing: a language model, a reward model, DPO and IPO with this beta.

    vocabulary_size: int; beta: float → four floats, in nats except IPO's.
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
# profile, and from {{smoke.sft.val_loss_before}} to {{smoke.sft.val_loss_after}} with `smoke`. The loss falls fastest
# at the beginning. With `laptop`, the held-out answers are not quite new: every sentence of 64 of the 98 also stands in a training
# answer, because both are about the same topics. So this loss shows what was learnt and hardly shows overfitting. The
# held-out prompts of notebooks 04 to 08 have topics of their own.
#
# | you see | meaning | change |
# | --- | --- | --- |
# | the loss falls, then flattens | healthy | |
# | the loss does not change | the learning rate is too low | `model.optim.lr` up |
# | the loss jumps or becomes NaN | the learning rate is too high | `model.optim.lr` down, `trainer.sft.gradient_clip_val` down |
# | the train loss falls, the validation loss rises (the monitor raises an alarm) | overfitting | fewer steps, or more data |

# %% [markdown]
# ### Adapters, and changes during a run
#
# With the parameter `lora = True`, the model's weights stay fixed. Adapters beside every linear layer, products of two matrices
# with 16 columns and 16 rows, learn instead, at ten times the learning rate. In one run each on the sample `forms`, the held-out loss fell from
# {{all_weights.sft.val_loss_before}} to {{lora.sft.val_loss_after}} with adapters and to
# {{all_weights.sft.val_loss_after}} without them. A checkpoint takes 49 MB with adapters and 1.6 GB without.
#
# *Change settings*, above the charts, sets another learning rate while the run continues. Try a new value: the
# learning-rate curve shows the step at which the change takes effect.

# %%
from widgets import curves

curves(lab.run("sft"), metrics=[["train/loss", "validation/loss"], "train/grad_norm", "train/lr"])

# %% [markdown]
# You can stop a long run at any time with `aligner stop RUN` or the Stop button. The run then saves a checkpoint after
# the current step. If you run the same cell again, training resumes from the checkpoint and gives the same metrics as
# an uninterrupted run. If you change a setting of a finished run, such as `seed`, the training begins anew.

# %% [markdown]
# ## How is an answer drawn?
#
# A model gives every possible next token a probability. Which token comes next? **Greedy** decoding always takes the
# likeliest token, so the same prompt gets the same answer. **Sampling** draws a token according to the probabilities.
# Two settings change the probabilities before the draw:
#
# - The **temperature** $T$ divides the logits. Below 1 likely tokens become likelier, and greedy decoding is the limit
#   $T \to 0$. Above 1 rare tokens become likelier.
# - **Top-p** keeps the likeliest tokens until their probabilities sum to at least $p$, and never draws the others.
#
# By hand: logits of $2, 1, 0$ give the probabilities $0.67, 0.24, 0.09$. With $T = 0.5$ they become
# $0.87, 0.12, 0.02$. With $p = 0.9$ the third token is never drawn, and the others get $0.73$ and $0.27$.

# %%
import matplotlib.pyplot as plt
import torch

logits = torch.tensor([3.0, 2.4, 2.0, 1.0, 0.2, -0.5, -1.0, -2.0])
plain = logits.softmax(0)
kept = plain * (plain.cumsum(0) - plain < 0.9)  # a token stays if those before it have less than 0.9
panels = {
    "temperature 1": plain,
    "temperature 0.5": (logits / 0.5).softmax(0),
    "temperature 2": (logits / 2.0).softmax(0),
    "top-p 0.9": kept / kept.sum(),
}
_, axes = plt.subplots(1, len(panels), figsize=(10, 2.2), sharey=True)
for ax, (name, probabilities) in zip(axes, panels.items()):
    ax.bar(range(len(logits)), probabilities, color="#0072B2")
    ax.set(title=name, xlabel="token, the likeliest first", xticks=[])
axes[0].set_ylabel("probability")
plt.show()

# %% [markdown]
# RL needs sampling, because it compares different responses to a prompt. The log-probabilities of PPO and GRPO must
# then be those of the distribution that was sampled from: at another temperature the same token has another
# probability.
#
# ## What does the model write now?
#
# A loss says little about texts, so read some. The widget below shows answers of the model before and after this run to
# held-out instructions. Type your own prompts as well: both models answer below.

# %%
import json

from aligner_lib.jobs.inference import answering

with open(lab.sft_data() / "validation.jsonl") as file:
    prompts = [json.loads(line)["input"] for line, _ in zip(file, range(2))]
chat = Chat({"before": answering(lab.model()), "after": answering(lab.run("sft").path)})
chat.ask_all(prompts)
display(chat)

# %% [markdown]
# SmolLM2 answers even before this run, because its authors trained the model to answer. But its answers are long, only
# half of them end within the length limit, and most do not obey the instruction. After this run nearly all answers end, and
# some obey: SFT teaches the form of an answer. (The tiny `smoke` model learns the form of answers, not their sense.)

# %% [markdown]
# ### What does the model forget?
#
# The examples are short answers to questions with an instruction. Training on them makes every answer short, also where
# length was asked for. [IFEval](https://arxiv.org/abs/2311.07911) shows the loss. Its 541 prompts have other instructions
# than this tutorial's, such as "at least 300 words", and programs check the answers. The downloaded model follows all
# instructions of 0.17 of the prompts. The policy of 40 steps follows those of 0.11, with answers of 50 tokens
# instead of 170.
#
# The cure is **rehearsal**: mix examples of the old skill into the new ones. Nobody has to write them: the
# downloaded model itself wrote the 456 long answers of `data/samples/rehearsal.jsonl`, to tasks such as "Make an
# outline with headings for a talk about how to fall asleep more easily". After 120 steps with a third of such examples, the policies of three seeds
# follow the instructions of 0.159, 0.155 and 0.144 of the prompts, and no difference from the downloaded model is
# certain. After 120 steps without rehearsal the share is 0.11 again. (Read the differences, not the level: one constant
# sentence in lower case gets 0.14, because many instructions forbid commas or capital letters.)
#
# Rehearsal has a price. At the same number of steps fewer examples teach this tutorial's instructions: 0.32 of the answers to
# this tutorial's prompts are good, and without rehearsal 0.43. The long examples also make a step 1.6 times as long. This notebook
# therefore does without rehearsal. To rehearse in a run of your own, give `model.data.train_ds.file_path` both files as a list, and
# set `model.encoder_seq_length` to 352 (`python notebooks/record.py --rehearsed`).

# %%
steps, losses = lab.run("sft").series("validation/loss")
lab.record("03", {"sft": {"val_loss_before": losses[0], "val_loss_after": losses[-1], "steps": steps[-1]}})
print(f"validation loss {losses[0]:.3f} → {losses[-1]:.3f}  ({losses[-1] / losses[0] - 1:+.0%})")

# %% [markdown]
# ## What you learnt
#
# - The loss covers answers only.
# - The metric to watch is the validation loss.

# %% [markdown]
# ## Further reading
#
# - Wei et al. 2022, [*Finetuned language models are zero-shot learners*](https://arxiv.org/abs/2109.01652): training
#   on many tasks teaches to follow instructions.
# - Ouyang et al. 2022, [*Training language models to follow instructions with human
#   feedback*](https://arxiv.org/abs/2203.02155): SFT as the first of three stages.
# - Zhou et al. 2023, [*LIMA: less is more for alignment*](https://arxiv.org/abs/2305.11206): what SFT adds to a
#   pretrained model, and what it does not.
# - Gudibande et al. 2023, [*The false promise of imitating proprietary LLMs*](https://arxiv.org/abs/2305.15717): a
#   model that learns the style of answers, but not their facts.
# - Hu et al. 2021, [*LoRA*](https://arxiv.org/abs/2106.09685): training adapters instead of all weights.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("03")

# %% [markdown]
# Next: [04 · the reward model](04_reward_model.ipynb)
