# %% [markdown]
# # PPO
#
# Generate responses to prompts, score them with the reward model, and update the policy towards higher rewards: the
# reinforcement-learning stage of RLHF.
#
# {{map}}
#
# | goal | a policy that moves towards higher rewards and stays close to the SFT policy; how more training time helps, and what breaks the training |
# | --- | --- |
# | needs | the SFT policy of 03, the reward model of 04 (substitutes are used where they are missing) |
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
critic_placement = "in-process"  # in-process: one job · remote: critic and reward model in a second job
exercise = "recorded"  # recorded: "break it" plays a recorded run · live: "break it" trains a run
change = "high-lr"  # the change in "break it": no-kl · high-lr · both

# %%
from aligner_lib.tutorial import Diagram, Workspace, require_one_of
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

require_one_of("exercise", exercise, "recorded", "live")
require_one_of("change", change, "no-kl", "high-lr", "both")
lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## What does PPO maximise?
#
# The objective of RLHF is the expected reward minus a penalty for moving away from the reference, which is the SFT
# policy ([04b](04b_policy_gradients.ipynb) derives the gradient and the optimum):
#
# $$ \max_\pi \; \mathbb{E}_{x \sim \pi}[r(x)] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_{ref}) $$
#
# The KL is the expectation of $\log \pi(x) - \log \pi_{ref}(x)$, and the log-probability of a response is a sum over its
# tokens. So the penalty can be charged token by token, as a part of the reward.

# %%
Diagram("four-models")

# %% [markdown]
# ## One step, by hand
#
# What does PPO compute from one response? Take a response of three tokens. `logprobs` are the log-probabilities of the
# tokens under the policy, and `reference_logprobs` are those under the reference. The reward model gives the response
# the reward 1.0, which is added at the last token. In addition, each token gets a KL penalty.

# %%
import torch

from aligner_lib.algorithms import ppo

prompt_lengths, lengths = torch.tensor([2]), torch.tensor([5])  # 2 prompt tokens, 3 response tokens
mask = ppo.response_mask(prompt_lengths, lengths, size=4)
logprobs = torch.tensor([[0.0, -1.0, -0.5, -0.2]]) * mask
reference_logprobs = torch.tensor([[0.0, -1.2, -0.5, -0.6]]) * mask
kl = logprobs - reference_logprobs
rewards = ppo.rewards_with_kl(torch.tensor([1.0]), kl, mask, coefficient=0.5)
for name, row in {"mask": mask, "kl": kl, "rewards": rewards}.items():
    print(f"{name:8}", [round(value, 4) or 0.0 for value in row[0].tolist()])

# %%
Diagram("token-rewards")

# %% [markdown]
# A text of $S$ tokens has $S - 1$ predictions, because each token predicts the next one. Index 0 predicts the second prompt
# token, so its mask is 0. At the last index, the reward of 1 minus the penalty $0.5 \cdot 0.4$ is 0.8. As an equation,
# where $T$ is the last token of the response, $R$ is the response's reward, $\beta$ is the coefficient of the penalty, and
# $[t = T]$ is 1 at the last token and 0 at all others:
#
# $$ r_t = -\beta \, \bigl(\log \pi(x_t) - \log \pi_{ref}(x_t)\bigr) + [t = T] \, R $$


# %% tags=["solution"]
def token_rewards(rewards, kl, mask, coefficient):
    """The reward of each token: a KL penalty at every response token, and the response's score at its last token.

    rewards: float [B]; kl: float [B, S-1] in nats, log π − log π_ref of each token, arbitrary outside the mask; mask: bool
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
# At each token, the critic predicts the sum of this token's reward and all later rewards. The prediction is called the *value*
# $V_t$. Its target, advantage plus value, is called the *return*; with $\lambda = 1$ (below) the return is exactly this sum. The **advantage** $A_t$ of a token says how much better the outcome was than the critic's
# prediction. Generalized advantage estimation (GAE) computes advantages from the last token backwards, with
# $\delta_t = r_t + \gamma V_{t+1} - V_t$ and $A_t = \delta_t + \gamma\lambda A_{t+1}$. The discount factor $\gamma$ makes
# later rewards count less; for responses of a few tokens $\gamma$ is 1. The choice of $\lambda$ follows below:

# %%
values = torch.tensor([[0.0, 0.5, 0.5, 0.5]])
advantages, returns = ppo.advantages_and_returns(values, rewards, mask, discount_factor=1.0, gae_lambda=0.95)
print("advantages", [round(a, 4) for a in advantages[0].tolist()])
print("returns   ", [round(r, 4) for r in returns[0].tolist()])

# %% [markdown]
# By hand, from right to left: $0.8-0.5=0.3$; then $0 + 0.5 - 0.5 + 0.95\cdot0.3=0.285$; then
# $-0.1+0.95\cdot0.285=0.17075$.
#
# With $\lambda = 0$ only the next value counts: $A_t = \delta_t$. The estimate has little noise, but contains every
# error of the critic. With $\lambda = 1$ all rewards that the response really received count:
# $A_t = r_t + r_{t+1} + \dots - V_t$ (for $\gamma = 1$). Here $A_t = \delta_t + \delta_{t+1} + \dots$, in which each later
# value occurs once with a plus and once with a minus, and the value after the last token is 0. The estimate is right on
# average, but noisy.


# %% tags=["solution"]
def gae(values, rewards, mask, discount, gae_lambda):
    """Generalized advantage estimates, and returns = advantages + values.

    values, rewards: float [B, S-1], arbitrary outside the mask; mask: bool [B, S-1], True in a single run per row; discount: γ;
    gae_lambda: λ → float [B, S-1] twice, 0 outside the mask. After the last response token, value and advantage are 0.
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
# The library's version handles an additional case. In a conversation of several turns, the mask has gaps at tokens that
# the policy did not write. There, the successor of a token is the next token inside the mask.

# %%
show_source(ppo.advantages_and_returns)

# %% [markdown]
# ### Why whiten?
#
# The size of the advantages depends on the unit of the rewards and changes from step to step, and with it the size of the
# gradients. PPO therefore **whitens** the advantages of a *rollout*, which is the set of responses of a step: PPO
# subtracts their mean $\mu$ and divides by their deviation $\sigma$, where $\sigma^2$ is the mean of
# $(A_t - \mu)^2$. Which entries of the array belong in the two means? By hand: of the advantages 1, 3 and a padding value
# of 9, the whitened advantages are −1, 1 and 0.
#
# Whitening does not change the weight of the KL penalty against the reward, because the advantages contain both. If only the
# rewards become ten times as large, the penalty has a tenth of its weight, with whitening as without. For this reason the
# reward model's unit, the standard deviation of its rewards ([04](04_reward_model.ipynb)), is fixed before PPO begins.


