# %% [markdown]
# # DPO
#
# Train a policy directly on pairs, without a reward model, and compare the result with the reward model and PPO.
#
# {{map}}
#
# | goal | a policy that prefers the answers that people chose, from a single training run instead of two |
# | --- | --- |
# | needs | the SFT policy of 03, the runs of 04 and 05 to compare with (substitutes are trained where they are missing) |
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
seed = 1234  # for the order of the pairs and the sampling

# %%
from aligner_lib.tutorial import Diagram, Workspace
from widgets import Chat, Monitor, Pairs, curves

lab = Workspace(out, profile, dataset, where, lora, start)

# %% [markdown]
# ## Where is the reward?
#
# Can a policy learn from pairs without a reward model? PPO searches for the policy with the highest reward $r$, at a
# cost of $\beta$ per nat of KL to the reference. The best policy has a formula, which 04b derives:
# $\pi(y|x) \propto \pi_{ref}(y|x)\, e^{r(x,y)/\beta}$. Solve the formula for $r$: every policy is the best policy for
# some reward, its **implicit reward**
#
# $$ r(x, y) = \beta \log \frac{\pi(y|x)}{\pi_{ref}(y|x)} $$
#
# up to a term that is equal for all answers to a prompt. A pair has a single prompt, so the term cancels in the difference of
# its two rewards. (Here $x$ is a prompt and $y$ an answer; 04b had a single prompt,
# and wrote $x$ for a response. The sign $\propto$ means "up to a constant factor".) Direct preference optimisation (DPO) inserts the implicit
# reward into the loss of the reward model, $-\log \sigma(r_c - r_r)$, where $\sigma$ is the sigmoid, and $r_c$ and $r_r$ are
# the rewards of the chosen and of the rejected answer. So the policy is its own reward model.
#
# By hand: take a response of two tokens with log-probabilities −1 and −2 under the policy, and −1.5 and −3 under the
# reference. The response has gained 1.5 nats. With $\beta = 0.1$ its implicit reward is 0.15.


# %%
Diagram("dpo")


# %% tags=["solution"]
def implicit_reward(logprobs, reference_logprobs, mask, beta):
    """The implicit reward of each response: the policy is the best policy for this reward.

    logprobs, reference_logprobs: float [B, S-1] in nats, of each token; mask: bool [B, S-1], True at response tokens; beta:
    float → float [B], with a gradient to logprobs.
    """
    return beta * ((logprobs - reference_logprobs) * mask).sum(dim=1)


# %%
import torch

from aligner_lib.tutorial import check, show_source

check("implicit_reward", implicit_reward)

# %% [markdown]
# Now insert the implicit rewards of a pair into the loss of the reward model, and you have DPO. By hand, with
# $\beta = 0.1$: the chosen response has gained 4 nats, from −12 to −8, and the rejected response 2 nats, from −10 to −8.
# The loss is 0.598. With a gain of 2 nats for both, it is $\ln 2$.


# %% tags=["solution"]
def dpo_losses(chosen, rejected, reference_chosen, reference_rejected, beta):
    """DPO's loss of each pair.

    chosen, rejected: float [B] in nats, log-probabilities of whole responses under the policy; reference_chosen,
    reference_rejected: float [B], under the reference; beta: float → float [B], with gradients to the first two.
    """
    margin = (chosen - reference_chosen) - (rejected - reference_rejected)
    return -torch.nn.functional.logsigmoid(beta * margin)


# %%
dpo_check = check("dpo_losses", dpo_losses)
display(dpo_check)

# %% [markdown]
# This is equation 7 of [the paper](https://arxiv.org/abs/2305.18290), with $y_c$ for the chosen and $y_r$ for the
# rejected response of a pair:
#
# $$ L = -\log \sigma\Bigl(\beta \log \frac{\pi(y_c|x)}{\pi_{ref}(y_c|x)} - \beta \log \frac{\pi(y_r|x)}{\pi_{ref}(y_r|x)}\Bigr) $$
#
# Compare your function with the library's:

# %%
from aligner_lib.algorithms.preference import dpo_loss

show_source(dpo_loss)

# %%
chosen, rejected = torch.tensor([-12.0, -10.0, -16.0]), torch.tensor([-9.0, -11.0, -17.0])
references = torch.full((3,), -12.0), torch.full((3,), -9.0)  # of the chosen and the rejected answers
losses = dpo_check.function(chosen, rejected, *references, 0.1)
for *gains, loss in zip(chosen - references[0], rejected - references[1], losses):
    print(
        "gain of the chosen answer {:+.0f}, of the rejected answer {:+.0f}: loss {:.4f}".format(*gains, loss)
    )

