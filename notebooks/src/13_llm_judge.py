# %% [markdown]
# # A model as judge
#
# Write a rubric, measure how well a language model judges by the rubric, and see what a policy learns from a judge that
# was never measured.
#
# {{map}}
#
# | goal | a judge whose agreement with you is known before a policy is trained on the judge |
# | --- | --- |
# | needs | notebooks [04](04_reward_model.ipynb) and [07](07_grpo.ipynb): what a judge is for, and GRPO |
# | time for you | 60 to 75 minutes, 20 of them for your labels |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
seed = 1234  # for the order of the prompts and the sampling
judge = "recorded"  # recorded: this project's verdicts · live: the profile's model on this machine · a URL
judge_model = ""  # only for a URL: the model's name there
exercise = "recorded"  # recorded: a run of this project plays · live: the policy trains on the judge

# %%
from aligner_lib.tutorial import Diagram, Workspace, check, require_one_of
from widgets import Monitor, Recording, curves

require_one_of("exercise", exercise, "recorded", "live")
lab = Workspace(out, profile, dataset, where)

# %%
Diagram("measured-judge")

# %% [markdown]
# ## Your labels
#
# A judge is useful if its verdicts equal yours. So your verdicts come first. The next cell shows forty answers of
# recorded policies to prompts that ask a question and request a form (a word, a number, the first or the last words).
# A **good** answer does everything: the answer has the requested form, is about the question, uses its own words, ends,
# and carries nothing that the user did not request. Facts do not count here, because a model of this size knows few.
#
# Read all forty before you see any score. Whoever sees the judge's score first agrees with the judge too often.

# %%
from aligner_lib.tutorial.judging.labelled import labelled_answers

answers = labelled_answers()
for number, (turn, answer, *_) in enumerate(answers, 1):
    print(f"{number:2}  {turn}\n      {answer}\n")

# %% [markdown]
# Write the numbers of the good answers into `good_numbers`. Without your numbers, the labels of this project's reader
# take their place. The reader is a large language model and no person, and saw neither the policy nor the score of any
# program. Twenty of the forty answers are good by construction: the forty were drawn from a hundred labelled answers, of
# which 26 are good.

# %%
from aligner_lib.tutorial.comparison.statistics import area_under_curve, cohens_kappa, share
from aligner_lib.tutorial.judging.labelled import labels_of

good_numbers = ""  # such as "2, 3, 6"
labels = labels_of(answers, good_numbers)
everyone = range(len(answers))
reader = labels_of(answers, "")
print(sum(labels), "of", len(labels), "answers are good")
print("you and the reader agree on", sum(a == b for a, b in zip(labels, reader)), "of", len(labels))

# %% [markdown]
# Your agreement with the reader shows how noisy such labels are. If two equally careful people disagree on every fifth answer,
# each errs on a ninth (if their errors are independent), and a perfect judge agrees with either on 0.89 of the answers, not on all.
#
# ## A rubric
#
# A **rubric** is a list of criteria with weights. The judge decides each criterion alone, and the reward is the weighted
# mean of the decisions. Single criteria are easier to decide than "is the answer good?", and they show why an answer
# lost. Our rubric has two:

# %%
from aligner_lib.tutorial.judging.rubric import RUBRIC

for criterion, weight in RUBRIC.items():
    print(f"weight {weight}  {criterion}")

# %% [markdown]
# The judge is the environment `judge` ([all settings](../docs/environments.md)): a model behind an endpoint that speaks
# OpenAI's protocol, as vLLM, Ollama and `aligner serve` do. With `judge = "live"`, the next cell starts a server with
# the model of your profile. The recorded verdicts are those of SmolLM2-135M-Instruct, the downloaded model of notebook 01.
# Your own criteria and weights, as `RUBRIC = {...}` above the loop, judge the answers and the policy. They need `"live"` or
# a URL, because the recording has only the verdicts for this rubric.

# %%
from aligner_lib.rollouts.environments.registry import make
from aligner_lib.tutorial.judging.rubric import write_turns
from aligner_lib.tutorial.judging.served import PrintedProgress, endpoint_of