# %% tags=["solution"]
def whiten(advantages, mask):
    """(A − mean) / √(variance + 1e-8) over the tokens inside the mask, and 0 outside.

    advantages: float [B, S-1], arbitrary outside the mask; mask: bool [B, S-1] → float [B, S-1]. The variance is the mean of the
    squared distances from the mean.
    """
    inside = advantages[mask]
    return (advantages - inside.mean()) * torch.rsqrt(inside.var(correction=0) + 1e-8) * mask


# %%
check("whiten", whiten)

# %% [markdown]
# Subtracting the mean is a baseline, as in [04b](04b_policy_gradients.ipynb): tokens above the mean become likelier and the
# others less likely, also when all rewards are above 0. The mean contains the token's own advantage, but one token in
# thousands hardly moves it. Only the advantages are whitened. The returns stay in the unit of
# the rewards, because the critic has to predict rewards.

# %% [markdown]
# ### How far may one update go?
#
# The update compares new probabilities with the probabilities at generation time. PPO limits how far the ratio of the
# two can move. The plots show PPO's loss for advantages of both signs. Where the loss is flat, the gradient is zero and
# the token does not change the policy any further.

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
# A token on a flat part of the loss has moved far enough and contributes no gradient. By hand, with $\epsilon = 0.2$:
# the loss is flat at an advantage of 1 and a ratio of 1.3. At an advantage of −1 and a ratio of 1.3 the loss is not
# flat, because the token was bad and yet became likelier, so the update must correct the policy.


# %% tags=["solution"]
def no_gradient(ratio, advantages, epsilon):
    """True where the clipped loss has no gradient.

    ratio: float [B, S-1], above 0; advantages: float [B, S-1], none of them 0; epsilon: float → bool [B, S-1].
    """
    far_up = (advantages > 0) & (ratio > 1 + epsilon)
    far_down = (advantages < 0) & (ratio < 1 - epsilon)
    return far_up | far_down


# %%
check("no_gradient", no_gradient)

# %% [markdown]
# Now write the loss of the plots. With the ratio $\rho_t = \pi(x_t) / \pi_{old}(x_t)$, the loss without a clip is
# $-A_t \rho_t$. A clip bounds the ratio to $1 \pm \epsilon$. The loss is one of the two, with and without the clip. Which
# one? By hand, with $\epsilon = 0.2$:
#
# | $\rho$ | $A$ | loss |
# | --- | --- | --- |
# | 1.5 | 1 | −1.2 |
# | 1.5 | −1 | 1.5 |
# | 0.5 | 1 | −0.5 |
# | 0.5 | −1 | 0.8 |
#
# Some papers give the ratio more room above 1 than below, so the function takes two values of $\epsilon$.


# %% tags=["solution"]
def clipped_loss(ratio, advantages, low, high):
    """PPO's clipped loss of each token, and the clipped ratio.

    ratio: float [...], above 0; advantages: float, same shape; low, high: the room for the ratio below and above 1 → float of
    the same shape twice, with a gradient to ratio.
    """
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.maximum(-advantages * ratio, -advantages * clipped), clipped


# %%
clipped_check = check("clipped_loss", clipped_loss)
display(clipped_check)

# %% [markdown]
# As an equation, the loss always takes the worse of the two, so a policy never gains from a ratio that is far off:
#
# $$ L_t = \max\bigl(-A_t \, \rho_t, \; -A_t \, \mathrm{clip}(\rho_t, 1 - \epsilon, 1 + \epsilon)\bigr) $$

# %%
show_source(ppo.clipped_surrogate)

# %% [markdown]
# ### What does the critic learn?
#
# The critic's target is the return, and its **value loss** is half the squared error of each token. PPO clips this loss,
# too. A value that has moved more than $c$ away from $V_{old}$, its value at generation time, gains nothing by moving
# further in the same direction. With the clipped value $V^c = V_{old} + \mathrm{clip}(V - V_{old}, -c, c)$ and the
# return $G$, the loss is one of $\tfrac12 (V - G)^2$ and $\tfrac12 (V^c - G)^2$. By hand, with $V_{old} = 0$ and
# $c = 0.2$:
#
# | $V$ | $G$ | loss | |
# | --- | --- | --- | --- |
# | 0.1 | 1 | 0.405 | inside the room |
# | 0.5 | 1 | 0.32 | moved far towards the return: flat |
# | −0.5 | 1 | 1.125 | moved far in the wrong direction |


# %% tags=["solution"]
def value_loss(values, old_values, returns, clip):
    """The critic's clipped loss of each token.

    values, old_values, returns: float [B, S-1]; clip: the room around the old value → float [B, S-1], with a gradient to values.
    """
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


# %%
check("value_loss", value_loss)

# %% [markdown]
# ## The run
#
# Four models take part. The policy in training is also called the **actor**. Actor and reference
# have the same architecture, so they share one module, into which the job puts the weights of the one or the other. Critic
# and reward model share a second module. With `critic_placement = "in-process"`, a single job
# holds both pairs. With `"remote"`, each pair has its own job, as on a cluster. The algorithm is the same.
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
# The `laptop` profile draws the responses at a temperature of 0.7 ([03](03_sft.ipynb) explains the temperature), because a model of
# this size loses the thread at 1. All log-probabilities are computed at the temperature of the draw: those of the policy, of the
# reference and of the update. So the ratio and the KL belong to the distribution from which the tokens were drawn. `smoke` draws at
# a temperature of 1.
#
# **Your code trains the model.** If your `token_rewards`, `gae` or `clipped_loss` has passed its check, your function
# replaces the library's function. The run folder stores the text of your functions, and the training process reads the
# text there ([how](../docs/your-code.md)). Correct functions give the library's figures to the last digit. (With
# `laptop`, your `token_rewards` receives the KL itself. With `smoke` it receives the absolute value, which is
# NeMo-Aligner's default: `trainer.ppo.use_absolute_kl=True`.)

# %%
checked = {"token_rewards": rewards_check, "advantages": gae_check, "loss": clipped_check}
own = {name: verdict.function for name, verdict in checked.items() if verdict}
job = lab.submit_ppo(critic_placement, **lab.conversations(), **{"model.seed": seed}, **own)
monitor = Monitor(lab.run("ppo"), job=job, branch=lab.branch)
display(monitor)

