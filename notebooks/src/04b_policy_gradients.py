# %% [markdown]
# # Policy gradients from nothing
#
# Derive the update that PPO, GRPO and REINFORCE share, test every step of the derivation on a policy with eight possible
# responses, and see which problem each refinement solves.
#
# {{map}}
#
# | goal | to know where the policy gradient comes from, why it is noisy, why a baseline costs nothing, why RLHF needs a reference, and why PPO clips |
# | --- | --- |
# | needs | PyTorch and a little calculus; no model, and no earlier notebook |
# | downloads | nothing |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"  # every profile runs the same cells: nothing here needs a language model
out = "../runs/tutorial"
seed = 1234  # for the drawn responses

# %%
import matplotlib.pyplot as plt
import torch

from aligner_lib.tutorial import Diagram, Workspace, check

lab = Workspace(out, profile)  # notes the exercises and quizzes that you pass
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.6"

# %% [markdown]
# ## What should a policy maximise?
#
# A language model gives every response $x$ to a prompt a probability $\pi(x)$. A reward model gives every response a
# reward $r(x)$. A good policy draws responses with high rewards. So the objective is the **expected reward**: the mean
# reward of the responses that the policy draws.
#
# $$ J = \mathbb{E}_{x \sim \pi}\,[\,r(x)\,] = \sum_x \pi(x)\, r(x) $$
#
# To see every number, take a single prompt with eight possible responses. The parameters of the policy are eight
# logits, and the softmax of the logits gives the probabilities.

# %%
reward_of = torch.tensor([0.0, 0.2, 0.4, 1.0, 0.9, 0.1, 0.0, 0.3])
initial = torch.tensor([1.5, 1.0, 0.0, -1.5, 0.5, 0.0, 1.0, -1.0])


def expected_reward(logits):
    """The exact objective: the sum over all eight responses."""
    return (logits.softmax(-1) * reward_of).sum(-1)


print(
    f"expected reward of the initial policy: {expected_reward(initial):.3f}; the best response has {reward_of.max():.1f}"
)

# %% [markdown]
# With eight responses, PyTorch can differentiate the sum. The gradient says which logits should rise. Responses with a
# reward above the expected reward have a positive gradient, weighted by their probability.

# %%
logits = initial.clone().requires_grad_()
(exact,) = torch.autograd.grad(expected_reward(logits), logits)
print("reward  ", [f"{value:+.2f}" for value in reward_of.tolist()])
print("gradient", [f"{value:+.2f}" for value in exact.tolist()])

# %% [markdown]
# A language model has no such sum: a vocabulary of 49,152 tokens and 40 tokens per response give more responses than
# there are atoms. The policy can only *draw* some responses and score them. How can drawn responses give the gradient
# of an expectation? The reward itself has no gradient, because the reward model reads a finished text.

# %% [markdown]
# ## The log-derivative trick
#
# Only the probabilities depend on the parameters $\theta$. The derivative of a probability can be written as the
# probability times the derivative of its logarithm, because $\nabla \log \pi = \nabla \pi / \pi$:
#
# $$ \nabla J = \sum_x r(x)\, \nabla \pi(x) = \sum_x \pi(x)\; r(x)\, \nabla \log \pi(x)
# = \mathbb{E}_{x \sim \pi}\,[\, r(x)\, \nabla \log \pi(x)\,] $$
#
# The result is an expectation again, so the mean over drawn responses estimates the gradient. This estimate is called
# **REINFORCE** (Williams 1992). In words: make each drawn response likelier, in proportion to its reward.
#
# An optimizer needs a loss. Which mean over the responses has the gradient $-\frac{1}{N} \sum_i r_i \nabla \log \pi(x_i)$?


# %% tags=["solution"]
def reinforce_loss(logits, responses, rewards):
    """Minus the mean of reward times log-probability, whose gradient is minus REINFORCE's estimate.

    logits: float [V], the parameters; responses: int64 [N], the drawn responses, numbers below V; rewards: float [N]
    → float [], with a gradient to logits.
    """
    logprobs = logits.log_softmax(dim=-1)[responses]
    return -(rewards * logprobs).mean()


# %%
reinforce_check = check("reinforce_loss", reinforce_loss)
display(reinforce_check)