# %% [markdown]
# In the first row the policy equals its reference, so the loss is $\ln 2 = 0.6931$, even though the rejected answer is
# likelier: only gains over the reference count. The second and the third row have the same loss. In the second row the
# chosen answer became likelier. In the third row **both answers became less likely**, and the rejected answer lost
# more. The loss cannot distinguish the two cases.
#
# ## The run
#
# DPO draws from the same pairs as the reward model, but in so few steps it sees only a part of them. The prompt is
# shared by both answers of a pair, and is computed once.

# %%
from aligner_lib.config.compose import compose

config = compose("dpo", profile=profile)
beta = config.model.dpo.ref_policy_kl_penalty
print("steps        ", config.trainer.dpo.max_steps)
print("global batch ", config.model.global_batch_size, "pairs")
seen = config.trainer.dpo.max_steps * config.model.global_batch_size
available = sum(1 for _ in open(lab.preference_data() / "train_comparisons.jsonl")) // 2
print("passes       ", f"{seen / available:.2f} over {available} pairs")
print("learning rate", config.model.optim.lr)
print("beta         ", beta)

# %% [markdown]
# **Your code trains the model.** If your `dpo_losses` has passed its check, your function replaces the library's
# function ([how](../docs/your-code.md)), and gives the library's figures to the last digit.

# %%
own = {"loss": dpo_check.function} if dpo_check else {}
job = lab.submit("dpo", **{"model.seed": seed}, **own)
monitor = Monitor(lab.run("dpo"), job=job, branch=lab.branch)
display(monitor)

# %% [markdown]
# ### While it trains: which pairs move the policy?
#
# Let $d$ be the difference of the gains of a pair in nats: the gain of the chosen answer minus the gain of the rejected answer.
# The margin is $\beta d$, and the loss is $-\log \sigma(\beta d)$. How strongly a pair moves the policy is the size of the
# derivative of the loss with respect to $d$. Write the size as a function of $d$. By hand, with $\beta = 0.1$: all pairs start
# at $d = 0$ with the weight 0.05.


# %% tags=["solution"]
def pair_weights(differences, beta):
    """The size of the derivative of DPO's loss with respect to the difference of the gains.

    differences: float [B] in nats, the gain of the chosen answer minus the gain of the rejected answer; beta: float
    → float [B].
    """
    return beta * torch.sigmoid(-beta * differences)


# %%
weights_check = check("pair_weights", pair_weights)
display(weights_check)

# %%
for difference in (-40.0, -10.0, 0.0, 10.0, 40.0):
    weights = (weights_check.function(torch.tensor([difference]), beta).item() for beta in (0.05, 0.1, 0.5))
    print(f"difference {difference:+4.0f}   " + "   ".join(f"{weight:.4f}" for weight in weights))

# %% [markdown]
# The columns are $\beta = 0.05$, 0.1 and 0.5. A pair that the policy gets wrong by far keeps nearly the full weight, and a
# pair that the policy gets right by far has almost no weight left. With a large $\beta$, a difference of 10 nats is enough and the
# policy moves little in the same number of steps. With a small $\beta$, the pair pulls on. But unlike the KL coefficient
# of PPO, $\beta$ sets no limit: the weight of a pair is never 0, so with pairs that never contradict each other the loss
# falls for as long as the differences grow. The number of steps, the learning rate and contradicting pairs stop the policy.

# %%
await monitor

# %% [markdown]
# ### What you should see
#
# The loss starts at exactly 0.6931. The accuracy on held-out pairs reaches about {{laptop.dpo.val_acc}} with the laptop
# profile ({{smoke.dpo.val_acc}} with `smoke`). The accuracy is the share of pairs in which the chosen answer gained
# more than the rejected answer. The margin, $r_c - r_r = \beta d$, grows from 0 to about {{laptop.dpo.val_margin:.2f}}
# ({{smoke.dpo.val_margin:.1f}} with `smoke`).
#
# | you see | meaning | change |
# | --- | --- | --- |
# | margin and accuracy rise, the KL grows slowly | healthy | |
# | the log-probability of the chosen answers falls, too | usual, see below | `model.dpo.sft_loss_weight` up, if the fall is large |
# | loss stays at 0.693 | the learning rate is too low | `model.optim.lr` up |
# | train loss near 0, validation loss rises | overfitting | fewer steps, `model.dpo.ref_policy_kl_penalty` up |
#
# With `lora = True` only adapters learn. The reference is the policy without its adapters, so the job needs no second
# set of weights. Compare only the following figures with each other, because they come from
# earlier pairs (the sample `forms`), with one run each: the margin grew to {{lora.dpo.val_margin}} with adapters and to
# {{all_weights.dpo.val_margin}} without them, with an accuracy of {{lora.dpo.val_acc}} and {{all_weights.dpo.val_acc}}.
# The job needed 2.3 GiB instead of 4.0.

