# %% [markdown]
# # GRPO
#
# Write a reward as a program, and watch a model learn to add within minutes: reinforcement learning without a reward
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
where = "local"  # local: a process on this machine · slurm
lora = False  # True: train adapters instead of all weights
start = "fresh"  # recorded: play a bundle's run instead of training, if its settings are the same
seed = 1234  # for the order of the prompts and the sampling
beside = "recorded"  # recorded: PPO and the second task play recorded runs · live: both train

# %%
from aligner_lib.tutorial import Diagram, Workspace, require_one_of
from widgets import Completions, Monitor, Recording, curves, show_completions

require_one_of("beside", beside, "recorded", "live")
lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## A group instead of a critic
#
# In PPO, a critic predicts the reward that a response can expect. Is there a simpler estimate? Yes: let the policy
# answer the same prompt several times, and take the mean reward of the group. The **advantage** of a response is its
# reward minus the mean of its group, and every token of the response has the same advantage. GRPO also divides by the
# standard deviation $\sigma_r$ of the group:
#
# $$ A_i = \frac{r_i - \bar r}{\sigma_r} $$
#
# By hand: rewards 1, 0, 0, 1 have the mean 0.5 and, dividing by $n - 1 = 3$, the deviation 0.577. The advantages are
# ±0.866. (Code adds a tiny number to the deviation, so that it never divides by 0.)


# %%
Diagram("group")

# %% tags=["solution"]
import torch


def grpo_advantages(rewards, group):
    """GRPO's advantage of each response.

    rewards: float [B]; group: int64 [B], any numbers, equal for responses to the same prompt, in any order → float [B], in the
    order of the responses. Divide by the deviation (with n − 1) plus 1e-4. If all rewards of a group are equal, for example in a group of a
    single response, its advantages are 0.
    """
    advantages = torch.zeros_like(rewards)
    for number in group.unique():
        members = group == number
        of_group = rewards[members]
        if of_group.min() < of_group.max():
            advantages[members] = (of_group - of_group.mean()) / (of_group.std() + 1e-4)
    return advantages


# %%
from aligner_lib.tutorial import check, show_source

group_check = check("grpo_advantages", grpo_advantages)
display(group_check)

# %% [markdown]
# How does the division change the update? Take a group of eight responses, of which some are right. The columns below
# show the mean of $|A|$ over the group, which measures how strongly the whole prompt moves the policy.

# %%
print(f"{'right':>6}{'r − mean':>12}{'÷ deviation':>14}")
for right in range(1, 8):
    rewards = torch.tensor([1.0] * right + [0.0] * (8 - right))
    scaled = group_check.function(rewards, torch.zeros(8, dtype=torch.int64))
    plain, scaled = ((part.abs().sum() / 8).item() for part in (rewards - rewards.mean(), scaled))
    print(f"{right:>3} / 8{plain:12.2f}{scaled:14.2f}")

# %% [markdown]
# With and without the division, prompts that are solved half of the time move the policy most. The division raises both
# ends. A prompt that is solved once in eight times counts 0.66 as much as the middle with the division, and 0.44
# without. Researchers disagree on whether the division helps, and Dr. GRPO leaves the division out. The library's
# function has the switches of several papers. Here are two groups of four:

# %%
from aligner_lib.algorithms.policy_gradient import group_advantages

rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
for baseline, scale in [("group_mean", "none"), ("group_mean", "group_std"), ("leave_one_out", "none")]:
    advantages = group_advantages(rewards, group, baseline, scale)
    print(f"{baseline:14}{scale:10}", [round(value, 2) for value in advantages.tolist()])

# %% [markdown]
# In the second group all responses failed. Nothing can be compared, so the advantages are 0, and the trainer skips the
# group. Therefore choose a task that the policy solves *sometimes*. The second row divides by the group's deviation, as
# GRPO does. In the third row each response is compared with the other responses alone, as in RLOO. All variants are
# switches of the same objective.

