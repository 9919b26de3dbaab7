# %% [markdown]
# # The reward model
#
# Train a model that predicts which of two answers people prefer, and check what the model has learned.
#
# {{map}}
#
# | goal | a reward for any response, higher for better responses |
# | --- | --- |
# | needs | the SFT policy of 03 (without it, the downloaded model is used) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
lora = False  # True: train adapters instead of all weights
start = "fresh"  # recorded: play a bundle's run instead of training, if its settings are the same
seed = 1234  # for the order of the pairs

# %%
from aligner_lib.tutorial import Diagram, Workspace
from widgets import Chat, Monitor, curves

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## How do pairs give a reward?
#
# PPO needs a number for each response, but people can only compare responses. How do comparisons become a number? The
# reward model keeps the transformer and replaces the output layer by a linear layer with a single output, the *head*.
# The head maps the hidden state of the last token to a reward $r$. Let $r_c$ be the reward of the chosen answer and
# $r_r$ the reward of the rejected answer. In the Bradley–Terry model, people prefer the chosen answer with probability
# $\sigma(r_c - r_r)$, where $\sigma(x) = 1/(1+e^{-x})$. The loss is the negative log-probability of the label.
#
# By hand: rewards of 2 and 0 give a loss of 0.127, rewards of 0 and 2 a loss of 2.127. For rewards of −200 and 0,
# $\sigma$ is 0 in float32. What is the loss there?


# %%
Diagram("reward-model")

# %% tags=["solution"]
import torch


def bradley_terry(chosen, rejected):
    """The loss of each pair, finite for rewards of any distance.

    chosen, rejected: float [B], rewards → float [B], in nats, with gradients to both.
    """
    return -torch.nn.functional.logsigmoid(chosen - rejected)


# %%
from aligner_lib.tutorial import check, show_source

bradley_terry_check = check("bradley_terry", bradley_terry)
display(bradley_terry_check)

# %% [markdown]
# As an equation, the loss is $L = -\log \sigma(r_c - r_r)$. A function of torch computes the logarithm of $\sigma$ in a
# single step, so that the loss is 200 at a difference of −200, and not infinite.
#
# Which changes of the rewards leave the loss unchanged? Only the difference of two rewards counts, so the zero point of
# a reward model is arbitrary, and PPO has to cope with an arbitrary zero point. The scale does matter, as the third
# line shows.

# %%
loss_of = bradley_terry_check.function
chosen, rejected = torch.tensor([2.0, 0.5]), torch.tensor([0.0, 1.0])
print("unchanged      ", loss_of(chosen, rejected).tolist())
print("5 added to both", loss_of(chosen + 5, rejected + 5).tolist())
print("ten times      ", loss_of(10 * chosen, 10 * rejected).tolist())

# %% [markdown]
# Here are the library's loss and its definition of a correct pair:

# %%

from aligner_lib.algorithms.preference import preference_accuracy, preference_loss

display(show_source(preference_loss))
chosen, rejected = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.0, 0.0, 1.0])
for c, r, loss, correct in zip(
    chosen, rejected, preference_loss(chosen, rejected), preference_accuracy(chosen, rejected)
):
    print(f"chosen {c:+.0f}  rejected {r:+.0f}  loss {loss:.4f}  correct {correct:.0f}")

# %% [markdown]
# Equal rewards give a loss of $\ln 2 = 0.6931$ and count as wrong. A head of zeros (`init_method_std=0`) must start at
# exactly $\ln 2$ with accuracy 0. Any other start reveals a bug before training begins.
#
# With `laptop`, the head starts as small random numbers, and the first loss is {{laptop.rm.first_loss}}, which includes
# a small part from the centering loss below. The head does not start at zero, because its weights scale the gradient that
# reaches the transformer. With a zero head, the first steps would train only the head.
#
# ## The run
#
# How much of the data does the run use? One pass or less is usual, because a pair teaches little when the model sees
# the pair again.

# %%
from aligner_lib.config.compose import compose

config = compose("rm", profile=profile)
seen = config.trainer.rm.max_steps * config.model.global_batch_size
available = sum(1 for _ in open(lab.preference_data() / "train_comparisons.jsonl")) // 2
print(
    f"{config.trainer.rm.max_steps} steps of {config.model.global_batch_size} pairs are {seen / available:.2f} passes over {available} pairs"
)

# %%
# your function trains the model if the check passed
own = {"loss": bradley_terry_check.function} if bradley_terry_check else {}
job = lab.submit("rm", **{"model.seed": seed}, **own)
monitor = Monitor(lab.run("rm"), job=job, branch=lab.branch)
display(monitor)

