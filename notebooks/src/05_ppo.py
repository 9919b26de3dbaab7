# %% [markdown]
# # PPO
#
# You generate responses to prompts, score them with the reward model, and update the policy towards higher rewards: the
# reinforcement-learning stage of RLHF.
#
# {{map}}
#
# | goal | a policy that moves towards what is rewarded, still close to the SFT policy; what more minutes give, and what breaks it |
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
start = "fresh"  # recorded: a bundle's run plays in place of the training, where it is the same one
seed = 1234  # of the prompts' order and of what is drawn
critic_placement = "in-process"  # in-process: one job · remote: critic and reward model in a job of their own
exercise = "recorded"  # recorded: "break it" plays a run of this project · live: you train it
change = "high-lr"  # what "break it" changes: no-kl · high-lr · both

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

lab = Workspace(out, profile, dataset, where, lora, start)

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
    print(f"{name:8}", [round(value, 4) or 0.0 for value in row[0].tolist()])

# %% [markdown]
# Index 0 predicts the second prompt token, so its mask is 0. At the last index the reward of 1 minus the penalty
# $0.5 \cdot 0.4$ is 0.8. The same as an equation, where $T$ is the last token of the response and $R$ its reward:
#
# $$ r_t = -\beta \, \bigl(\log \pi(x_t) - \log \pi_{ref}(x_t)\bigr) + [t = T] \, R $$


# %% tags=["solution"]
def token_rewards(rewards, kl, mask, coefficient):
    """The reward of each token: a KL penalty at every token of the response, and the response's score at its last one.

    rewards: float [B]; kl: float [B, S-1] in nats, log π − log π_ref of each token, anything outside the mask; mask: bool
    [B, S-1]; coefficient: float → float [B, S-1], 0 outside the mask.
    """
    penalties = -coefficient * kl * mask
    last = (mask * torch.arange(mask.shape[1])).argmax(dim=1)
    return penalties.scatter_add(1, last[:, None], rewards[:, None])


# %%
from aligner_lib.tutorial import check, show_source

rewards_check = check("token_rewards", token_rewards)
display(rewards_check)

# %% [markdown]
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
# With $\lambda = 0$ only the next value counts: $A_t = \delta_t$, steady, and as wrong as the critic is. With $\lambda = 1$ all
# that was really received counts: $A_t = r_t + r_{t+1} + \dots - V_t$ (for $\gamma = 1$), right on average, and noisy.


# %% tags=["solution"]
def gae(values, rewards, mask, discount, gae_lambda):
    """Generalized advantage estimates, and returns = advantages + values.

    values, rewards: float [B, S-1], anything outside the mask; mask: bool [B, S-1], one run of True in each row; discount: γ;
    gae_lambda: λ → float [B, S-1] twice, 0 outside the mask. Nothing follows the last token of a response.
    """
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros(len(values))
    for t in reversed(range(values.shape[1])):
        error = rewards[:, t] + discount * next_value - values[:, t]
        advantages[:, t] = error + discount * gae_lambda * next_advantage
        next_value = torch.where(mask[:, t], values[:, t], next_value)
        next_advantage = torch.where(mask[:, t], advantages[:, t], next_advantage)
    return advantages * mask, (advantages + values) * mask


# %%
gae_check = check("gae", gae)
display(gae_check)

# %%
for gae_lambda in (0.0, 0.95, 1.0):
    advantages, _ = gae_check.function(values, rewards, mask, 1.0, gae_lambda)
    print(f"λ = {gae_lambda:<5}", [round(a, 4) for a in advantages[0].tolist()])

# %% [markdown]
# The library's has one thing more. In a conversation of several turns the mask has holes, where the tokens are not the
# policy's own; what follows a token is the next one of the mask.

# %%
show_source(ppo.advantages_and_returns)

# %% [markdown]
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
# A token whose slope is zero has moved far enough, and teaches nothing more. By hand, with $\epsilon = 0.2$: an advantage of 1 and
# a ratio of 1.3 is flat; an advantage of −1 and a ratio of 1.3 is not, for this token became likelier though it was bad.