# %% [markdown]
# The value of this loss means little, because only the gradient of the loss was derived. So watch the rewards, and do not
# expect the loss to fall.
#
# Does the estimate agree with the exact gradient? The next cell draws 16, 256 and 16,384 responses. The points approach
# the bars, but slowly: an error ten times as small needs a hundred times as many responses.

# %%
draw = torch.Generator().manual_seed(seed)


def estimate(logits, count, shift=0.0):
    """REINFORCE's estimate of the gradient from `count` drawn responses, with `shift` added to every reward."""
    logits = logits.detach().clone().requires_grad_()
    responses = torch.multinomial(logits.detach().softmax(-1), count, replacement=True, generator=draw)
    loss = reinforce_check.function(logits, responses, reward_of[responses] + shift)
    return -torch.autograd.grad(loss, logits)[0]


figure, axes = plt.subplots(figsize=(7, 2.6))
axes.bar(range(8), exact, color="0.85", label="exact")
for count, colour in ((16, ORANGE), (256, GREEN), (16_384, BLUE)):
    axes.plot(
        range(8), estimate(initial, count), "o", color=colour, markersize=5, label=f"{count:,} responses"
    )
axes.set(xlabel="response", ylabel="gradient of its logit")
axes.legend(frameon=False, fontsize=8)
plt.show()

# %% [markdown]
# ## Does it learn?
#
# Now train: in each step draw four responses, score them, and take one step of gradient descent. The dashed line is the
# training with the exact gradient. Each of the ten thin lines is a training with other draws; the initial policy and the
# rewards are the same.

# %%
SEEDS, STEPS, RESPONSES, RATE = 10, 100, 4, 1.0


def train(loss_of, shift=0.0, updates=1):
    """The expected reward after each step of SEEDS trainings side by side: float [STEPS, SEEDS].

    loss_of(logits, responses, old_logprobs, rewards): the loss of the responses that one training has drawn. shift: added
    to every reward. updates: steps of gradient descent with the same responses.
    """
    logits, history = initial.repeat(SEEDS, 1).requires_grad_(), []
    for _ in range(STEPS):
        old = logits.detach().log_softmax(-1)
        responses = torch.multinomial(old.exp(), RESPONSES, replacement=True, generator=draw)
        drawn = list(zip(responses, old.gather(1, responses), reward_of[responses] + shift))
        for _ in range(updates):
            loss = sum(loss_of(row, *of_row) for row, of_row in zip(logits, drawn))
            (gradient,) = torch.autograd.grad(loss, logits)
            with torch.no_grad():
                logits -= RATE * gradient
        history.append(expected_reward(logits.detach()))
    return torch.stack(history)


# %%
def train_exactly():
    """The same with the exact gradient: float [STEPS]."""
    logits, history = initial.clone().requires_grad_(), []
    for _ in range(STEPS):
        (gradient,) = torch.autograd.grad(expected_reward(logits), logits)
        with torch.no_grad():
            logits += RATE * gradient
        history.append(expected_reward(logits.detach()))
    return torch.stack(history)


def draw_trainings(**panels):
    """A panel for each history, with the exact gradient's training dashed."""
    _, axes = plt.subplots(1, len(panels), figsize=(3.4 * len(panels), 2.6), sharey=True, squeeze=False)
    for ax, (title, history) in zip(axes[0], panels.items()):
        ax.plot(history, color=BLUE, alpha=0.4, linewidth=1)
        ax.plot(train_exactly(), "--", color="black", linewidth=1)
        ax.set(title=title.replace("_", " "), xlabel="step", ylim=(0, 1))
    axes[0][0].set_ylabel("expected reward")
    plt.show()


# %%
def without_baseline(logits, responses, old_logprobs, rewards):
    """REINFORCE's loss."""
    return reinforce_check.function(logits, responses, rewards)


plain = train(without_baseline)
draw_trainings(REINFORCE=plain)

# %% [markdown]
# All ten trainings learn, and stay close to the dashed line. Why do they end near 0.9, though the best response has the
# reward 1.0? The best response is rare at first, and the gradient weights each response by its probability. So the
# response with 0.9 becomes likelier, and the best response becomes even rarer. The dashed training, which draws
# nothing, ends there, too.
#
# Now add 5 to every reward. The constant does not change
# which response is best, and the exact gradient stays the same, because the probabilities always sum to 1. What do you
# expect from the drawn gradient?

