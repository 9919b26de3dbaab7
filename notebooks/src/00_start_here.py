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
# A pretrained language model continues text. **Alignment** makes it answer as people want it to. The `laptop` profile's
# model, SmolLM2-135M-Instruct, was taught to answer by its makers, and does so with many mistakes: you take it further,
# and measure every stage against the model as you downloaded it. The classical recipe (RLHF) has three training stages,
# each starting from the model of the one before:
#
# 1. **SFT** shows the model good answers and trains it to write them.
# 2. A **reward model** learns from pairs of answers which one people prefer.
# 3. **PPO** generates responses, scores them with the reward model, and updates the model towards high rewards, while a
#    KL penalty keeps it close to where it started.

# %%
from aligner_lib.tutorial.pipeline_drawing import PipelineDrawing

PipelineDrawing()

# %% [markdown]
# PPO has four models. Two are trained: the *actor*, which writes, and the *critic*, which foresees rewards. Two are frozen
# copies of the models that these started from: the *reference* and the *reward model*.
#
# There are shorter ways. **DPO** (06) goes from the SFT policy to an aligned one with the pairs alone. **GRPO** (07) needs
# neither a critic nor, where a program can judge an answer, a reward model.
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
# ## Where are you?
#
# Each notebook ends with five questions, and most ask you to write a part of the algorithm. What you have done is kept in
# the workspace, in `progress.jsonl`. `aligner progress` shows the same in a terminal, and notebook 08 ends with a page of
# what you did and reached, for you to keep.

# %%
from aligner_lib.tutorial.progress_table import ProgressTable

ProgressTable(lab.out)

# %% [markdown]
# ## What you learnt
#
# - Three training stages, four models in the last one, two of them frozen.
# - A profile changes sizes and where jobs run, never the algorithm.
# - A job writes a run folder, and every monitor reads that folder.
#
# ## Questions
#
# Arrows move, the space bar chooses, Enter answers. Each wrong choice says why it is wrong; try again then.

# %%
from widgets import Quiz

Quiz("00")

# %% [markdown]
# Next: [01 · the model](01_model.ipynb)