# %% tags=["solution"]
def no_gradient(ratio, advantages, epsilon):
    """Where the clipped loss has no slope.

    ratio: float [B, S-1], above 0; advantages: float [B, S-1], none of them 0; epsilon: float → bool [B, S-1].
    """
    far_up = (advantages > 0) & (ratio > 1 + epsilon)
    far_down = (advantages < 0) & (ratio < 1 - epsilon)
    return far_up | far_down


# %%
check("no_gradient", no_gradient)

# %% [markdown]
# And the loss itself, with the ratio $\rho_t = \pi(x_t) / \pi_{old}(x_t)$:
#
# $$ L_t = \max\bigl(-A_t \, \rho_t, \; -A_t \, \mathrm{clip}(\rho_t, 1 - \epsilon, 1 + \epsilon)\bigr) $$
#
# By hand: $\rho = 1.5$, $A = 1$, $\epsilon = 0.2$ gives $\max(-1.5, -1.2) = -1.2$; with $A = -1$ it is $\max(1.5, 1.2) = 1.5$.
# Some papers give the ratio more room above than below, so there are two $\epsilon$.


# %% tags=["solution"]
def clipped_loss(ratio, advantages, low, high):
    """PPO's clipped loss of each token, and the clipped ratio.

    ratio: float [...], above 0; advantages: float, same shape; low, high: how far the ratio may go below and above 1 → float of
    that shape twice, with a gradient to ratio.
    """
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.maximum(-advantages * ratio, -advantages * clipped), clipped


# %%
clipped_check = check("clipped_loss", clipped_loss)
display(clipped_check)

# %%
show_source(ppo.clipped_surrogate)

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

# %% [markdown]
# **Your code trains the model**: those of your `token_rewards`, `gae` and `clipped_loss` that have passed take the place of the
# library's. Their text goes into the run folder, and the training process reads it there ([how](../docs/your-code.md)). Right ones
# give the library's figures to the last digit. (The KL that your `token_rewards` is handed is an absolute value here, as
# NeMo-Aligner has it; `trainer.ppo.use_absolute_kl=False` leaves its sign.)

