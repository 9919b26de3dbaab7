# %% [markdown]
# # Start here
#
# You check the machine, choose a profile, and get an overview from a downloaded language model to an aligned one.
#
# {{map}}
#
# | goal | know what runs where, and check that your installation works |
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
# A pretrained language model continues text. **Alignment** makes it answer. The classical recipe (RLHF) has three
# training stages, each starting from the model of the one before:
#
# 1. **SFT** shows the model good answers and trains it to write them.
# 2. A **reward model** learns from pairs of answers which one people prefer.
# 3. **PPO** generates responses, scores them with the reward model, and updates the model towards high rewards, while a
#    KL penalty keeps it close to where it started.
#
# PPO has four models. Two are trained (the *actor* and the *critic*). Two are frozen copies of the models that these
# started from (the *reference* and the *reward model*).

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
# Blue boxes are frozen during PPO; yellow ones are trained.
#
# ## Is this machine ready?
#
# `aligner doctor` says what is installed, what is missing, and what does not work without it.

# %%
import subprocess
import sys

print(subprocess.run([sys.executable, "-m", "aligner_lib", "doctor"], capture_output=True, text=True).stdout)

# %% [markdown]
# ## Your workspace
#
# Everything these notebooks write is in one folder. Training never runs in this kernel: each training stage is a job in
# a process of its own, and the notebook follows it through its **run folder**. So you can close the browser, open it
# again, and find the job still running. And the same cell can start the job on a cluster.

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
# - Three training stages, four models in the last one, two of them frozen.
# - A profile changes sizes and where jobs run, never the algorithm.
# - A job writes a run folder, and every monitor reads that folder.
#
# **Questions.** Which two of PPO's models are never trained? What would go wrong without the reference?
#
# Next: [01 · the model](01_model.ipynb)
