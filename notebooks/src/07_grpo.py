# %% [markdown]
# # GRPO
#
# You write a reward as a program, and watch a model learn to add within minutes: reinforcement learning without a reward
# model and without a critic.
#
# {{map}}
#
# | goal | a policy that solves held-out sums that the downloaded model fails |
# | --- | --- |
# | needs | the downloaded model of 01 |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm
lora = False  # True: adapters learn in place of all weights
start = "fresh"  # recorded: a bundle's run plays in place of the training, where it is the same one
seed = 1234  # of the prompts' order and of what is drawn
beside = "recorded"  # recorded: PPO and the second task play runs of this project · live: you train them

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Completions, Monitor, Recording, curves, show_completions

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## A group instead of a critic
#
# PPO asks a critic what reward was to be expected. There is a simpler way to know: let the policy answer the same prompt
# several times, and take the mean. A response's **advantage** is its reward less that of its group; each of its tokens
# has it. GRPO divides by the group's standard deviation, too:
#
# $$ A_i = \frac{r_i - \bar r}{\sigma_r} $$
#
# By hand: rewards 1, 0, 0, 1 have the mean 0.5 and, dividing by $n - 1 = 3$, the deviation 0.577. The advantages are ±0.866.


# %% tags=["solution"]
import torch


def grpo_advantages(rewards, group):
    """GRPO's advantage of each response.

    rewards: float [B]; group: int64 [B], equal for responses to the same prompt, in any order → float [B], in the order of the
    responses. The deviation is the corrected one (n − 1), plus 1e-4. A group whose rewards are all alike, as those of a single
    response are, has advantages of 0.
    """
    advantages = torch.zeros_like(rewards)
    for one in group.unique():
        mine = rewards[group == one]
        if mine.min() < mine.max():
            advantages[group == one] = (mine - mine.mean()) / (mine.std() + 1e-4)
    return advantages


# %%
from aligner_lib.tutorial import check, show_source

group_check = check("grpo_advantages", grpo_advantages)
display(group_check)

# %% [markdown]
# What does the division do? Eight responses, of which some are right. The columns are means of $|A|$: how much a prompt moves the
# policy, all told.

# %%
print(f"{'right':>6}{'r − mean':>12}{'÷ deviation':>14}")
for right in range(1, 8):
    rewards = torch.tensor([1.0] * right + [0.0] * (8 - right))
    scaled = group_check.function(rewards, torch.zeros(8, dtype=torch.int64))
    plain, scaled = ((part.abs().sum() / 8).item() for part in (rewards - rewards.mean(), scaled))
    print(f"{right:>3} / 8{plain:12.2f}{scaled:14.2f}")

# %% [markdown]
# Prompts that are solved every second time move the policy most, with and without. The division lifts both ends: one that is solved
# once in eight times counts 0.66 as much as the middle, in place of 0.44. Whether that is wanted is disputed; Dr. GRPO leaves it
# out. The library's function has the switches of several papers. Two groups of four:

# %%
from aligner_lib.algorithms.policy_gradient import group_advantages

rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
for baseline, scale in [("group_mean", "none"), ("group_mean", "group_std"), ("leave_one_out", "none")]:
    advantages = group_advantages(rewards, group, baseline, scale)
    print(f"{baseline:14}{scale:10}", [round(value, 2) for value in advantages.tolist()])

# %% [markdown]
# All in the second group failed: there is nothing to compare, its advantages are 0, and it costs no training. So the
# task has to be one that the policy solves *sometimes*. Dividing by the group's deviation (the second row) is what GRPO
# does, comparing with the others alone (the third) what RLOO does; all of them are switches of one objective.
#
# ## The task
#
# One-digit sums. Every prompt begins with the same two worked examples, so most of it is computed once for all prompts.
# 30 of the 100 sums are held out, and the two of the examples are in neither part.

# %%
from aligner_lib.rollouts.environments.registry import make

tasks = {split: make("sums", split) for split in ("train", "validation")}
for turn in tasks["train"].reset(0):
    print(f"{turn['role']:10} {turn['content']}")

