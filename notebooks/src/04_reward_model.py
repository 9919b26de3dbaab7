# %% [markdown]
# # The reward model
#
# You train a model that tells which of two answers people prefer, and check that it learnt the right thing.
#
# {{map}}
#
# | goal | a number for any answer, higher for better ones |
# | --- | --- |
# | needs | the SFT policy of 03 (else the downloaded model is taken) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Monitor, curves

lab = Workspace(out, profile, dataset, where)

# %% [markdown]
# ## How does a number come out of pairs?
#
# The transformer stays; the output layer is replaced by one row of weights, which turns the last token's hidden state
# into a number $r$. Bradley and Terry: the chosen answer wins with probability $\sigma(r_c - r_r)$, so
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
# Equal scores cost $\ln 2 = 0.6931$ and count as wrong. The head starts at zero, so the run must start at exactly that
# loss with accuracy 0: if it doesn't, something is broken before training began.
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
# | you see | it means | turn |
# | --- | --- | --- |
# | accuracy rises, loss leaves 0.693 | healthy | |
# | loss stays at 0.693 | the steps are too small | `model.optim.lr` up |
# | train accuracy 1, validation falls | it learns by heart | one epoch is enough |

# %%
curves(
    lab.run("rm"),
    metrics=[["train/loss", "validation/loss"], ["train/acc", "validation/acc"], "train/grad_norm"],
)

# %% [markdown]
# ## Do chosen and rejected part?
#
# Both means move; only their distance matters. A reward model has no zero.

# %%
curves(lab.run("rm"), metrics=[["train/rewards_chosen_mean", "train/rewards_rejected_mean"]])

# %% [markdown]
# ## Where does it hesitate?
#
# The same held-out pairs with the model's own scores. Sort by the smallest margin: there it is wrong, or nearly. Does it
# see something that you would call better?

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
# - A reward model is a language model with one number for an output, trained on differences.
# - The checkpoint keeps mean and standard deviation of its scores on held-out pairs; PPO sees standardised rewards.
#
# **Questions.** Why does adding 5 to every reward change nothing here? What will a policy do that finds an answer which
# the reward model likes and people don't?
#
# Next: [05 · PPO](05_ppo.ipynb)
