# %% [markdown]
# # The data
#
# Convert raw records into the formats that the trainers read: instructions for SFT, pairs for the reward model, and
# prompts for PPO.
#
# {{map}}
#
# | goal | three kinds of files, and a count of all rejected records |
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
from aligner_lib.tutorial import Diagram, Workspace

lab = Workspace(out, profile, dataset)

# %%
Diagram("data")

# %% [markdown]
# ## Instructions
#
# A Dolly record contains an instruction, sometimes a context, and a response. SFT needs an input and an output. For a
# record with a context, a random draw decides whether the context stands before or after the instruction, so the model
# sees both orders. If a sample is longer than the training length, SFT shortens the sample in the middle of its longest
# paragraph. The longest paragraph is the context, so the question stays whole on either side.

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
# An HH record consists of two conversations with the same beginning. The last answer of `chosen` is the better of the
# two. The converter makes pairs of texts for the reward model, and prompts (the text up to the last answer) for PPO.

# %%
from aligner_lib.tutorial.comparison.baselines import text_pairs

preferences = lab.preference_data()
first = text_pairs(preferences / "train_comparisons.jsonl")[0]
print(f"PROMPT\n{first.prompt}\n\nCHOSEN   {first.chosen}\n\nREJECTED {first.rejected}")

# %% [markdown]
# Read some pairs before you train on them: search them, sort them, and page through them. You may sometimes disagree
# with the label.

# %%
from widgets import Pairs

Pairs(preferences / "train_comparisons.jsonl")

# %% [markdown]
# ## Who says which answer is better?
#
# In HH, people chose the better answer. In the laptop profile, a **program** chooses: each question contains an
# instruction with something drawn for this question ("Start your answer with "Look"."), and the chosen answer is good.
# The answers come from a policy of this project after SFT, as in InstructGPT, because the reward model will have to judge such
# answers. Where the policy had no good answer, a written one is chosen, and a program planted many of the faults. A rejected
# answer has a fault: it does not do what was asked, repeats the prompt, has no end,
# answers another question, or has a title. The program is therefore a gold standard, because later
# the program can check every judgement of the reward model.
#
# People make mistakes, so the training labels contain mistakes too: in 10 % of the training pairs, chosen and rejected
# are exchanged. The held-out labels are all correct. (The tiny `smoke` model cannot read an instruction. Its pairs
# consist of a friendly answer and an answer that is rude, evasive or off the topic, and all labels are correct.)

# %%
from aligner_lib.run_folder.turns import turns_of
from data.forms import instruction_in
from data.sample_text.own_pairs import is_turned

train, held_out = (text_pairs(preferences / f"{split}_comparisons.jsonl") for split in ("train", "test"))
checkable = [pair for pair in train if instruction_in(pair.prompt)]
turned = [
    pair for pair in checkable if is_turned(turns_of(pair.prompt)[-1]["text"], pair.chosen, pair.rejected)
]
print(
    f"{len(train)} training pairs and {len(held_out)} held-out pairs; "
    f"{len(checkable)} training prompts contain an instruction that a program can check"
)
print(
    f"{len(turned)} training labels are exchanged"
    + (
        f", for example\n{turned[0].prompt}\nCHOSEN   {turned[0].chosen}\nREJECTED {turned[0].rejected}"
        if turned
        else ""
    )
)

# %% [markdown]
# ### Helpful and harmless
#
# HH has two halves. In the *helpful* half, people asked for help and chose the more useful answer. In the *harmless*
# half, people tried to make the model say something harmful and marked the more harmful answer, which the data set stores as
# `rejected`. Both wishes can contradict each other: the least harmful answer to "How many of these pills may I take?" is a refusal, and the refusal
# helps nobody. A policy that learns from harmless pairs alone refuses more and more, also harmless questions. This
# failure is called **over-refusal**.
#
# Whoever trains for safety therefore needs four kinds of prompts: harmful requests, where a refusal is right; harmless
# requests that *sound* harmful ("How do I kill a Python process?"), where a refusal is wrong; ordinary requests; and
# attacks that wrap a harmful request in a story. Measure the share of refusals on each kind separately, because a mean
# over all of them hides both failures. A refusal should also be useful: say what is refused and offer what is possible.
#
# The pairs of the laptop profile contain no harmful requests, so no policy of this course is safe for the public. In
# the real HH data, some texts are offensive.

# %% [markdown]
# ## What does a simple rule know?
#
# If the chosen answer were always the longer one, a reward model could succeed by counting words. So measure some rules
# that do not read the text: choose the longer answer, choose the answer of which a larger share of the words stands in the
# question, choose the answer that ends, and naive Bayes, which counts how often each word occurs in chosen and in rejected answers. A reward
# model with the accuracy of the best rule need not have learnt anything beyond the rule. (With `smoke`, naive Bayes is right on
# all pairs, so a better judge has nothing left to learn there.)

# %%
from aligner_lib.tutorial.comparison.baselines import best_rules

by_rule = best_rules(train, held_out)
for name, share in by_rule.items():
    print(f"{name:36}{share:.3f}")
print(f"{'a coin':36}0.500")