endpoint = endpoint_of(judge, judge_model or lab.model_name, lab.out)
turns = write_turns([answer.turn for answer in answers], lab.out / "data" / "judged.jsonl")


def judge_with(rubric, prompts=turns, **options):
    """The environment of a judge. Prompt number i is line i of the file."""
    of_splits = {"train": prompts, "validation": prompts}
    environment = make("judge", prompts=of_splits, rubric=rubric, **endpoint.args() | options)
    environment.endpoint.on_answer = PrintedProgress()
    return environment


by_rubric = judge_with(RUBRIC, verdict="logprobs")
print(by_rubric.weights)

# %% [markdown]
# ### What the judge reads
#
# Here is the request for the first criterion of the first answer. The judge gets the conversation, the answer and a
# single question.

# %%
requests = by_rubric.rubric_requests(by_rubric.records[0], answers[0].answer)
print(requests[0][0]["content"])

# %% [markdown]
# ### A verdict from probabilities
#
# A large model would write a sentence and then its points. Does a model of 135 million parameters keep to such a form?
# With a live judge, the next cell requests verdicts in words for three answers, and prints what the environment makes of
# the texts.

# %%
if judge == "recorded":
    print("verdicts in words need judge = 'live' or a URL")
else:
    in_words = judge_with(RUBRIC, max_tokens=96)
    for step in in_words.step_all(range(3), [answer.answer for answer in answers[:3]]):
        print(step, "\n")

# %% [markdown]
# In a trial with SmolLM2-135M-Instruct, none of three texts had points for each criterion, so no answer had a reward. An answer
# without a verdict is left out of the training and counted. A reward of 0 would be a lie: the answer may be good.
#
# A small judge can still have an opinion. The environment asks for one word, Yes or No, and reads the probabilities of
# the *first token* instead of the text. With $p(\text{Yes})$ and $p(\text{No})$, summed over spellings such as " yes",
# the points of the criterion are
#
# $$ \frac{p(\text{Yes})}{p(\text{Yes}) + p(\text{No})} $$
#
# The division leaves out all other words. By hand: if Yes has 0.3 and No has 0.1, the points are 0.75, although the
# remaining 0.6 went to other words. With `verdict: logprobs`, a request costs one token. An answer has no verdict if neither
# word is among the likeliest tokens, or if the judge does not answer; the next cells then stop with the judge's reason.

# %%
import json
from math import exp

from aligner_lib.rollouts.environments.judge import probability_of
from aligner_lib.tutorial.judging.verdicts import require_verdicts

(first_tokens,) = require_verdicts(by_rubric.endpoint.ask(requests[:1]))
for token, logprob in json.loads(first_tokens).items():
    print(f"{token!r:12} {exp(logprob):.4f}")
(points,) = require_verdicts([probability_of(first_tokens, "yes", "no")])
print(f"points: {points:.3f}")

# %% [markdown]
# Now all forty answers get their scores. The picture has the good answers above and the others below.

# %%
import matplotlib.pyplot as plt

steps = require_verdicts(by_rubric.step_all(everyone, [answer.answer for answer in answers]))
scores = [step.reward for step in steps]
figure, axes = plt.subplots(figsize=(7, 1.8))
for place, is_good in enumerate((False, True)):
    own = [score for score, label in zip(scores, labels) if label == is_good]
    axes.plot(own, [place] * len(own), "o", alpha=0.5, color="#0072B2" if is_good else "#D55E00")
axes.set(xlabel="the judge's score", yticks=[0, 1], yticklabels=["others", "good"], ylim=(-0.6, 1.6))
plt.show()

# %% [markdown]
# ## Agreement
#
# How well does the judge agree with you? Three figures answer the question, and each of them hides a trap.
#
# **Accuracy** is the share of equal verdicts. The trap: if nine of ten answers are bad, a judge that always says no is
# right in nine of ten cases.
#
# **Cohen's kappa** corrects the accuracy for chance. Let the judge say yes with the share $y$, and let the reader find the
# share $g$ good. If the two were independent, both would say yes with probability $yg$ and both no with $(1-y)(1-g)$,
# so they would agree by chance in
#
# $$ e = yg + (1 - y)(1 - g) $$
#
# With the observed agreement $o$, kappa is the part of the possible gain over chance that the judge reaches:
#
# $$ \kappa = \frac{o - e}{1 - e} $$
#
# By hand: ten answers, of which 5 are good. The judge says yes to 7, and 4 of these are good. So 4 good
# answers get a yes and 2 bad answers get a no, and $o = 0.6$. By chance $e = 0.7 \cdot 0.5 + 0.3 \cdot 0.5 = 0.5$,
# and $\kappa = 0.2$.