# %%
checked = {"token_rewards": rewards_check, "advantages": gae_check, "loss": clipped_check}
own = {name: one.function for name, one in checked.items() if one}
job = lab.submit_ppo(critic_placement, **lab.conversations(), **{"model.seed": seed}, **own)
monitor = Monitor(lab.run("ppo"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains: PPO in seconds
#
# A language model of one token: eight of them, and a response is a single one. Everything is there: log-probabilities, rewards
# with a KL penalty, advantages (the mean of the rewards takes the critic's place), the clipped loss. Put them together.


# %% tags=["solution"]
def bandit_loss(logits, tokens, old_logprobs, reference_logprobs, rewards, coefficient, epsilon):
    """PPO's loss of N responses of one token each.

    logits: float [8], which learn; tokens: int64 [N], as they were drawn; old_logprobs, reference_logprobs: float [N], of these
    tokens under the policy that drew them and under the reference; rewards: float [N]; coefficient: of the KL; epsilon: of the
    clipping → float [], with a gradient to logits.
    """
    logprobs = logits.log_softmax(dim=-1)[tokens]
    with_penalty = rewards - coefficient * (old_logprobs - reference_logprobs)
    advantages = with_penalty - with_penalty.mean()
    ratio = (logprobs - old_logprobs).exp()
    clipped = ratio.clamp(1 - epsilon, 1 + epsilon)
    return torch.maximum(-advantages * ratio, -advantages * clipped).mean()


# %%
bandit_check = check("bandit_loss", bandit_loss)
display(bandit_check)

# %% [markdown]
# Now let it learn: 150 steps, each with 64 drawn tokens and four updates. There is only one token a response, so one can write
# down what the best policy is, $\pi \propto \pi_{ref} \, e^{r / \beta}$: the bars should get to the crosses.

# %%
worth = torch.tensor([0.0, 0.2, 0.4, 1.0, 0.9, 0.1, 0.0, 0.3])
reference = torch.tensor([1.5, 1.0, 0.0, -1.5, 0.5, 0.0, 1.0, -1.0]).log_softmax(0)
draw, beta = torch.Generator().manual_seed(0), 0.3
logits = reference.clone().requires_grad_()
optimizer = torch.optim.Adam([logits], lr=0.02)
for _ in range(150):
    old = logits.detach().log_softmax(0)
    tokens = torch.multinomial(old.exp(), 64, replacement=True, generator=draw)
    for _ in range(4):
        loss = bandit_check.function(logits, tokens, old[tokens], reference[tokens], worth[tokens], beta, 0.2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
best = (reference + worth / beta).softmax(0)
figure, axes = plt.subplots(figsize=(7, 2.6))
axes.bar(range(8), logits.detach().softmax(0), color="#0072B2", label="learnt")
axes.plot(range(8), reference.exp(), "o", color="0.6", label="reference")
axes.plot(range(8), best, "x", color="#D55E00", markersize=9, label="best, by the formula")
axes.set(xlabel="token", ylabel="probability")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# Try it with $\beta = 0.02$: the token with the reward of 0.9 was seven times as likely to begin with as the one with 1.0. Which one
# wins, and how long does it take?

# %%
if critic_placement == "remote":
    show_server(lab.critic_of("ppo"))  # what the critic's server does, while the actor trains
await monitor

# %% [markdown]
# ### What you should see
#
# A KL that grows slowly from exactly 0, and answers that end: those that don't lose `missing_eos_penalty`. The rewards on held-out
# prompts rise in seven steps from {{laptop.ppo.val_reward_sft:+.2f}} to {{laptop.ppo.val_reward_ppo:+.2f}}, where their
# standard deviation under the SFT policy is {{laptop.ppo.val_reward_sft_std}}; those on training prompts jump, for each step has eight
# others. With `smoke`: {{smoke.ppo.val_reward_sft:+.2f}} to {{smoke.ppo.val_reward_ppo:+.2f}}. With `lora = True`, in a run whose policy
# and reward model had adapters, too: {{lora.ppo.val_reward_sft:+.2f}} to {{lora.ppo.val_reward_ppo:+.2f}}.
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
# At 0 a constant would have done as well. The critic begins as the reward model, with a head of zeros with `laptop`
# (`critic.model.new_head`): that model judges whole answers, and what it says of one that has only begun was never trained. The
# critic learns to say beforehand what will be thought of an answer, and the advantages become less noisy. In seven steps it gets
# hardly further than a constant; in the longer run below it foresees a third to a half.
#
# That is why `laptop` has $\lambda = 1$. As long as the critic says the same everywhere, say $c$, the advantage of a response's token
# $t$ is $\lambda^{T-t} (R - c)$. With 0.95 the last tokens get nearly all of a reward, and the first ones little; and $c$ follows the
# mean reward slowly, since returns are made of values. The rewards of the first steps are below 0 on average, so what comes last
# was bad on average: the stop token. This project's run with 0.95, all else equal, went from 39 tokens a response in its first step
# to 52 in its second, and from 0.88 to 0.56 that ended; with 1 to 45 and 0.75, and back to 35 and 0.94 in the third. The price:
# whole rewards are harder to foresee than returns that are made of the critic's own values.

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
# Those are the best ones. The worst ones, by the reward model's word, belong to the picture, too:

# %%
show_completions(run, n=4, sort="worst")

# %% [markdown]
# Those were static tables. This widget shows every step: the answers to held-out prompts, each beside the prompt's first
# one, and, under the prompts of *train*, each token coloured by its KL or advantage:

# %%
Completions(run)

# %% [markdown]
# ## Is it what was wanted?
#
# The reward model is a stand-in for a judgement that is too dear to ask for at every step. Here we can ask: a program says of
# each answer whether it obeys its instruction. A reward that rises while this does not is a policy that pleases its judge.
# The gain in reward is taken apart as well: what came of more answers that end, what of more that obey, and the rest.
# (The prompts of `smoke` ask for nothing that a program could check.)

# %%
from aligner_lib.tutorial.gold import before_and_after

checked, gold = before_and_after(run), {}
if checked:
    display(checked)
    of_sft, of_ppo = checked.figures.values()
    gold = {
        "gold_sft": of_sft["obeys"].value,
        "gold_ppo": of_ppo["obeys"].value,
        "gold_gain_low": of_ppo["obeys_gain"].low,
        "ended_sft": of_sft["ended"].value,
    }

# %%
validation = [record for record in run.metrics() if "val_rollouts/rewards" in record]
before, after = validation[0], validation[-1]
figures = gold | {
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
# ### With more minutes
#
# Here the share that obeys went from {{laptop.ppo.gold_sft}} to {{laptop.ppo.gold_ppo}}, one seed, and 32 answers are few: by the
# interval the gain may be {{laptop.ppo.gold_gain_low:.2f}} as well. The tutorial has minutes for a few steps of 16 responses, and for a
# reward model that saw 384 pairs. A recorded run of this project had more: SFT of 40 steps, a reward model of 48 steps on 16 pairs each (right on 0.81 of the held-out ones), PPO of 16
# steps on 32 responses, about twenty minutes on two cores for the three of them (`PPO_ON_FORMS` in
# `aligner_lib/tutorial/longer_runs.py`). On all 264 held-out prompts, one answer each, SFT obeyed in 0.28 (0.23 to 0.33) of them
# and PPO in 0.43 (0.38 to 0.49), a gain of 0.15 (0.09 to 0.22); answers went from 24 to 22 words, and from 0.95 to 0.89 that
# end. PPO learnt what SFT did now and then (a word to use, the first word, the last words, quotation marks), and not what SFT never
# did (capital letters only). What nobody ever draws, nobody can reward.
#
# Was it the seed? Three others (`python notebooks/record.py --seeds`), each with an SFT policy, a reward model and a PPO of its own:
# 40 minutes a seed on one core. They have the settings of by now: $\lambda = 1$, a critic that learns twice from each rollout, a
# penalty for a missing end; and 96 steps for the reward model, 18 for PPO. On the same 264 prompts, one answer each:
#
# | seed | reward model, of 264 pairs | SFT obeys | PPO obeys | gain, 95 % interval | tokens | ended |
# | --- | --- | --- | --- | --- | --- | --- |
# | 1 | {{forms.1.rm.val_acc}} | {{forms.1.sft.obeys.0}} | {{forms.1.ppo.obeys.0}} | {{forms.1.ppo.obeys_gain.0:+.2f}} ({{forms.1.ppo.obeys_gain.1:+.2f}} to {{forms.1.ppo.obeys_gain.2:+.2f}}) | {{forms.1.sft.tokens.0:.0f}} → {{forms.1.ppo.tokens.0:.0f}} | {{forms.1.sft.ended.0}} → {{forms.1.ppo.ended.0}} |
# | 2 | {{forms.2.rm.val_acc}} | {{forms.2.sft.obeys.0}} | {{forms.2.ppo.obeys.0}} | {{forms.2.ppo.obeys_gain.0:+.2f}} ({{forms.2.ppo.obeys_gain.1:+.2f}} to {{forms.2.ppo.obeys_gain.2:+.2f}}) | {{forms.2.sft.tokens.0:.0f}} → {{forms.2.ppo.tokens.0:.0f}} | {{forms.2.sft.ended.0}} → {{forms.2.ppo.ended.0}} |
# | 3 | {{forms.3.rm.val_acc}} | {{forms.3.sft.obeys.0}} | {{forms.3.ppo.obeys.0}} | {{forms.3.ppo.obeys_gain.0:+.2f}} ({{forms.3.ppo.obeys_gain.1:+.2f}} to {{forms.3.ppo.obeys_gain.2:+.2f}}) | {{forms.3.sft.tokens.0:.0f}} → {{forms.3.ppo.tokens.0:.0f}} | {{forms.3.sft.ended.0}} → {{forms.3.ppo.ended.0}} |
# | all | {{forms.all.rm.val_acc}} | {{forms.all.sft.obeys.0}} | {{forms.all.ppo.obeys.0}} | {{forms.all.ppo.obeys_gain.0:+.2f}} ({{forms.all.ppo.obeys_gain.1:+.2f}} to {{forms.all.ppo.obeys_gain.2:+.2f}}) | {{forms.all.sft.tokens.0:.0f}} → {{forms.all.ppo.tokens.0:.0f}} | {{forms.all.sft.ended.0}} → {{forms.all.ppo.ended.0}} |
#
# On each seed more answers obey, and by more than chance. But look at the tokens: seed 3's answers are half as long as SFT's, and of
# its answers that should have *more* words than a number none obeys any longer (0.36 before). The reward model didn't begin it: in the
# first four steps it likes longer answers better. Two prices press on length: that of a missing end (`missing_eos_penalty`, 2 here), which
# only long answers pay, and the KL penalty, which every token pays. With 1 for a missing end the same seed's training answers were 43
# tokens long after eight steps, and 0.78 of them ended.
#
# Does the reward model matter so much? Here is the same with 48 steps for it in place of 96, and PPO of 12 and of 24 steps:
#
# | seed | reward model, of 264 pairs | reward after 12 and 24 steps | KL a token | gain after 12 | gain after 24, 95 % interval | tokens after 12, 24 |
# | --- | --- | --- | --- | --- | --- | --- |
# | 1 | 0.73 | 0.37, 0.86 | 0.11, 0.48 | +0.14 | **+0.05** (0.00 to +0.11) | 33, 28 |
# | 2 | 0.82 | 0.48, 1.27 | 0.07, 0.30 | +0.08 | **+0.14** (+0.08 to +0.20) | 36, 35 |
# | 3 | 0.84 | 0.35, 0.92 | 0.06, 0.44 | +0.12 | **+0.27** (+0.19 to +0.34) | 31, 21 |
#
# The reward rises for all, and by the reward alone seed 1 does as well as seed 3. The program says that it lost most of its gain by
# going on: its reward model was right least often. With twice as many pairs that one was right on {{forms.1.rm.val_acc}}, and the policy that
# followed it, as far from SFT as the one that had lost its gain, gained {{forms.1.ppo.obeys_gain.0:+.2f}}. The KL doesn't tell the two apart.
#
# Here are the 64 validation prompts of the recorded run, form by form. A form has a handful of them: a 0 there is seldom, not never.

# %%
longer = Recording("ppo-forms", speed=float("inf"))
metrics = ["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/explained_variance"]
display(curves(longer, metrics=metrics))
before_and_after(longer)

# %% [markdown]
# ## Break it
#
# Two settings hold PPO near the policy that it began as: the KL penalty and the learning rate. Which of them matters? Change one,
# and nothing else. `change` in the first cell says which: `"no-kl"` takes the penalty away, `"high-lr"` multiplies the learning rate
# by 7.5, `"both"` does both. The bound at which a run ends itself (`max_init_policy_kl`) is off. With `exercise = "live"` you change
# your own run. By default a recorded run of this project plays in a few seconds: that of *With more minutes* with this change, stopped
# after nine of its 16 steps, where there is a recording of it; else an older one on pairs of manners (a friendly answer and a worse
# one, `data/samples/hh-sample-train.jsonl`), without the penalty and with 5 times the learning rate. What do you expect?

# %%
from widgets.recording_file import shipped

changes = {"no-kl": {"trainer.ppo.initial_policy_kl_penalty": 0.0}}
changes["high-lr"] = {"model.optim.lr": 7.5 * config.model.optim.lr}
changes["both"] = changes["no-kl"] | changes["high-lr"]
if exercise == "live":
    settings = lab.conversations() | {"model.seed": seed, "trainer.ppo.max_init_policy_kl": None} | own
    job = lab.submit_ppo(critic_placement, f"ppo-{change}", **settings, **changes[change])
    held, broken = run, lab.run(f"ppo-{change}")
    display(JobPanel(broken, job))  # set the coefficient or the rate again while it runs
elif f"ppo-forms-{change}" in shipped():
    job, held, broken = None, longer, Recording(f"ppo-forms-{change}", speed=600)
else:
    print(f'there is no recording of "{change}" yet: the older one plays')
    job, broken = None, Recording("no-kl-penalty", speed=600)
    held = Recording("healthy", speed=float("inf"))
monitor = Monitor(broken, job=job)
display(monitor)
await monitor

# %% [markdown]
# Of a run that is live, **Stop** saves a checkpoint and ends it: press it when an alarm appears. These are the alarms that the run
# itself raised; they are also in `alarms.jsonl` of the run folder.

# %%
for alarm in broken.alarms():
    print(f"step {alarm['step']}: {alarm['title']}\n  {alarm['meaning']}\n  → {alarm['control']}\n")
if not broken.alarms():
    print("no alarm")

# %% [markdown]
# Here it is beside the run that it was changed from: their curves, and their last values with the settings that differ. For hover
# and zoom: `from widgets import explore`, then `explore([held, broken])`.

# %%
curves(
    [held, broken],
    metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"],
)

# %%
compare_runs([held, broken])

# %%
display(show_completions(broken, n=3, sort="reward", split="train"))
show_completions(broken, n=3, sort="worst", split="train")

# %% [markdown]
# The reward on the training prompts is what PPO is paid for, and it is higher. Now read what is paid best. Which came first, the alarm
# or such texts?
#
# ### Two settings
#
# The recorded runs on forms, after equally many steps. They began as the same policy, saw the same prompts in the same order, and
# had the same reward model; the names say what differs. `reward` is what it gives, `obeys` the share of answers that a program finds
# right.

# %%
from aligner_lib.tutorial.longer_runs import BROKEN
from aligner_lib.tutorial.over_optimisation import best_of_n_points, compare_at_step, ppo_points

recorded = ["ppo-forms", *(f"ppo-forms-{one}" for one in BROKEN)]
if missing := [name for name in recorded if name not in shipped()]:
    print("not recorded yet (`python notebooks/record.py --sweep` does it, in an hour):", ", ".join(missing))
corners = {}
for corner in (Recording(name, speed=float("inf")) for name in recorded if name in shipped()):
    had = corner.info["config"]
    coefficient, rate = had["trainer"]["ppo"]["initial_policy_kl_penalty"], had["model"]["optim"]["lr"]
    corners[f"KL {coefficient:g}, rate {rate:g}"] = corner
compare_at_step(corners)

# %% [markdown]
# ### How far, and for what?
#
# The reward model is a proxy of what was wanted. On the left is what it gives, on the right what a program says, both over the
# distance from the SFT policy, with 95 % intervals. **Best of n** goes away from that policy without any training: it draws n answers,
# and gives the one that the reward model likes best. It is computed from 16 answers of the SFT policy to each of 32 of PPO's 64
# held-out prompts, over every choice of n among them; its KL is at most $\log n - (n-1)/n$. PPO's KL is that of 32 answers to
# training prompts.

# %%
from widgets.palette import pen

paths = {name: ppo_points(corner) for name, corner in corners.items()}
paths["best of n"] = best_of_n_points(Recording("sft-forms-answers", speed=float("inf")))
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharex=True)
for line, (name, points) in enumerate(paths.items()):
    style = {"color": pen(line).colour, "marker": pen(line).marker, "linestyle": pen(line).dash}
    x = [max(point.kl.value, 0.0) ** 0.5 for point in points]  # an estimate may be below 0
    for ax, measure in zip(axes, ("reward", "obeys")):
        found = [getattr(point, measure) for point in points]
        bars = [[one.value - one.low for one in found], [one.high - one.value for one in found]]
        ax.errorbar(x, [one.value for one in found], bars, label=name, capsize=2, elinewidth=0.8, **style)
for ax, title in zip(axes, ("what the reward model gives", "share that obeys, says a program")):
    ax.set(title=title, xlabel="√KL to the SFT policy (KL in nats a response)")
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# Best of n gets more of both, the further it goes: up to 16 answers this reward model can be followed. Each of its answers costs 16,
# though, and PPO's costs one.
#
# The runs with the high rate are **over-optimised**, with the penalty as without it: a penalty of 0.03 a nat doesn't hold a policy that
# takes such steps. After four steps the first of them wrote hardly more than the
# stop token. After eight nobody gets more from the reward model than these two, and from the program they have hardly more
# than the leashed run gets after sixteen, at about three times its KL. How? They repeat their instruction, as in the best completions above:
# "Your last sentence must be a question." The reward model likes answers that speak of what was asked, and has never seen one that
# does only that. Even the program is sometimes content: it checks the form, not whether anything was answered. So a number never
# tells alone; read.
#
# ## What you learnt
#
# - Generate, score, estimate advantages, take a clipped step; the KL penalty limits how far the policy moves.
# - The reward is only the reward model's estimate. Read the completions.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("05")

# %% [markdown]
# Next: [06 · DPO](06_dpo.ipynb)
