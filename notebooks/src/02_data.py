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
preferences = lab.preference_data()
lines = [json.loads(line)["text"] for line in open(preferences / "train_comparisons.jsonl")]
prompt = json.loads(open(preferences / "train_prompts.jsonl").readline())["text"]
print(f"PROMPT\n{prompt}\n\nCHOSEN  {lines[0][len(prompt) :]}\n\nREJECTED{lines[1][len(prompt) :]}")

# %% [markdown]
# Read some before you train on them: search, sort, page through them. You may not always agree with the label.

# %%
from widgets import Pairs

Pairs(preferences / "train_comparisons.jsonl")

# %% [markdown]
# ## Is length a shortcut?
#
# If the chosen answer were always the longer one, a reward model could learn to count words. Compare the lengths of both
# answers before you trust a reward model.

# %%
import matplotlib.pyplot as plt

answers = [text.rsplit("Assistant:", 1)[1].split() for text in lines]
chosen, rejected = [len(words) for words in answers[::2]], [len(words) for words in answers[1::2]]
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
lab.record("02", {"data": {"pairs": len(chosen), "chosen_longer": longer}})

# %% [markdown]
# ## What you learnt
#
# - Prompt and text must match exactly: text = prompt + space + answer, tokenised as one text. The reward model's scores
#   depend on it.
# - Look at lengths before you train on preferences.
#
# **Questions.** Why must train and test prompts be disjoint? What would PPO do with a reward model that counts words?
#
# Next: [03 · SFT](03_sft.ipynb)