# %% [markdown]
# ### While it trains: PPO in seconds
#
# Now combine the parts of PPO in a problem that trains within seconds. The vocabulary has eight tokens, and a response
# is a single token. The problem has all ingredients of PPO: log-probabilities, rewards with a KL penalty, advantages
# (the mean of the rewards with penalty replaces the critic, and nothing is whitened) and the clipped loss. As in the large run, rewards and advantages are computed once,
# when the tokens are drawn, and stay the same in all updates with these tokens. Which log-probabilities does the penalty
# need, then? Write the loss.


# %% tags=["solution"]
def bandit_loss(logits, tokens, old_logprobs, reference_logprobs, rewards, coefficient, epsilon):
    """PPO's loss of N responses of a single token each.

    logits: float [8], the trained parameters; tokens: int64 [N], the drawn tokens; old_logprobs, reference_logprobs: float
    [N], of the drawn tokens under the drawing policy and under the reference; rewards: float [N]; coefficient: of the KL
    penalty; epsilon: of the clipping → float [], with a gradient to logits.
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
# Now train the small policy for 150 steps, each with 64 drawn tokens and four updates. For a response of a single
# token, the best policy has a formula, $\pi \propto \pi_{ref} \, e^{r / \beta}$ (derived in 04b). The bars should reach
# the crosses.

# %%
reward_of_token = torch.tensor([0.0, 0.2, 0.4, 1.0, 0.9, 0.1, 0.0, 0.3])
reference = torch.tensor([1.5, 1.0, 0.0, -1.5, 0.5, 0.0, 1.0, -1.0]).log_softmax(0)


def train_bandit(beta, seed=0, steps=150, responses=64):
    """The policy's log-probabilities after some steps of PPO, with four updates each: float [8]."""
    draw = torch.Generator().manual_seed(seed)
    logits = reference.clone().requires_grad_()
    optimizer = torch.optim.Adam([logits], lr=0.02)
    for _ in range(steps):
        old = logits.detach().log_softmax(0)
        tokens = torch.multinomial(old.exp(), responses, replacement=True, generator=draw)
        for _ in range(4):
            drawn = (logits, tokens, old[tokens], reference[tokens], reward_of_token[tokens])
            loss = bandit_check.function(*drawn, beta, 0.2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return logits.detach().log_softmax(0)


# %%
beta = 0.3
best = (reference + reward_of_token / beta).softmax(0)
figure, axes = plt.subplots(figsize=(7, 2.6))
axes.bar(range(8), train_bandit(beta).exp(), color="#0072B2", label="trained policy")
axes.plot(range(8), reference.exp(), "o", color="0.6", label="reference")
axes.plot(range(8), best, "x", color="#D55E00", markersize=9, label="best policy, by the formula")
axes.set(xlabel="token", ylabel="probability")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# Try $\beta = 0.02$ with `steps=40`, and again with all 150 steps. At the beginning, the token with reward 0.9 is seven times
# as likely as the token with reward 1.0. Which of the two is likelier after 40 steps, and which one after 150? (In 04b the
# response with 0.9 won for good. There a rare response moves its logit little. Here Adam makes even small gradients count,
# so the best token overtakes.)

# %%
if critic_placement == "remote":
    show_server(lab.critic_of("ppo"))  # the activity of the critic's server while the actor trains
await monitor

# %% [markdown]
# ### What you should see
#
# The KL grows slowly from exactly 0. Answers end, because a response without an end pays the penalty
# `missing_eos_penalty`. The rewards on held-out prompts rise from {{laptop.ppo.val_reward_sft:+.2f}} to
# {{laptop.ppo.val_reward_ppo:+.2f}}. Their standard deviation under the SFT policy is
# {{laptop.ppo.val_reward_sft_std}}. The rewards on training prompts jump up and down, because each step has sixteen
# other prompts. With `smoke` the held-out rewards rise from {{smoke.ppo.val_reward_sft:+.2f}} to
# {{smoke.ppo.val_reward_ppo:+.2f}}.
#
# | you see | meaning | change |
# | --- | --- | --- |
# | reward up, KL up slowly | healthy | |
# | reward up fast, KL and length drift | reward hacking | `trainer.ppo.initial_policy_kl_penalty` up |
# | reward flat | the learning rate is too low, or the rewards do not differ | `model.optim.lr` up; look at `train_rollouts/rewards_std` |
# | few responses end | responses are cut off and scored without their end | `model.ppo.length_params.max_length` or `trainer.ppo.missing_eos_penalty` up |
#
# Click a point of a chart to open the completions of the step below the chart. *Change settings*, above the charts,
# sets another KL coefficient or learning rate while the run continues. The charts show the step at which the change
# takes effect.

# %%
run = lab.run("ppo")
curves(
    run,
    metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"],
)

# %% [markdown]
# How good is the critic? The last of the next three charts shows the **explained variance**: the share of the variance
# of the returns that the critic predicts. A constant prediction has the explained variance 0, and a worse prediction
# has less.
#
# The critic starts as a copy of the reward model, and with `laptop` its head starts as zeros (`critic.model.new_head`).
# The reward model was trained on complete answers, so its score for a prefix means nothing. The critic learns to
# predict the score of an answer before the answer is complete, and better predictions make the advantages less noisy.
# But a critic needs many responses to learn that some prompts are harder than others, and this run has several hundred.
# Until then, even a bad answer to an easy prompt can have a positive advantage.
#
# So the `laptop` profile helps the critic (`trainer.ppo.prompt_baseline`). It draws four responses to each prompt, and
# the values of a response begin from the mean reward of the other three. The critic learns the rest. The explained
# variance is then mostly that of the **baseline**. In 07 the group's mean is all that is left of the critic.

# %% [markdown]
# ### Why $\lambda = 1$?
#
# The `laptop` profile uses $\lambda = 1$ because the critic knows so little. As long as the critic predicts the same
# value $c$ everywhere, the advantage of a response's token $t$ is $\lambda^{T-t} (R - c)$, apart from the KL penalty. With
# $\lambda = 0.95$ the last tokens get nearly the whole reward, and the first tokens get little. In addition, the returns,
# which are the critic's targets, then contain the critic's own values, so $c$ follows the mean reward slowly. If the rewards of the first steps are below 0 on average, the
# last tokens get negative advantages on average, and the very last token is the stop token. The policy then learns not to
# stop.
#
# In an earlier run of this project, with such rewards, $\lambda = 0.95$ and no baseline, the mean length went from 39 tokens in the first
# step to 52 in the second, and the share of responses that end went from 0.88 to 0.56. With $\lambda = 1$ and all else
# equal, the length went to 45 and the share to 0.75, and in the third step they were back at 35 and 0.94. The price of
# $\lambda = 1$: whole rewards are harder to predict than returns that are computed from the critic's own values.

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
# Any PPO run must pass two checks: before the first update the ratio is 1 and the KL is 0. In bf16 the ratio is 1 up to
# rounding, because the two passes that compute it cut the batch differently.

# %%
first = next(record for record in run.metrics() if record["step"] == 1)
print("ratio at the first update:", first["train_optim/first_ppo_ratio"])
print("KL before the first update:", first["train_rollouts/kl"])

# %% [markdown]
# ## What does the policy write now?

# %%
show_completions(run, n=4, sort="reward")

# %% [markdown]
# Those are the best responses. Also look at the worst responses, according to the reward model:

# %%
show_completions(run, n=4, sort="worst")

# %% [markdown]
# The two tables above were static. The next widget shows every step. Under held-out prompts, each answer stands beside
# the first answer to the same prompt. Under *train*, each token is coloured by its KL or its advantage:

# %%
Completions(run)

# %% [markdown]
# ## Does the policy do what people wanted?
#
# The reward model replaces a judgement that is too expensive to request at every step. In this tutorial a program can
# judge. It checks whether an answer *obeys* its instruction. But an answer can obey without being an answer: the
# repeated instruction "The word fact has to appear in your answer." obeys itself. An answer is therefore *good* only if
# it obeys, ended by itself, has words of its own, stays on the topic of the question, does not repeat itself, consists
# of English words, has no title that nobody asked for, and says something that the policy does not say to other
# questions as well (`data/gold.py`).
#
# If the reward rises and the share of good answers does not, the policy pleases its judge only. The next cell compares
# the first and the last validation. It also splits the gain in reward into three parts: more answers that end, more
# answers that obey (the row *gold*), and the rest. (The `smoke` prompts contain no instruction that a program could check.)

# %%
from aligner_lib.tutorial.comparison.gold import before_and_after

checked, gold = before_and_after(run), {}
if checked:
    display(checked)
    of_sft, of_ppo = checked.figures.values()
    gold = {
        "gold_sft": of_sft["obeys"].value,
        "gold_ppo": of_ppo["obeys"].value,
        "gold_gain_low": of_ppo["obeys_gain"].low,
        "ended_sft": of_sft["ended"].value,
        "good_sft": of_sft["good"].value,
        "good_ppo": of_ppo["good"].value,
        "good_gain_low": of_ppo["good_gain"].low,
        "echo_sft": 1 - of_sft["own_words"],
        "echo_ppo": 1 - of_ppo["own_words"],
        "length_ratio": of_ppo["tokens"] / of_sft["tokens"],
    }

# %% [markdown]
# No figure means much without the figures of a policy that cheats. The next table judges echoes, a constant sentence
# behind the question or its topic, and the best constant answer among some training answers, on the same prompts. Echoes
# often obey, and none of them is good. Two cheats write the requested item, and then the topic before a constant sentence or in a
# template. Judged one by one (*good alone*), more than half of these answers are good. Judged together, none of them is, because
# the sentence or the template repeats under every question.
#
# The cheat with shuffled words shows a limit of the program. It writes the requested item, and then the topic words and common
# words in random order. No part of the judgement reads grammar, so more than half of these answers are good, even together. Read
# ten answers of a policy before you believe its figures.

# %%
from aligner_lib.run_folder.turns import turns_of
from aligner_lib.tutorial.comparison.cheats import cheats

if checked:
    prompts = {r["prompt"] for r in run.rollouts() if r["split"] == "validation"}
    answers = [r["response"] for r in run.rollouts() if r["split"] == "train"]
    of_cheats = cheats([turns_of(prompt)[-1]["text"] for prompt in sorted(prompts)], answers)
    display(of_cheats)

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
results = {"ppo": figures}
if checked:
    results["gold"] = {
        "best_constant": of_cheats.figures["best constant"]["good_alone"].value,
        "echo": of_cheats.figures["the instruction"]["good"].value,
    }
lab.record("05", results)
gain = (figures["val_reward_ppo"] - figures["val_reward_sft"]) / figures["val_reward_sft_std"]
print(
    f"held-out reward {figures['val_reward_sft']:+.3f} → {figures['val_reward_ppo']:+.3f}: {gain:+.2f} standard deviations"
)

# %% [markdown]
# ### Is it a gain?
#
# In this notebook's run, the share of good answers went from {{laptop.ppo.good_sft}} to {{laptop.ppo.good_ppo}} on 256
# held-out prompts. The 95 % interval of the gain begins at {{laptop.ppo.good_gain_low:+.2f}}. Echoes went from
# {{laptop.ppo.echo_sft}} to {{laptop.ppo.echo_ppo}} of the answers, and the mean length is {{laptop.ppo.length_ratio}}
# times that of before.
#
# The result of one seed may be luck. Another seed draws other samples, pairs and responses, and trains other models.
# Notebooks 03 to 05 also ran with other seeds (`python notebooks/record.py --drawn`). Their policies answered the same
# 256 held-out prompts:
#
# | seed | good, SFT | good, PPO | gain, 95 % interval | echoes |
# | --- | --- | --- | --- | --- |
# | 1 | {{seed_1.ppo.good_sft}} | {{seed_1.ppo.good_ppo}} | {{seed_1.ppo.good_gain}} ({{seed_1.ppo.good_gain_low}} to {{seed_1.ppo.good_gain_high}}) | {{seed_1.ppo.echo_sft}} → {{seed_1.ppo.echo_ppo}} |
# | 2 | {{seed_2.ppo.good_sft}} | {{seed_2.ppo.good_ppo}} | {{seed_2.ppo.good_gain}} ({{seed_2.ppo.good_gain_low}} to {{seed_2.ppo.good_gain_high}}) | {{seed_2.ppo.echo_sft}} → {{seed_2.ppo.echo_ppo}} |
# | 7 | {{seed_7.ppo.good_sft}} | {{seed_7.ppo.good_ppo}} | {{seed_7.ppo.good_gain}} ({{seed_7.ppo.good_gain_low}} to {{seed_7.ppo.good_gain_high}}) | {{seed_7.ppo.echo_sft}} → {{seed_7.ppo.echo_ppo}} |
#
# The gain is real on each seed, and its size depends on the seed. A single seed can mislead. An earlier profile drew 32
# responses per step and had no warm-up of the learning rate. With seed 1234 it gained 0.23, and nobody had tried
# another seed. With seed 1 it gained 0.06, and with seed 2 the first update made most answers bad.
#
# Not every form gains equally. PPO strengthens what the SFT policy shows sometimes, such as a number to use or a first
# word. It cannot reward a response that the policy hardly ever draws, such as a postscript.

# %% [markdown]
# ### The cure for echoes
#
# Echoes are rare in the table above. With an earlier version of the pairs, they became more frequent on each of four
# seeds, up to 0.08 of the answers. Most were honest answers with the instruction behind them ("Mention the number
# 8."), and the reward model paid for them: in its pairs, only answers without the requested word ended like that. Three
# changes to the data made echoes rarer:
#
# - In a third of the pairs with an echo, the worse answer is the better answer with its instruction behind it.
# - Every instruction is a request, such as "Use the number 8." A statement can be a sentence of an answer: most echoes
#   of one seed had copied "The number 8 has to appear in your answer."
# - In a quarter of these pairs, the instruction stands inside a sentence of the better answer: "To keep a cat cool, use
#   the number 8." Thirteen of 256 answers of one policy had such an echo before.

# %% [markdown]
# ## With other pairs: a reward hack
#
# The pairs decide what PPO finds. Earlier pairs of this project (`dataset="forms"`) have sixteen forms, and each
# rejected answer is a good sentence that misses its form. No rejected answer is an echo. A recorded run trained on
# them: 40 steps of SFT, 48 steps of the reward model with 16 pairs each (right on 0.81 of the held-out pairs), and 16
# steps of PPO with 32 responses each (`PPO_ON_FORMS` in `aligner_lib/tutorial/workspace/longer_runs.py`). The SFT policy
# obeyed in 0.28 of 64 held-out prompts (0.18 to 0.41) and the PPO policy in 0.41 (0.29 to 0.54). The mean length went from 23 to
# 18 words, and the share of answers that end from 0.98 to 0.92.
#
# Is that a success, or chance? Every figure of this section counts answers that *obey*. Keep your doubts until its end.

# %% [markdown]
# ### Was it the seed?
#
# Three other seeds (`python notebooks/record.py --seeds`) each trained their own SFT policy, reward model and PPO
# policy on these pairs, in 40 minutes per seed on a single core. These runs have $\lambda = 1$, a critic that learns
# twice from each rollout, a penalty for a missing end, 96 steps for the reward model and 18 for PPO. On all 264 held-out
# prompts, with one answer each (the intervals of this table and of the next are bootstraps over the prompts, which are a little
# too narrow):
#
# | seed | reward model, of 264 pairs | SFT obeys | PPO obeys | gain, 95 % interval | tokens | ended |
# | --- | --- | --- | --- | --- | --- | --- |
# | 1 | {{forms.1.rm.val_acc}} | {{forms.1.sft.obeys.0}} | {{forms.1.ppo.obeys.0}} | {{forms.1.ppo.obeys_gain.0:+.2f}} ({{forms.1.ppo.obeys_gain.1:+.2f}} to {{forms.1.ppo.obeys_gain.2:+.2f}}) | {{forms.1.sft.tokens.0:.0f}} → {{forms.1.ppo.tokens.0:.0f}} | {{forms.1.sft.ended.0}} → {{forms.1.ppo.ended.0}} |
# | 2 | {{forms.2.rm.val_acc}} | {{forms.2.sft.obeys.0}} | {{forms.2.ppo.obeys.0}} | {{forms.2.ppo.obeys_gain.0:+.2f}} ({{forms.2.ppo.obeys_gain.1:+.2f}} to {{forms.2.ppo.obeys_gain.2:+.2f}}) | {{forms.2.sft.tokens.0:.0f}} → {{forms.2.ppo.tokens.0:.0f}} | {{forms.2.sft.ended.0}} → {{forms.2.ppo.ended.0}} |
# | 3 | {{forms.3.rm.val_acc}} | {{forms.3.sft.obeys.0}} | {{forms.3.ppo.obeys.0}} | {{forms.3.ppo.obeys_gain.0:+.2f}} ({{forms.3.ppo.obeys_gain.1:+.2f}} to {{forms.3.ppo.obeys_gain.2:+.2f}}) | {{forms.3.sft.tokens.0:.0f}} → {{forms.3.ppo.tokens.0:.0f}} | {{forms.3.sft.ended.0}} → {{forms.3.ppo.ended.0}} |
# | all | {{forms.all.rm.val_acc}} | {{forms.all.sft.obeys.0}} | {{forms.all.ppo.obeys.0}} | {{forms.all.ppo.obeys_gain.0:+.2f}} ({{forms.all.ppo.obeys_gain.1:+.2f}} to {{forms.all.ppo.obeys_gain.2:+.2f}}) | {{forms.all.sft.tokens.0:.0f}} → {{forms.all.ppo.tokens.0:.0f}} | {{forms.all.sft.ended.0}} → {{forms.all.ppo.ended.0}} |
#
# On each seed more answers obey, and the gain is larger than chance. But look at the tokens: with seed 3, answers are
# half as long as those of SFT. Some instructions require *more* words than a number, and none of the seed-3 answers to
# them obeys any longer (0.36 before). The reward model did not start the shortening, because in the first four steps
# longer answers get higher rewards. Two penalties shorten the answers. Only long answers pay the penalty for a missing
# end (`missing_eos_penalty`, here 2), and every token pays the KL penalty. With a `missing_eos_penalty` of 1, the
# training answers of the same seed were 43 tokens long after eight steps, and 0.78 of them ended.

# %% [markdown]
# ### How much does the reward model matter?
#
# The next table shows the same experiment with 48 steps for the reward model instead of 96, after 12 and after 24 steps
# of PPO:
#
# | seed | reward model, of 264 pairs | reward after 12 and 24 steps | KL per token | gain after 12 | gain after 24, 95 % interval | tokens after 12, 24 |
# | --- | --- | --- | --- | --- | --- | --- |
# | 1 | 0.73 | 0.37, 0.86 | 0.11, 0.48 | +0.14 | **+0.05** (0.00 to +0.11) | 33, 28 |
# | 2 | 0.82 | 0.48, 1.27 | 0.07, 0.30 | +0.08 | **+0.14** (+0.08 to +0.20) | 36, 35 |
# | 3 | 0.84 | 0.35, 0.92 | 0.06, 0.44 | +0.12 | **+0.27** (+0.19 to +0.34) | 31, 21 |
#
# The reward rises on all seeds, and by the reward alone seed 1 does as well as seed 3. According to the program,
# however, seed 1 lost most of its gain between steps 12 and 24, and its reward model was the least accurate. With twice
# as many pairs, the reward model of seed 1 was right on {{forms.1.rm.val_acc}} of the pairs. The policy trained with
# the better reward model gained {{forms.1.ppo.obeys_gain.0:+.2f}}, at the same distance from SFT as the policy that had
# lost its gain. The KL cannot distinguish these two policies.
#
# All these figures count answers that obey, and an echo can obey. The next cell shows the 64 validation prompts of the
# recorded run. After training, more answers obey than before, but the share of *good* answers does not rise, because
# fewer answers have words of their own and stay on the topic. The reward model never saw an echo among the rejected
# answers, so it mistakes the words of the instruction for obedience.
#
# The table continues form by form. Each form has only a handful of prompts, so a share of 0 means "rarely" rather than
# "never".

# %%
longer = Recording("ppo-forms", speed=float("inf"))
metrics = ["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/explained_variance"]
display(curves(longer, metrics=metrics))
before_and_after(longer)

# %% [markdown]
# How does a policy learn to echo? The next table shows the four training responses with the highest rewards among those
# without words of their own. The colour is the advantage: after the step, a blue token is likelier. Which tokens have
# the strongest colour?

# %%
from aligner_lib.tutorial.displays.tokens import TokenTable
from data.gold import judge


def is_echo(record):
    return not judge(turns_of(record["prompt"])[-1]["text"], record["response"], record["finished"]).own_words


echoes = [record for record in longer.rollouts() if record["split"] == "train" and is_echo(record)]
TokenTable(sorted(echoes, key=lambda record: -record["reward"])[:4])

# %% [markdown]
# The copied instruction is bluer than the honest sentences in front of it (with $\lambda = 0.95$, later tokens also get more
# of the reward). In "Mention a figure, such as 7." the number
# earns the most: the reward model looks for a number, and the instruction has one. The policy draws such an ending by
# chance, the reward model pays for it, and the update makes exactly these tokens likelier. In the next steps the policy
# draws the ending more often. No part of PPO is broken here. PPO maximises what the reward model pays for.

# %% [markdown]
# ## What no curve shows
#
# The cure began with the pairs (`dataset="drawn"`, now the default of `laptop`): each prompt asks for something of its
# own, most answers of the pairs are the SFT policy's, and a program judged them. Echoes, cut answers and repetitions are
# among the rejected answers, so this reward model is hard to fool with an echo. By the program of that time, PPO raised
# the share of good answers from 0.30 to 0.50, and no alarm sounded. What do you see in six of the answers, drawn at
# random?

# %%
show_completions(Recording("ppo-titles", speed=float("inf")), n=6, sort="random")

# %% [markdown]
# The share of answers with a title that nobody asked for rose from 0.03 to 0.88. No rejected answer
# of the pairs had this fault, so the reward model took a title for the sign of a better answer. Reading twenty answers
# found the fault. Since then the pairs contain it, and the program has a part for it (*plain*), by which 0.21 of these
# answers are good. A program sees only those faults that its author thought of. So before you believe a figure, read
# some answers that nobody chose.
#
# Rejected answers with titles were not enough. Some prompts of that sample asked for a title, so some chosen answers had
# one, and the reward model of one training seed of four still paid 0.26 for a title that nobody asked for. At a KL
# coefficient of 0.05, one of two runs that differ in rounding alone found this after six steps, and in its last step 0.46
# of the training answers had such a title. At 0.1, from the same SFT policy and reward model, no answer of the last step had
# one, in either of two runs. A KL penalty makes improbable texts expensive, and most hacks are improbable, but so few runs
# cannot show that the coefficient made the difference. Now no prompt asks for a title either, so among the pairs with correct labels
# only rejected answers have one.

# %% [markdown]
# ## Which checkpoint do you keep?
#
# A run may be best before its end, so trainers keep the checkpoint of the best validation. Best by which metric? The next
# cell compares two choices: the validation with the highest reward, and the validation with the largest share of good
# answers. The recorded runs are an ordinary run (`ppo-drawn`), the run with the titles, and a run on the old pairs with a
# high learning rate and without a KL penalty (`ppo-forms-both`). Step 0 is the policy before training.

# %%
for name in ("ppo-drawn", "ppo-titles", "ppo-forms-both"):
    validations = [r for r in Recording(name, speed=float("inf")).metrics() if "val_rollouts/good" in r]
    for metric in ("val_rollouts/rewards", "val_rollouts/good"):
        best = max(validations, key=lambda record: record[metric])
        kept = f"step {best['step']:2}, good {best['val_rollouts/good']:.2f}"
        print(f"{name:15} best by {metric:20} keeps {kept}")

# %% [markdown]
# In the first run both metrics choose the last step. In the other two, the reward chooses the last step again, and the share
# of good answers chooses the policy before training. In the run on the old pairs the loss is beyond chance: 0.03 instead of 0.25
# of 64 answers, a paired difference of −0.22 ± 0.11. In the run with the titles, 0.21 instead of 0.30 of 128 answers (−0.09 ± 0.09)
# may be chance, and the reward rose by 0.74 without any gain. A policy that hacks its reward model has the highest reward at
# the end, so the best checkpoint by reward is the most hacked checkpoint. Choose by a metric that the training does not maximise:
# `exp_manager.checkpoint_callback_params.save_best=val_rollouts/good` keeps this checkpoint, and `RUN@best` names it.

# %% [markdown]
# ## Break it
#
# Two settings keep PPO near its initial policy: the KL penalty and the learning rate. Which of the two matters? Change
# one setting and nothing else. `change` in the first cell selects the experiment: `"no-kl"` removes the penalty,
# `"high-lr"` multiplies the learning rate by 7.5, and `"both"` does both. The limit at which a run stops itself
# (`max_init_policy_kl`) is off.
#
# With `exercise = "live"` you change your own run after its second step. By default, a recorded run of this project plays
# in a few seconds. It has twelve steps, a KL coefficient of 0.1, a learning rate of 5e-5 and an earlier sample of the pairs,
# and otherwise the settings of your run. The selected change is made to these values. What result do you expect?

# %%
unbounded = {"trainer.ppo.max_init_policy_kl": None}
no_kl = {"trainer.ppo.initial_policy_kl_penalty": 0.0}
high_lr = {"model.optim.lr": 7.5 * config.model.optim.lr}
changes = {"no-kl": no_kl, "high-lr": high_lr, "both": no_kl | high_lr}
if exercise == "live":
    name, settings = f"ppo-{change}", unbounded | changes[change]
    if critic_placement == "in-process":
        job = lab.branch("ppo", at=2, name=name, **settings)
    else:  # a branch runs in a single job
        job = lab.submit_ppo(
            critic_placement, name, **lab.conversations(), **{"model.seed": seed}, **own, **settings
        )
    original, broken = run, lab.run(f"ppo-{change}")
    display(JobPanel(broken, job))  # change the coefficient or the rate again while the run continues
else:
    job, broken = None, Recording(f"ppo-drawn-{change}", speed=600)
    original = Recording("ppo-drawn", speed=float("inf"))
monitor = Monitor(broken, job=job)
display(monitor)
await monitor

# %% [markdown]
# While a run is live, **Stop** saves a checkpoint and ends the run: press the button when an alarm appears. The next
# cell lists the alarms of the run, which are also in `alarms.jsonl` in the run folder.

# %%
for alarm in broken.alarms():
    print(f"step {alarm['step']}: {alarm['title']}\n  {alarm['meaning']}\n  → {alarm['control']}\n")
if not broken.alarms():
    print("The run raised no alarm.")

# %% [markdown]
# Compare the changed run with the original run: first their curves, then their last values together with the settings
# that differ. For curves with hover and zoom, use `from widgets import explore`, then `explore([original, broken])`.

# %%
curves(
    [original, broken],
    metrics=["train_rollouts/rewards", "train_rollouts/kl", "train_rollouts/generation_length"],
)

# %%
compare_runs([original, broken])

# %% [markdown]
# ### The branch not taken
#
# The two runs are a **pair**: they drew the same prompts with the same random numbers, so only the setting differs. In
# two unpaired runs the luck of the draw differs, too. How much does that matter? The problem of *PPO in seconds*, a
# **bandit** (one choice, then a reward), trains in milliseconds, so you can repeat an experiment twenty times: ten
# steps with $\beta = 0.1$ and ten steps with $\beta = 0.3$. How much more reward does the smaller penalty give?

# %%
expected = {
    beta: torch.stack([train_bandit(beta, seed, 10, 16).exp() @ reward_of_token for seed in range(20)])
    for beta in (0.1, 0.3)
}
differences = {
    "the same seed": expected[0.1] - expected[0.3],
    "another seed": expected[0.1] - expected[0.3].roll(1),
}
for name, difference in differences.items():
    above = int((difference > 0).sum())
    print(f"{name:14} {difference.mean():.4f} ± {difference.std():.4f}, above 0 in {above} of 20 experiments")

# %% [markdown]
# The mean effect is the same. With the same seed, its spread is an eighth as large, and each of the twenty experiments
# shows the right sign. With another seed, eight of twenty experiments say that the larger penalty is better. So a single
# pair of runs can show an effect of this size, and two unpaired runs cannot.
#
# The effect on real answers can be paired, too. Both runs answered the same held-out prompts. The difference between the two
# answers to a prompt leaves out how hard the prompt is. Without pairs, the variances of both runs add up:


# %%
def obeyed(run):
    """Whether each answer of a run's last validation obeys, by prompt; empty for answers that no program judges."""
    records = [record for record in run.rollouts() if record["split"] == "validation"]
    last = max(record["step"] for record in records)
    records = sorted((r for r in records if r["step"] == last), key=lambda r: r["group"])
    return torch.tensor([r["metrics"]["obeys"] for r in records if "obeys" in (r.get("metrics") or {})])


before, after = obeyed(original), obeyed(broken)
if len(before):
    paired = (after - before).std() / len(before) ** 0.5
    unpaired = ((before.var() + after.var()) / len(before)) ** 0.5
    print(f"effect on the share that obeys: {(after - before).mean():+.2f}")
    print(f"standard error: {paired:.3f} with pairs of answers, {unpaired:.3f} without")
else:
    print("No program judges the answers of this run: the profile laptop has prompts that a program checks.")

# %% [markdown]
# In the recorded runs with large steps, pairs narrow the standard error from 0.042 to 0.037, as 1.3 times as many prompts
# would. Pairing helps less here than in the bandit: once
# the policies differ, the same random numbers draw different answers.
#
# You can make a pair from any step of your own run. `lab.branch` shares the first steps with its parent and then goes on with other settings:
#
# ```python
# job = lab.branch("ppo", at=6, name="ppo-branch", **{"trainer.ppo.initial_policy_kl_penalty": 0.0})
# Monitor([run, lab.run("ppo-branch")], job=job)
# ```
#
# The form below the charts of your finished run does the same. The first answers after the fork are still equal, because
# the parent's policy draws them. Only then do the runs part.

# %%
Diagram("fork")

# %%
display(show_completions(broken, n=3, sort="reward", split="train"))
show_completions(broken, n=3, sort="worst", split="train")

# %% [markdown]
# PPO maximises the reward on training prompts. Now read the responses with the highest rewards. Which appeared first,
# the alarm or the strange texts?
#
# ### Two settings
#
# The next table compares the four recorded runs after twelve steps, on the same 256 held-out prompts. The runs started
# from the same policy, saw the same prompts in the same order, and used the same reward model. The names say which
# settings differ.

# %%
from aligner_lib.tutorial.comparison.over_optimisation import best_of_n_points, compare_at_step, ppo_points


def named_by_settings(recordings):
    """Recordings by their KL coefficient and learning rate."""
    named = {}
    for recording in (Recording(name, speed=float("inf")) for name in recordings):
        settings = recording.info["config"]
        coefficient = settings["trainer"]["ppo"]["initial_policy_kl_penalty"]
        named[f"KL {coefficient:g}, rate {settings['model']['optim']['lr']:g}"] = recording
    return named


compare_at_step(named_by_settings(["ppo-drawn", *(f"ppo-drawn-{name}" for name in changes)]))

# %% [markdown]
# Three lessons from twelve steps:
#
# - **Without a penalty** the share of good answers rises by 0.24 instead of 0.18. The paired difference is 0.06 (−0.02
#   to 0.14), which may be chance, and the intervals of the KL are too wide to compare the distances. In so few small
#   steps the policy finds no hack that these pairs leave open. A penalty is an insurance, and an insurance may cost
#   something.
# - **With large steps** the answers obey twice as often as before, 0.70, but 0.66 of them stay on the topic and they are
#   little more than half as long. *Obeys* alone would call this run the best one.
# - **With both**, the reward is as high as in the original run, and the answers are no better than those of the SFT
#   policy: 0.27 are good. Answers now contain every number that was asked for, and 0.02 of the requested last words.
#   The reward does not tell the two runs apart. The KL does, and its alarm sounds at step 5.

# %% [markdown]
# ### And with more steps?
#
# With an earlier sample of the pairs, 48 steps raised only what is paid. The reward rose to 1.42, and 0.41 of the answers
# ended with "I hope this helps.", though no prompt among them asked for this sentence. Other prompts do ask for such
# last words, so the reward model paid for them everywhere. The cure came into the pairs: today rejected answers have
# unasked closing remarks, too, and the program calls an answer with such a remark not *plain*.
#
# With today's pairs, the share of good answers rises in 48 steps at a rate of 5e-5 (`python notebooks/record.py --long`, 256
# held-out prompts):
#
# | seed | good, SFT | good, PPO | gain, 95 % interval | echoes | length |
# | --- | --- | --- | --- | --- | --- |
# | 1234 | {{long_1234.ppo.good_sft}} | {{long_1234.ppo.good_ppo}} | {{long_1234.ppo.good_gain}} ({{long_1234.ppo.good_gain_low}} to {{long_1234.ppo.good_gain_high}}) | {{long_1234.ppo.echo_sft}} → {{long_1234.ppo.echo_ppo}} | {{long_1234.ppo.length_ratio}} times |
# | 1 | {{long_1.ppo.good_sft}} | {{long_1.ppo.good_ppo}} | {{long_1.ppo.good_gain}} ({{long_1.ppo.good_gain_low}} to {{long_1.ppo.good_gain_high}}) | {{long_1.ppo.echo_sft}} → {{long_1.ppo.echo_ppo}} | {{long_1.ppo.length_ratio}} times |
# | 2 | {{long_2.ppo.good_sft}} | {{long_2.ppo.good_ppo}} | {{long_2.ppo.good_gain}} ({{long_2.ppo.good_gain_low}} to {{long_2.ppo.good_gain_high}}) | {{long_2.ppo.echo_sft}} → {{long_2.ppo.echo_ppo}} | {{long_2.ppo.length_ratio}} times |
#
# On one thread, too, the 12 steps of `laptop` gain {{seed_1234.ppo.good_gain}}, {{seed_1.ppo.good_gain}} and {{seed_2.ppo.good_gain}}. So 48 steps gain more
# with each seed. But rounding alone moved the gain of seed 1234 by as much, from 0.19 with two threads, so no difference is certain.
#
# The next hack is already visible. With seed 1, half of the requested last words stand in the wrong place: "Stars
# twinkle because of light from other stars. Have fun because the light travels faster than the heat." Such answers get
# a reward of 1.47 on average, and answers that obey get 1.18. The pairs hardly show this fault: 178 training pairs ask for
# last words, and only two of them reject an answer for the wrong place alone. The program does not call such answers
# good. How would you change the pairs?

# %% [markdown]
# ### How far, and for what?
#
# The reward model is a proxy for the instructions. The left chart shows the reward model's score, and the right chart
# shows the share of answers that obey their instruction: a program checks their form alone. Both use the distance from the SFT policy as the horizontal
# axis and show 95 % intervals.
#
# **Best of n** moves away from the SFT policy without any training: draw n answers and return the answer with the
# highest reward. The points come from 16 answers of the SFT policy to each of 32 of PPO's 64 held-out prompts, over
# every choice of n among the 16. The KL of best of n is at most $\log n - (n-1)/n$ ([08](08_compare.ipynb) derives the bound). The KL of a PPO run is measured on
# 32 answers to training prompts. The charts show three runs of PPO: the run of *With other pairs*, the
# same run with 7.5 times the learning rate, and the faster run without the KL penalty.

# %%
from widgets.figures.palette import pen

hacks = named_by_settings(["ppo-forms", "ppo-forms-high-lr", "ppo-forms-both"])
paths = {name: ppo_points(recording) for name, recording in hacks.items()}
paths["best of n"] = best_of_n_points(Recording("sft-forms-answers", speed=float("inf")))
figure, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharex=True)
for line, (name, points) in enumerate(paths.items()):
    style = {"color": pen(line).colour, "marker": pen(line).marker, "linestyle": pen(line).dash}
    x = [max(point.kl.value, 0.0) ** 0.5 for point in points]  # an estimate may be below 0
    for ax, measure in zip(axes, ("reward", "obeys")):
        figures = [getattr(point, measure) for point in points]
        bars = [
            [figure.value - figure.low for figure in figures],
            [figure.high - figure.value for figure in figures],
        ]
        ax.errorbar(
            x, [figure.value for figure in figures], bars, label=name, capsize=2, elinewidth=0.8, **style
        )
