# %% [markdown]
# # Start here
#
# You check the machine, choose a profile, and see the way from a downloaded language model to an aligned one.
#
# {{map}}
#
# | goal | know what runs where, and that your installation works |
# | --- | --- |
# | needs | nothing |
# | downloads | nothing |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"  # smoke: a tiny model, seconds · laptop: SmolLM2-135M, minutes · gpu, slurm: real sizes
out = "../runs/tutorial"
dataset = "sample"  # sample · auto (from the hub where it can be reached) · dolly · hh

# %% [markdown]
# ## What happens in these notebooks
#
# A language model that was trained on the internet continues text. **Alignment** makes it answer. The classical
# recipe has three trainings, each starting from what the one before left:
#
# 1. **SFT** shows the model good answers and trains it to write them.
# 2. A **reward model** learns from pairs of answers which one people prefer.
# 3. **PPO** lets the model answer, asks the reward model for a score, and moves the model towards what scored well,
#    while a penalty keeps it near where it began.
#
# PPO has four models. Two learn (the *actor* and the *critic*), and two are frozen copies of what they were before
# (the *reference* and the *reward model*).

# %%
import matplotlib.pyplot as plt

BOXES = {
    "model": (0, 1), "SFT policy": (2, 1), "actor": (4, 1.6), "reference": (4, 0.9),
    "reward model": (2, -0.4), "critic": (4, -0.4), "aligned policy": (6.2, 1.6),
}  # fmt: skip
ARROWS = [
    ("model", "SFT policy", "SFT"), ("SFT policy", "actor", "start"), ("SFT policy", "reference", "copy"),
    ("SFT policy", "reward model", "pairs"), ("reward model", "critic", "start"), ("actor", "aligned policy", "PPO"),
]  # fmt: skip
figure, axes = plt.subplots(figsize=(9, 3))
for name, (x, y) in BOXES.items():
    frozen = name in ("reference", "reward model")
    style = {"boxstyle": "round,pad=0.45", "fc": "#eef3f7" if frozen else "#fff4dd", "ec": "#56708a"}
    axes.text(x, y, name, ha="center", va="center", bbox=style)
for start, end, label in ARROWS:
    (x0, y0), (x1, y1) = BOXES[start], BOXES[end]
    x0, x1 = x0 + 0.62, x1 - 0.62
    axes.annotate("", (x1, y1), (x0, y0), arrowprops={"arrowstyle": "->", "color": "#56708a"})
    axes.text((x0 + x1) / 2, (y0 + y1) / 2 + 0.09, label, ha="center", fontsize=8, color="#56708a")
axes.set(xlim=(-0.8, 7.1), ylim=(-0.9, 2.1))
axes.axis("off")
plt.show()

# %% [markdown]
# Blue boxes stay as they are while PPO runs; yellow ones change.
#
# ## Is this machine ready?
#
# `aligner doctor` says what is installed, what is missing, and what that costs you.

# %%
import subprocess
import sys

print(subprocess.run([sys.executable, "-m", "aligner_lib", "doctor"], capture_output=True, text=True).stdout)

# %% [markdown]
# ## Your workspace
#
# Everything these notebooks make lies in one folder. Training never runs in this kernel: each training is a job in a
# process of its own, and the notebook follows it through its **run folder**. That is why you can close the browser,
# open it again, and find the job still going; and why the same cell can start the job on a cluster.

# %%
from aligner_lib.tutorial.workspace import Workspace

lab = Workspace(out, profile, dataset)
print(f"model: {lab.model_name}\nfolder: {lab.out.name}/\njobs run: {lab.where}")

# %%
print(" ".join(["aligner", "sft", "--help"]))
print(
    subprocess.run(
        [sys.executable, "-m", "aligner_lib", "sft", "--help"], capture_output=True, text=True
    ).stdout
)

# %% [markdown]
# ## What you learnt
#
# - Three trainings, four models in the last one, two of them frozen.
# - A profile changes sizes and places, never the algorithm.
# - A job writes a run folder, and everything that watches it reads that folder.
#
# **Questions.** Which two of PPO's models are never trained? What would go wrong without the reference?
#
# Next: [01 · the model](01_model.ipynb)