# %% [markdown]
# ### The loss
#
# What does GRPO minimise? Each token of response $x_i$ has the advantage $A_i$, and $\rho_{i,t}$ is the ratio of the
# token's probability now to its probability when it was drawn ([04b](04b_policy_gradients.ipynb) explains the ratio and
# the clipping). With $G$ responses of $|x_i|$ tokens:
#
# $$ L = \frac{1}{G} \sum_i \frac{1}{|x_i|} \sum_t \Bigl[ -\min\bigl(\rho_{i,t} A_i,\;
# \mathrm{clip}(\rho_{i,t}, 1 - \epsilon, 1 + \epsilon)\, A_i\bigr) + \beta\, k_3(i, t) \Bigr] $$
#
# The last term is an estimate of the KL to the reference (the section *While it trains* derives $k_3$), and $\beta$ is its
# coefficient. The estimate stands in the loss here and in the reward in PPO. Dr.
# GRPO ([Liu et al. 2025](https://arxiv.org/abs/2503.20783)) names two biases of this loss:
#
# - **Length**: dividing by $|x_i|$ makes each token of a long response count less. A wrong response is punished less per
#   token if it is long, so wrong responses become longer. Dr. GRPO divides by a constant.
# - **Difficulty**: dividing by the deviation gives more weight to prompts that are nearly always or nearly never solved,
#   as the table above shows. Dr. GRPO does not divide.
#
# Why does the loss read 0 in the first update? All ratios are 1 and the policy equals the reference, so the loss is the
# mean of the advantages, which is 0 in every group (with Dr. GRPO's constant divisor only for responses of equal lengths). The *gradient* is not 0, because
# $\nabla \rho = \rho\, \nabla \log \pi$. So watch the reward, not the loss.

# %% [markdown]
# ## The task
#
# The task is to add two one-digit numbers. Every prompt begins with the same two worked examples, so most of the prompt
# is computed once for all prompts. 30 of the 100 sums are held out, always with their twins: if 3 + 4 is held out, the
# policy never trains on 4 + 3. The two worked examples are in neither part.

# %%
from aligner_lib.rollouts.environments.registry import make

tasks = {split: make("sums", split) for split in ("train", "validation")}
for turn in tasks["train"].reset(0):
    print(f"{turn['role']:10} {turn['content']}")

# %% [markdown]
# A reward is a plain function of a prompt, a response, and the other fields of the prompt's record. The next cell
# writes the prompts to a file:

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
    print(f"{split:10} {len(records)} sums, the last is {messages[-1]['content']} {records[-1]['answer']}")

# %% [markdown]
# ## Your reward
#
# Now write the reward. The function below gives 1 for the right number and 0 for everything else. The metric `exact` is
# drawn beside the reward, and stays the same if you change the reward.


# %%
def reward(prompt: str, response: str, answer: str, **others) -> dict[str, float]:
    exact = float(response.strip().removesuffix(".") == answer)
    return {"reward": exact, "exact": exact}


for response in ("8", " 8.", "9", "The answer is 8", ""):
    print(f"{response!r:20}{reward('What is 3 + 5?', response, answer='8')}")

# %% [markdown]
# A policy will exploit every weakness of its reward. For example, would `answer in response` be a good test? A response
# with all numbers from 0 to 18 would pass.
#
# Does **partial credit** help, such as a tenth of the full reward for any number? We tried it in float32 with seed 2.
# From step 5 on, the policy answered 13, a result of the worked examples, to nearly every sum. The tenth is certain,
# and the full reward is not. At the end 0.008 of the held-out sums were right, and 0.725 with the strict reward.
#
# The reward above is strict: the response "The answer is 8." gets 0. A more useful judge reads the last number of the
# response. The rule sounds easy, but has many cases. Before you write the function, find five responses to a sum with the
# answer 7 that a careless function judges wrongly. (The run below keeps the strict reward. To train with your judge, write
# its lines inside `reward`, because the training process reads the text of this one function.)


# %% tags=["solution"]
import re


def exact_match(response, answer):
    """1.0 if the last number of the response equals the answer, else 0.0, also for a response without a number.

    response: any text; answer: a number as text → a float. Numbers may have a sign and decimals, and are compared as numbers.
    """
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return float(bool(numbers) and float(numbers[-1]) == float(answer))


