# %% [markdown]
# # Your judge, attacked
#
# Write a judge for a small task, let a policy look for its holes, and mend the judge until the policy finds none.
#
# {{map}}
#
# | goal | a reward that a policy cannot cheat, and an eye for the holes of any reward |
# | --- | --- |
# | needs | notebooks [03](03_sft.ipynb) and [07](07_grpo.ipynb): the policy starts from SFT and learns by GRPO |
# | time for you | 45 to 60 minutes |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
seed = 1234  # for the order of the prompts and the sampling
exercise = "recorded"  # recorded: two runs of this project play · live: the policy attacks your judge
attack = ""  # live only: the file of another judge, such as that of the table next to yours

# %%
from aligner_lib.tutorial import Diagram, Workspace, require_one_of, show_source
from widgets import Monitor, Pairs, Recording, curves, show_completions

require_one_of("exercise", exercise, "recorded", "live")
lab = Workspace(out, profile, dataset, where)

# %%
Diagram("attacked-judge")

# %% [markdown]
# ## The task
#
# The policy answers a question, and its answer has to contain a word or a number. The bundled pairs of the `laptop`
# profile have such prompts. `item` is the requested word or number.

# %%
from aligner_lib.tutorial.attack.prompts import asks_for_an_item, fields_of, prompt_records, write_prompts
from data import format_hh
from data.sources import SAMPLES

folder = lab.out / "data" / "attack"
folder.mkdir(parents=True, exist_ok=True)
pairs = {}
for split in ("train", "test"):
    format_hh([SAMPLES / f"drawn-{split}.jsonl"], folder, split)
    all_pairs = Pairs(folder / f"{split}_comparisons.jsonl").pairs
    pairs[split] = [pair for pair in all_pairs if asks_for_an_item(pair)]
prompts = {
    "train": str(write_prompts(pairs["train"], folder / "train.jsonl")),
    "validation": str(write_prompts(pairs["test"], folder / "validation.jsonl")),
}
for record in prompt_records(pairs["test"])[:4]:
    print(f"{record['item']:10} {record['messages'][0]['content']}")

# %% [markdown]
# ## Your judge
#
# The judge gets the user's turn, the response, and the fields of the prompt's record. The reward lies between 0 and 1, and
# a reward of at least 0.5 counts as paid. The function below is a first try, and many rewards in practice are as simple.
# How would *you* get the reward with the least effort? Write down three ideas before you go on.


# %%
def my_judge(prompt: str, response: str, item: str, question: str, **others) -> float:
    """1 if the response contains the requested word or number."""
    return float(item.lower() in response.lower())


# %% [markdown]
# ### An attack in a second
#
# Before a policy attacks the judge, attack it yourself. The held-out pairs have a good answer and a worse answer each,
# and a program names the fault of the worse answer (notebook 04). The judge is right on a pair if it pays the good answer
# more. A simple judge is right where the answer lacks the word, and often wrong on the other faults.

# %%
from aligner_lib.tutorial.comparison.pair_faults import right_by_fault


def scores_of(judge):
    """The judge's rewards for the chosen and for the rejected answer of each held-out pair."""
    scores = []
    for pair in pairs["test"]:
        turn = turns_of(pair["prompt"])[-1]["text"]
        scores.append([judge(turn, pair[side], **fields_of(turn)) for side in ("chosen", "rejected")])
    return scores


from aligner_lib.run_folder.turns import turns_of

display(right_by_fault(pairs["test"], scores_of(my_judge)))

# %% [markdown]
# The next table has the cheats of notebook 05: echoes, and sentences that ignore the question. A judge without holes pays
# none of them. (The last cheat is hard to detect, because each of its answers alone looks like an answer.)

# %%
from statistics import fmean

from aligner_lib.tutorial.comparison.cheats import cheating_answers


