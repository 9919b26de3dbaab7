# %% [markdown]
# # Start here
#
# You see a model answer before and after training, and the whole path that leads from one to the other.
#
# {{map}}
#
# | goal | see what alignment changes, know what runs where, and check that your installation works |
# | --- | --- |
# | needs | nothing |
# | downloads | the model, which notebook 01 looks at: at most 270 MB (`laptop`, once), nothing (`smoke`) |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"  # smoke: a tiny model, seconds · laptop: SmolLM2-135M, minutes · gpu, slurm: real sizes
out = "../runs/tutorial"
dataset = "sample"  # sample · auto (from the hub where it can be reached) · dolly · hh

# %% [markdown]
# ## A model that answers, before and after
#
# Each question below has an instruction that a program can check, such as "in double quotation marks". The first column of
# answers is written now, on this machine, by the model that you will train. The other two columns come from a recorded run
# of this project (`ppo-forms`): the same policy before and after PPO. ✓ marks an answer that follows its instruction. The
# questions are the first three of the held-out ones, not the best three.

# %%
from aligner_lib.jobs.inference import answering
from aligner_lib.tutorial.workspace import Workspace
from widgets.before_after import BeforeAfter

lab = Workspace(out, profile, dataset)
BeforeAfter("ppo-forms", live=answering(lab.model(), max_length=48))

# %%
answers = BeforeAfter("ppo-forms")
before, after = answers.obey()
print(
    f"Of {len(answers.pairs)} held-out questions the answer follows the instruction in {before} before PPO, in {after} after."
)

# %% [markdown]
# PPO taught the recorded policy to follow instructions more often, and not always: one of the three answers follows its
# instruction no longer. The facts are often wrong before and after, because a model of 135 million parameters knows little
# and no reward asked for facts. Notebook 08 measures how much of such a gain is chance. With `smoke` the first column is
# noise: that model's weights are random numbers, and it only shows that everything runs.
#
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
print(f"model: {lab.model_name}\nfolder: {lab.out.name}/\njobs run: {lab.where}")

# %% [markdown]
# Each kind of job is also a command, such as `aligner sft`. `aligner sft --help` in a terminal lists its options.

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