# %% tags=["solution"]
import torch


def kappa(verdicts, labels):
    """The agreement that chance explains, and Cohen's kappa.

    verdicts, labels: bool [N], not all equal → expected agreement and kappa, float [] each.
    """
    yes, good = verdicts.float().mean(), labels.float().mean()
    expected = yes * good + (1 - yes) * (1 - good)
    observed = (verdicts == labels).float().mean()
    return expected, (observed - expected) / (1 - expected)


# %%
kappa_check = check("kappa", kappa)
display(kappa_check)

# %% [markdown]
# Accuracy and kappa need a threshold above which a score counts as yes. GRPO never uses a threshold: a policy is paid for
# *differences* of scores. The third figure needs no threshold either. The **AUC** (the area under the ROC curve) is the share of all pairs of a good and a bad answer in which the good answer has the higher
# score. Scores without any information have 0.5, a perfect judge has 1. The trap: the AUC here compares answers to
# *different* prompts, and GRPO compares answers to the *same* prompt.
#
# By hand: good answers with the scores 3 and 1, bad answers with 2 and 0. Three of the four pairs are right, so the AUC is
# 0.75.


# %% tags=["solution"]
def auc(scores, labels):
    """The share of pairs of a good and a bad answer in which the good answer has the higher score. A tie counts half.

    scores: float [N]; labels: bool [N], True for good, with both values → float [].
    """
    good, bad = scores[labels][:, None], scores[~labels][None]
    return ((good > bad) + 0.5 * (good == bad)).float().mean()


# %%
auc_check = check("auc", auc)
display(auc_check)

# %% [markdown]
# ### Beside trivial judges
#
# A figure alone says little. Which AUC would a judge reach that cannot read? Compare with a constant, with the number of
# words, and with two judges of the earlier notebooks: the gold program of notebook 05, and your reward model of notebook
# 04 if you have trained one. The threshold of the rubric is 0.5, where Yes and No are equally likely. The
# constant and the program have the same threshold; for all other scores it is their median. Brackets hold 95 % intervals; they are wide, because forty answers are few.

# %%
from statistics import median

from aligner_lib.tutorial.comparison.policies import PolicyComparison
from aligner_lib.tutorial.judging.labelled import gold_verdicts

words = [len(answer.answer.split()) for answer in answers]
judges = {
    "rubric": (scores, 0.5),
    "rubric, median": (scores, median(scores)),
    "constant": ([1.0] * len(answers), 0.5),
    "length": (words, median(words)),
    "gold program": (gold_verdicts(answers), 0.5),
}
if lab.run("rm").latest_checkpoint() and lab.run("rm").info.get("profile") == profile != "smoke":
    from aligner_lib.jobs.inference import scoring

    texts = [(f"User: {answer.turn}\n\nAssistant:", answer.answer) for answer in answers]
    rewards = scoring(lab.reward_model()).of_all(texts)
    judges["reward model"] = (rewards, median(rewards))

# %%
figures = {}
for name, (values, threshold) in judges.items():
    verdicts = [value > threshold for value in values]
    figures[name] = {
        "accuracy": share([float(a == b) for a, b in zip(verdicts, labels)], everyone),
        "kappa": cohens_kappa(verdicts, labels, everyone),
        "AUC": area_under_curve(values, labels, everyone),
    }
PolicyComparison("forty answers; 95 % intervals in brackets", figures)