# %% [markdown]
# Rewards are plain functions of a prompt and a response, and of what else the prompt's record says. The prompts go to a
# file:

# %%
import json

prompts = {split: lab.out / "data" / f"sums_{split}.jsonl" for split in tasks}
for split, task in tasks.items():
    records = []
    for number in range(task.size):
        messages = task.reset(number)
        records.append({"messages": messages, "answer": str(sum(task.sum))})
    prompts[split].parent.mkdir(exist_ok=True)
    prompts[split].write_text("".join(json.dumps(record) + "\n" for record in records))
    print(f"{split:10} {len(records)} sums, the last one: {messages[-1]['content']} {records[-1]['answer']}")

# %% [markdown]
# ## Your reward
#
# Write it. This one is 1 for the right number. A wrong answer that is at least a number gets a tenth of that: a model
# that never answers with a number would have nothing to compare otherwise.


# %%
def reward(prompt: str, response: str, answer: str, **others) -> dict[str, float]:
    said = response.strip().removesuffix(".")
    exact = float(said == answer)
    digits = sum(letter.isdigit() for letter in said) / max(len(said), 1)
    return {"reward": max(exact, 0.1 * digits), "exact": exact}


for said in ("8", " 8.", "9", "The answer is 8", ""):
    print(f"{said!r:20}{reward('What is 3 + 5?', said, answer='8')}")

# %% [markdown]
# A reward that can be cheated will be. Would `answer in response` do? A response of all the digits would have it.
#
# This one is strict: whoever says "The answer is 8." gets next to nothing. A more useful judge reads the last number of whatever is said.
# It sounds easy: 17 is not 7, −7 is not 7, 7.5 is not 7; 7.0 is, and so is "3 + 4 = 7."


# %% tags=["solution"]
import re


def exact_match(response, answer):
    """1.0 where the last number of the response is the answer, else 0.0, as where there is none.

    response: any text; answer: a number as text → a float. Numbers may have a sign and decimals, and are compared as numbers.
    """
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return float(bool(numbers) and float(numbers[-1]) == float(answer))


# %%
check("exact_match", exact_match)

# %% [markdown]
# ## The run
#
# Each step draws eight responses to each of eight sums. The reward runs in processes of its own: one that raises or
# hangs costs its sample, never the run. With `lora = True` adapters learn in place of all weights: {{lora.grpo.val_accuracy_after}} of the
# held-out sums were right in the end in place of {{laptop.grpo.val_accuracy_after}}, and the job had 2.6 GiB in place of 4.5. The profile's objective is Dr. GRPO; here the group's deviation divides, as GRPO has it.

# %%
from aligner_lib.config.compose import compose

config = compose("grpo", ["model.grpo.scale=group_std"], profile=profile)
print("objective    ", config.model.grpo.objective, "with scale", config.model.grpo.scale)
print("steps        ", config.trainer.grpo.max_steps)
print("prompts      ", config.model.grpo.num_prompts_per_step, "a step")
print("responses    ", config.model.grpo.num_generations_per_prompt, "to each")
print("learning rate", config.model.optim.lr)

# %% [markdown]
# **Your code trains the model**: your `reward` judges, and, if it has passed, your `grpo_advantages` compares
# ([how](../docs/your-code.md)). Their text goes into the run folder.