# %%
shifted = train(without_baseline, shift=5.0)
draw_trainings(rewards_from_0_to_1=plain, rewards_from_5_to_6=shifted)

# %% [markdown]
# With rewards from 5 to 6, *every* drawn response is pushed up strongly, whether it is good or bad, and the responses that
# were drawn more often win. Some trainings therefore
# end with a bad response that happened to be drawn early, and hardly ever draw a better one. On average the estimate is
# still right, but its **variance** is far larger.

# %% [markdown]
# ## A baseline is free
#
# Subtract a number $b$ from every reward. How does the expectation change? The additional term is
# $-b\,\mathbb{E}[\nabla \log \pi(x)]$, and this expectation is 0:
#
# $$ \mathbb{E}_{x \sim \pi}[\nabla \log \pi(x)] = \sum_x \pi(x) \frac{\nabla \pi(x)}{\pi(x)} = \nabla \sum_x \pi(x)
# = \nabla 1 = 0 $$
#
# So any $b$ that does not depend on the drawn response leaves the gradient right on average. Such a number is called a
# **baseline**, and $r - b$ is called the **advantage**. A good baseline is close to the expected reward: then responses
# that are better than average become likelier, and the others become less likely.
#
# The mean of the drawn rewards is tempting, but it contains the response's own reward. The mean of the *other* rewards
# does not depend on the response. This leave-one-out baseline is unbiased, and the method is called RLOO.


# %% tags=["solution"]
def leave_one_out(rewards):
    """The advantage of each response: its reward minus the mean reward of all the others.

    rewards: float [N], N at least 2 → float [N].
    """
    count = len(rewards)
    others = (rewards.sum() - rewards) / (count - 1)
    return rewards - others


# %%
baseline_check = check("leave_one_out", leave_one_out)
display(baseline_check)


# %%
def with_baseline(logits, responses, old_logprobs, rewards):
    """REINFORCE's loss on advantages."""
    return reinforce_check.function(logits, responses, baseline_check.function(rewards))


draw_trainings(no_baseline=shifted, baseline=train(with_baseline, shift=5.0))

# %% [markdown]
# With the baseline, a constant in the rewards has no effect any more. How much of the noise is gone? The next cell
# repeats the estimate of the first step's gradient 2,000 times.


# %%
def noise(advantages_of):
    """The standard deviation of the estimated gradient from RESPONSES responses, over 2,000 repetitions and all logits."""
    policy, repetitions = initial.softmax(-1), 2000
    responses = torch.multinomial(policy.expand(repetitions, -1), RESPONSES, replacement=True, generator=draw)
    advantages = advantages_of(reward_of[responses])
    score = (
        torch.eye(8)[responses] - policy
    )  # ∇ log π(x) of a softmax: 1 at the response, minus the probabilities
    gradients = (advantages[..., None] * score).mean(1)
    return gradients.std(0).norm().item()


for name, advantages_of in {
    "rewards from 5 to 6": lambda rewards: rewards + 5,
    "rewards from 0 to 1": lambda rewards: rewards,
    "minus the others' mean": lambda rewards: torch.stack([baseline_check.function(row) for row in rewards]),
}.items():
    print(f"{name:24} standard deviation of the gradient {noise(advantages_of):.3f}")

# %% [markdown]
# The baseline removes the noise of the added constant. For rewards from 0 to 1 the baseline changes little, because
# the mean reward of the policy is about 0.2, so little is subtracted.
#
# A baseline may depend on anything but the drawn response. PPO's critic is a baseline that a model predicts for every
# token. GRPO's baseline is the mean reward of the responses to the same prompt, and this mean contains the response's own
# reward. For $N$ responses, each advantage is then $(N-1)/N$ times the leave-one-out advantage: the steps are smaller, and
# their direction is the same. Both baselines answer the same question: how much better was this response than expected?

# %%
Diagram("policy-gradient")

