# %% [markdown]
# # DPO
#
# You train a policy on pairs directly, without a reward model, and set it beside the reward model and PPO.
#
# {{map}}
#
# | goal | a policy that prefers what people chose, from one training run instead of two |
# | --- | --- |
# | needs | the SFT policy of 03, the runs of 04 and 05 to compare with (substitutes are trained where they are missing) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process beside this kernel · slurm
lora = False  # True: adapters learn in place of all weights
seed = 1234  # of the order of the pairs and of what is drawn

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import Chat, Monitor, Pairs, curves

lab = Workspace(out, profile, dataset, where, lora)

# %% [markdown]
# ## Where is the reward?
#
# PPO looks for the policy with the highest reward $r$ at a price of $\beta$ for each nat of KL to the reference. The best
# such policy can be written down: $\pi(y|x) \propto \pi_{ref}(y|x)\, e^{r(x,y)/\beta}$. Read from right to left, every
# policy is the best one for some reward, its **implicit reward**
#
# $$ r(x, y) = \beta \log \frac{\pi(y|x)}{\pi_{ref}(y|x)} $$
#
# up to a term that all answers to a prompt share. Direct preference optimisation (DPO) puts it into the reward model's
# loss, $-\log \sigma(r_c - r_r)$: the policy is its own reward model.

# %%
import torch

from aligner_lib.algorithms.preference import PairLogprobs, dpo_loss

policy = PairLogprobs(chosen=torch.tensor([-12.0, -10.0, -16.0]), rejected=torch.tensor([-9.0, -11.0, -17.0]))
reference = PairLogprobs(chosen=torch.tensor([-12.0] * 3), rejected=torch.tensor([-9.0] * 3))
gains = policy.minus(reference)
for chosen, rejected, loss in zip(*gains, dpo_loss(gains, beta=0.1)):
    print(f"gain of the chosen one {chosen:+.0f}, of the rejected one {rejected:+.0f}: loss {loss:.4f}")

# %% [markdown]
# In the first row the policy is its reference, and the loss is $\ln 2 = 0.6931$, although the rejected answer is likelier:
# only gains count. The second and the third row have the same loss. In one the chosen answer became likelier; in the
# other **both became less likely**, the rejected one more so. The loss can't tell them apart.
#
# ## The run
#
# The pairs are those of the reward model. The prompt that both answers share is computed once.

# %%
from aligner_lib.config.compose import compose

config = compose("dpo", profile=profile)
beta = config.model.dpo.ref_policy_kl_penalty
print("steps        ", config.trainer.dpo.max_steps)
print("global batch ", config.model.global_batch_size, "pairs")
print("learning rate", config.model.optim.lr)
print("beta         ", beta)

# %%
job = lab.submit("dpo", **{"model.seed": seed})
monitor = Monitor(lab.run("dpo"), job=job)
display(monitor)
await monitor

# %% [markdown]
# ### What you should see
#
# A loss that begins at exactly 0.6931, and accuracy on held-out pairs of about {{laptop.dpo.val_acc}} with the laptop
# profile ({{smoke.dpo.val_acc}} with `smoke`): as often the chosen answer gained more than the rejected one. The margin,
# $r_c - r_r$, grows from 0 to about {{laptop.dpo.val_margin:.1f}} ({{smoke.dpo.val_margin:.1f}}).
#
# | you see | it means | change |
# | --- | --- | --- |
# | margin and accuracy rise, the KL grows slowly | healthy | |
# | the chosen answers' log-probability falls, too | usual: see below | `model.dpo.sft_loss_weight` up, if it falls far |
# | loss stays at 0.693 | the learning rate is too low | `model.optim.lr` up |
# | train loss near 0, validation loss rises | overfitting | fewer steps, `model.dpo.ref_policy_kl_penalty` up |
#
# With `lora = True` adapters learn, and the reference is the policy without them, so there is no second set of weights. From
# the downloaded model, in a run each, the margin grew to 1.4 with adapters and to 1.2 without, the KL to 0.07 and 0.02;
# the job had 2.3 GiB in place of 4.0.

# %%
run = lab.run("dpo")
curves(
    run,
    metrics=[["train/loss", "validation/loss"], ["train/acc", "validation/acc"], "validation/kl"],
)

