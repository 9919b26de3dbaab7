# %% [markdown]
# # Compare
#
# You compare the policies of SFT, PPO and DPO on held-out prompts, and decide what was improved.
#
# {{map}}
#
# | goal | rewards, lengths, KL and completions of the policies, from the same random numbers |
# | --- | --- |
# | needs | the policies of 03, 05 and 06, the reward model of 04 (substitutes are used where they are missing) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"

# %%
from aligner_lib.tutorial.workspace import Workspace
from widgets import compare_completions

lab = Workspace(out, profile, dataset)

# %% [markdown]
# ## A fair comparison
#
# All policies answer the same held-out prompts, and responses are sampled with the same random numbers. The reward
# model scores them. It is PPO's own judge, and DPO has never met it: a lower reward of DPO's is no proof of worse
# answers. The KL is measured to the SFT policy, so the KL of the SFT policy itself must be exactly 0.

# %%
POLICIES = {"SFT": lab.policy(), "PPO": lab.ppo_policy(), "DPO": lab.dpo_policy()}
runs = {}
for name, policy in POLICIES.items():
    folder = f"evaluate-{name.lower()}"
    await lab.submit("evaluate", name=folder, **{"policy.restore_from_path": policy})
    runs[name] = lab.run(folder)

# %%
MEASURES = {
    "rewards": "reward",
    "rewards_std": "its spread",
    "generation_length": "tokens",
    "kl": "KL a token",
}
figures = {name: run.metrics()[-1] for name, run in runs.items()}
print(f"{'':12}" + "".join(f"{name:>10}" for name in runs))
for key, label in MEASURES.items():
    print(f"{label:12}" + "".join(f"{figures[name][f'evaluation/{key}']:10.3f}" for name in runs))

# %% [markdown]
# ### What you should see
#
# PPO's reward is higher by more than one standard deviation ({{laptop.ppo.val_reward_sft:+.2f}} to
# {{laptop.ppo.val_reward_ppo:+.2f}} with the laptop profile), at {{laptop.ppo.kl_per_token}} nats of KL a token: the mean of
# $\log \pi - \log \pi_{ref}$ over the response tokens, which notebook 05 plots for its training rollouts. A much longer
# answer for the same reward, or a KL far above that, is a warning.
#
# ## Prompt by prompt
#
# A mean can hide that a few answers improved a lot and others became worse. Each point is one prompt.

# %%
import matplotlib.pyplot as plt

rewards = {name: [record["reward"] for record in run.rollouts()] for name, run in runs.items()}
low, high = min(min(r) for r in rewards.values()), max(max(r) for r in rewards.values())
figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.4))
axes[0].plot([low, high], [low, high], color="0.8", zorder=0)
axes[0].scatter(rewards["SFT"], rewards["PPO"], color="#0072B2", s=18)
axes[0].set(xlabel="reward of the SFT answer", ylabel="reward of the PPO answer")
bins = [low + (high - low) * i / 16 for i in range(17)]
axes[1].hist([rewards["SFT"], rewards["PPO"]], bins=bins, label=["SFT", "PPO"], color=["#E69F00", "#0072B2"])
axes[1].set(xlabel="reward", ylabel="answers")
axes[1].legend(frameon=False)
plt.show()

# %%
wins = sum(p > s for s, p in zip(rewards["SFT"], rewards["PPO"])) / len(rewards["SFT"])
print(f"PPO's answer scores higher on {wins:.0%} of {len(rewards['SFT'])} prompts")

# %% [markdown]
# ## Read them
#
# The reward model can be wrong. Read the answers to see whether they became better or only get a higher reward.

# %%
compare_completions(runs["SFT"], runs["PPO"], n=5, sort="gain")

# %% [markdown]
# ## Ask them yourself
#
# The policies answer what you type, and the reward model scores the answers. Its reward can be wrong: try to find a
# question where it prefers the worse answer.

# %%
from aligner_lib.jobs.inference import answering, scoring
from widgets import Chat

chat = Chat({name: answering(policy) for name, policy in POLICIES.items()}, scoring(lab.reward_model()))
for name, said in zip(POLICIES, chat.ask("How can I make a friend feel better?")):
    print(f"{name} ({said['reward']:+.2f}): {said['text']}")
display(chat)

# %%
of_dpo = {"val_reward": figures["DPO"]["evaluation/rewards"], "kl_per_token": figures["DPO"]["evaluation/kl"]}
of_ppo = {"kl_per_token": figures["PPO"]["evaluation/kl"], "win_rate": wins}
lab.record("08", {"ppo": of_ppo, "dpo": of_dpo})

# %% [markdown]
# ## What you learnt
#
# - With the same prompts, random numbers and reward model, any difference comes from training.
# - Look at reward, length and KL together; none of them alone means "better".
#
# **Questions.** Why compare on held-out prompts? How would you notice that PPO only learnt to write longer answers?
#
# Start again with another KL penalty: `lab.submit("ppo", name="ppo-free", **{"trainer.ppo.initial_policy_kl_penalty": 0})`
