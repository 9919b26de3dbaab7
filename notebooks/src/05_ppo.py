# %% [markdown]
# # PPO
#
# You generate responses to prompts, score them with the reward model, and update the policy towards higher rewards: the
# reinforcement-learning stage of RLHF.
#
# {{map}}
#
# | goal | a policy with clearly higher rewards on held-out prompts, still close to the SFT policy |
# | --- | --- |
# | needs | the SFT policy of 03, the reward model of 04 (substitutes are used where they are missing) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm
lora = False  # True: adapters learn in place of all weights
critic_placement = "in-process"  # in-process: one job · remote: critic and reward model in a job of their own
exercise = "recorded"  # recorded: "break it" plays a run of this project · live: you train it, twice as long as the first

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import (
    Completions,
    JobPanel,
    Monitor,
    Recording,
    compare_runs,
    curves,
    show_completions,
    show_server,
)

lab = Workspace(out, profile, dataset, where, lora)

# %% [markdown]
# ## One step, by hand
#
# Take a response of three tokens. `logprobs` are its log-probabilities under the policy, `reference_logprobs` those
# under the reference. The response got the reward 1.0, which is added at the last token. Each token has a KL penalty.

# %%
import torch

from aligner_lib.algorithms import ppo

prompt_lengths, lengths = torch.tensor([2]), torch.tensor([5])  # 2 prompt tokens, 3 of the response
mask = ppo.response_mask(prompt_lengths, lengths, size=4)
logprobs = torch.tensor([[0.0, -1.0, -0.5, -0.2]]) * mask
reference_logprobs = torch.tensor([[0.0, -1.2, -0.5, -0.6]]) * mask
kl = logprobs - reference_logprobs
rewards = ppo.rewards_with_kl(torch.tensor([1.0]), kl, mask, coefficient=0.5)
for name, row in {"mask": mask, "kl": kl, "rewards": rewards}.items():
    print(f"{name:8}", [round(value, 4) for value in row[0].tolist()])

# %% [markdown]
# Index 0 predicts the second prompt token, so its mask is 0. At the last index the reward of 1 minus the penalty
# $0.5 \cdot 0.4$ is 0.8.
#
# ### Which tokens get the credit?
#
# The critic predicts the return at each token (its value). The **advantage** says by how much the outcome was better
# than that. Generalized advantage estimation (GAE) computes it with
# $\delta_t = r_t + \gamma V_{t+1} - V_t$ and $A_t = \delta_t + \gamma\lambda A_{t+1}$:

# %%
values = torch.tensor([[0.0, 0.5, 0.5, 0.5]])
advantages, returns = ppo.advantages_and_returns(values, rewards, mask, discount_factor=1.0, gae_lambda=0.95)
print("advantages", [round(a, 4) for a in advantages[0].tolist()])
print("returns   ", [round(r, 4) for r in returns[0].tolist()])

# %% [markdown]
# Right to left: $0.8-0.5=0.3$; then $0 + 0.5 - 0.5 + 0.95\cdot0.3=0.285$; then $-0.1+0.95\cdot0.285=0.17075$.
#
# ### How far may one update go?
#
# The loss uses the larger of the unclipped and the clipped term, for advantages of both signs. Where the slope is zero,
# the update has no further gradient.

# %%
import matplotlib.pyplot as plt

ratios = torch.linspace(0.5, 1.5, 201)
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6), sharex=True)
for ax, advantage in zip(axes, (1.0, -1.0)):
    loss, _ = ppo.clipped_surrogate(ratios, torch.full_like(ratios, advantage), 0.2, 0.2)
    ax.plot(ratios, loss, color="#0072B2")
    ax.axvline(1.0, color="0.8", zorder=0)
    ax.set(title=f"advantage {advantage:+.0f}", xlabel="ratio of new to old probability", ylabel="loss")
plt.show()

# %% [markdown]
# ## The run
#
# Four models take part: the actor beside its reference (one module, two sets of weights), and the critic beside the
# reward model. With `critic_placement = "in-process"` one job holds both pairs; with `"remote"` each pair is a job, as
# on a cluster. The algorithm is the same.
#
# ```
#   actor's job                                            critic's job
#   ┌──────────────────────────────┐   responses, batch    ┌──────────────────────────────┐
#   │ generate ─▶ log π, log π_ref │ ─────────────────────▶│ values  ⇄  reward model      │
#   │     ▲                        │◀───────────────────── │ (one module, weights swapped)│
#   │     │                        │   rewards, values     │                              │
#   │ train the actor              │ ─────────────────────▶│ train the critic             │
#   └──────────────┬───────────────┘   values, returns     └──────────────┬───────────────┘
#                  ▼                                                      ▼
#             runs/ppo                                            runs/ppo/critic
# ```

# %%
from aligner_lib.config.compose import compose

config = compose("ppo", profile=profile)
print("PPO steps         ", config.trainer.ppo.max_steps)
print("responses a step  ", config.model.ppo.num_rollout_samples)
print("tokens a response ", config.model.ppo.length_params.max_length)
print("KL penalty        ", config.trainer.ppo.initial_policy_kl_penalty)

# %%
job = lab.submit_ppo(critic_placement)
if critic_placement == "remote":
    show_server(lab.critic_of("ppo"))  # what the critic's server does, while the actor trains
monitor = Monitor(lab.run("ppo"), job=job)
display(monitor)
await monitor

