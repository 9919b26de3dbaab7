# %% [markdown]
# # Evaluate
#
# Measure every policy of this tutorial on held-out prompts, state how uncertain the results are, and decide which
# policy improved.
#
# {{map}}
#
# | goal | a table of reward, win rate, KL, length and repetition of each policy, with intervals |
# | --- | --- |
# | needs | the policies of 03 and 05 to 07, the reward model of 04 (substitutes are used where they are missing) |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
start = "fresh"  # recorded: use a bundle's runs in place of missing runs
seed = 1234  # for the sampling
prompts = 64  # held-out conversations: more give narrower intervals
generations = 1  # answers to each prompt, each with its own random numbers
beside = ""  # folders of tutorial runs with other seeds, separated by commas, whose evaluations are pooled
judge_url = ""  # an OpenAI-compatible endpoint up to /v1, whose model judges the two-turn questions
judge_model = ""
judge_token = ""  # empty: the value of the variable JUDGE_KEY, which stays out of the executed notebook

# %%
from aligner_lib.tutorial import Diagram, Workspace, require_count

prompts, generations = require_count("prompts", prompts), require_count("generations", generations)
lab = Workspace(out, profile, dataset, start=start)

# %% [markdown]
# ## A fair comparison
#
# How can you compare policies fairly? All policies answer the same held-out prompts with the same random numbers. Most
# prompts are conversations, which the reward model judges, and with `laptop` a program as well. PPO was trained
# with this reward model and DPO was not, so a lower reward does not prove that DPO's answers are worse. The other prompts
# are all 30 held-out sums, which a program judges. Only GRPO was trained on sums, and never on these. The KL is measured to the SFT policy, so
# the KL of the SFT policy itself must be exactly 0.

# %%
Diagram("comparison")

# %%
POLICIES = {
    "downloaded": lab.model(),
    "SFT": lab.policy(),
    "DPO": lab.dpo_policy(),
    "GRPO": lab.grpo_policy(),
    "PPO": lab.ppo_policy(),
}
sums = 30
settings = lab.conversations() | {
    "evaluation.policies": POLICIES,
    "critic.pretrained_checkpoint.restore_from_path": lab.reward_model(),
    "model.environments.conversations.weight": float(prompts),
    "model.environments.sums.use": "sums",
    "model.environments.sums.weight": float(sums),
    "model.ppo.num_val_samples": prompts + sums,
    "model.ppo.val_rollout_micro_batch_size": min((prompts + sums) * generations, 512),  # bounds the memory
    "model.encoder_seq_length": 160,
    "evaluation.num_generations_per_prompt": generations,
    "model.seed": seed,
}

# %%
from aligner_lib.tutorial.comparison.evaluation import evaluate_policies, runs_of_seeds

runs = {name: lab.run(f"evaluate/{name}") for name in POLICIES}
runs_to_pool = runs_of_seeds(runs, beside)
job = lab.submit("evaluate", **settings)  # the job goes on while you read and write

# %% [markdown]
# ### While the policies answer: how sure is a win rate?
#
# Two policies answer $P$ prompts, $G$ times each. A win counts 1, a tie ½. The win rate $\bar w$ is the share of wins.
# How different could the win rate be with other prompts? Answers to the same prompt resemble each other, so the
# evidence consists of only $P$ numbers: the mean of each prompt. With $s$ for the standard deviation of these $P$
# means, the 95 % interval is
#
# $$ \bar w \pm 1.96 \, \frac{s}{\sqrt P} $$
#
# By hand: four prompts with shares 1, 1, 0, 1 give 0.75 ± 1.96 · 0.5 / 2, so from 0.26 to 1.24. Four prompts decide
# nothing.


# %% tags=["solution"]
def win_rate_interval(own, others):
    """The win rate, and its 95 % interval over draws of the prompts.

    own, others: float [P, G], scores of both policies' answers, where equal positions are compared → float [] three times: the
    rate, and the low and the high end of its interval. The standard deviation divides by P − 1.
    """
    wins = (own > others).float() + 0.5 * (own == others)
    prompt_means = wins.mean(dim=1)
    error = prompt_means.std() / len(prompt_means) ** 0.5
    rate = prompt_means.mean()
    return rate, rate - 1.96 * error, rate + 1.96 * error


