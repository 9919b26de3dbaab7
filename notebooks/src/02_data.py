# %% [markdown]
# # The data
#
# You convert raw records into the trainers' formats: instructions for SFT, pairs for the reward model, prompts for PPO.
#
# {{map}}
#
# | goal | three kinds of files, and a count of everything that was left out |
# | --- | --- |
# | needs | nothing |
# | downloads | nothing with `dataset="sample"`; Dolly (13 MB) and HH (90 MB) with `dolly` and `hh` |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"

# %%
from aligner_lib.tutorial.workspace import Workspace

lab = Workspace(out, profile, dataset)

# %% [markdown]
# ## Instructions
#
# A Dolly record has an instruction, sometimes a context, and a response. SFT needs an input and an output. Where there
# is a context, a random draw decides whether it comes before or after the instruction, so that the model sees both. Where
# a sample is longer than the model is trained on, SFT cuts it in the middle of its longest paragraph: that is the context,
# and the question stays whole on either side.

# %%
import json

from data import resolve

raw = resolve(dataset, "dolly").paths[0]
first = next(record for line in open(raw) if (record := json.loads(line))["context"])
print(json.dumps(first, indent=1))

# %%
folder = lab.sft_data()
print(json.dumps(json.loads(open(folder / "train.jsonl").readline()), indent=1))

# %% [markdown]
# ## Preferences
#
# An HH record is two conversations with the same beginning: in `chosen` the last answer is the better one. They become
# pairs of texts for the reward model, and prompts (the text up to the last answer) for PPO.

# %%
from aligner_lib.tutorial.baselines import text_pairs

preferences = lab.preference_data()
first = text_pairs(preferences / "train_comparisons.jsonl")[0]
print(f"PROMPT\n{first.prompt}\n\nCHOSEN   {first.chosen}\n\nREJECTED {first.rejected}")

# %% [markdown]
# Read some before you train on them: search, sort, page through them. You may not always agree with the label.

# %%
from widgets import Pairs

Pairs(preferences / "train_comparisons.jsonl")

# %% [markdown]
# ## Who says which one is better?
#
# In HH it was people. The pairs of the laptop profile come from a **program**: each question has an instruction whose form
# can be checked ("Write without commas."), and the chosen answer is the one that obeys. That is a gold standard: whatever a
# reward model says later, a program can say whether it is true. People make mistakes, so the training labels have some:
# 15 % of them are turned round. The held-out ones are as the program found them. (The tiny model of `smoke` can't read
# an instruction. Its pairs are a friendly answer and one that is rude, evasive or off the topic, and no label is turned round.)

# %%
from data.forms import instruction_in

train, held_out = (text_pairs(preferences / f"{split}_comparisons.jsonl") for split in ("train", "test"))
checked = [(instruction_in(pair.prompt), pair) for pair in train]
turned = [pair for asked, pair in checked if asked and not asked.holds(pair.chosen)]
print(
    f"{len(train)} training pairs, {len(held_out)} held-out ones; {sum(asked is not None for asked, _ in checked)} ask for a form"
)
print(
    f"{len(turned)} labels are turned round"
    + (
        f", such as\n{turned[0].prompt}\nCHOSEN   {turned[0].chosen}\nREJECTED {turned[0].rejected}"
        if turned
        else ""
    )
)

# %% [markdown]
# ## What does a simple rule know?
#
# If the chosen answer were always the longer one, a reward model could learn to count words. Try rules that read nothing:
# which answer is longer, which has more of the question's words, which one ends, and naive Bayes, which counts how often
# each word stands in chosen and in rejected answers. A reward model that is no better has learnt nothing that they don't
# know. (With `smoke` naive Bayes is right on all pairs, so that there nothing is left to learn for a better judge.)

# %%
from aligner_lib.tutorial.baselines import best_rules

by_rule = best_rules(train, held_out)
for name, share in by_rule.items():
    print(f"{name:36}{share:.3f}")
print(f"{'a coin':36}0.500")