# %%
check("exact_match", exact_match)

# %% [markdown]
# ## The run
#
# Each step draws eight responses to each of eight sums. The reward runs in separate processes. If a reward raises an
# error or hangs, the run loses the sample and continues. The objective is Dr. GRPO, without a KL in the loss. This notebook adds
# the division by the group's deviation, as in GRPO.
#
# With `lora = True`, adapters learn instead of all weights. In one run each, {{lora.grpo.val_accuracy_after}} of the held-out
# sums were right at the end, compared with {{all_weights.grpo.val_accuracy_after}} for all weights. Both figures come from
# an earlier and easier version of the task, whose held-out sums had their twins in the training (4 + 3 for 3 + 4). The job
# needed 2.6 GiB instead of 4.5.

# %%
from aligner_lib.config.compose import compose

config = compose("grpo", ["model.grpo.objective=dr_grpo", "model.grpo.scale=group_std"], profile=profile)
print("objective    ", config.model.grpo.objective, "with scale", config.model.grpo.scale)
print("steps        ", config.trainer.grpo.max_steps)
print("prompts      ", config.model.grpo.num_prompts_per_step, "a step")
print("responses    ", config.model.grpo.num_generations_per_prompt, "to each")
print("learning rate", config.model.optim.lr)

# %% [markdown]
# **Your code trains the model.** Your `reward` judges the responses, and your `grpo_advantages` compares them if the
# function has passed its check ([how](../docs/your-code.md)). The run folder stores the text of both functions.

# %%
settings = {
    "model.environments.sums.use": reward,
    "model.environments.sums.args.prompts": {split: str(file) for split, file in prompts.items()},
    "model.grpo.objective": "dr_grpo",
    "model.grpo.scale": "group_std",
    "model.seed": seed,
}
own = {"advantages": group_check.function} if group_check else {}
job = lab.submit("grpo", **settings, **own)
monitor = Monitor(lab.run("grpo"), job=job, branch=lab.branch)
display(monitor)

# %% [markdown]
# ### While it trains: how far has the policy moved?
#
# The loss above contains the KL to the reference, and every run measures the KL. The exact KL is a sum over the whole vocabulary at every token, but only
# the drawn token is available. Let $d = \log \pi - \log \pi_{ref}$ at the drawn token. There are [three
# estimates](http://joschu.net/blog/kl-approx.html):
#
# - $k_1$ is $d$ itself. The KL is the mean of $d$ under the policy.
# - $k_2$ is half the square of $k_1$. For small $d$, its mean is near the KL.
# - $k_3$ adds a multiple of $\pi_{ref}/\pi - 1$ to $k_1$. The mean of this term under $\pi$ is 0 (why?), so $k_3$ keeps
#   the mean of $k_1$. The multiple is the one for which $k_3$ is never below 0, and 0 only at $d = 0$. Which multiple
#   is that?
#
# By hand, with $d = -0.5$: $k_1 = -0.5$ (below 0, although a KL never is), $k_2 = 0.125$, $k_3 = 0.149$.


# %% tags=["solution"]
def kl_estimators(logprobs, reference_logprobs):
    """k1, k2 and k3 of each drawn token.

    logprobs, reference_logprobs: float [T] in nats, of tokens drawn from the policy → float [T] three times, with gradients to
    logprobs.
    """
    d = logprobs - reference_logprobs
    return d, d**2 / 2, torch.exp(-d) - 1 + d


# %%
kl_check = check("kl_estimators", kl_estimators)
display(kl_check)

# %% [markdown]
# $\pi_{ref}/\pi$ is $e^{-d}$, and its mean under $\pi$ is the sum of all $\pi_{ref}$, which is 1. With the multiple
# 1, $k_3 = d + e^{-d} - 1$ has its lowest point at $d = 0$.
#
# Which estimate is right? Draw many tokens from a policy and compare with the true KL. The mean of a good estimate
# equals the KL. The spread shows how many tokens a precise mean needs.