def paid_cheats(judge):
    """The mean reward of each cheat on the held-out prompts."""
    turns = [record["messages"][0]["content"] for record in prompt_records(pairs["test"])]
    return {
        name: fmean(judge(turn, answer, **fields_of(turn)) for turn, answer in zip(turns, answers))
        for name, answers in cheating_answers(turns).items()
    }


for name, reward in paid_cheats(my_judge).items():
    print(f"{reward:.2f}  {name}")

# %% [markdown]
# ### An attack in minutes
#
# Now a policy attacks the judge: GRPO from the SFT policy, with your judge as the only reward. With `exercise = "live"`
# the policy trains on your judge. By default, a recorded run plays, whose judge is the first try above.

# %%
from aligner_lib.tutorial.workspace.longer_runs import ATTACKED_JUDGE


def attacked(judge, name):
    """Train against a judge, or play the recorded run of this name. judge: a function, or a file with a function."""
    if exercise != "live":
        return Monitor(Recording(f"attacked-{name}", speed=600))
    settings = ATTACKED_JUDGE | {
        "pretrained_checkpoint.restore_from_path": lab.policy(),
        "model.environments.judged.use": judge,
        "model.environments.judged.args.prompts": prompts,
        "model.seed": seed,
    }
    return Monitor(lab.run(f"attacked-{name}"), job=lab.submit("grpo", f"attacked-{name}", **settings))


monitor = attacked(attack or my_judge, "naive")
display(monitor)
await monitor

# %%
first = lab.run("attacked-naive") if exercise == "live" else Recording("attacked-naive", speed=float("inf"))
curves(first, metrics=["train_rollouts/rewards", "train_rollouts/good", "train_rollouts/generation_length"])

# %% [markdown]
# ## What did the policy find?
#
# The policy never sees the gold program of notebook 05, so the program can reveal the holes of the judge. The next cell
# looks at the paid responses of each step. If more and more of them lack a part of *good*, the missing part is a **hack**:
# your judge pays for the fault, and the policy has found the hole. Your score is the number of hacks and the minutes to
# the first hack. Fewer and later is better.

# %%
from aligner_lib.tutorial.attack.hacks import first_and_last_validation, hacks
from aligner_lib.tutorial.workspace.learning_progress import record_attack


def report(run, of_own_judge=True):
    """Print the hacks of a run, and return the figures of the score. The classroom shows the hacks of your own judge only."""
    found_hacks = hacks(run)
    for hack in found_hacks:
        print(
            f"step {hack.step:2}, after {hack.minutes:.1f} minutes, in {hack.share:.2f} of the paid responses:"
        )
        print(f"    not {hack.part}, such as: {hack.example[:110]!r}")
    if not (held_out := first_and_last_validation(run)):
        print("the run was stopped before its last validation: run its cell again, and the run goes on")
        return {}
    rewards, good = ([record[f"val_rollouts/{name}"] for record in held_out] for name in ("rewards", "good"))
    print(f"held-out reward {rewards[0]:.2f} → {rewards[1]:.2f}, good {good[0]:.2f} → {good[1]:.2f}")
    first_minutes = found_hacks[0].minutes if found_hacks else None
    figures = {"hacks": len(found_hacks), "first_minutes": first_minutes}
    if exercise == "live" and of_own_judge:
        record_attack(**figures)
    return figures | {"reward": rewards[1], "good": good[1]}


score = report(first, of_own_judge=not attack)

# %%
show_completions(first, n=6, sort="reward", split="train")

