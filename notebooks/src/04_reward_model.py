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
start = "fresh"  # recorded: a bundle's run plays in place of the training, where it is the same one
seed = 1234  # of the order of the pairs

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Chat, Monitor, curves

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## How do pairs give a reward?
#
# The transformer stays the same. The output layer is replaced by a linear layer with one output, which maps the last
# token's hidden state to a reward $r$. In the Bradley–Terry model the chosen answer is preferred with probability
# $\sigma(r_c - r_r)$, so
#
# $$ L = -\log \sigma(r_c - r_r) $$
#
# By hand: rewards of 2 and 0 give $-\ln \sigma(2) = \ln(1 + e^{-2}) = 0.127$.


# %% tags=["solution"]
import torch


def bradley_terry(chosen, rejected):
    """The loss of each pair; it stays finite, however far the rewards are apart.

    chosen, rejected: float [B], rewards → float [B] in nats, with gradients to both.
    """
    return -torch.nn.functional.logsigmoid(chosen - rejected)


# %%
from aligner_lib.tutorial import check, show_source

bradley_terry_check = check("bradley_terry", bradley_terry)
display(bradley_terry_check)

# %% [markdown]
# What may change without the loss noticing? Only the difference counts: a reward model doesn't know where 0 is, and PPO has to
# cope with that. The scale is another matter.

# %%
loss_of = bradley_terry_check.function
chosen, rejected = torch.tensor([2.0, 0.5]), torch.tensor([0.0, 1.0])
print("as it is       ", loss_of(chosen, rejected).tolist())
print("5 added to both", loss_of(chosen + 5, rejected + 5).tolist())
print("ten times      ", loss_of(10 * chosen, 10 * rejected).tolist())

# %% [markdown]
# This is the library's own, and what it counts as correct:

# %%

from aligner_lib.algorithms.preference import preference_accuracy, preference_loss

display(show_source(preference_loss))
chosen, rejected = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.0, 0.0, 1.0])
for c, r, loss, correct in zip(
    chosen, rejected, preference_loss(chosen, rejected), preference_accuracy(chosen, rejected)
):
    print(f"chosen {c:+.0f}  rejected {r:+.0f}  loss {loss:.4f}  correct {correct:.0f}")

# %% [markdown]
# Equal rewards give a loss of $\ln 2 = 0.6931$ and count as wrong. A head of zeros (`init_method_std=0`) must start at exactly that
# loss with accuracy 0; if it doesn't, there is a bug before training starts. With `laptop` it starts as small random numbers,
# and the loss near it ({{laptop.rm.first_loss}}, of which a little is the centering loss below): a head passes on to the model no
# more than it weighs, and one of zeros needs its first steps to weigh anything.
#
# ## The run
#
# How much of the data does it see? One pass or less is usual: a pair that is seen again teaches little but itself.

# %%
from aligner_lib.config.compose import compose

config = compose("rm", profile=profile)
seen = config.trainer.rm.max_steps * config.model.global_batch_size
there = sum(1 for _ in open(lab.preference_data() / "train_comparisons.jsonl")) // 2
print(
    f"{config.trainer.rm.max_steps} steps of {config.model.global_batch_size} pairs are {seen / there:.2f} passes over {there} pairs"
)