# %%
seeded = torch.Generator().manual_seed(0)
reference = torch.randn(50, generator=seeded).log_softmax(0)
for distance in (0.1, 0.5, 1.5):
    policy = (reference + distance * torch.randn(50, generator=seeded)).log_softmax(0)
    tokens = torch.multinomial(policy.exp(), 20_000, replacement=True, generator=seeded)
    true = (policy.exp() * (policy - reference)).sum()
    estimates = kl_check.function(policy[tokens], reference[tokens])
    print(
        f"true KL {true:.4f}", *(f"   {estimate.mean():.4f} ± {estimate.std():.3f}" for estimate in estimates)
    )

# %% [markdown]
# Each entry is the mean ± the spread of a single token, for $k_1$, $k_2$ and $k_3$. The mean of $k_1$ is right, but
# $k_1$ is noisy when the policy is near the reference. $k_2$ has little noise, but its mean is wrong when the policy is
# far away. The mean of $k_3$ is right, and near the reference $k_3$ has as little noise as $k_2$, so GRPO uses $k_3$.
# Far away, $k_3$ is the noisiest of the three.
#
# A right mean does not make a right gradient. GRPO differentiates the estimate at tokens that are already drawn, so the
# gradient misses that other tokens would be drawn after an update. Which estimate pulls the policy back to the
# reference? Compare the mean gradient of each estimate with the gradient of the true KL, which is known here.

# %%
logits = policy.clone().requires_grad_()
logprobs = logits.log_softmax(0)
(true_gradient,) = torch.autograd.grad(
    (logprobs.exp() * (logprobs - reference)).sum(), logits, retain_graph=True
)
for name, estimate in zip(("k1", "k2", "k3"), kl_check.function(logprobs[tokens], reference[tokens])):
    (gradient,) = torch.autograd.grad(estimate.mean(), logits, retain_graph=True)
    cosine = torch.cosine_similarity(gradient, true_gradient, dim=0)
    print(
        f"{name}  length {gradient.norm() / true_gradient.norm():5.2f} of the true one, cosine {cosine:+.2f}"
    )

# %% [markdown]
# As a loss, $k_1$ is useless: its gradient is $\nabla \log \pi$, whose mean is 0, so only noise is left. The gradient of
# $k_2$ is $d\, \nabla \log \pi$. Its mean is $\sum_x d\, \nabla \pi$, which is the gradient of the KL, although the mean of
# $k_2$ is wrong. The gradient of $k_3$ is $(1 - e^{-d})\, \nabla \log \pi$. Its mean is
# $-\sum_x \pi_{ref} \nabla \log \pi$, the gradient of the KL in the other direction, from the reference to the policy. This
# KL also pulls the policy back.
#
# A penalty in the *reward*, as in PPO, may use $k_1$. A reward is not differentiated: it weights $\nabla \log \pi$ of the
# drawn token, and $d\, \nabla \log \pi$ is the gradient of $k_2$ above. A penalty in the *loss* may not use $k_1$.
# All this holds for a single token. In a longer response, a token also changes which tokens follow, and so their KL. A
# penalty in the reward charges a token for the later tokens, too; a penalty in the loss leaves this part out, with every
# estimate. The library's docstring names the estimate with the right gradient for a single token.

# %%
from aligner_lib.algorithms.policy_gradient import kl_loss

show_source(kl_loss)

# %%
await monitor

# %% [markdown]
# ### What you should see
#
# With the laptop profile, the share of exact answers to held-out sums
# rises from {{laptop.grpo.val_accuracy_before}} to {{laptop.grpo.val_accuracy_after}}, measured on four answers to each
# sum.
#
# The table below also names the **entropy**: how spread out the probabilities of the next token are. The entropy is 0 if a
# single token is certain.
#
# (The random `smoke` model cannot add. All rewards are 0, so no group has anything to compare, no step changes the policy, and
# alarms appear.)
#
# | you see | meaning | change |
# | --- | --- | --- |
# | the reward rises, the entropy falls, the KL grows to about 1 nat per token | healthy: the task has only a single right answer | |
# | **groups alike** near 1, the reward near 0 | too hard: nothing to compare | an easier task, more responses to a prompt |
# | groups alike near 1, the reward near 1 | learnt | stop |
# | the reward rises, then breaks down | steps too large | `model.optim.lr` down |
# | the reward rises, the held-out reward does not | the policy memorised the sums | more sums |

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
# Look at groups: the widget shows the responses to the same sum beside each other, the best first.