# %% [markdown]
# ### What you should see
#
# With the reader's labels, the rubric reaches an AUC of 0.62, and the interval from 0.43 to 0.78 includes the 0.5 of
# chance. With all hundred labelled answers, the AUC is 0.64 (0.502 to 0.755): the judge is hardly better than chance.
# At the threshold 0.5 the judge says yes to 37 of the forty answers, and kappa is −0.05. The scores lie between 0.40 and
# 0.73, so the threshold decides nearly everything. At the median, kappa is 0.10.
#
# No connection between the number of words and good answers is shown (AUC 0.44, 0.27 to 0.63). The gold program agrees with the
# reader on 35 of the forty answers and has a kappa of 0.75 (0.46 to 0.90). So the task can be judged, and this judge
# cannot do it. To halve an interval, label four times as many answers.
#
# ## Position
#
# Judges are also asked to compare: which of two answers to the same prompt is better? A comparison is easier than a score,
# because the judge sees both answers. But the answers stand in an order, and the order can decide. Here is the request for a
# held-out pair of a better and a worse answer (the gold program decided which is better):

# %%
from aligner_lib.tutorial.judging.labelled import held_out_pairs
from aligner_lib.tutorial.judging.verdicts import record_of, wins_of

pairs = held_out_pairs()
by_comparison = judge_with(RUBRIC, verdict="logprobs", compare=True)
print(by_comparison.comparison_request(record_of(pairs[0].turn), *pairs[0][1:])[0]["content"])
((first, second),) = wins_of(by_comparison, pairs[:1])
print(
    f"\nA wins with probability {first:.2f}; with both answers exchanged, A wins with probability {second:.2f}"
)

# %% [markdown]
# A judge without a preference for a place would give two probabilities whose sum is 1. How do we get a verdict that does not
# depend on the place? Ask in both orders. Let $f$ be the probability of the first place with answer 1 in front, and
# $s$ the probability of the first place with answer 2 in front. In the second order, answer 1 wins with probability
# $1 - s$. The mean of both orders is the win of answer 1:
#
# $$ w = \frac{f + (1 - s)}{2} $$
#
# A judge that likes the first place adds the same amount to $f$ and to $s$, and the amount cancels. A pair is **swayed by
# the order** if the same place wins twice: $f$ and $s$ are both above one half, or both below. By hand: with $f = 0.9$ and
# $s = 0.6$, answer 1 wins by 0.65, and the pair is swayed.


# %% tags=["solution"]
def both_orders(first, second):
    """The win of answer 1 in each pair, and the share of pairs that are swayed by the order.

    first, second: float [N], the probability that the first place wins, with answer 1 in front and with answer 2 in front →
    wins, float [N] from 0 to 1, and a share, float [].
    """
    swayed = (first - 0.5) * (second - 0.5) > 0
    return (first + 1 - second) / 2, swayed.float().mean()


# %%
orders_check = check("both_orders", both_orders)
display(orders_check)

# %% [markdown]
# How much does the second order help? Take 500 invented pairs and a judge whose taste for the first place you know. The
# judge knows the better answer in most pairs, and adds a constant to the log-odds of the first place:

# %%
seeded = torch.Generator().manual_seed(0)
knows = 0.8 + torch.randn(500, generator=seeded)  # log-odds for the better answer
for place in (0.0, 1.0, 3.0):
    better_first, worse_first = torch.sigmoid(knows + place), torch.sigmoid(place - knows)
    wins, swayed = orders_check.function(better_first, worse_first)
    parts = [(better_first > 0.5), (worse_first < 0.5), (wins > 0.5)]
    shares = "  ".join(f"{part.float().mean():.2f}" for part in parts)
    print(
        f"taste {place:.0f}: right with better first, worse first, both orders: {shares}; swayed {swayed:.2f}"
    )

# %% [markdown]
# With a strong taste, the judge looks perfect if the better answer always stands first, and useless if the better answer
# stands second. Both orders give the same accuracy for every taste: the taste pulls $w$ towards one half, but never to the
# other side. But a swayed pair carries little information: its $w$ is near one half. With a live judge, the next cell compares forty pairs in both orders. A point on the dashed
# line is a pair without a taste for a place; the upper right corner belongs to the first place.

# %%
from aligner_lib.tutorial.judging.verdicts import right_by