# %% [markdown]
# ## Why do rewards need a reference?
#
# The policies above put nearly all probability on one response. The maximum of the expected reward is always such a policy:
# all probability is on the best response. With a learned reward model, the best response under the *reward model* is often a
# strange text that the reward model has never seen. Reinforcement learning from human feedback (RLHF) therefore adds a
# penalty for moving away from a reference policy $\pi_{ref}$. The reference is the policy before reinforcement learning:
# a language model after supervised fine-tuning (SFT) on example answers. The penalty is the Kullback–Leibler divergence
# (KL), the mean of a difference of log-probabilities:
#
# $$ \max_\pi \; \mathbb{E}_{x \sim \pi}[r(x)] - \beta\, \mathrm{KL}(\pi \,\|\, \pi_{ref}),
# \qquad \mathrm{KL}(\pi \,\|\, \pi_{ref}) = \mathbb{E}_{x \sim \pi}\Bigl[\log \frac{\pi(x)}{\pi_{ref}(x)}\Bigr] $$

# %% [markdown]
# This problem has a solution in closed form. Write the objective as a single expectation and take out $-\beta$:
#
# $$ -\beta\; \mathbb{E}_{x \sim \pi}\Bigl[\log \frac{\pi(x)}{\pi_{ref}(x)} - \frac{r(x)}{\beta}\Bigr]
# = -\beta\; \mathbb{E}_{x \sim \pi}\Bigl[\log \frac{\pi(x)}{\pi_{ref}(x)\, e^{r(x)/\beta}}\Bigr] $$
#
# Divide the denominator by its sum $Z = \sum_x \pi_{ref}(x)\, e^{r(x)/\beta}$, so that it becomes a distribution
# $\pi^*$. The objective is then $-\beta\, \mathrm{KL}(\pi \,\|\, \pi^*) + \beta \log Z$. Only the first term depends on
# the policy. A KL is never below 0 (Gibbs' inequality), and a KL is 0 exactly for $\pi = \pi^*$:
#
# $$ \pi^*(x) = \frac{1}{Z}\, \pi_{ref}(x)\, e^{r(x)/\beta} $$


# %% tags=["solution"]
def optimal_policy(reference_logprobs, rewards, beta):
    """Log-probabilities of the policy that maximises the expected reward minus β times the KL to the reference.

    reference_logprobs: float [V], log-probabilities that sum to 1; rewards: float [V], one for each response; beta: above 0
    → float [V], log-probabilities that sum to 1.
    """
    return (reference_logprobs + rewards / beta).log_softmax(dim=-1)


# %%
optimum_check = check("optimal_policy", optimal_policy)
display(optimum_check)

# %%
reference = initial.log_softmax(-1)
figure, axes = plt.subplots(1, 4, figsize=(10, 2.2), sharey=True)
axes[0].bar(range(8), reference.exp(), color=GREY)
axes[0].set(title="reference", xlabel="response", ylabel="probability", xticks=range(8))
for ax, beta in zip(axes[1:], (1.0, 0.3, 0.05)):
    best = optimum_check.function(reference, reward_of, beta)
    kl = (best.exp() * (best - reference)).sum()
    ax.bar(range(8), best.exp(), color=BLUE)
    ax.set(
        xticks=range(8),
        title=f"β = {beta:g}: reward {(best.exp() * reward_of).sum():.2f}, KL {kl:.2f}",
        xlabel="response",
    )
    ax.title.set_fontsize(9)
plt.show()

# %% [markdown]
# A large β keeps the reference's shape. A small β follows the reward, but even β = 0.05 leaves two responses with
# rewards of 1.0 and 0.9 equally likely, because the reference prefers the second. The coefficient β is the price of one
# nat of KL in units of reward. (A *nat* is the unit of natural logarithms: the KL is the mean of $\log (\pi /
# \pi_{ref})$ over drawn responses.) In notebook 05 the same β is the coefficient of the KL penalty, and PPO on a
# problem like this one reaches $\pi^*$. In notebook 06 the formula is solved for the reward, $r(x) = \beta \log
# \frac{\pi^*(x)}{\pi_{ref}(x)} + \beta \log Z$, and becomes the loss of DPO.

# %% [markdown]
# ## May old responses be used again?
#
# Drawing responses is the most expensive part of a step for a language model. After one update, the drawn responses come
# from the *old* policy, and REINFORCE's derivation assumed draws from the present policy. **Importance weights** repair
# the expectation:
#
# $$ \mathbb{E}_{x \sim \pi}[f(x)] = \sum_x \pi_{old}(x) \frac{\pi(x)}{\pi_{old}(x)} f(x)
# = \mathbb{E}_{x \sim \pi_{old}}\Bigl[\frac{\pi(x)}{\pi_{old}(x)} f(x)\Bigr] $$
#
# With the ratio $\rho = \pi / \pi_{old}$ the objective is $\mathbb{E}_{old}[\rho\, A]$. Before the first update $\rho$ is
# 1, and the gradient of $\rho\, A$ is $A\, \nabla \log \pi$: REINFORCE again.