# %%
Completions(run)

# %% [markdown]
# ### Did the policy learn, or only select?
#
# If you have a judge, you can draw several answers and take the best. This selection is a policy, too, and needs no
# training. How good is the selection? The untrained model drew four answers to each held-out sum, so the next cell can
# compute its best-of-4 accuracy:

# %%
validations = [record for record in run.metrics() if "val_environments/sums/exact" in record]
before, after = validations[0], validations[-1]
drawn: dict[str, list[float]] = {}
for rollout in run.rollouts():
    if (rollout["split"], rollout["step"]) == ("validation", 0):
        drawn.setdefault(rollout["prompt"], []).append(rollout["metrics"]["exact"])
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
# Take the first step's responses and compute the update of several objectives. The weight of a token is the factor of
# the gradient of $\log \pi$: a blue token becomes likelier, and an orange token becomes less likely. `dr_grpo` does not
# divide by the deviation of the group, and divides the sum over a response's tokens by the maximal length instead of
# the response's own. So its weights are smaller. (Your run divides by the deviation.) Plain gradient descent would need a
# higher learning rate, but Adam removes a constant factor. `rloo` has the same constant divisor.
# `rloo` subtracts the mean of the other responses, and `gspo` clips one ratio for each whole response.

# %%
lab.compare_objectives(run, ["grpo", "dr_grpo", "rloo", "gspo"], step=1)

# %% [markdown]
# ## Responses of an older policy
#
# Until now, the policy that learns has drawn every response: the training is **on-policy**. Large runs give this up for
# speed. Other machines generate while the trainer updates, so the responses come from weights that are some updates
# old: **stale** rollouts. A fast generation engine also rounds differently. In both cases a sampler $\mu$ draws, and a
# policy $\pi$ learns. Then the mean over the drawn responses estimates the sampler's reward, not the policy's.
#
# [04b](04b_policy_gradients.ipynb) has the cure, the importance ratio $\pi / \mu$. In 04b each response has a ratio. The
# product of the ratios of fifty tokens is huge or tiny, so the trainer gives each token the ratio of its own. But a token
# that the sampler hardly ever draws has a huge ratio, and the few such tokens dominate an update. Therefore the ratio is
# truncated: $w = \min(\pi / \mu,\, c)$. Truncation adds a bias and removes most of the variance.
#
# By hand, with $c = 2$: a token has probability 0.1 under the sampler and 0.5 under the policy. The ratio is 5, so the
# weight is 2. A token with 0.5 and 0.1 has the weight 0.2.


# %% tags=["solution"]
def truncated_weights(logprobs, sampler_logprobs, cap):
    """The weight of each drawn token: the ratio of policy to sampler, at most the cap.

    logprobs, sampler_logprobs: float [B, T], log-probabilities of the drawn tokens; cap: float → float [B, T].
    """
    return (logprobs - sampler_logprobs).exp().clamp(max=cap)


# %%
weights_check = check("truncated_weights", truncated_weights)
display(weights_check)

# %% [markdown]
# What do bias and variance look like? The next cell estimates a policy's mean reward from 64 responses of an older
# policy, 2,000 times. Only the last of ten responses has the reward 1. The policy draws this response often, and the
# older policy seldom.

