# %% [markdown]
# # Start here
#
# See answers of a language model before and after training, and the whole path from a downloaded model to an aligned
# model.
#
# {{map}}
#
# | goal | see what alignment changes, know what runs where, and check that your installation works |
# | --- | --- |
# | needs | nothing |
# | downloads | the model of notebook 01: at most 270 MB (`laptop`, once), nothing (`smoke`) |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"  # smoke: a tiny model, seconds · laptop: SmolLM2-135M, minutes · gpu, slurm: real sizes
out = "../runs/tutorial"
dataset = "sample"  # sample · auto (downloads if the hub can be reached) · dolly · hh

# %% [markdown]
# ## A model that answers, before and after
#
# What does training change? Each question below contains an instruction that a program can check, such as a title to
# write or a word to begin with. The first column shows answers of the model that you will train, generated now on your
# machine. The other two columns come from a recorded run of this project (`ppo-drawn`) and show one *policy* (a model
# that writes answers) before and after PPO. In these two, a ✓ marks each *good* answer: it follows the instruction, answers the
# question in words of its own, and ends ([05](05_ppo.ipynb) has the exact rules). The questions are the first three of
# the held-out set, not the best three.

# %%
from aligner_lib.jobs.inference import answering
from aligner_lib.tutorial import Workspace
from widgets import BeforeAfter

lab = Workspace(out, profile, dataset)
print(f"Data, runs and results of the notebooks go to {lab.out}")
BeforeAfter("ppo-drawn", live=answering(lab.model(), max_length=48, temperature=0.7))  # as in the run

# %%
answers = BeforeAfter("ppo-drawn")
before, after = (sum(good) for good in answers.good)
print(
    f"Of {len(answers.pairs)} answers to held-out questions, {before} are good before PPO and {after} after PPO."
)

# %% [markdown]
# After PPO more of the recorded policy's answers are good, but not all. Many facts are wrong before and after. A model
# of 135 million parameters knows little, and the reward did not ask for facts. Notebook 08 measures how much of a gain is
# chance.
#
# With the `smoke` profile the first column is noise, because the weights of the `smoke` model are random numbers. The
# `smoke` profile only shows that everything runs.
#
# ## What happens in these notebooks
#
# A pretrained language model continues text. **Alignment** trains the model to answer in the way that people want. The
# `laptop` profile uses SmolLM2-135M-Instruct. Its authors have already trained the model to answer, but it makes many
# mistakes. You train the model further, and compare every stage with the model as you downloaded it. The classical
# recipe, reinforcement learning from human feedback (RLHF), has three training stages. Each stage starts from the model
# of the stage before:
#
# 1. **SFT** (supervised fine-tuning) shows the model good answers and trains the model to write them.
# 2. A **reward model** learns from pairs of answers which answer people prefer.
# 3. **PPO** generates responses, scores them with the reward model, and updates the model towards high rewards. A *KL
#    penalty* keeps the model close to its starting point: it lowers the rewards by the distance from the starting model,
#    the Kullback–Leibler divergence (KL) of notebook [04b](04b_policy_gradients.ipynb).

# %%
from aligner_lib.tutorial import Diagram

Diagram("pipeline")

# %% [markdown]
# PPO uses four models. Two of them are trained: the *actor* generates responses, and the *critic* predicts rewards. The
# other two are frozen: the *reference* is a copy of the model from which the actor started, and the *reward model* is
# the model from which the critic started.
#
# There are shorter paths. **DPO** (notebook 06) trains the SFT policy on the pairs directly, so DPO needs neither a
# reward model nor a critic. **GRPO** (notebook 07) works without a critic, and also without a reward model where a
# program can judge an answer.
#
# ## Is this machine ready?
#
# `aligner doctor` lists which packages are installed, which are missing, and which features do not work without them.

# %%
import subprocess
import sys

print(subprocess.run([sys.executable, "-m", "aligner_lib", "doctor"], capture_output=True, text=True).stdout)

# %% [markdown]
# ## Your workspace
#
# The notebooks write all their files into one folder. Training never runs in this kernel. Each training stage is a job
# with its own process, and the notebook follows the job through the job's **run folder**. Therefore you can close the
# browser, open the notebook again, and find the job still running. For the same reason, the same cell can start the job
# on a cluster.

# %%
print(f"model: {lab.model_name}\nfolder: {lab.out.name}/\njobs run: {lab.where}")

# %% [markdown]
# Each kind of job is also a command, such as `aligner sft`. Run `aligner sft --help` in a terminal to see the options.
#
# The numbers in the text of these notebooks come from runs on two cores in bf16, a number format with 16 bits. The `laptop`
# profile uses bf16 where the processor multiplies such numbers itself, and float32 on any other machine, where every
# step takes about twice as long. Your numbers will differ from the text, because other rounding means other answers.

# %% [markdown]
# ## Where are you?
#
# Most notebooks end with five questions, and in most notebooks you write a part of the algorithm. The workspace keeps a
# record of your answers and exercises in `progress.jsonl`. `aligner progress` shows the same table in a terminal.
# Notebook 08 ends with a page for you to keep, which lists your exercises, answers and results.

# %%
from aligner_lib.tutorial import ProgressTable

ProgressTable(lab.out)

# %% [markdown]
# ## What you learnt
#
# - The recipe has three training stages. The last stage uses four models, of which two are frozen.
# - A profile changes sizes, places and some settings of the algorithm, such as PPO's KL penalty. The code stays the same.
# - A job writes a run folder, and every monitor reads the run folder.
#
# ## Further reading
#
# - Christiano et al. 2017, [*Deep reinforcement learning from human preferences*](https://arxiv.org/abs/1706.03741): the
#   recipe before language models, with comparisons of video clips.
# - Ziegler et al. 2019, [*Fine-tuning language models from human preferences*](https://arxiv.org/abs/1909.08593): the
#   first language models trained in this way, and a sign error that made a model obscene overnight.
# - Askell et al. 2021, [*A general language assistant as a laboratory for
#   alignment*](https://arxiv.org/abs/2112.00861): the meaning of helpful, honest and harmless.
# - Casper et al. 2023, [*Open problems and fundamental limitations of reinforcement learning from human
#   feedback*](https://arxiv.org/abs/2307.15217): the limits of the recipe.
# - Lambert, [*RLHF*](https://rlhfbook.com): a book about the whole field, with many topics beyond this course.
#
# ## Questions
#
# The arrow keys move, the space bar selects, and Enter answers. After a wrong answer the quiz explains the mistake, and
# you can try again.

# %%
from widgets import Quiz

Quiz("00")

# %% [markdown]
# Next: [01 · the model](01_model.ipynb)