if judge == "recorded":
    print("forty pairs in both orders need judge = 'live' or a URL")
else:
    better_first, worse_first = torch.tensor(wins_of(by_comparison, pairs)).T
    wins, swayed = orders_check.function(better_first, worse_first)
    of_better = {"better first": better_first, "worse first": 1 - worse_first, "both orders": wins}
    for name, of_pairs in of_better.items():
        print(f"{name:13} right on {share(right_by(of_pairs.tolist()), range(len(pairs)))}")
    print(f"swayed by the order: {swayed:.2f} of the pairs")
    plt.figure(figsize=(3.4, 3.2))
    plt.plot(better_first, worse_first, "o", alpha=0.6)
    plt.plot([0, 1], [1, 0], "--", color="grey")
    plt.xlabel("first place wins, better first")
    plt.ylabel("first place wins, worse first")
    plt.show()

# %% [markdown]
# In our live run, the first place won in both orders of all forty pairs. With the better answer first the judge was right on
# every pair, with the worse answer first on none, and in both orders on 0.50. Such a judge compares nothing.
#
# ## Length
#
# The best known habit of model judges is a taste for length. Does this judge have it? A correlation of score and length
# is a first look. But good answers may *be* longer or shorter, so a correlation proves no habit. Two better looks:
#
# - **Match**: compare only pairs of a good and a bad answer whose lengths differ by at most three words. Length can no longer help.
# - **Intervene**: append a sentence that says nothing to each answer, and see whether the score rises.

# %%
values, lengths = torch.tensor(scores, dtype=torch.float64), torch.tensor(words, dtype=torch.float64)
is_good = torch.tensor(labels)
correlation = torch.corrcoef(torch.stack([values, lengths]))[0, 1]
print(f"correlation of score and length {correlation:+.2f}")
near = (lengths[is_good][:, None] - lengths[~is_good][None]).abs() <= 3
good, bad = values[is_good][:, None], values[~is_good][None]
right = (good > bad) + 0.5 * (good == bad).double()
print(f"AUC over all {near.numel()} pairs          {right.mean():.2f}")
print(f"AUC over {int(near.sum())} pairs of like length {right[near].mean():.2f}")

# %%
from aligner_lib.tutorial.comparison.statistics import mean_interval
from aligner_lib.tutorial.judging.labelled import PADDING

if judge == "recorded":
    print("an intervention needs judge = 'live' or a URL")
else:
    texts = [answer.answer + PADDING for answer in answers]
    padded = [step.reward for step in require_verdicts(by_rubric.step_all(everyone, texts))]
    changes = [after - before for before, after in zip(scores, padded)]
    print(f"appended: {PADDING!r}")
    print(f"mean change of the score {mean_interval(changes, everyone)}")
    print("the score rises for", sum(change > 0 for change in changes), "of", len(changes), "answers")

# %% [markdown]
# The appended sentence changed the score of our live judge by 0.008 (−0.002 to 0.019), so no effect is shown. In the recorded
# verdicts, the correlation is −0.23 (−0.51 to 0.09): this judge may give *short* answers the higher scores. The AUC is 0.62 over
# all pairs and 0.62 over the 85 pairs of like length, so length explains none of the agreement with the reader. But a
# taste that forty ordinary answers cannot show can do harm as soon as a policy searches for it. Remember the minus
# sign.
#
# ## May a policy train on this judge?
#
# GRPO compares scores of answers to the *same* prompt. So the figure that decides is neither kappa nor the AUC above, but
# the accuracy **within a prompt**: take two answers to the same prompt, of which one is good. How often does the good
# answer have the higher score? A judge whose scores depend on the prompt alone can have a high AUC over different prompts, if the
# prompts with high scores are those whose answers are often good. Within a prompt, this judge has nothing to teach.
#
# The first three steps of the recorded run have eight answers to each of twelve prompts, while the policy is still near
# the SFT policy. The gold program decides which answers are good. Only six of the twelve prompts have a good answer and
# another answer, so only these six count.

# %%
from aligner_lib.tutorial.judging.judged_run import before_and_after, right_within_prompts