# %%
own = {"loss": bradley_terry} if bradley_terry_check else {}  # your code trains the model, if it has passed
job = lab.submit("rm", **{"model.seed": seed}, **own)
monitor = Monitor(lab.run("rm"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains
#
# A text has a hidden state for every token, and a reward is one number. Which state shall the head read? Under a causal mask
# the last token is the only one that has read everything; a mean over all tokens is steadier, and forgets the order. Rows are
# padded on the right: with lengths 3 and 5, the first text's last token is in column 2.


# %% tags=["solution"]
def last_and_mean(hidden, lengths):
    """A text's last hidden state, and the mean of all of its hidden states.

    hidden: float [B, S, H], padded on the right; lengths: int64 [B] → float [B, H] twice, with gradients.
    """
    last = hidden[torch.arange(len(hidden)), lengths - 1]
    counts = torch.arange(hidden.shape[1]) < lengths[:, None]
    return last, (hidden * counts[..., None]).sum(dim=1) / lengths[:, None]


# %%
pooling_check = check("last_and_mean", last_and_mean)
display(pooling_check)

# %%
await monitor

# %% [markdown]
# Now with the states of the model that the run began with: nothing in it has been trained to judge. A linear head on frozen
# features, fitted to 24 pairs, judges 24 others: this is what can be had before any training of the model.

# %%
from aligner_lib.tutorial.exercises.frozen_features import fitted_accuracy, hidden_states
from widgets import Pairs

files = [lab.preference_data() / f"{split}_comparisons.jsonl" for split in ("train", "test")]
some = [Pairs(file).pairs[:24] for file in files]
pooled = [
    [pooling_check.function(*states) for states in hidden_states(lab.policy(), pairs)] for pairs in some
]
for which, name in enumerate(("last token", "mean of all")):
    train, test = ([side[which] for side in sides] for sides in pooled)
    print(f"{name:12} right on {fitted_accuracy(train, test):.2f} of {len(some[1])} held-out pairs")

# %% [markdown]
# With so few pairs a difference below 0.15 or so means nothing. What this library's reward model reads:

# %%
from aligner_lib.trainers.reward_model import pair_loss

show_source(pair_loss)

# %% [markdown]
# ### What you should see
#
# Accuracy on held-out pairs of about {{laptop.rm.val_acc}} with the laptop profile ({{smoke.rm.val_acc}} with `smoke`); the
# best of notebook 02's simple rules gets {{laptop.rm.best_baseline}} ({{smoke.rm.best_baseline}}). The labels of the held-out
# pairs are a program's, so what is missing to 1 is the model's mistake; of the training labels 15 % are wrong (with `smoke`
# none). The 128 pairs of `laptop` are few (a standard error of 0.04), and so is one seed: with `seed = 1` this notebook's was right
# on {{seed_1.rm.val_acc}}, with 2 on {{seed_2.rm.val_acc}}. The learning rate matters as much: twice this one, with 8 pairs a step, left seed 1's at 0.61 of
# all 264 pairs after as many steps, and this one took it to 0.69. On real
# human preferences no more is normal: NeMo-Aligner reports 0.70 on HH with a 2 B model, since people disagree.
#
# With `laptop` the upper 15 of 30 layers learn (`model.num_layers_unfrozen`). A backward pass that ends halfway takes a third off a
# step, and such a model was right on 0.73 of 192 pairs, as the best of those whose layers all learnt. With `lora = True` adapters
# learn in all 30: right on {{lora.rm.val_acc}} of the pairs, with a loss of {{lora.rm.val_loss:.3f}} in place of {{laptop.rm.val_loss:.3f}}, in a run each.
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
# Both means move; only their difference matters. Bradley–Terry's loss does not fix the zero of the rewards, nor what the head
# says of an answer that has only begun; and PPO's critic begins as a copy of this model. So `laptop` adds a small part of the
# rewards' mean square, over all tokens, to the loss (`center_rewards_coefficient`): it holds near 0 what no comparison speaks of.

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

# %% [markdown]
# ### Fool it
#
# A policy with enough steps finds what a reward model likes for no good reason. You can find it faster: put a word behind an
# answer, whichever raises the score most; then another one; until nothing raises it any more. By hand, with a judge that
# gives each "sure" a point and takes half a point off for each word: "No" → "No sure" → "No sure sure" …


# %% tags=["solution"]
def fool(score, answer, words, rounds):
    """A longer answer with a higher score, found greedily.

    score: a function of an answer, a float; answer: str; words: list of str, which are put behind the answer one at a time,
    with a space; rounds: how many at most → str. Ends as soon as no word raises the score.
    """
    for _ in range(rounds):
        best = max((f"{answer} {word}" for word in words), key=score)
        if score(best) <= score(answer):
            break
        answer = best
    return answer


# %%
fool_check = check("fool", fool)
display(fool_check)

# %% [markdown]
# Now against the reward model that you have trained. A PPO that is let off its leash will find what you find here.

# %%
question, begun = pairs[0]["prompt"], pairs[0]["rejected"]
words = ["Sure!", "please", "because", "thank you", "and", "First,", "good", "?"]
found = fool_check.function(lambda answer: score(question, answer), begun, words, 3)
for answer in (begun, found):
    print(f"{score(question, answer):+.2f}  {answer}")
print(f"{score(question, pairs[0]['chosen']):+.2f}  {pairs[0]['chosen']}  (the chosen one)")

# %%
steps, accuracies = lab.run("rm").series("validation/acc")
_, losses = lab.run("rm").series("validation/loss")
lab.record(
    "04",
    {"rm": {"val_acc": accuracies[-1], "val_loss": losses[-1], "first_loss": losses[0], "steps": steps[-1]}},
)
print(
    f"first loss {losses[0]:.4f} (ln 2 is {torch.tensor(2.0).log():.4f}), accuracy now {accuracies[-1]:.3f}"
)

# %% [markdown]
# ## What you learnt
#
# - A reward model is a language model with a scalar output, trained on reward differences.
# - The checkpoint stores the mean and standard deviation of its rewards on held-out pairs; PPO gets normalized rewards.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("04")

# %% [markdown]
# Next: [05 · PPO](05_ppo.ipynb)