# %% tags=["solution"]
def off_policy_loss(logits, responses, old_logprobs, advantages):
    """Minus the mean of ratio times advantage: the loss of responses that an older policy drew.

    logits: float [V], the parameters; responses: int64 [N]; old_logprobs: float [N], log-probabilities of the responses
    under the policy that drew them; advantages: float [N] → float [], with a gradient to logits.
    """
    ratio = (logits.log_softmax(dim=-1)[responses] - old_logprobs).exp()
    return -(ratio * advantages).mean()


# %%
off_policy_check = check("off_policy_loss", off_policy_loss)
display(off_policy_check)

# %% [markdown]
# ## Why clip?
#
# The importance weight is right on average, but an average of four drawn responses is noisy, and large ratios add to the
# noise. The next cell trains with one update and with 20 updates on the same four responses. The third panel limits
# the ratio to the range from $1 - 0.2$ to $1 + 0.2$, as PPO's clipping does: a response that has moved so far in the
# direction of its advantage contributes no gradient any more. (Notebook 05 has PPO's own loss, with the same gradient.)


# %%
def not_clipped(logits, responses, old_logprobs, rewards):
    """Ratio times advantage."""
    return off_policy_check.function(logits, responses, old_logprobs, baseline_check.function(rewards))


def clipped(logits, responses, old_logprobs, rewards):
    """Ratio times advantage, without the responses that have moved too far in the direction of their advantage."""
    ratio = (logits.log_softmax(-1)[responses] - old_logprobs).exp()
    advantages = baseline_check.function(rewards)
    moves_on = torch.where(advantages > 0, ratio <= 1.2, ratio >= 0.8)
    return -(ratio * advantages * moves_on).mean()


draw_trainings(
    one_update=train(not_clipped),
    twenty_updates=train(not_clipped, updates=20),
    twenty_updates_clipped=train(clipped, updates=20),
)

# %% [markdown]
# Without a limit, 20 updates put nearly all probability on the best of the four responses of the first step. In some
# trainings the best of the four is a bad response, and the policy draws nothing else for a long time. Clipping limits how far one set of
# responses can move the policy. The clipped trainings learn faster than those with one update, because each drawn
# response is used more often, and none of them is lost.

# %% [markdown]
# ## From one token to many
#
# A response of a language model has many tokens, and its log-probability is the sum over its tokens:
# $\log \pi(x) = \sum_t \log \pi(x_t \mid x_{<t})$. So the gradient is a sum over tokens, too. Two facts make it less
# noisy:
#
# - A token cannot change what was written before it. Earlier rewards are fixed when the token is drawn, as a baseline is, so
#   their products with the token's $\nabla \log \pi$ have the expectation 0. Each token is therefore weighted only by the
#   rewards *from this token on*.
# - The expected reward depends on the text so far. A **critic** predicts the expected reward at each token, and serves as the baseline.
#
# Notebook 05 puts these pieces together. The KL penalty becomes a reward of each token, a method called GAE turns
# rewards and the critic's values into advantages, and the clipped ratio becomes PPO's loss.

# %% [markdown]
# ## Further reading
#
# - Williams 1992, *Simple statistical gradient-following algorithms*: REINFORCE and the baseline.
# - Sutton et al. 1999, *Policy gradient methods for reinforcement learning with function approximation*: the theorem for
#   many steps, and the critic.
# - Schulman et al. 2017, [*Proximal policy optimization algorithms*](https://arxiv.org/abs/1707.06347): the clipped ratio.
# - Ziegler et al. 2019, [*Fine-tuning language models from human preferences*](https://arxiv.org/abs/1909.08593): the KL
#   penalty to a reference, for language models.
# - Ahmadian et al. 2024, [*Back to basics*](https://arxiv.org/abs/2402.14740): the leave-one-out baseline in RLHF.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("04b")

# %% [markdown]
# Next: [05 · PPO](05_ppo.ipynb)
