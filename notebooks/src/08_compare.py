# %% [markdown]
# # Evaluate
#
# You measure every policy of this tutorial on held-out prompts, say how sure you are, and decide what was improved.
#
# {{map}}
#
# | goal | one table: reward, win rate, KL, length and repetition of each policy, with intervals |
# | --- | --- |
# | needs | the policies of 03 and 05 to 07, the reward model of 04 (substitutes are used where they are missing) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
seed = 1234  # of what is drawn
prompts = 5  # held-out ones, of each kind: more of them make narrower intervals
generations = 3  # answers to each prompt, each with random numbers of its own
judge_url = ""  # an OpenAI-compatible endpoint up to /v1, whose model judges the questions of two turns
judge_model = ""
judge_token = ""

# %%
from aligner_lib.tutorial.policies import compare_policies
from aligner_lib.tutorial.workspace import Workspace
from widgets import compare_completions

lab = Workspace(out, profile, dataset)

# %% [markdown]
# ## A fair comparison
#
# All policies answer the same held-out prompts with the same random numbers, several times each. Half of the prompts are
# conversations, which the reward model judges. It is PPO's own judge, and DPO has never met it: a lower reward of DPO's
# is no proof of worse answers. The other half are sums, which a program judges: only GRPO was trained on sums, and not on
# these. The KL is measured to the SFT policy, so the KL of the SFT policy itself must be exactly 0.

# %%
POLICIES = {
    "downloaded": lab.model(),
    "SFT": lab.policy(),
    "DPO": lab.dpo_policy(),
    "GRPO": lab.grpo_policy(),
    "PPO": lab.ppo_policy(),
}
conversations = str(lab.preference_data() / "test_prompts.jsonl")
settings = {
    "model.environments.conversations.use": "reward_model",
    "model.environments.conversations.args.prompts": {"train": conversations, "validation": conversations},
    "model.environments.sums.use": "sums",
    "model.ppo.num_val_samples": 2 * prompts,
    "model.ppo.val_rollout_micro_batch_size": 2 * prompts * generations,  # all at once
    "model.encoder_seq_length": 128,
    "evaluation.num_generations_per_prompt": generations,
    "model.seed": seed,
}
runs = {}
for name, policy in POLICIES.items():
    folder = f"evaluate-{name.lower()}"
    await lab.submit("evaluate", name=folder, **settings, **{"policy.restore_from_path": policy})
    runs[name] = lab.run(folder)

# %%
table = compare_policies(runs, against="SFT", environment="conversations")
display(table)

# %% [markdown]
# ### How to read it
#
# - **In brackets** is what the figure would be in 95 of 100 draws of the prompts. Two intervals that overlap widely don't
#   tell two policies apart, however far apart their means are. Several answers to a prompt sharpen the figure for that
#   prompt; only more prompts sharpen what is said of prompts in general.
# - **gain** compares prompt by prompt, so it is surer than the difference of two means.
# - **win rate** is the share of prompts where the policy's answer scores higher than SFT's. Judges like long answers:
#   **win rate at equal length** is what remains when a regression takes the lengths out
#   ([Dubois et al. 2024](https://arxiv.org/abs/2404.04475)).
# - **KL per token** is the mean of $\log \pi - \log \pi_{ref}$ over the answers' tokens. **distinct 2** is the share of
#   different ones among all pairs of words: it falls when a policy repeats itself.
#
# ### What you should see
#
# PPO's reward is higher than SFT's ({{laptop.ppo.val_reward_sft:+.2f}} to {{laptop.ppo.val_reward_ppo:+.2f}} on notebook
# 05's prompts), at {{laptop.ppo.kl_per_token}} nats of KL a token. With so few prompts the intervals are wide. A run of this
# project with `prompts = 16` (four minutes): PPO gained 0.35 (0.12 to 0.58) and won 0.60 (0.44 to 0.77) of its
# comparisons; at equal length 0.53 (0.14 to 0.78), so nobody knows. All of PPO's answers ended, in 18 tokens, and 0.54 of
# SFT's, in 33: that is much of what it was paid for. DPO gained 0.04 (−0.21 to 0.28).