# %% [markdown]
# ### What you should see
#
# Rewards on held-out prompts from {{laptop.ppo.val_reward_sft:+.2f}} to {{laptop.ppo.val_reward_ppo:+.2f}} (their
# standard deviation under the SFT policy is {{laptop.ppo.val_reward_sft_std}}), and a KL that grows slowly from exactly
# 0. With
# `smoke`: {{smoke.ppo.val_reward_sft:+.2f}} to {{smoke.ppo.val_reward_ppo:+.2f}}.
#
# | you see | it means | change |
# | --- | --- | --- |
# | reward up, KL up slowly | healthy | |
# | reward up fast, KL and length drift | reward hacking | `trainer.ppo.initial_policy_kl_penalty` up |
# | reward flat | the learning rate is too low, or the rewards don't differ | `model.optim.lr` up; look at `train_rollouts/rewards_std` |
# | few responses end | they are cut off and judged as they are | `model.ppo.length_params.max_length` or `trainer.ppo.missing_eos_penalty` up |
#
# Click a point of a chart: the completions of that step open below. *Change settings*, above the charts, gives the run
# another KL coefficient or learning rate while it goes on; the charts show from which step they hold.

# %%
run = lab.run("ppo")
curves(
    run,
    metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"],
)

# %% [markdown]
# The last of the next three is the **explained variance**: the share of the returns' differences that the critic foresaw.
# At 0 a constant would have done as well. A dozen steps of 16 responses teach a critic little; in long runs it rises
# towards 1, and with it the advantages become less noisy.

# %%
curves(
    run,
    metrics=[
        "val_rollouts/rewards",
        "train_rollouts/fraction_of_samples_properly_ended",
        "train_rollouts/explained_variance",
    ],
)

# %% [markdown]
# Two checks that any PPO run must pass: before the first update the ratio is 1 and the KL is 0.

# %%
first = next(record for record in run.metrics() if record["step"] == 1)
print("ratio at the first update:", first["train_optim/first_ppo_ratio"])
print("KL before the first update:", first["train_rollouts/kl"])

# %% [markdown]
# ## What does it write now?

# %%
show_completions(run, n=4, sort="reward")

# %% [markdown]
# That was a static table. This widget shows every step: the answers to held-out prompts, each beside the prompt's first
# one, and, under the prompts of *train*, each token coloured by its KL or advantage:

# %%
Completions(run)

# %%
validation = [record for record in run.metrics() if "val_rollouts/rewards" in record]
before, after = validation[0], validation[-1]
figures = {
    "val_reward_sft": before["val_rollouts/rewards"],
    "val_reward_ppo": after["val_rollouts/rewards"],
    "val_reward_sft_std": before["val_rollouts/rewards_std"],
    "mean_length_sft": before["val_rollouts/generation_length"],
    "mean_length_ppo": after["val_rollouts/generation_length"],
}
lab.record("05", {"ppo": figures})
gain = (figures["val_reward_ppo"] - figures["val_reward_sft"]) / figures["val_reward_sft_std"]
print(
    f"held-out reward {figures['val_reward_sft']:+.3f} → {figures['val_reward_ppo']:+.3f}: {gain:+.2f} standard deviations"
)

# %% [markdown]
# ## Break it
#
# What does the KL penalty do? Train without it: a coefficient of 0, a learning rate five times as large, and more
# steps. Nothing keeps the policy close to its reference now; it maximizes the reward alone. By default you see a
# recorded run of this project in a few seconds, made with the laptop profile and stopped after step 10 of 20. With
# `exercise = "live"` you train it yourself.

# %%
if exercise == "live":
    settings = {
        "trainer.ppo.initial_policy_kl_penalty": 0.0,
        "trainer.ppo.max_steps": 2 * config.trainer.ppo.max_steps,
        "model.optim.lr": 5 * config.model.optim.lr,
    }
    broken = lab.run("ppo-no-kl")
    job = lab.submit("ppo", "ppo-no-kl", **settings)
    display(JobPanel(broken, job))  # set the coefficient again while it runs
else:
    job, broken = None, Recording("no-kl-penalty", speed=600)
monitor = Monitor(broken, job=job)
display(monitor)
await monitor

# %% [markdown]
# Press **Stop** when an alarm appears: the run saves a checkpoint and ends. These are the alarms that the run itself
# raised; they are also in `alarms.jsonl` of the run folder.

# %%
for alarm in broken.alarms():
    print(f"step {alarm['step']}: {alarm['title']}\n  {alarm['meaning']}\n  → {alarm['control']}\n")

# %% [markdown]
# ### Fix it, and compare
#
# The fix is the KL penalty and the lower learning rate of your first run. Here are both runs: their curves, and their
# last values with the settings that differ. For hover and zoom: `from widgets import explore`, then
# `explore([mended, broken])`.

# %%
mended = run if exercise == "live" else Recording("healthy", speed=float("inf"))
curves(
    [mended, broken],
    metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"],
)

# %%
compare_runs([mended, broken])

# %%
show_completions(broken, n=4, sort="reward", split="train")

# %% [markdown]
# The reward on the training prompts is higher. But read the responses: a short sentence that repeats words of the
# question gets the highest reward, whether or not it answers the question. The policy exploits the reward model (reward
# hacking); people would not prefer these responses. In the recorded run the KL showed this at step 5, well before the
# texts did.
#
# ## What you learnt
#
# - Generate, score, estimate advantages, take a clipped step; the KL penalty limits how far the policy moves.
# - The reward is only the reward model's estimate. Read the completions.
#
# **Questions.** What can you see before the first alarm? Why is the reward added at the last token only?
#
# Next: [06 · DPO](06_dpo.ipynb)