# %%
run = lab.run("dpo")
curves(
    run,
    metrics=[["train/loss", "validation/loss"], ["train/acc", "validation/acc"], "validation/kl"],
)

# %% [markdown]
# ### Is the run broken?
#
# The next chart worries many people: should the chosen answer become less likely, although the policy should learn to
# write the chosen answer? In the first panel both lines jump, because every batch contains different pairs. The second
# panel shows the change on held-out pairs. Two answers to the same prompt share many words, so their log-probabilities
# move together, and the loss asks only for a difference.

# %%
curves(
    run,
    metrics=[
        ["train/logprobs_chosen", "train/logprobs_rejected"],
        ["validation/logprobs_chosen", "validation/logprobs_rejected"],
        ["validation/rewards_chosen_mean", "validation/rewards_rejected_mean"],
    ],
)

# %% [markdown]
# ## The implicit reward, by hand
#
# Take a pair that the run has never seen. The log-probability of an answer is the sum over its tokens. The implicit
# reward is the gain over the reference, times $\beta$.

# %%

from aligner_lib.jobs.inference import answering, log_probability

(pair,) = Pairs(lab.preference_data() / "test_comparisons.jsonl").pairs[:1]
trained, started = log_probability(run.path), log_probability(lab.policy())
rewards, gains = {}, {}
for side in ("chosen", "rejected"):
    after, before = (logprobs(pair["prompt"], pair[side]) for logprobs in (trained, started))
    gains[side] = [(token, now - then) for (token, now), (_, then) in zip(after, before)]
    total, total_before = sum(value for _, value in after), sum(value for _, value in before)
    rewards[side] = beta * (total - total_before)
    print(f"{side:8}  {beta} · ({total:8.3f} − {total_before:8.3f}) = {rewards[side]:+.3f}")
margin = rewards["chosen"] - rewards["rejected"]
print(f"margin {margin:+.3f}, loss −log σ(margin) = {torch.tensor(1 + 2.718281828**-margin).log():.4f}")

# %% [markdown]
# A reward model gives a single number for a whole answer. The implicit reward is a sum over tokens, so you can see
# which tokens contribute most:

# %%
for side in ("chosen", "rejected"):
    print(f"{side:8} " + " ".join(f"{token}({beta * gain:+.2f})" for token, gain in gains[side]))
Pairs([pair], [(rewards["chosen"], rewards["rejected"])])

# %% [markdown]
# ## One file of pairs, two ways
#
# What does each way need, and how much does each cost? The table counts the seconds of the training steps and
# validations, without the start of the processes.

# %%
lab.ppo_policy()  # trains PPO and the reward model if notebooks 04 and 05 were not run


def seconds(run) -> float:
    return sum(
        record.get("timers/step_time", 0) + record.get("timers/validation_time", 0)
        for record in run.metrics()
    )


def megabytes(run) -> float:
    return sum(path.stat().st_size for path in run.latest_checkpoint().rglob("*.safetensors")) / 1e6


print(f"{'run':6}{'seconds':>9}{'checkpoint, MB':>17}   sets of weights in memory")
for name, models in {
    "rm": "1: reward model",
    "ppo": "4: actor, reference, critic, reward model",
    "dpo": "2: policy, reference (1 with model.dpo.precompute_reference_logprobs=True)",
}.items():
    print(f"{name:6}{seconds(lab.run(name)):9.0f}{megabytes(lab.run(name)):17,.1f}   {models}")

# %% [markdown]
# ### How accurate is each way?
#
# The reward model and DPO's implicit reward can judge the same held-out pairs. A coin is right on 0.5 of them, and the
# best simple rule of notebook 02 on {{laptop.rm.best_baseline}} ({{smoke.rm.best_baseline}} with `smoke`).


# %%
def last(run, metric) -> float:
    return run.series(f"validation/{metric}")[1][-1]


