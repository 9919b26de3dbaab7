# %% [markdown]
# # The bug hunt
#
# Fifteen runs of PPO train to their end without an error, with the same settings. Most runs contain a single fault.
# Find the faults from the charts and the completions alone.
#
# {{map}}
#
# | goal | find the wrong line of code from a chart that looks odd |
# | --- | --- |
# | needs | notebook 05 read; nothing is trained unless `exercise = "live"` |
# | downloads | nothing |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
exercise = "recorded"  # recorded: show recorded runs only · live: also plant a fault and mend it

# %%
from aligner_lib.run_folder.explain import explain
from aligner_lib.run_folder.reader import flatten
from aligner_lib.tutorial import Diagram, Workspace, require_one_of
from aligner_lib.tutorial.hunt import bug_hunt
from widgets import Completions, Quiz, Recording, curves, explore

require_one_of("exercise", exercise, "recorded", "live")
lab = Workspace(out, profile, dataset, where)
healthy, other = (Recording(name, speed=float("inf")) for name in bug_hunt.HEALTHY)

# %% [markdown]
# ## What is usual?
#
# Before you can see a fault, you need to know healthy curves. The next cell shows two healthy runs of the same job,
# made with the `smoke` profile: a tiny model, 32 responses per step. Only the seeds of the two runs differ, so every
# difference between their curves is noise.

# %%
curves([healthy, other], metrics=bug_hunt.CHARTS)

# %% [markdown]
# A few figures contain no noise, because they follow from the definition of PPO. If one of these **exact figures** is
# wrong, the run has a fault, no matter how well the reward rises:
#
# | figure | at which steps | value |
# | --- | --- | --- |
# | `train_rollouts/kl` | the first | exactly 0: policy and reference have the same weights |
# | `train_optim/first_ppo_ratio` | all | 1: nothing was updated since the rollout |
# | `train_optim/loss` | all, with one update a step | 0: minus the mean of the normalised advantages |
# | `train_rollouts/sampler_mismatch` | all | rounding: generation and training compute the same log-probabilities |
# | `train_rollouts/rlhf_rewards` | all | at most `train_rollouts/rewards`, because a penalty is subtracted: these runs charge the absolute value of the KL |
# | `train_optim/lr` | all | the schedule in the settings |
#
# Compare all other figures with a healthy run. Ask **from which step on** the curves differ. A fault in the data or the
# models is visible before the first update. A fault in the loss can change the loss's own figures at step 1 (the loss, the first
# ratio, the gradient norm), and changes rewards and lengths only from step 2 on.
#
# Two runs show only a part of the noise: of three healthy runs, each is equally often in the middle. So chance alone puts
# two thirds of a third healthy run's figures outside of the first two. For example, at step 5 both runs above end 0.97 of
# their responses, and three further healthy runs ended 0.34, 0.63 and 0.88. A figure outside of the two runs is therefore
# no proof of a fault.

# %%
Diagram("when-it-shows")

# %%
first = healthy.metrics()[1]
for name in (
    "train_rollouts/kl",
    "train_optim/first_ppo_ratio",
    "train_optim/loss",
    "train_rollouts/sampler_mismatch",
):
    print(f"{name:34}{first[name]:.3g}")

# %% [markdown]
# ## The fifteen runs
#
# Each cell shows a run beside the two healthy runs, the run's completions, and three questions: what is wrong, which
# figure shows it first, and at which step. You may choose as often as you like. A wrong choice tells you nothing about
# the other runs.
#
# At work there is no list of faults. So the list is not complete: one run has a fault outside the list. Some runs may
# be healthy, and a fault may occur twice.
#
# Eleven runs have the seed of the first healthy run. Without a fault, the first steps of such a run have the same figures as
# that run, apart from rounding, so the first difference shows the fault. Four runs have seeds of their own, and all of their
# figures with noise differ from the first step on. In these four runs, look for a fault in the exact figures.


# %%
healthy_records, other_records = healthy.metrics(), other.metrics()


def hunt(number):
    """Show a run beside the healthy runs, its completions, and the questions."""
    name = f"hunt-{number:02d}"
    run = Recording(name, speed=float("inf"))
    display(explore([run, healthy, other], metrics=bug_hunt.CHARTS))
    display(Completions(run))
    display(Quiz(bug_hunt.questions(name, run.metrics(), healthy_records, other_records)))


hunt(1)

# %%
hunt(2)

# %%
hunt(3)

# %%
hunt(4)

# %%
hunt(5)