# %% [markdown]
# With the laptop's pairs no rule gets far: every answer that obeys one instruction fails another, so the answer alone says
# little, and one has to read the question. With `smoke`, the words alone tell.

# %%
import matplotlib.pyplot as plt

chosen, rejected = ([len(answer.split()) for answer in side] for side in list(zip(*train))[1:])
longer = sum(c > r for c, r in zip(chosen, rejected)) / len(chosen)
figure, axes = plt.subplots(figsize=(7, 2.6))
bins = range(0, max(chosen + rejected) + 2, 2)
axes.hist([chosen, rejected], bins=bins, label=["chosen", "rejected"], color=["#0072B2", "#E69F00"])
axes.set(
    xlabel="words in the last answer",
    ylabel="answers",
    title=f"chosen is longer in {longer:.0%} of the pairs",
)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# ### Count the words yourself
#
# **Naive Bayes** judges answers without reading: how probable is a word in a chosen answer, and in a rejected one? The score of an
# answer is the sum over its words,
#
# $$ s = \sum_w \log \frac{P(w \mid \text{chosen})}{P(w \mid \text{rejected})}, \qquad
# P(w \mid \text{chosen}) = \frac{n_w + 1}{N + V} $$
#
# By hand: the chosen texts are "yes please", the rejected ones "no". Then $V = 3$, and "please" has $P = 2/5$ and $1/4$: it is
# worth $\ln(0.4 / 0.25) = 0.47$.


# %% tags=["solution"]
from collections import Counter
from math import log


def naive_bayes(chosen, rejected, answer):
    """How much more the words of an answer are those of chosen texts than those of rejected ones.

    chosen, rejected: lists of texts, each a list of words; answer: a list of words → a float in nats, above 0 for chosen.
    """
    good = Counter(word for words in chosen for word in words)
    bad = Counter(word for words in rejected for word in words)
    vocabulary = good.keys() | bad.keys()
    of_good, of_bad = good.total() + len(vocabulary), bad.total() + len(vocabulary)
    seen = [word for word in answer if word in vocabulary]
    return sum(log((good[word] + 1) / of_good) - log((bad[word] + 1) / of_bad) for word in seen)


# %%
from aligner_lib.tutorial import check

bayes_check = check("naive_bayes", naive_bayes)
display(bayes_check)

# %% [markdown]
# It learns from the training pairs and judges some of the held-out ones. (The library's, in the table above, counts in how many
# answers a word stands, and takes marks for words, too.)

# %%
words_of = [[answer.lower().split() for answer in side] for side in list(zip(*train))[1:]]
wins = 0
for pair in held_out[:50]:
    good, bad = (bayes_check.function(*words_of, text.lower().split()) for text in pair[1:])
    wins += (good > bad) + 0.5 * (good == bad)
print(f"right on {wins / len(held_out[:50]):.2f} of {len(held_out[:50])} held-out pairs")

# %% [markdown]
# ## Bad records
#
# Real data contains broken lines. Each is counted with file, line and reason; `strict=True` stops at the first.

# %%
from data import format_hh

broken = lab.out / "data" / "broken.jsonl"
good = {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello!", "rejected": "\n\nHuman: Hi\n\nAssistant: What?"}
other = {"chosen": "\n\nHuman: A?\n\nAssistant: Yes.", "rejected": "\n\nHuman: B?\n\nAssistant: No."}
broken.write_text("\n".join([json.dumps(good), "{not json", json.dumps({"chosen": 1}), json.dumps(other)]))
print(format_hh(broken, lab.out / "data" / "broken", "train"))

# %%
figures = {"pairs": len(train), "chosen_longer": longer, "turned": len(turned) / len(train)}
lab.record("02", {"data": figures, "rm": {"best_baseline": max(by_rule.values())}})

# %% [markdown]
# ## What you learnt
#
# - Prompt and text must match exactly: text = prompt + space + answer, tokenised as one text. The reward model's scores
#   depend on it.
# - Ask simple rules before you train on preferences: they are what a reward model has to beat.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("02")

# %% [markdown]
# Next: [03 · SFT](03_sft.ipynb)