for ax, title in zip(axes, ("score of the reward model", "share of answers that obey")):
    ax.set(title=title, xlabel="√KL to the SFT policy (KL in nats a response)")
axes[0].legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# With best of n, both reward and obedience rise with n. Up to 16 answers, the reward model is a good guide. But an
# answer of best of 16 costs 16 generations, and an answer of PPO costs a single generation.
#
# The runs with the high learning rate are **over-optimised**, with and without the penalty: a penalty of 0.03 per nat
# cannot hold a policy that takes such large steps. After four steps, the first of the two runs wrote hardly more than
# the stop token. After eight steps, the two runs have the highest rewards of all runs, at about three times the KL of the
# original run after sixteen steps. Their answers obey about as often as the original run's. But an answer is good only if
# it also has words of its own: 0.02 and 0.03 of their answers are good, compared with 0.23 for the original run after
# sixteen steps and 0.25 before the training.
#
# How did the rewards rise? The policies repeat their instruction: "Your last sentence must be a question." The reward model likes answers that mention the instruction, and has never seen an answer that
# does only so. An echo can even obey, as the chart on the right shows: this check reads the form of an answer and not its
# words. No single number is enough. Read the samples.

# %% [markdown]
# ## What you learnt
#
# - Generate, score, estimate advantages, take a clipped step. The KL penalty limits how far the policy moves.
# - The reward is only the reward model's estimate. Read the completions.

# %% [markdown]
# ## Further reading
#
# - Schulman et al. 2017, [*Proximal policy optimization algorithms*](https://arxiv.org/abs/1707.06347): the clipped
#   objective.
# - Schulman et al. 2016, [*High-dimensional continuous control using generalized advantage
#   estimation*](https://arxiv.org/abs/1506.02438): GAE, with its bias and its variance.
# - Ouyang et al. 2022, [*Training language models to follow instructions with human
#   feedback*](https://arxiv.org/abs/2203.02155): PPO with a KL penalty on language models at scale.
# - Huang et al. 2024, [*The N+ implementation details of RLHF with PPO*](https://arxiv.org/abs/2403.17031): the
#   details that decide whether a run succeeds.
# - Zheng et al. 2023, [*Secrets of RLHF in large language models, part I: PPO*](https://arxiv.org/abs/2307.04964):
#   which metrics show a failing run.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("05")

# %% [markdown]
# Next: [06 · DPO](06_dpo.ipynb)
