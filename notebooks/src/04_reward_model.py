# %% [markdown]
# # The reward model
#
# You train a model that predicts which of two answers people prefer, and check what it has learned.
#
# {{map}}
#
# | goal | a reward for any response, higher for better ones |
# | --- | --- |
# | needs | the SFT policy of 03 (else the downloaded model is used) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm
lora = False  # True: adapters learn in place of all weights

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Chat, Monitor, curves

lab = Workspace(out, profile, dataset, where, lora)

# %% [markdown]
# ## How do pairs give a reward?
#
# The transformer stays the same. The output layer is replaced by a linear layer with one output, which maps the last
# token's hidden state to a reward $r$. In the Bradley–Terry model the chosen answer is preferred with probability
# $\sigma(r_c - r_r)$, so
#
# $$ L = -\log \sigma(r_c - r_r) $$

# %%
import torch

from aligner_lib.algorithms.preference import preference_accuracy, preference_loss

chosen, rejected = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.0, 0.0, 1.0])
for c, r, loss, correct in zip(
    chosen, rejected, preference_loss(chosen, rejected), preference_accuracy(chosen, rejected)
):
    print(f"chosen {c:+.0f}  rejected {r:+.0f}  loss {loss:.4f}  correct {correct:.0f}")

# %% [markdown]
# Equal rewards give a loss of $\ln 2 = 0.6931$ and count as wrong. The head starts at zero, so the run must start at
# exactly that loss with accuracy 0. If it doesn't, there is a bug before training starts.
#
# ## The run

# %%
job = lab.submit("rm")
monitor = Monitor(lab.run("rm"), job=job)
display(monitor)
await monitor

# %% [markdown]
# ### What you should see
#
# Accuracy on held-out pairs of about {{laptop.rm.val_acc}} with the laptop profile ({{smoke.rm.val_acc}} with `smoke`).
# On real human preferences far less is normal: NeMo-Aligner reports 0.70 on HH with a 2 B model, since people disagree.
#
# | you see | it means | change |
# | --- | --- | --- |
# | accuracy rises, loss falls below 0.693 | healthy | |
# | loss stays at 0.693 | the learning rate is too low | `model.optim.lr` up |
# | train loss falls, validation loss rises (the monitor has an alarm for it) | overfitting | one epoch is enough |
#
# *Change settings*, above the charts, gives the run another learning rate while it goes on.

# %%
curves(
    lab.run("rm"),
    metrics=[["train/loss", "validation/loss"], ["train/acc", "validation/acc"], "train/grad_norm"],
)

# %% [markdown]
# ## Do chosen and rejected rewards separate?
#
# Both means move; only their difference matters. The loss does not fix the zero of the rewards.

# %%
curves(lab.run("rm"), metrics=[["train/rewards_chosen_mean", "train/rewards_rejected_mean"]])

# %% [markdown]
# ## Where is it wrong or uncertain?
#
# These are held-out pairs with the model's rewards. Sort by the smallest margin to see the pairs that it gets wrong or
# nearly wrong. Would you have chosen the same answer?

# %%
from aligner_lib.jobs.inference import scoring
from widgets import Pairs

score = scoring(lab.reward_model())
pairs = Pairs(lab.preference_data() / "test_comparisons.jsonl").pairs[:24]
scores = [tuple(score(pair["prompt"], pair[side]) for side in ("chosen", "rejected")) for pair in pairs]
wrong = sum(chosen <= rejected for chosen, rejected in scores)
print(
    f"{wrong} of {len(pairs)} pairs the wrong way round, smallest margin {min(c - r for c, r in scores):+.2f}"
)
Pairs(pairs, scores)

# %% [markdown]
# ## What does it think of the policy's answers?
#
# A reward model writes nothing. PPO will ask it about answers that no person has ever compared: those of the policy.
# Here are some of the SFT policy, with their rewards. Ask for more, and look for a bad answer with a high reward.

# %%
from aligner_lib.jobs.inference import answering

chat = Chat({"SFT policy": answering(lab.policy())}, score)
for pair in pairs[:4]:
    chat.ask(pair["prompt"])
display(chat)

# %%
steps, accuracies = lab.run("rm").series("validation/acc")
_, losses = lab.run("rm").series("validation/loss")
lab.record(
    "04",
    {"rm": {"val_acc": accuracies[-1], "val_loss": losses[-1], "first_loss": losses[0], "steps": steps[-1]}},
)
print(f"first loss {losses[0]:.4f} (ln 2 = {torch.tensor(2.0).log():.4f}), accuracy now {accuracies[-1]:.3f}")

# %% [markdown]
# ## What you learnt
#
# - A reward model is a language model with a scalar output, trained on reward differences.
# - The checkpoint stores the mean and standard deviation of its rewards on held-out pairs; PPO gets normalized rewards.
#
# **Questions.** Why does adding 5 to every reward change nothing here? What happens if the policy finds answers that
# get a high reward although people dislike them?
#
# Next: [05 · PPO](05_ppo.ipynb)