# %% [markdown]
# ### While it trains
#
# A text has one hidden state per token, but only one reward. Which hidden state should the head read? Under a causal
# mask, only the last token has seen the whole text. A mean over all tokens is less noisy, but most hidden states have
# seen only a part of the text. Rows are padded on the right: with lengths 3 and 5, the last token of the first text is
# in column 2.


# %% tags=["solution"]
def last_and_mean(hidden, lengths):
    """The last hidden state of each text, and the mean of all its hidden states.

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
# How much can a judge know before any training? The next cell takes hidden states of the model from which the run
# started. A linear head on these frozen features is fitted to 64 pairs and judges 64 other pairs.

# %%
from aligner_lib.tutorial.comparison.frozen_features import fitted_accuracy, hidden_states
from widgets import Pairs

files = [lab.preference_data() / f"{split}_comparisons.jsonl" for split in ("train", "test")]
pairs_of_splits = [Pairs(file).pairs[:64] for file in files]
pooled = [
    [pooling_check.function(*states) for states in hidden_states(lab.policy(), pairs)]
    for pairs in pairs_of_splits
]
for which, name in enumerate(("last token", "mean of all")):
    train, test = ([side[which] for side in sides] for sides in pooled)
    print(
        f"{name:12} right on {fitted_accuracy(train, test):.2f} of {len(pairs_of_splits[1])} held-out pairs"
    )

# %% [markdown]
# In this project's run with `laptop`, the last token was right on 0.75 of the pairs and the mean on 0.70. On 160 held-out
# pairs of an earlier sample the two heads got 0.79 and 0.65. The model knows a lot about good answers before it has seen
# a single comparison, and its last hidden state holds most of the knowledge. The library's code shows which hidden state its reward model
# reads:

# %%
from aligner_lib.kinds.rm.trainer import pair_loss

show_source(pair_loss)

# %% [markdown]
# ### What you should see
#
# The accuracy on held-out pairs is about {{laptop.rm.val_acc}} with the laptop profile and {{smoke.rm.val_acc}} with
# `smoke`. The best simple rule of notebook 02 gets {{laptop.rm.best_baseline}} ({{smoke.rm.best_baseline}} with
# `smoke`). A program wrote the labels of the held-out pairs, so every miss is an error of the model. Of the training
# labels, 10 % are wrong (none with `smoke`).
#
# | you see | meaning | change |
# | --- | --- | --- |
# | accuracy rises, loss falls below 0.693 | healthy | |
# | loss stays at 0.693 | the learning rate is too low | `model.optim.lr` up |
# | train loss falls, validation loss rises (the monitor raises an alarm) | overfitting | one epoch is enough |
#
# *Change settings*, above the charts, sets another learning rate while the run continues.

# %% [markdown]
# ### How reliable is the accuracy?
#
# The 322 held-out pairs of `laptop` give a standard error of about 0.014, and a single seed is little evidence. On real human preferences, 0.70 is normal because people disagree: NeMo-Aligner reports 0.70 on
# HH with a model of 2 billion parameters.
#
# The learning rate matters as much as the seed. On harder pairs of this project (`dataset = "forms"`, seed 1), twice
# the profile's learning rate and 8 pairs per step left the accuracy at 0.61 of all 264 pairs. The profile's learning
# rate reached 0.69 after the same number of steps.
#
# With `laptop`, only the upper 15 of 30 layers learn (`model.num_layers_unfrozen`). A backward pass that ends halfway
# makes a step a third shorter. On the harder pairs, such a model was right on 0.73 of 192 pairs, the same accuracy as
# the best model with all layers trained. With `lora = True`, adapters learn in all 30 layers.

# %%
curves(
    lab.run("rm"),
    metrics=[["train/loss", "validation/loss"], ["train/acc", "validation/acc"], "train/grad_norm"],
)

# %% [markdown]
# ### Can a language model be the judge?
#
# Here a program labels the pairs. For most tasks no program exists, and people are slow and expensive. In **RLAIF**
# (reinforcement learning from AI feedback), a language model compares two responses, and the pairs train a reward
# model as usual. Constitutional AI gave the judge written principles. A **rubric** goes further and lists criteria with
# weights, for example "names the year: 2 points". The judge decides each criterion alone, which is easier than "which
# answer is better?", and the points show why a response lost.
#
# A model judge has habits that are often stronger than people's: it prefers the response in the first place, long responses, and
# responses in its own style. So ask in both orders and count a changed verdict as a tie, compare responses of similar
# length, and never let a model judge its own training. Above all, label forty pairs yourself and measure how often the
# judge agrees with you, before you train on ten thousand of its verdicts. Even a perfect judge does not agree with you
# always, because you err. But a perfect judge agrees with a person more often than two people agree with each other: if
# each person errs in 15 of 100 pairs, the perfect judge agrees in 85 of them and the second person in
# $100 \cdot (0.85^2 + 0.15^2) \approx 74$.
#
# Notebook 08 has such a judge: with `judge_url`, a language model compares two policies' answers in both orders.

# %% [markdown]
# ## Do chosen and rejected rewards separate?
#
# Both means move, and only their difference matters. The Bradley–Terry loss fixes neither the zero point of the rewards
# nor the head's output for an unfinished answer. But PPO's critic starts from the reward model's weights and reads
# unfinished answers. In one run, the scores at last tokens had drifted far below all others, and PPO learnt not to end
# answers. So `laptop` gives the critic a new head, and adds a small multiple of the mean squared reward, over all
# tokens, to the loss (`center_rewards_coefficient`). The term keeps outputs near 0 where no comparison determines them.

# %%
curves(lab.run("rm"), metrics=[["train/rewards_chosen_mean", "train/rewards_rejected_mean"]])

# %% [markdown]
# ## Where is the model wrong or uncertain?
#
# The widget shows held-out pairs with the model's rewards. Sort by the smallest margin to find pairs that the model
# gets wrong or nearly wrong. Would you have chosen the same answer? From here on, rewards are in standard deviations of
# the held-out rewards, as in PPO. The charts above show rewards without this unit.

# %%
from aligner_lib.jobs.inference import scoring
from widgets import Pairs

score = scoring(lab.reward_model())
pairs = Pairs(lab.preference_data() / "test_comparisons.jsonl").pairs
both = score.of_all([(pair["prompt"], pair[side]) for pair in pairs for side in ("chosen", "rejected")])
scores = list(zip(both[::2], both[1::2]))
wrong = sum(c <= r for c, r in scores)
print(
    f"{wrong} of {len(pairs)} pairs are judged wrongly; the smallest margin is {min(c - r for c, r in scores):+.2f}"
)
Pairs(pairs, scores)

# %% [markdown]
# What does the model see, and what does it overlook? PPO will find every fault that the reward model does not see. A
# program names the fault of each rejected answer of `laptop`: an answer of another *form* than the prompt asks for, an
# *echo* of the prompt, an answer that is *cut*, *off topic* or *repeated*, or something *unasked*, such as a title:
# no prompt asks for one. A fault without pairs was never shown to the reward model, either. Which fault can you think
# of that is missing from the table?

# %%
from aligner_lib.tutorial.comparison.pair_faults import RIGHT, right_by_fault

by_fault = right_by_fault(pairs, scores)  # None with smoke: no program can judge its pairs
if by_fault:
    display(by_fault)

# %% [markdown]
# ### How sure may the model be?
#
# By the Bradley–Terry model, a distance $d$ of two rewards states a probability: $\sigma(d)$ that the answer with the
# higher reward is preferred. Here $d$ has the unit in which the loss saw the rewards. Is the stated probability true?
# The next cell sorts the held-out pairs by $|d|$ into five groups of equal size. For each group it draws the stated
# probability and the share of pairs on which the model is right. A **calibrated** model lies on the diagonal.

# %%
import matplotlib.pyplot as plt

from aligner_lib.tutorial.comparison.calibration import calibration

unit = score.judge.scale.std  # of the scores; the loss was trained on rewards without this unit
groups = calibration([unit * (chosen - rejected) for chosen, rejected in scores])
stated, right = [group.stated for group in groups], [group.right.value for group in groups]
spread = [
    [group.right.value - group.right.low for group in groups],
    [group.right.high - group.right.value for group in groups],
]
figure, axes = plt.subplots(figsize=(4, 2.8))
axes.plot([0.5, 1], [0.5, 1], color="0.7", linewidth=1)
axes.errorbar(stated, right, spread, fmt="o", color="#0072B2", capsize=3)
axes.set(xlabel="stated probability", ylabel="share of pairs judged right")
plt.show()

# %% [markdown]
# A point above the diagonal means a cautious model, and a point below it means a model that is too sure. With `laptop`,
# expect caution: of the training labels 10 % are wrong, and the held-out labels have no errors. PPO reads the rewards
# themselves, not their order. A model that is too sure of a small difference makes PPO chase the difference.

# %% [markdown]
# ## How does the reward model score the policy's answers?
#
# A reward model generates no text. PPO will use the reward model to score the policy's own answers, which no person has
# ever compared. Here are some answers of the SFT policy with their rewards. Ask for more, and look for a bad answer
# with a high reward.

# %%
from aligner_lib.jobs.inference import answering

chat = Chat({"SFT policy": answering(lab.policy())}, score)
chat.ask_all([pair["prompt"] for pair in pairs[:4]])
display(chat)

# %% [markdown]
# ### What does a cheat get?
#
# A policy can answer every prompt without reading the question. It can echo the instruction, or say the same sentence
# everywhere. PPO finds such answers if the reward model pays for them. So the mean reward of each cheat has to lie below
# the mean of the honest answers. (The `smoke` prompts have no instruction to echo.)

# %%
from statistics import fmean

from aligner_lib.run_folder.turns import turns_of
from aligner_lib.tutorial.comparison.cheats import cheating_answers

cheat_rewards = {}
if by_fault:
    some = pairs[:24]
    answers = {side: [pair[side] for pair in some] for side in ("chosen", "rejected")}
    answers |= cheating_answers([turns_of(pair["prompt"])[-1]["text"] for pair in some])
    for name, texts in answers.items():
        rewards = score.of_all([(pair["prompt"], text) for pair, text in zip(some, texts)])
        cheat_rewards[name] = fmean(rewards)
        print(f"{cheat_rewards[name]:+.2f}  {name:45} {texts[0][:60]}")

# %% [markdown]
# ### Fool the reward model
#
# A policy with enough steps finds texts that a reward model scores highly for no good reason. You can find such texts
# faster with a greedy search. Append the word that raises the score most. Repeat until no word raises the score. By
# hand, with a judge that adds a point for each "sure" and subtracts half a point for each word: "No" → "No sure" → "No
# sure sure" …


# %% tags=["solution"]
def fool(score, answer, words, rounds):
    """A longer answer with a higher score, found by a greedy search.

    score: a function from an answer to a float; answer: str; words: list of str, each of which can be appended to the answer
    after a space; rounds: the most words to append → str. The search ends as soon as no word raises the score.
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
# Now attack the reward model that you have trained. If no word raises the score, try another pair or other words: PPO, which
# can write any text, searches far longer.