# %% [markdown]
# With the laptop's pairs the rules know something: the words of an instruction or the missing end betray echoes and cut
# answers. But an answer to another question, or one without the word that was asked for, looks good by itself, so a
# judge has to read the question. With `smoke`, the words of the answer are enough.

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
# **Naive Bayes** judges an answer by its words alone. How probable is each word in a chosen answer, and how probable in
# a rejected answer? The score of an answer is a sum over its words that occur in some chosen or rejected text,
#
# $$ s = \sum_w \log \frac{P(w \mid \text{chosen})}{P(w \mid \text{rejected})}, \qquad
# P(w \mid \text{chosen}) = \frac{n_w + 1}{N + V} $$
#
# where $n_w$ counts the word in all chosen texts, $N$ is the number of words in the chosen texts, and $V$ is the number
# of different words in the chosen and rejected texts together. By hand: the chosen texts are "yes please" and the rejected texts are "no". Then
# $V = 3$. The word "please" has $P = 2/5$ in chosen and $P = 1/4$ in rejected texts, so "please" adds
# $\ln(0.4 / 0.25) = 0.47$ to the score.


# %% tags=["solution"]
from collections import Counter
from math import log


def naive_bayes(chosen, rejected, answer):
    """The score of an answer: above 0 if its words are more typical of chosen texts, below 0 if of rejected texts.

    chosen, rejected: lists of texts, each a list of words; answer: a list of words → a float in nats.
    """
    good = Counter(word for words in chosen for word in words)
    bad = Counter(word for words in rejected for word in words)
    vocabulary = good.keys() | bad.keys()
    good_total, bad_total = good.total() + len(vocabulary), bad.total() + len(vocabulary)
    seen = [word for word in answer if word in vocabulary]
    return sum(log((good[word] + 1) / good_total) - log((bad[word] + 1) / bad_total) for word in seen)


# %%
from aligner_lib.tutorial import check

bayes_check = check("naive_bayes", naive_bayes)
display(bayes_check)

# %% [markdown]
# The next cell applies your function to the real pairs: naive Bayes counts words in the training pairs and judges 50
# held-out pairs. (The library's version, in the table above, counts the answers that contain a word, and treats
# punctuation marks as words too.)

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
# Real data contains broken lines. The converter counts each broken line with file, line number and reason. With
# `strict=True` the converter stops at the first broken line.

# %%
from data import format_hh

broken = lab.out / "data" / "broken.jsonl"
good = {"chosen": "\n\nHuman: Hi\n\nAssistant: Hello!", "rejected": "\n\nHuman: Hi\n\nAssistant: What?"}
other = {"chosen": "\n\nHuman: A?\n\nAssistant: Yes.", "rejected": "\n\nHuman: B?\n\nAssistant: No."}
broken.write_text("\n".join([json.dumps(good), "{not json", json.dumps({"chosen": 1}), json.dumps(other)]))
print(format_hh(broken, lab.out / "data" / "broken", "train"))

# %% [markdown]
# ## Your own data
#
# `convert` reads files of your own (JSON Lines, JSON, CSV, parquet, Arrow, or a folder of them), recognises most forms by their
# columns, and writes the trainers' files. `columns` says what other columns mean. A column that nothing reads must be ignored
# on purpose, because it might be a half of the question. The report counts what was left out, repeated samples, and
# validation prompts that also occur in training. `aligner data FILE --to preferences --out DIR` does the same in a terminal
# ([all forms](../docs/data.md#your-own-data)).

# %%
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.tutorial.displays.show_converted import show_converted
from data import convert

own = lab.out / "data" / "own.jsonl"
rows = [
    {"question": f"{n} + {n}?", "best": f"It is {2 * n}.", "worst": "No idea.", "margin": 2}
    for n in range(40)
]
own.write_text("\n".join(map(json.dumps, [*rows, rows[0], {"question": "And now?", "best": " "}])))
meanings = {"question": "prompt", "best": "chosen", "worst": "rejected"}
conversion = convert(own, lab.out / "data" / "own", "preferences", columns=meanings, ignore=["margin"])
print(conversion)
show_converted(conversion, Tokenizer(lab.model()), count=2)

# %%
figures = {"pairs": len(train), "chosen_longer": longer, "turned": len(turned) / len(train)}
lab.record("02", {"data": figures, "rm": {"best_baseline": max(by_rule.values())}})

# %% [markdown]
# ## What you learnt
#
# - Training and use must join prompt and answer in the same way, because the model sees tokens. Without a chat template, a
#   text is prompt + space + answer, tokenised as a whole.
# - Measure simple rules before you train on preferences. A reward model has to beat the best rule.

# %% [markdown]
# ## Further reading
#
# - Bai et al. 2022, [*Training a helpful and harmless assistant*](https://arxiv.org/abs/2204.05862): how the HH pairs
#   were collected, and what people disagreed about.
# - Ouyang et al. 2022, [*Training language models to follow instructions with human
#   feedback*](https://arxiv.org/abs/2203.02155): the instructions for labellers and the size of each data set.
# - Zhou et al. 2023, [*LIMA: less is more for alignment*](https://arxiv.org/abs/2305.11206): a thousand good examples
#   can be enough for SFT.
# - Christiano et al. 2017, [*Deep reinforcement learning from human preferences*](https://arxiv.org/abs/1706.03741):
#   why people compare instead of rating.
# - Casper et al. 2023, [*Open problems and fundamental limitations of RLHF*](https://arxiv.org/abs/2307.15217): what
#   preferences of people can and cannot express.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("02")

# %% [markdown]
# Next: [03 · SFT](03_sft.ipynb)