figures = {
    "val_acc": last(run, "acc"),
    "val_margin": last(run, "rewards_chosen_mean") - last(run, "rewards_rejected_mean"),
    "train_seconds": seconds(run),
}
print(f"held-out accuracy: reward model {last(lab.run('rm'), 'acc'):.3f}, DPO {figures['val_acc']:.3f}")
print(f"margin of DPO's implicit rewards: {figures['val_margin']:.2f}")
lab.record("06", {"dpo": figures})

# %% [markdown]
# PPO learns from its own answers, which a reward model scores. DPO learns from answers that were written before the training. So DPO needs fewer models, runs faster and has fewer
# ways to fail, but DPO never sees the mistakes that the policy makes during the training.
#
# The six steps of this notebook are few: in the recorded `laptop` run DPO was right on {{laptop.dpo.val_acc}} of the
# pairs, and the best simple rule on {{laptop.rm.best_baseline}}. With 192 steps, four times the learning rate, $\beta = 0.05$ and
# `model.dpo.sft_loss_weight=0.2` (`python notebooks/record.py --long`), DPO raised the share of good answers to the 256 prompts of notebook 05 from {{long_1234.dpo.good_sft}} to {{long_1234.dpo.good_dpo}} with seed 1234,
# from {{long_1.dpo.good_sft}} to {{long_1.dpo.good_dpo}} with seed 1, and from {{long_2.dpo.good_sft}} to
# {{long_2.dpo.good_dpo}} with seed 2. A separate run of 32 steps with seed 1 had 0.86 of the held-out pairs in the right order,
# and its mean reward rose from 0.30 to 0.64, but the share of good answers stayed at 0.36. This run learnt the
# order of pairs and wrote no better answers.
#
# Notebook 08 compares the answers of all policies. Ask the policies now:

# %%
chat = Chat({"SFT": answering(lab.policy()), "PPO": answering(lab.ppo_policy()), "DPO": answering(run.path)})
chat.ask(pair["prompt"])
display(chat)

# %% [markdown]
# ## Without pairs, without a reference
#
# DPO is a member of a family of losses. The setting `model.dpo.preference_loss` selects the loss, and the rest of the
# run stays the same:
#
# | loss | when |
# | --- | --- |
# | `cdpo` (conservative DPO) | some labels are wrong, so the margin should not grow without limit |
# | `robust` ([robust DPO](https://arxiv.org/abs/2403.00409)) | a known share of the labels is wrong: on average, the loss is that of the right labels |
# | `ipo` ([identity preference optimization](https://arxiv.org/abs/2310.12036)) | few pairs: the loss asks for a fixed margin and no more |
# | `simpo` ([simple preference optimization](https://arxiv.org/abs/2405.14734)), `orpo` ([odds ratio preference optimization](https://arxiv.org/abs/2403.07691)) | no memory for a reference |
# | `kto` ([Kahneman-Tversky optimization](https://arxiv.org/abs/2402.01306)) | no pairs, but single answers with the label good or bad |
#
# Try a loss with `lab.submit("dpo", name="dpo-ipo", **{"model.dpo.preference_loss": "ipo"})`, and compare with
# `compare_runs([lab.run("dpo"), lab.run("dpo-ipo")])` from `widgets`. The losses `ipo`, `simpo` and `orpo` take the mean
# over the tokens of an answer instead of the sum. So compare their accuracies with DPO's, but not their margins: a margin per token is
# much smaller than the margin of whole answers.
#
# ## What you learnt
#
# - A policy together with its reference is a reward model: the reward is $\beta$ times the log of their ratio.
# - The loss sees the difference of two gains. Plot both log-probabilities, not only the margin.

# %% [markdown]
# ## Further reading
#
# - Rafailov et al. 2023, [*Direct preference optimization*](https://arxiv.org/abs/2305.18290): the derivation in
#   full.
# - Azar et al. 2023, [*A general theoretical paradigm to understand learning from human
#   preferences*](https://arxiv.org/abs/2310.12036): IPO, and why DPO overfits pairs without noise.
# - Tunstall et al. 2023, [*Zephyr*](https://arxiv.org/abs/2310.16944): DPO as a recipe for a chat model.
# - Xu et al. 2024, [*Is DPO superior to PPO for LLM alignment?*](https://arxiv.org/abs/2404.10719): a comparison on
#   answers outside of the pairs.
# - Razin et al. 2024, [*Unintentional unalignment: likelihood displacement in direct preference
#   optimization*](https://arxiv.org/abs/2410.08847): why chosen answers may become less likely.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("06")

# %% [markdown]
# Next: [07 · GRPO](07_grpo.ipynb)