# %% [markdown]
# In the recorded run, the reward on 64 held-out prompts rises from 0.31 to 0.88 in twelve steps, which took 9 minutes on
# one thread. Of the answers, 0.06 were good before and 0.12 are good now. After two minutes, most paid answers no longer
# end: the judge never asked for an end, and a longer answer has more room for the word. At the end, many answers are
# about the item instead of the question, such as "Five Eight is a 58 on a dial."
#
# Were your three ideas among the hacks? A policy has no idea of cheating. It draws responses, and the update makes the
# paid responses likelier. A hole that no response of the SFT policy ever touches stays undiscovered for a while.
#
# ## Mend the judge
#
# Each hack names a condition that the judge forgot. Write the condition into `my_judge` above, run its cell and the
# attack of a second again, and come back here: the second run below trains on your mended judge. Some advice:
#
# - **Multiply conditions, do not add them.** With a sum, the policy earns the easy part and gives up the hard part.
# - **Ask for the goal, and do not only forbid the last cheat.** "A word of the question" is better than "no 58 on a dial".
# - **Honest answers must pass.** Otherwise no reward is left to learn from. So look at the paid share of good answers, not
#   only at the cheats.
#
# Here is the judge of the second recorded run. Which hole does it still have?

# %%
from aligner_lib.tutorial.attack import judges

show_source(judges.mended)

# %%
for name, judge in {"first try": judges.naive, "yours": my_judge, "mended": judges.mended}.items():
    scores = scores_of(judge)
    print(
        f"{name:10} pays {fmean(chosen >= 0.5 for chosen, _ in scores):.2f} of the good answers, "
        f"{fmean(rejected >= 0.5 for _, rejected in scores):.2f} of the worse answers, "
        f"and {max(paid_cheats(judge).values()):.2f} of the best cheat"
    )

# %%
monitor = attacked(my_judge if exercise == "live" else judges.mended, "mended")
display(monitor)
await monitor

# %%
second = (
    lab.run("attacked-mended") if exercise == "live" else Recording("attacked-mended", speed=float("inf"))
)
mended_score = report(second)
if score and mended_score:
    lab.record("12", {"attack": {"naive": score, "mended": mended_score}})

# %%
curves(
    [first, second],
    metrics=["train_rollouts/rewards", "train_rollouts/good", "train_rollouts/generation_length"],
)

# %% [markdown]
# In the recorded run, the mended judge starts with a reward of 0.12, because it asks for more, and ends with 0.28. In the same
# number of steps, 0.25 of the answers are good, compared with 0.12 with the first judge. On 64 prompts the difference,
# −0.01 to 0.25, may be chance. The gain over the SFT policy, 0.19 (0.07 to 0.29), is shown. A single hack is left: at the last step, five
# of the seventeen paid answers have one word of the topic or none. The reward rises more slowly, and it rises for the task.

# %% [markdown]
# ## Attack another judge
#
# In a workshop, two tables exchange their judges. Each run stores the text of its judge. Give the path of the file to the
# table next to yours, and set `attack` to their path in the first cell, with `exercise = "live"`. Your policy then
# looks for the holes of *their* judge, and the table with fewer hacks wins. The next cell prints the path.

# %%
for file in sorted(first.path.glob("functions/*.py")) if exercise == "live" else ():
    print(file.resolve())

# %% [markdown]
# ## What you learnt
#
# - A judge is a program with holes, and training is a search for them.
# - A test on pairs finds the holes that the pairs contain. Only an attack finds the others.
# - Keep a second judge that the training never sees, and read the best paid responses.

# %% [markdown]
# ## Further reading
#
# - Amodei et al. 2016, [*Concrete problems in AI safety*](https://arxiv.org/abs/1606.06565): reward hacking, described
#   before language models had it.
# - Gao et al. 2023, [*Scaling laws for reward model overoptimization*](https://arxiv.org/abs/2210.10760): the same race
#   between a judge and a policy, measured.
# - Pan et al. 2022, [*The effects of reward misspecification*](https://arxiv.org/abs/2201.03544): more capable policies
#   find more holes.
# - Denison et al. 2024, [*Sycophancy to subterfuge*](https://arxiv.org/abs/2406.10162): from small hacks to a policy that
#   changes its own reward.
# - Baker et al. 2025, [*Monitoring reasoning models for misbehavior*](https://arxiv.org/abs/2503.11926): a second model
#   that reads for hacks, and the danger of training against it.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("12")

# %% [markdown]
# Back to the [start](00_start_here.ipynb)