# %%
torch.manual_seed(0)
sampler = torch.log_softmax(torch.linspace(0.0, -3.0, 10), dim=0)
policy = torch.log_softmax(torch.linspace(-1.5, 0.0, 10), dim=0)
drawn = torch.multinomial(sampler.exp(), 2000 * 64, replacement=True).view(2000, 64)
success = (drawn == 9).float()
truth = policy[9].exp()
print(f"true mean reward {truth:.3f}\n\n{'weights':16}{'mean':>8}{'deviation':>11}{'error':>8}")
for name, cap in [("none", None), ("cap 2", 2.0), ("cap 5", 5.0), ("not truncated", float("inf"))]:
    ones = torch.ones_like(success)
    weights = ones if cap is None else weights_check.function(policy[drawn], sampler[drawn], cap)
    estimates = (weights * success).mean(dim=1)
    error = (estimates - truth).square().mean().sqrt()
    print(f"{name:16}{estimates.mean():8.3f}{estimates.std():11.3f}{error:8.3f}")

# %% [markdown]
# Without weights, the estimate is far too low and looks certain. The full ratio is right on average, but a single batch
# can be far off. The root mean squared error contains both faults, and a cap of 5 has the smallest error here. The
# trainer has the setting `sampler_correction` (`truncated` or `masked`) and its `sampler_correction_cap`. The metric `sampler_mismatch` shows how far sampler and policy are apart, and
# `sampler_effective_sample_size` shows how many equally weighted tokens would be as precise, as a share of all tokens.

# %% [markdown]
# ## PPO with the same reward
#
# A critic can replace the group, because `aligner ppo` supports environments, too. The critic starts as the policy with
# a new head, which predicts 0 everywhere. Each of a step's 64 responses answers a different prompt. The sums come from
# this project's environment `sums`, which rewards only exact answers. The charts show a recorded run of the laptop
# profile's model, stopped after eight steps. With `beside = "live"` you train PPO yourself, for as many steps as GRPO.

# %%
from aligner_lib.tutorial.workspace.longer_runs import GRPO_ON_FORMS, PPO_ON_SUMS

if beside == "live":
    model = lab.model()
    initial_weights = {
        "pretrained_checkpoint.restore_from_path": model,
        "critic.pretrained_checkpoint.restore_from_path": model,
    }
    await lab.submit("ppo", "ppo-sums", **PPO_ON_SUMS, **initial_weights)
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
# In the recorded run (made before twins were held out together), PPO got 0.89 of its training sums right at step 8. The
# run ended before a second validation, so its only held-out figure is from before the training. A PPO step took about
# 20 s, in float32, with 64 prompts and a critic, and a GRPO step takes about 3 s, so the times do not compare the
# algorithms. The explained variance stays near 0, so the critic was no better than a constant and did no harm.
#
# ## A second task: instructions with a form
#
# *Say something about honey. Your answer must contain the word "kites".* Each prompt asks for something of its own: a
# word, a number, first or last words, or a postscript with a word. The environment `form_rules` gives the reward 1 to a good answer, which
# obeys, has words of its own, stays on the topic and ends (`data/gold.py`), and 0 to any other. Why not reward the form
# alone? In an earlier version the forms were the same for every topic ("Use at least thirty words"), and a single
# constant answer had seven of the twelve forms.
#
# The run starts from the SFT policy, because groups of equal rewards teach nothing and the downloaded model seldom
# obeys. Some topics are held out. The run takes minutes with the laptop profile, so the notebook shows a recorded
# run of this project. With `beside = "live"` you train the policy yourself.

# %%
if beside == "live":
    begins = {"pretrained_checkpoint.restore_from_path": lab.policy()}
    job = lab.submit("grpo", "grpo-forms", **GRPO_ON_FORMS, **begins)
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
parts = [f"val_environments/forms/{part}" for part in ("obeys", "own_words", "on_topic", "ended")]
names = parts + sorted(name for name in last if name.startswith("val_environments/forms/form/"))
print(f"{'part or form':24}{'before':>8}{'after':>8}")
for name in ["val_rollouts/rewards", *names]:
    print(f"{name.rpartition('/')[2]:24}{first[name]:8.2f}{last[name]:8.2f}")
words = "val_environments/forms/words"
print(f"{'words':24}{first[words]:8.1f}{last[words]:8.1f}")

# %%
show_completions(forms, n=6, sort="reward", split="validation")