# %%
import torch

from aligner_lib.tutorial import check, show_source

rate_check = check("win_rate_interval", win_rate_interval)
display(rate_check)

# %%
await job
for name, run in runs.items():
    mean = run.metrics()[-1]["evaluation_environments/conversations/reward"]
    print(f"{name:12} mean reward on conversations {mean:+.2f}")

# %% [markdown]
# ## Four prompts, all policies
#
# Read the answers before you count. A random draw selects four of the prompts. The seed of the draw is fixed, so nobody
# can choose the best prompts. With `laptop`, a program marks each part of a good answer with ✓ or ✗ (notebook 05
# explains the parts).

# %%
from widgets import SideBySide

evaluation = evaluate_policies(runs_to_pool, seed=20261125)
lab.record("08", evaluation.results())  # the report and the portfolio show this record
SideBySide(evaluation.drawn)

# %% [markdown]
# ## One table, one picture, one paragraph
#
# In the table, *right sums* comes from the sums, and every other row from the conversations.

# %%
display(evaluation.table)

# %%
display(evaluation.picture)

# %% [markdown]
# The picture compares each policy with SFT, prompt by prompt. A grey interval includes 0. What do the figures show, and
# what do they not show? A gain or a loss is shown only if its interval excludes 0:

# %%
print(evaluation.conclusion)

# %% [markdown]
# ### How to read the table
#
# - **In brackets** is a 95 % interval: in 95 of 100 draws of the prompts, the interval contains the true figure. Two policies
#   may differ although their intervals overlap: the interval of the gain decides. More answers to a prompt give a more precise figure
#   for the same prompt, but only more prompts give a more precise figure for prompts in general.
# - **gain** compares prompt by prompt. Where prompts that are easy for one policy are easy for the other, a gain is more
#   precise than the difference of two means.
# - **win rate** is the share of prompts where the policy's answer scores higher than SFT's. Judges prefer long answers,
#   so **win rate at equal length** uses a regression to remove the effect of length ([Dubois et al.
#   2024](https://arxiv.org/abs/2404.04475)). The table says *not identifiable* where no regression can separate the
#   effects: a policy wins everything, the lengths alone predict the winner, or a policy always writes more.
# - **KL per token** is the mean of $\log \pi - \log \pi_{ref}$ over the answers' tokens. **distinct 2** is the share of
#   different pairs among all pairs of neighbouring words. The share falls when a policy repeats itself.
# - **right sums** needs no reward model, because a program knows the answer. Only GRPO trained on sums (the random
#   `smoke` model gets no sum right, before and after).

# %% [markdown]
# ### What you should see
#
# With the laptop profile, on the prompts of notebook 05, PPO raised the share of good answers from
# {{laptop.ppo.good_sft}} to {{laptop.ppo.good_ppo}}. In this notebook {{laptop.dpo.good}} of DPO's answers and
# {{laptop.grpo.good}} of GRPO's are good (GRPO started from the downloaded model and learnt only sums), and the KL of PPO
# is {{laptop.ppo.kl_per_token}} nats per token. With a quarter of the prompts the intervals would be twice as wide. Another
# seed trains other policies: put the folders of runs with other seeds into `beside`, and the table pools them.

# %% [markdown]
# ### Your interval beside the library's
#
# The formula is good for many prompts. With few prompts it fails: the interval can reach beyond 1, and has no width where
# all prompts agree, as if nothing were uncertain. The library therefore uses Wilson's interval for shares
# and win rates, and Student's t for means and gains. Like your function, the library counts prompts and not answers
# ([how often each interval holds the truth](../docs/intervals.md)). Compare your interval with the win rate in the
# table above. Of four prompts that a policy wins all, your interval has no width, and the library's begins below one half.

# %%
scores = {}
for name in ("PPO", "SFT"):
    records = [record for record in runs[name].rollouts() if record["environment"] == "conversations"]
    records.sort(key=lambda record: record["group"])
    scores[name] = torch.tensor([float(record["reward"]) for record in records]).view(-1, generations)