# %% [markdown]
# ### Is it broken?
#
# This chart worries people: is the chosen answer becoming less likely, though it is the one to learn? Both lines jump up
# and down since every batch has other pairs; on the held-out ones, below, the change can be read. Two answers to one
# prompt share many of their words, so they move together, and the loss asks for a difference alone.

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
# Take a pair that the run has never seen. The log-probability of an answer is the sum over its tokens; the gain over the
# reference, times $\beta$, is the reward.

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
# A reward model gives one number for a whole answer. Here every token has a part in it, so one can look where the reward
# sits:

# %%
for side in ("chosen", "rejected"):
    print(f"{side:8} " + " ".join(f"{token}({beta * gain:+.2f})" for token, gain in gains[side]))
Pairs([pair], [(rewards["chosen"], rewards["rejected"])])

# %% [markdown]
# ## The same pairs, two ways
#
# What does each way need, and what does it cost? Seconds are those of the steps and validations of the runs, without
# the start of a process.

# %%
lab.ppo_policy()  # and with it the reward model, where the notebooks before were not run


def seconds(run) -> float:
    return sum(
        record.get("timers/step_time", 0) + record.get("timers/validation_time", 0)
        for record in run.metrics()
    )


def gigabytes(run) -> float:
    return sum(path.stat().st_size for path in run.latest_checkpoint().rglob("*.safetensors")) / 1e9


print(f"{'run':6}{'seconds':>9}{'checkpoint, GB':>17}   sets of weights at work")
for name, models in {
    "rm": "1: reward model",
    "ppo": "4: actor, reference, critic, reward model",
    "dpo": "2: policy, reference (1 with model.dpo.precompute_reference_logprobs=True)",
}.items():
    print(f"{name:6}{seconds(lab.run(name)):9.0f}{gigabytes(lab.run(name)):17.2f}   {models}")

# %% [markdown]
# ### What does each way give?
#
# On the held-out pairs the reward model and DPO's implicit reward can be asked the same question. (The pairs of `sample`
# are easy: they tell little about a model. On people's real preferences both are far below.)

# %%
rm, dpo = lab.run("rm").metrics()[-1], run.metrics()[-1]
figures = {
    "val_acc": dpo["validation/acc"],
    "val_margin": dpo["validation/rewards_chosen_mean"] - dpo["validation/rewards_rejected_mean"],
    "train_seconds": seconds(run),
}
print(f"held-out accuracy: reward model {rm['validation/acc']:.3f}, DPO {figures['val_acc']:.3f}")
print(f"margin of DPO's implicit rewards: {figures['val_margin']:.2f}")
lab.record("06", {"dpo": figures})

# %% [markdown]
# PPO learns from its own answers, which a reward model judges; DPO from answers that somebody else wrote, which are there
# beforehand. So DPO needs less, runs faster and has fewer ways to fail, and it never learns from a mistake of its own.
# What the policies answer, notebook 08 compares.
#
# Ask them:

# %%
chat = Chat({"SFT": answering(lab.policy()), "PPO": answering(lab.ppo_policy()), "DPO": answering(run.path)})
chat.ask(pair["prompt"])
display(chat)

# %% [markdown]
# ## Without pairs, without a reference
#
# The loss is a setting, `model.dpo.preference_loss`, and the rest stays as it is:
#
# | loss | when |
# | --- | --- |
# | `cdpo`, `robust` | some labels are wrong: the margin shall not grow without end for them |
# | `ipo` | few pairs: a margin is asked for, and no more |
# | `simpo`, `orpo` | no memory for a reference |
# | `kto` | no pairs: single answers that somebody found good or bad |
#
# Try one: `lab.submit("dpo", name="dpo-ipo", **{"model.dpo.preference_loss": "ipo"})`, and
# `compare_runs([lab.run("dpo"), lab.run("dpo-ipo")])` from `widgets`.
#
# ## What you learnt
#
# - A policy and its reference are a reward model: $\beta$ times the log of their ratio.
# - The loss sees the difference of two gains. Plot both log-probabilities, not only the margin.
#
# **Questions.** What does a larger $\beta$ do to the loss of the pair above? Why has the accuracy to be 0 before the first
# step? Which of PPO's four models does DPO keep?
#
# Next: [07 · GRPO](07_grpo.ipynb)