# %%
settings = {
    "model.environments.sums.use": reward,
    "model.environments.sums.args.prompts": {split: str(file) for split, file in prompts.items()},
    "model.grpo.scale": "group_std",
    "model.seed": seed,
}
own = {"advantages": group_check.function} if group_check else {}
job = lab.submit("grpo", **settings, **own)
monitor = Monitor(lab.run("grpo"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains: how far has it moved?
#
# GRPO has the KL as a term of its loss. The true one is a sum over the whole vocabulary at every token; what is at hand is the token
# that was drawn. With $d = \log \pi - \log \pi_{ref}$ of that token, there are
# [three estimates](http://joschu.net/blog/kl-approx.html): $k_1 = d$, $k_2 = d^2 / 2$ and $k_3 = e^{-d} - 1 + d$. By hand, with
# $d = -0.5$: $k_1 = -0.5$ (a KL below 0!), $k_2 = 0.125$, $k_3 = 1.649 - 1 - 0.5 = 0.149$.


# %% tags=["solution"]
def kl_estimators(logprobs, reference_logprobs):
    """k1, k2 and k3 of each drawn token.

    logprobs, reference_logprobs: float [T] in nats, of tokens that the policy has drawn → float [T] three times, with gradients
    to logprobs.
    """
    d = logprobs - reference_logprobs
    return d, d**2 / 2, torch.exp(-d) - 1 + d


# %%
kl_check = check("kl_estimators", kl_estimators)
display(kl_check)

# %% [markdown]
# Which one is right? Draw many tokens from a policy, and compare with the true KL. Each estimate's mean should be the KL; its
# spread says how many tokens that takes.

# %%
seeded = torch.Generator().manual_seed(0)
reference = torch.randn(50, generator=seeded).log_softmax(0)
for far in (0.1, 0.5, 1.5):
    policy = (reference + far * torch.randn(50, generator=seeded)).log_softmax(0)
    tokens = torch.multinomial(policy.exp(), 20_000, replacement=True, generator=seeded)
    true = (policy.exp() * (policy - reference)).sum()
    estimates = kl_check.function(policy[tokens], reference[tokens])
    print(f"true KL {true:.4f}", *(f"   {one.mean():.4f} ± {one.std():.3f}" for one in estimates))

# %% [markdown]
# Mean ± spread of one token, for $k_1$, $k_2$, $k_3$. $k_1$ is right, and noisy near by. $k_2$ is steady, and wrong once the policy
# is far away. $k_3$ is right and, near by, as steady: that is why GRPO takes it; far away it is the noisiest of them. What their *gradients* estimate is another question: the
# library says it in one sentence.

# %%
from aligner_lib.algorithms.policy_gradient import kl_loss

show_source(kl_loss)

# %%
await monitor

# %% [markdown]
# ### What you should see
#
# The validation reward jumps within ten steps. Exact answers to held-out sums, four drawn for each: from
# {{laptop.grpo.val_accuracy_before}} to {{laptop.grpo.val_accuracy_after}} with the laptop profile. (The random model of
# `smoke` can't learn to add in a minute: no answer is right, before and after. What rises, from 0.0004 to 0.004, is the share of digits
# in what it says, of which a tenth is paid; its answers don't end, and an alarm says so.)
#
# | you see | it means | change |
# | --- | --- | --- |
# | the reward rises, the entropy falls, the KL grows to about 1 | healthy: the task has one right answer | |
# | **groups alike** near 1, the reward near 0 | too hard: nothing to compare | an easier task, partial credit, more responses |
# | groups alike near 1, the reward near 1 | learnt | stop |
# | the reward rises, then breaks down | steps too large | `model.optim.lr` down |
# | the reward rises, the held-out one doesn't | the sums were learnt by heart | more of them |

# %%
run = lab.run("grpo")
curves(
    run,
    metrics=[
        ["train_environments/sums/exact", "val_environments/sums/exact"],
        "train_rollouts/groups_alike",
        "train_rollouts/kl",
    ],
)

# %% [markdown]
# Look at groups: the responses to one sum beside each other, the best first.

# %%
Completions(run)

# %% [markdown]
# ### Did it learn, or only pick?
#
# Drawing several answers and taking the best one is a policy, too, for whoever has a judge. The four answers that the
# untrained model drew for each held-out sum say what it would have got:

# %%
validations = [record for record in run.metrics() if "val_environments/sums/exact" in record]
before, after = validations[0], validations[-1]
drawn: dict[str, list[float]] = {}
for one in run.rollouts():
    if (one["split"], one["step"]) == ("validation", 0):
        drawn.setdefault(one["prompt"], []).append(one["metrics"]["exact"])
best_of_4 = sum(max(exact) for exact in drawn.values()) / len(drawn)
print(f"untrained, one answer      {before['val_environments/sums/exact']:.3f}")
print(f"untrained, the best of 4   {best_of_4:.3f}")
print(f"trained, one answer        {after['val_environments/sums/exact']:.3f}")

# %%
figures = {
    "val_accuracy_before": before["val_environments/sums/exact"],
    "val_accuracy_after": after["val_environments/sums/exact"],
    "val_best_of_4_before": best_of_4,
    "train_seconds": sum(record.get("timers/step_time", 0) for record in run.metrics()),
    "kl_per_token": run.metrics()[-1]["train_rollouts/kl"],
}
lab.record("07", {"grpo": figures})

# %% [markdown]
# ## What does the objective do to each token?
#
# Take the first step's responses as they are, and ask several objectives what they would do with them. The weight is that
# of the gradient of $\log \pi$ at each token: blue makes it likelier, orange less likely.

# %%
lab.compare_objectives(run, ["grpo", "dr_grpo", "rloo", "gspo"], step=1)

# %% [markdown]
# ## PPO with the same reward
#
# A critic can stand in for the group: `aligner ppo` takes environments, too. It begins as the policy with a new head
# that says 0 everywhere, and each of a step's 64 responses answers a prompt of its own. These sums are the environment
# `sums` of this project, whose reward is exactness alone. You see a recorded run of the laptop profile's model, stopped after eight steps;
# `beside = "live"` trains it, for as many steps as GRPO.

# %%
from aligner_lib.tutorial.longer_runs import GRPO_ON_FORMS, PPO_ON_SUMS

if beside == "live":
    model = lab.model()
    begins = {
        "pretrained_checkpoint.restore_from_path": model,
        "critic.pretrained_checkpoint.restore_from_path": model,
    }
    await lab.submit("ppo", "ppo-sums", **PPO_ON_SUMS, **begins)
    ppo = lab.run("ppo-sums")
else:
    ppo = Recording("ppo-sums", speed=float("inf"))
curves(
    [run, ppo],
    metrics=[
        ["train_environments/sums/exact", "val_environments/sums/exact"],
        "train_rollouts/kl",
        "train_rollouts/explained_variance",
    ],
)

# %% [markdown]
# In the recorded run PPO got 0.89 of its training sums right at step 8. Its steps took about 20 s, GRPO's about 4 s: 64
# prompts say more than eight, and cost more to compute. The explained variance stays near 0, so the critic was no better
# than a constant, and did no harm.
#
# ## A second task: instructions with a form
#
# "Write about honey. Give an answer of no fewer than thirty words." A program can't tell a good answer, but it can count
# words, sentences and dashes. Twelve forms, and topics that are held out. This run takes about eight minutes with the
# laptop profile, so you see a recorded one of this project; `beside = "live"` trains it.

# %%
if beside == "live":
    job = lab.submit("grpo", "grpo-forms", **GRPO_ON_FORMS)
    display(Monitor(lab.run("grpo-forms"), job=job))
    await job
    forms = lab.run("grpo-forms")
else:
    forms = Recording("grpo-forms", speed=float("inf"))
curves(
    forms,
    metrics=[["train_rollouts/rewards", "val_rollouts/rewards"], "val_rollouts/generation_length"],
)

# %%
first, last = (
    [record for record in forms.metrics() if "val_rollouts/rewards" in record][place] for place in (0, -1)
)
names = sorted(name for name in last if name.startswith("val_environments/forms/form/"))
print(f"{'form':24}{'before':>8}{'after':>8}")
for name in ["val_rollouts/rewards", *names]:
    print(f"{name.rpartition('/')[2]:24}{first[name]:8.2f}{last[name]:8.2f}")
words = "val_environments/forms/words"
print(f"{'words':24}{first[words]:8.1f}{last[words]:8.1f}")

# %%
show_completions(forms, n=6, sort="reward", split="validation")

# %% [markdown]
# Read the answers: the reward asked for the form alone, so what they say was nobody's business. A judge of the content
# would have to be a second environment beside this one, with a weight of its own.
#
# ## What you learnt
#
# - A group's mean is a baseline: no critic, no reward model, where a program can judge.
# - Groups that are all alike teach nothing. Choose tasks that are solved sometimes.
# - The reward is taken at its word.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("07")

# %% [markdown]
# Next: [08 · compare](08_compare.ipynb)