rate, low, high = rate_check.function(scores["PPO"], scores["SFT"])
print(f"by the formula: PPO wins {rate:.2f} ({low:.2f} to {high:.2f})")

# %%
from aligner_lib.tutorial.comparison.statistics import mean_interval

show_source(mean_interval)

# %% [markdown]
# ## What is a gain made of?
#
# A reward model prefers answers that end, and answers that are right. If more answers end after PPO, the mean reward
# rises even when no single answer has improved. How much of a gain is improvement? Let $e$ be the share of answers that
# end, and $g$ the share of right answers among the ended answers. Right and wrong refer to ended answers only. Primes mark the values after training. Weight the changes of both
# shares with the mean rewards $\bar r$ *before* training. The change of $g$ concerns only the answers that end now, so $e'$
# multiplies it:
#
# $$ \underbrace{(e' - e)(\bar r_{ended} - \bar r_{cut})}_{\text{ended}} \; + \;
# \underbrace{e'(g' - g)(\bar r_{right} - \bar r_{wrong})}_{\text{gold}} \; + \; \text{rest} $$
#
# The rest is the increase of the reward among answers of the same kind. The rest can be real improvement, or properties
# that only the reward model likes. The split does not tell which. By hand: 4 of 10 answers ended before and 8 end now,
# and an end was worth 0.5. So the ended part of the gain is 0.4 · 0.5 = 0.2. (The method goes back to [Kitagawa
# 1955](https://doi.org/10.1080/01621459.1955.10501299).)


# %% tags=["solution"]
def gain_in_parts(rewards, ended, right):
    """The increase of the mean reward, split into three parts whose sum is the increase.

    rewards: float [2, N], before and after; ended, right: bool [2, N], where `right` counts only for answers that ended. Cut,
    wrong and right answers all occur before, and ended answers occur after → float [] three times: ended, gold, rest.
    """
    before, ends, is_right = rewards[0], ended[0], right[0]
    of_ending = before[ends].mean() - before[~ends].mean()
    of_being_right = before[ends & is_right].mean() - before[ends & ~is_right].mean()
    share = ended.float().mean(dim=1)
    gold = (ended & right).sum(dim=1) / ended.sum(dim=1)
    by_ending = (share[1] - share[0]) * of_ending
    by_gold = share[1] * (gold[1] - gold[0]) * of_being_right
    return by_ending, by_gold, rewards[1].mean() - rewards[0].mean() - by_ending - by_gold


# %%
parts_check = check("gain_in_parts", gain_in_parts)
display(parts_check)

# %% [markdown]
# Notebook 05 split PPO's gain in the same way, where a program could check obedience. The next cell uses six invented
# answers before and after training, in which all three parts occur:

# %%
rewards = torch.tensor([[0.0, 0.2, 0.4, 1.0, 0.2, 1.0], [0.1, 0.6, 1.0, 1.2, 0.6, 1.4]])
ended = torch.tensor([[0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]]).bool()
right = torch.tensor([[0, 0, 0, 1, 0, 1], [0, 0, 1, 1, 0, 1]]).bool()
ending, gold, rest = parts_check.function(rewards, ended, right)
print(
    f"gain {rewards[1].mean() - rewards[0].mean():.3f} = {ending:.3f} ended + {gold:.3f} gold + {rest:.3f} rest"
)

# %% [markdown]
# ## Better without training?
#
# Draw n answers and keep the answer with the highest reward. Best of n is a policy, too. How far is it from the policy that
# draws? Let $u$ be the share of the policy's answers that have a lower reward. For one drawn answer, $u$ is uniform between
# 0 and 1. For the best of n, the density of $u$ is $n\, u^{n-1}$, because the other $n - 1$ answers lie below. The KL is the
# mean of $\log (n\, u^{n-1})$ under this density, which is $\log n - (n-1)/n$: 0 for n = 1, and 1.20 nats for n = 8.
# Answers with equal rewards make the KL smaller, so this is an upper bound.
#
# Because n can grow without any training, best of n shows what happens to a policy that follows a reward model too far. The
# judge that chooses is called the **proxy**, and the score that people really want is called the **gold score**.