# %% [markdown]
# ## Where a program knows the answer
#
# Nobody has to trust a reward model here. What does SFT, PPO or DPO do to a skill that they did not train? Each policy
# reads the sums as it has learnt to read: SFT and what came of it as `User:` and `Assistant:`, the others by the
# tokenizer's chat template. In the run with 16 prompts GRPO had 0.92 (0.81 to 1) of them right, the downloaded model 0.10
# (0.02 to 0.21), and the others no more.

# %%
on_sums = compare_policies(runs, against="SFT", environment="sums")
display(on_sums)

# %% [markdown]
# ## Prompt by prompt
#
# A mean can hide that a few answers improved a lot and others became worse. Each point is one answer.

# %%
import matplotlib.pyplot as plt

rewards = {
    name: [r["reward"] for r in run.rollouts() if r["environment"] == "conversations"]
    for name, run in runs.items()
}
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

# %% [markdown]
# ## Read them
#
# The reward model can be wrong. Read the answers to see whether they became better or only get a higher reward.

# %%
compare_completions(runs["SFT"], runs["PPO"], n=5, sort="gain")

# %% [markdown]
# ## Questions of two turns
#
# So far every prompt had one answer. These questions, in the shape of MT-bench's, have a second turn that builds on the
# first answer: a policy that loses the thread shows it here. The reward model judges the last answer. With `judge_url` a
# language model behind an OpenAI-compatible endpoint does, too, with both answers in either order.

# %%
from aligner_lib.jobs.inference import answering, scoring
from aligner_lib.jobs.served import answering_at
from aligner_lib.tutorial.statistics import compare, mean_interval, win_rate
from aligner_lib.tutorial.two_turns import Judge, ask_in_turns, two_turn_questions

questions = two_turn_questions(2 if profile in ("smoke", "laptop") else None)
answer = {name: answering(policy) for name, policy in POLICIES.items()}
score = scoring(lab.reward_model())
dialogues = {name: ask_in_turns(answer[name], questions) for name in ("SFT", "PPO")}
scores = {name: [score(one.prompt, one.answers[1]) for one in said] for name, said in dialogues.items()}
for name, values in scores.items():
    print(f"{name}: mean reward of the second answer {mean_interval(values, range(len(values)))}")
print(f"PPO wins {win_rate(compare(scores['PPO'], scores['SFT']), range(len(questions)))} of them")
if judge_url:
    judge = Judge(answering_at(judge_url, judge_token, max_length=512, model=judge_model, temperature=0))
    wins = [judge.compare(own, other) for own, other in zip(dialogues["PPO"], dialogues["SFT"])]
    print(f"{judge_model} says: PPO wins {win_rate(wins, range(len(wins)))}")
print(f"\n{dialogues['PPO'][0]}")

# %% [markdown]
# ## Ask them yourself
#
# The policies answer what you type, and the reward model scores the answers. Its reward can be wrong: try to find a
# question where it prefers the worse answer.

# %%
from widgets import Chat

chat = Chat(answer, score)
for name, said in zip(POLICIES, chat.ask("How can I make a friend feel better?")):
    print(f"{name} ({said['reward']:+.2f}): {said['text']}")
display(chat)

# %%
figures = table.figures
of_dpo = {"val_reward": figures["DPO"]["reward"].value, "kl_per_token": figures["DPO"]["kl_per_token"]}
of_ppo = {"kl_per_token": figures["PPO"]["kl_per_token"], "win_rate": figures["PPO"]["win_rate"].value}
lab.record(
    "08", {"ppo": of_ppo, "dpo": of_dpo, "evaluation": {"conversations": figures, "sums": on_sums.figures}}
)

# %% [markdown]
# ## What you learnt
#
# - With the same prompts, random numbers and reward model, any difference comes from training.
# - A figure without an interval is an anecdote.
# - Look at reward, length and KL together; none of them alone means "better".
#
# **Questions.** Why compare on held-out prompts? How would you notice that PPO only learnt to write longer answers?
#
# Start again with another KL penalty: `lab.submit("ppo", name="ppo-free", **{"trainer.ppo.initial_policy_kl_penalty": 0})`