recorded = Recording("judged-rubric", speed=float("inf"))
print("right within a prompt:", right_within_prompts(recorded, 1, 3))

# %% [markdown]
# The judge is right on 0.51 of these pairs, as a coin would be. Six prompts are few, and the interval reaches from 0.21
# to 0.80: nothing shows that the judge can tell good answers apart. What will GRPO learn? Noise from a fair coin
# would cancel over many prompts. But the judge is no coin: the scores have causes, and the causes are other than quality.
# GRPO makes whatever causes a high score more frequent. Write down your guess before you look: which answers will the
# policy write after twelve steps?

# %% [markdown]
# ### The run
#
# The run starts from the SFT policy. Each step draws eight answers to each of four prompts, and the judge reads them with
# the rubric: 64 requests. As in notebook 07, the objective is Dr. GRPO without a KL penalty, and the advantages are
# divided by the deviation of the group. Here the scores within a group differ by a few hundredths. The division removes the unit of the
# scores: a group whose scores differ by hundredths counts like a group whose scores differ by ones. (Adam's steps are about as large without the division.) The learning rate is twice as high as in notebook 07. By default a recorded run plays, whose twelve
# steps took 26 minutes beside other programs. With `exercise = "live"`, your policy trains on the
# judge, and `judge` must be `"live"` or a URL.

# %%
from aligner_lib.tutorial.judging.rubric import rubric_environment, write_drawn_turns
from aligner_lib.tutorial.workspace.longer_runs import JUDGED


def judged_run():
    """Train on the judge, or play the recorded run. Returns a monitor."""
    if exercise != "live":
        return Monitor(Recording("judged-rubric", speed=600))
    prompts = write_drawn_turns(lab.out / "data")
    settings = JUDGED | rubric_environment(prompts, endpoint.args(), RUBRIC) | {"model.seed": seed}
    settings["pretrained_checkpoint.restore_from_path"] = lab.policy()
    return Monitor(lab.run("judged-rubric"), job=lab.submit("grpo", "judged-rubric", **settings))


monitor = judged_run()
display(monitor)
await monitor

# %%
run = lab.run("judged-rubric") if exercise == "live" else Recording("judged-rubric", speed=float("inf"))
curves(run, metrics=["train_rollouts/rewards", "train_rollouts/good", "train_rollouts/generation_length"])

# %% [markdown]
# The gold program never took part in the training, so the program can say what the rewards were worth. Each held-out
# prompt has an answer before and after the training, so the gains are means of paired differences.

# %%
held_out = before_and_after(run)
display(held_out.table)

# %% [markdown]
# ### Where the judge was cheated
#
# The cell lists the parts of a good answer that more and more of the paid answers lack, as in notebook 12. Numbers can
# mislead, so the next cell shows ten held-out prompts drawn at random, with the answers before and after.

# %%
from aligner_lib.tutorial.attack.hacks import hacks

for hack in hacks(run):
    print(f"step {hack.step:2}: not {hack.part}, in {hack.share:.2f} of the paid responses, such as")
    print(f"    {hack.example[:150]!r}")

# %%
for before, after in held_out.drawn(10):
    print(before.turn)
    print(f"  before {before.reward:.2f} {'good' if before.is_good else '    '} {before.response}")
    print(f"  after  {after.reward:.2f} {'good' if after.is_good else '    '} {after.response}\n")

# %%
endpoint.stop()
lab.record("13", {"judge": held_out.figures()})

# %% [markdown]
# On 64 held-out prompts, the judge's reward rises from 0.63 to 0.70, and the gain of 0.07 (0.06 to 0.09) is beyond chance.
# The share of good answers falls from 0.20 to 0.02, a loss of 0.19 (0.07 to 0.29). Answers had 38 tokens before and have
# 10 now. The curve of the reward alone looks like a success, and no alarm sounded.
#
# How does the policy cheat? The ten drawn pairs have none that is good after the training, and three kinds of cheats:
#
# - **A beginning and no answer**: "Here's how to sow carrots.", "The answer is: Check an essay for mistakes."
# - **A part of the prompt**: "Six P.S. that mentions the word 'arachnids'.", and a piece of the system's turn, "You are a
#   helpful AI assistant named SmolLM."
# - **A scrap**: "Letters.", "S.Mol.L."
#
# In the training there is also the requested form without any content: "Write it down." has a score of 0.83. The rubric
# asked for an answer that does what the user asked, in the answer's own words. The policy never read the rubric. The policy
# found out what raises $p(\text{Yes})$ in this judge: short texts, and texts that look like the prompt.
#
# The list of faults needs care. Step 2 has only four prompts, so a share that rises there may be chance. The echoes of step
# 10 agree with the held-out prompts, where 0.55 of the answers are in the policy's own words, after 1.00 before.
#
# A KL penalty or fewer steps would have slowed the loss. Neither would have made the judge right.