# %% tags=["solution"]
from math import log


def best_of_n(proxy, gold, n):
    """The mean proxy score and mean gold score of the proxy's best answers among n, and an upper bound of the KL in nats.

    proxy, gold: float [P, N], both judges' scores of N answers to each of P prompts; n: the number of answers to choose from,
    the first n → the mean proxy score and the mean gold score of the chosen answers, float [], and the bound, a float.
    """
    rows = torch.arange(len(proxy))
    best = proxy[:, :n].argmax(dim=1)
    return proxy[rows, best].mean(), gold[rows, best].mean(), log(n) - (n - 1) / n


# %%
import matplotlib.pyplot as plt

best_check = check("best_of_n", best_of_n)
display(best_check)

# %% [markdown]
# The next cell compares three proxies of the same gold score over 500 invented prompts: a proxy that equals the gold
# score, a proxy with added noise, and a proxy whose noise has heavy tails (a few answers fool the proxy completely).

# %%
seeded = torch.Generator().manual_seed(0)
gold = torch.randn(500, 256, generator=seeded)
noise = torch.randn(500, 256, generator=seeded)
proxies = {"gold itself": gold, "with noise": gold + noise, "with heavy tails": gold + 0.5 * noise**3}
figure, axes = plt.subplots(figsize=(7, 2.8))
for (name, proxy), color in zip(proxies.items(), ["#009E73", "#0072B2", "#D55E00"]):
    points = [best_check.function(proxy, gold, 2**k) for k in range(9)]
    axes.plot(
        [kl for *_, kl in points], [gold_score for _, gold_score, _ in points], "o-", label=name, color=color
    )
axes.set(
    xlabel="upper bound of the KL to the drawing policy (nats)", ylabel="gold score of the chosen answer"
)
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# With heavy tails, the gold score rises up to best of 8 and falls afterwards: best of 256 is worse than best of 2. The
# score of the proxy itself rises all the way and gives no warning. The effect is called over-optimisation ([Gao et al.
# 2023](https://arxiv.org/abs/2210.10760)).

# %% [markdown]
# ### Rejection sampling
#
# Best of n costs n answers for every question, for ever. Can a policy learn to give the best answer at once? Yes: draw
# n answers to each training prompt, keep the best answer, and run SFT on the kept answers. The method is called
# **rejection sampling** or RAFT; Llama 2 used it before PPO. Repeat the round with the new policy, and each round
# begins from better answers.
#
# SFT on the kept answers follows a policy gradient whose reward is 1 for a kept answer and 0 for any other: good
# answers become likelier. Two parts are missing. Bad answers push nothing away, and no KL penalty keeps the policy near
# the reference. The variety of the answers shrinks with every round, because each answer was likely already.
#
# What you gain is simplicity: the loss and the trainer are those of notebook 03, and no critic, reference or ratio is
# needed. The method is a good first step for a new task, and a baseline that PPO must beat with the same number of
# drawn answers.

# %% [markdown]
# ## Questions of two turns
#
# So far every prompt had a single answer. The next questions have the shape of MT-bench's: a second turn builds on the
# first answer, so a policy that forgets the first turn fails visibly. The reward model judges the last answer. With
# `judge_url`, a language model behind an OpenAI-compatible endpoint also judges, and reads the two answers in both
# orders.

# %%
import os

from aligner_lib.jobs.inference import answering, scoring
from aligner_lib.jobs.served import answering_at
from aligner_lib.tutorial.comparison.statistics import compare, mean_interval, win_rate
from aligner_lib.tutorial.comparison.two_turns import Judge, ask_in_turns, two_turn_questions

questions = two_turn_questions(2 if profile in ("smoke", "laptop") else None)
answer = {name: answering(policy) for name, policy in POLICIES.items()}
score = scoring(lab.reward_model())
dialogues = {name: ask_in_turns(answer[name], questions) for name in ("SFT", "PPO")}
scores = {
    name: [score(dialogue.prompt, dialogue.answers[1]) for dialogue in of_policy]
    for name, of_policy in dialogues.items()
}
for name, values in scores.items():
    print(f"{name}: mean reward of the second answer {mean_interval(values, range(len(values)))}")