# %% [markdown]
# In twenty steps, the share of good answers to held-out prompts went from 0.18 to 0.66. Nearly every answer has the word
# or the first word that its prompt asks for. Half of the postscripts are right, and before training none of 36 was. How
# could the policy learn a form that it did not show? It showed the form rarely: in the first ten steps, 4 of 136 drawn
# responses to such prompts were good, and each of them stood out in its group.
#
# Is the reward safe now? No: an answer that consists of the word, the topic and a constant sentence gets the reward 1 for
# three of five prompts, because the environment judges each response alone. The metric `val_rollouts/good` judges the responses
# beside each other and would stay low. In this run the metric agrees with the reward, so the policy did not find the
# cheat within twenty steps.
#
# Read the answers. The program checks no fact, so nothing in the training made an answer truer. A judge of the content
# would be a second environment beside this environment, with its own weight.

# %% [markdown]
# ## Learn from a teacher
#
# A reward says how good a whole response is: one number for fifty tokens. A better model can say more. **Distillation**
# gives a student the teacher's probabilities. In the classical form, the student imitates texts that the teacher wrote,
# which is SFT on generated data. But the student never sees its own mistakes there.
#
# In **on-policy distillation**, the student writes the response, and the teacher reads it. The advantage of a token is
# the teacher's log-probability minus the student's:
#
# $$ A_t = \log \pi_{\text{teacher}}(x_t \mid x_{<t}) - \log \pi(x_t \mid x_{<t}) $$
#
# A token that the teacher finds likelier than the student does becomes likelier. The mean of $-A_t$ over the student's
# responses estimates $\mathrm{KL}(\pi \,\|\, \pi_{\text{teacher}})$, so the update reduces this KL. Every token has
# feedback of its own, so far fewer responses are needed than with a reward. The limits: the best policy for this objective
# is the teacher itself, and both need the same tokenizer. The trainer that you used in this notebook has the objective as
# a switch: `model.grpo.objective=distill` with `model.grpo.teacher.restore_from_path`.

# %% [markdown]
# ## Is it the reward that teaches?
#
# A gain needs a control. Shao et al. trained with **spurious rewards**: a coin, or the reward for a wrong answer. One
# family of models still improved on mathematics by 20 points, and other families did not improve. The random rewards
# carry no information about the task, but the updates are not neutral. Clipping lets a token that the policy already
# prefers move further than a rare token, so the policy writes more of what it preferred, such as reasoning in code.
# The effect and its cause are disputed, because prompts of the test may have been in the models' training data. The
# lesson is undisputed: before you credit your reward, train once with a random reward and report both gains. Here that
# is a small change: let your `reward` return `{"reward": random.random(), "exact": exact}`, with `import random` as its
# first line, and run the notebook in another workspace (`out` in the first cell). The metric `exact` still counts right
# sums.

# %% [markdown]
# ## What you learnt
#
# - A group's mean is a baseline. Where a program can judge, no critic and no reward model are needed.
# - Groups with equal rewards teach nothing. Choose tasks that the policy solves sometimes.
# - A policy does exactly what its reward measures, and nothing else.

# %% [markdown]
# ## Further reading
#
# - Shao et al. 2024, [*DeepSeekMath*](https://arxiv.org/abs/2402.03300): GRPO.
# - DeepSeek-AI 2025, [*DeepSeek-R1*](https://arxiv.org/abs/2501.12948): reasoning from rewards of programs.
# - Liu et al. 2025, [*Understanding R1-zero-like training: a critical
#   perspective*](https://arxiv.org/abs/2503.20783): Dr. GRPO, and the two biases of GRPO's loss.
# - Yu et al. 2025, [*DAPO*](https://arxiv.org/abs/2503.14476): a larger upper clipping bound, and groups that are
#   drawn again if their rewards are equal.
# - Shao et al. 2025, [*Spurious rewards*](https://arxiv.org/abs/2506.10947): some models improve with random rewards,
#   so a baseline run is needed.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("07")

# %% [markdown]
# Next: [08 · compare](08_compare.ipynb)