# %% [markdown]
# ## A better judge
#
# The same run is worth its time if the judge agrees with you. Every server with OpenAI's protocol will do, for example vLLM
# or Ollama on your own machine:
#
# ```
# vllm serve Qwen/Qwen2.5-7B-Instruct --port 8000      # http://127.0.0.1:8000
# ollama pull qwen2.5:7b && ollama serve               # http://127.0.0.1:11434
# ```
#
# Set `judge` to the address and `judge_model` to the model's name in the first cell, and run the notebook again. All
# figures above are then those of your judge, beside your labels. If the server needs a key, set the environment variable
# `JUDGE_KEY` to the key before JupyterLab starts. The settings of a training run are arguments of the environment:
#
# | argument | choose |
# | --- | --- |
# | `verdict` | `text` if the model keeps to a form (a reason before the points helps a large model), else `logprobs` |
# | `compare: true` | comparisons within the group in both orders, if the judge is better at comparing than at scoring |
# | `concurrency`, `timeout`, `retries` | how many requests at a time, seconds for a request, and further tries of a busy server |
# | `max_calls` | a budget of requests; answers beyond the budget are left out and counted |
# | `cache` | a file that answers repeated requests, so that a resumed run pays nothing twice |
# | `key_variable` | the name of the environment variable that holds the server's key |
#
# How long does a judge make a step wait? Count the requests.

# %%
prompts, responses, criteria, seconds, at_once = 8, 8, len(RUBRIC), 1.0, 16
for name, count in {
    "rubric in words": prompts * responses,
    "rubric by probabilities": prompts * responses * criteria,
    "comparisons, both orders": prompts * responses * (responses - 1),
}.items():
    print(f"{name:25} {count:4} requests a step, {count * seconds / at_once:5.1f} s")

# %% [markdown]
# Comparisons grow with the square of the group. A group of four needs less than half of the requests of a group of
# eight, at the same number of responses. `args.timeout` must leave room for the slowest request, and the
# environment's own `timeout` comes on top.
#
# ## What you learnt
#
# - A judge is an instrument. Measure the instrument with labels of your own, beside trivial judges, with an interval.
# - Kappa corrects agreement for chance, and the AUC needs no threshold. For GRPO, the accuracy within a prompt decides.
# - Ask in both orders, and test for length with an intervention.
# - A reward that rises proves that the policy learnt the judge's taste, and nothing else.

# %% [markdown]
# ## Further reading
#
# - Zheng et al. 2023, [*Judging LLM-as-a-judge with MT-bench and Chatbot Arena*](https://arxiv.org/abs/2306.05685): how
#   often large judges agree with people, and their taste for places, length and their own answers.
# - Wang et al. 2023, [*Large language models are not fair evaluators*](https://arxiv.org/abs/2305.17926): the order alone
#   turns verdicts around; both orders as a cure.
# - Liu et al. 2023, [*G-Eval*](https://arxiv.org/abs/2303.16634): scores weighted by the probabilities of the verdict's
#   tokens.
# - Gunjal et al. 2025, [*Rubrics as rewards*](https://arxiv.org/abs/2507.17746): weighted criteria as the reward of GRPO.
# - Lee et al. 2023, [*RLAIF vs. RLHF*](https://arxiv.org/abs/2309.00267): labels of a model in place of labels of people,
#   and how far they carry.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("13")

# %% [markdown]
# Back to the [start](00_start_here.ipynb)