print(f"PPO wins {win_rate(compare(scores['PPO'], scores['SFT']), range(len(questions)))} of the questions")
if judge_url:
    key = judge_token or os.environ.get("JUDGE_KEY", "")
    judge = Judge(answering_at(judge_url, key, max_length=512, model=judge_model, temperature=0))
    print(f"PPO against SFT, judged by {judge_model}: {judge.compare(dialogues['PPO'], dialogues['SFT'])}")
print(f"\n{dialogues['PPO'][0]}")

# %% [markdown]
# ## Ask the policies yourself
#
# The policies answer your prompts, and the reward model scores the answers. The reward can be wrong: try to find a
# question where the reward model prefers the worse answer.

# %%
from widgets import Chat

chat = Chat(answer, score)
for name, reply in zip(POLICIES, chat.ask("How can I make a friend feel better?")):
    print(f"{name} ({reply['reward']:+.2f}): {reply['text']}")
display(chat)

# %% [markdown]
# ## Which method for which task?
#
# | you have | begin with |
# | --- | --- |
# | good example answers | SFT |
# | a judge that is cheap to ask, and a first result today | best of n, or rejection sampling |
# | pairs that were compared once | DPO |
# | a program that checks the answer | GRPO |
# | a reward model, many prompts, and time to watch the run | PPO |
#
# Reinforcement learning is worth its cost if three conditions hold. The policy succeeds *sometimes*: a gradient needs
# good answers to compare with bad ones. Judging is easier than writing, as in mathematics, code or style. And the judge
# holds out against a policy that searches for its faults. If examples are what is missing, write examples. If the model
# lacks knowledge, no reward supplies it.
#
# Whichever method you take, begin with SFT, keep prompts that no training sees, and have a second judge that the
# training never asks.

# %% [markdown]
# ## What you learnt
#
# - The same prompts, random numbers and reward model make a comparison fair. Chance remains, and the interval shows how
#   much.
# - A figure without an interval is not evidence.
# - Look at reward, length and KL together. None of the three alone means "better".

# %% [markdown]
# ## Further reading
#
# - Zhou et al. 2023, [*Instruction-following evaluation for large language
#   models*](https://arxiv.org/abs/2311.07911): IFEval: instructions that a program can check.
# - Zheng et al. 2023, [*Judging LLM-as-a-judge with MT-bench and Chatbot Arena*](https://arxiv.org/abs/2306.05685):
#   model judges, and their preferences for position and length.
# - Dubois et al. 2024, [*Length-controlled AlpacaEval*](https://arxiv.org/abs/2404.04475): win rates at equal length.
# - Miller 2024, [*Adding error bars to evals*](https://arxiv.org/abs/2411.00640): paired differences and clustered
#   standard errors.
# - Gao et al. 2023, [*Scaling laws for reward model overoptimization*](https://arxiv.org/abs/2210.10760): why the
#   reward model must not judge the policy that it trained.
# - Dong et al. 2023, [*RAFT*](https://arxiv.org/abs/2304.06767): rejection sampling in rounds.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("08")

# %%
Quiz("final")

# %%
from aligner_lib.tutorial import write_portfolio

print(write_portfolio(lab.out / "portfolio.html", lab.out, name="").name, "has been written to", lab.out.name)

# %% [markdown]
# Next: [11 · RLHF in a hundred lines](11_capstone.ipynb), where you write the whole loop; [12 · your judge,
# attacked](12_attacked_judge.ipynb), where a policy looks for the holes of a reward that you wrote; [10 · the bug
# hunt](10_bug_hunt.ipynb), where you find what went wrong in fifteen runs; or [09 · scale out](09_scale_out.ipynb), on a cluster.
# You can also start again with another KL penalty: `lab.submit("ppo", name="ppo-free", **{"trainer.ppo.initial_policy_kl_penalty": 0})`