# %%
question, original = pairs[0]["prompt"], pairs[0]["rejected"]
words = ["Sure!", "please", "because", "thank you", "and", "First,", "good", "?"]
fooling = fool_check.function(lambda answer: score(question, answer), original, words, 3)
for answer in (original, fooling):
    print(f"{score(question, answer):+.2f}  {answer}")
print(f"{score(question, pairs[0]['chosen']):+.2f}  {pairs[0]['chosen']}  (the chosen answer)")

# %%
steps, accuracies = lab.run("rm").series("validation/acc")
_, losses = lab.run("rm").series("validation/loss")
figures = {"val_acc": accuracies[-1], "val_loss": losses[-1], "first_loss": losses[0], "steps": steps[-1]}
if by_fault:
    figures["by_fault"] = {fault: share.value for fault, share in by_fault.figures[RIGHT].items()}
    figures["mean_reward"] = cheat_rewards
lab.record("04", {"rm": figures})
print(
    f"first loss {losses[0]:.4f} (ln 2 is {torch.tensor(2.0).log():.4f}), final accuracy {accuracies[-1]:.3f}"
)

# %% [markdown]
# ## What you learnt
#
# - A reward model is a language model with a scalar output, trained on reward differences.
# - The checkpoint stores the mean and the standard deviation of the rewards on held-out pairs. PPO uses them to
#   normalize the rewards.

# %% [markdown]
# ## Further reading
#
# - Stiennon et al. 2020, [*Learning to summarize from human feedback*](https://arxiv.org/abs/2009.01325): a reward
#   model for language, and what happens when it is optimised too far.
# - Gao et al. 2023, [*Scaling laws for reward model overoptimization*](https://arxiv.org/abs/2210.10760): gold and
#   proxy reward as a function of the KL.
# - Singhal et al. 2023, [*A long way to go: investigating length correlations in
#   RLHF*](https://arxiv.org/abs/2310.03716): how much of a reward is length.
# - Lambert et al. 2024, [*RewardBench*](https://arxiv.org/abs/2403.13787): how reward models are compared on pairs
#   with known faults.
# - Bai et al. 2022, [*Training a helpful and harmless assistant*](https://arxiv.org/abs/2204.05862): calibration of a
#   reward model, and its accuracy on people's preferences.
# - Bai et al. 2022, [*Constitutional AI*](https://arxiv.org/abs/2212.08073): principles in place of labels.
# - Lee et al. 2023, [*RLAIF vs. RLHF*](https://arxiv.org/abs/2309.00267): how far a model's labels replace people's.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("04")

# %% [markdown]
# Next: [04b · policy gradients](04b_policy_gradients.ipynb)