# %%
hunt(6)

# %%
hunt(7)

# %%
hunt(8)

# %%
hunt(9)

# %%
hunt(10)

# %%
hunt(11)

# %%
hunt(12)

# %%
hunt(13)

# %%
hunt(14)

# %%
hunt(15)

# %% [markdown]
# Would the settings have revealed the faults?


# %%
def settings(run):
    """A run's settings without its seed."""
    return {key: value for key, value in flatten(run.info["config"]).items() if key != "model.seed"}


same = all(settings(Recording(name)) == settings(healthy) for name in bug_hunt.HUNTED)
print("all fifteen runs have the healthy run's settings, except for the seed:", same)

# %% [markdown]
# ## A colleague's opinion
#
# `aligner explain` reads a run's metrics and names the likely cause. The command knows the properties that follow from
# the algorithm, and sees no other run. Treat the command as a colleague who may be wrong: to this colleague, a run
# looks healthy if every exact figure is right. For which runs do you disagree, and who is right?

# %%
for name in bug_hunt.HUNTED:
    explanation = explain(Recording(name, speed=float("inf")))
    print(name, "·", explanation.cause.title if explanation.cause else "nothing looks wrong")

# %% [markdown]
# ## Plant a fault, and mend it
#
# A fault is a wrong function in place of a library function, and the cure replaces the same function by a right one.
# `aligner_lib.tutorial.hunt.faults` contains the faults, and `lab.submit("ppo", fault=…)` plants the ten of the list. The next
# cells show a fault, then the right function as you might write it. With `exercise = "live"` three runs train: with the
# fault, with the right function, and with the library's own function. The mended run has the healthy run's figures to
# the last digit.

# %%
import inspect

from aligner_lib.tutorial.hunt.faults import kl_sign

print(inspect.getsource(kl_sign))


# %%
def token_rewards(rewards, kl, mask, coefficient):
    """float [B], [B, S-1] and bool [B, S-1]: −coefficient · kl at each response token, plus the score at the last one."""
    per_token = -coefficient * kl * mask
    for row, reward in enumerate(rewards):
        last = mask[row].nonzero()[-1]
        per_token[row, last] += reward
    return per_token


# %%
if exercise == "live":
    short = {"trainer.ppo.max_steps": 4, "trainer.ppo.val_check_interval": 4}
    lab.submit("ppo", "hunt-planted", fault="kl_sign", **short).wait()
    lab.submit("ppo", "hunt-mended", token_rewards=token_rewards, **short).wait()
    lab.submit("ppo", "hunt-usual", **short).wait()
    for name in ("hunt-planted", "hunt-mended"):
        difference = bug_hunt.first_difference(lab.run(name), lab.run("hunt-usual"))
        print(f"{name} compared with hunt-usual:", difference or "the same figures, to the last digit")
else:
    print('Only recorded runs are shown. With exercise = "live", this cell trains three short runs.')

# %% [markdown]
# ## What you learnt
#
# - A rising reward proves nothing: eight of the thirteen runs with a fault end with a clearly higher reward.
# - Know the figures that must be exact, and look at them before you tune anything.
# - The first step at which two runs with the same seed differ shows in which stage to look. Runs with different seeds differ
#   everywhere, and two healthy runs show only a part of the noise.
# - A list of known faults contains the faults that somebody has thought of before.
#
# **Questions.** Which of these faults would also occur with a larger model, and become visible only after days? Which
# of them would a test of a single function have found?
#
# ## Further reading
#
# - Henderson et al. 2018, [*Deep reinforcement learning that matters*](https://arxiv.org/abs/1709.06560): how much of a
#   published gain was the seed.
# - Engstrom et al. 2020, [*Implementation matters in deep policy gradients*](https://arxiv.org/abs/2005.12729): details
#   of the code that explain more than the algorithm.
# - Andrychowicz et al. 2021, [*What matters in on-policy reinforcement
#   learning?*](https://arxiv.org/abs/2006.05990): 250,000 runs, one choice at a time.
# - Huang et al. 2022, [*The 37 implementation details of proximal policy
#   optimization*](https://iclr-blog-track.github.io/2022/03/25/ppo-implementation-details/): a list to check a trainer
#   against.
# - Skalse et al. 2022, [*Defining and characterizing reward hacking*](https://arxiv.org/abs/2209.13085): when a proxy
#   reward can be trusted at all.
#
# Next: [11 · RLHF in a hundred lines](11_capstone.ipynb), where every line of the loop is yours.
