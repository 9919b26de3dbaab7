# %% [markdown]
# # Call a calculator
#
# Teach a small model to call a calculator for sums beyond its ability, and measure whether the model also learns which
# operation a story asks for.
#
# {{map}}
#
# | goal | a policy with a tool: the policy calls, reads the result, and solves held-out sums |
# | --- | --- |
# | needs | notebooks [03](03_sft.ipynb) (SFT and its loss mask) and [07](07_grpo.ipynb) (GRPO and its groups) |
# | time for you | 60 minutes |
# | downloads | nothing further |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "local"  # local: a process on this machine · slurm
seed = 1234  # for the order of the prompts and the sampling

# %%
from aligner_lib.tutorial import Diagram, Workspace, check, show_source
from widgets import Monitor

lab = Workspace(out, profile, dataset, where)

# %%
Diagram("tool-call")

# %% [markdown]
# ## Why does a model guess digits?
#
# Ask the downloaded model for sums of three-digit numbers. The task is the environment `tool_calculator`, which holds out
# a fifth of its problems. The next cell leaves the tool away and reads the last number of each answer.

# %%
import re

from aligner_lib.jobs.inference import answering
from aligner_lib.rollouts.environments.registry import make

sums = {"digits": 3, "operations": "+", "examples": 0}
held_out = make("tool_calculator", "validation", **sums)
answer = answering(lab.model(), max_length=32, greedy=True)
problems, guesses = held_out.problems[:12], {}
for problem, text in zip(problems, answer.of_all([f"What is {problem}?" for problem in problems])):
    numbers = re.findall(r"\d+", text.replace(",", ""))
    guesses[problem] = numbers[-1] if numbers else ""
    print(f"{problem} = {eval(problem):>4}    the model: {guesses[problem] or 'no number'}")

# %% [markdown]
# Which digits are right? Often the last number of the answer is only a copy of a number in the question. And each digit of a sum,
# except the last, depends on carries, which move from right to left.

# %%
for place, name in enumerate(["ones", "tens", "hundreds"], start=1):
    right = sum(guess.rjust(3)[-place] == str(eval(problem))[-place] for problem, guess in guesses.items())
    print(f"{name:9} {right:2} of {len(guesses)} right")
print(
    f"{'all':9} {sum(guess == str(eval(problem)) for problem, guess in guesses.items()):2} of {len(guesses)} right"
)

# %% [markdown]
# A language model writes from left to right, so it commits to the first digit before any later digit exists. All carries
# have to be computed inside a single forward pass. There are 810,000 sums of two three-digit numbers, and the training
# texts contain few of them, so memory does not help either. And the loss hardly objects: a wrong digit in a fluent answer
# costs a few tokens of thousands. The result is a fluent answer without a sign of doubt.
#
# A program adds without error and at once. So the better question is not how the model can learn to add, but how the
# model can learn to *ask*.
#
# ## What is a tool call?
#
# A **tool call** is a text in a form that a program recognises. The model writes the call and stops. The program around the
# model, here the environment, runs the function, and puts the result into the conversation as a turn of the role `tool`.
# Then the model writes on. The model needs three things: a description of the function in its prompt, a form for calls, and
# a place for results. All three belong to the chat template.

# %%
from aligner_lib.rollouts.environments.tool_calculator import calculator, worked_example

show_source(calculator)

# %%
import json

from aligner_lib.datasets.chat_template import render, use_template
from aligner_lib.datasets.tokenizer import Tokenizer

tokenizer = use_template(Tokenizer(lab.model()), "tokenizer")
tools = list(held_out.tool_schemas)
print(json.dumps(tools[0]["function"], indent=1))
for message in worked_example("412 + 389"):
    print(message)

# %% [markdown]
# The description was made from the function's type hints and its docstring. The four messages are a conversation in
# OpenAI's form. The model never sees this form. The model sees tokens, which the template writes:

# %%
print(render(tokenizer, worked_example("412 + 389")[:-1], tools=tools))

# %% [markdown]
# SmolLM2's template does not know tools, so the library uses a default form, which is that of Qwen's templates: the system
# turn lists the functions, a call stands between `<tool_call>` and `</tool_call>`, and a turn of the user holds the result.
# For a model whose template knows tools, such as Qwen2.5 or Llama 3, the template decides
# ([environments](../docs/environments.md#tools)).
#
# ### Which tokens are learnt?
#
# The conversation has four writers: the system, the user, the policy and the tool. SFT must imitate only the policy, turn
# by turn. What would happen if the results were learnt, too?
#
# By hand: a question with a head of 1 token and a text of 2 tokens, then a call with a head of 1 and a text of 3. The
# conversation has 7 tokens and 6 predictions. The call's text consists of tokens 4 to 6, so predictions 3 to 5 count.


# %% tags=["solution"]
import torch


def learnt_predictions(roles, heads, lengths):
    """The predictions that the loss covers in a conversation with tools.

    roles: list of texts (system, user, assistant or tool), one for each turn; heads: list of int, the tokens of each turn's head,
    which the template writes, such as `<|im_start|>assistant`; lengths: list of int, the tokens of each turn's text, with its stop
    token → bool [T - 1] for T tokens in all. Prediction i predicts token i + 1. The loss covers the texts of the assistant.
    """
    tokens = []
    for role, head, length in zip(roles, heads, lengths):
        tokens += [False] * head + [role == "assistant"] * length
    return torch.tensor(tokens[1:])


# %%
check("learnt_predictions", learnt_predictions)

# %% [markdown]
# A policy that learns to write results no longer needs a tool: after its call, it writes a result of its own, and the
# result is a guess again. So the mask is not a detail. The next cell writes 32 conversations for the training and shows the
# library's mask of the first. The sums for training and for the evaluation differ.

# %%
from random import Random

from aligner_lib.datasets.load import load_sft
from aligner_lib.tutorial import show_mask

training = make("tool_calculator", "train", **sums)
files = {}
for split, problems in {"train": training.problems, "validation": held_out.problems}.items():
    files[split] = lab.out / "data" / "tools" / f"{split}.jsonl"
    files[split].parent.mkdir(parents=True, exist_ok=True)
    chosen = Random(seed).sample(problems, {"train": 32, "validation": 8}[split])
    records = [{"messages": worked_example(problem), "tools": tools} for problem in chosen]
    files[split].write_text("".join(json.dumps(record) + "\n" for record in records))
samples, _ = load_sft([files["train"]], tokenizer, max_length=4096)
longest = max(map(len, samples))
print(
    f"{len(samples)} conversations, at most {longest} tokens, {sum(samples[0].learnt)} of the first are learnt"
)
display(show_mask(samples[0], tokenizer))

# %% [markdown]
# ## The other side: who runs the call?
#
# A program that runs calls reads text from a model. The text can be broken, the function unknown, the arguments wrong, and
# the function itself can fail. Two rules help:
#
# - **Be strict.** A call that is nearly right is wrong. If your program repairs calls, the policy never learns the form,
#   and fails with the next program.
# - **Return errors to the policy.** An error is a result. The policy reads the error in its next turn and can try again.
#   Training on such episodes teaches the correction.
#
# Write the program. Which tests are needed before the function may run, and in which order? The policy reads the result
# as text, or the first error of this table:
#
# | the call | the text |
# | --- | --- |
# | is not JSON | `error: the call is not JSON` |
# | is no object, or has other keys than `name` and `arguments` | `error: a call is an object with name and arguments` |
# | names an unknown function | `error: there is no function NAME` |
# | has other arguments than a single text, `expression` | `error: NAME takes a single text, expression` |
# | makes the function raise | `error: MESSAGE`, with the message of the exception |


# %% tags=["solution"]
import json


def answer_call(call, functions):
    """The text that the policy reads after a call: the result or an error of the table above. Never raises.

    call: the text between the tags; functions: dict, name → function of a single text named expression → a text.
    """
    try:
        value = json.loads(call)
    except ValueError:
        return "error: the call is not JSON"
    if not isinstance(value, dict) or value.keys() != {"name", "arguments"}:
        return "error: a call is an object with name and arguments"
    name, arguments = value["name"], value["arguments"]
    if not isinstance(name, str) or name not in functions:
        return f"error: there is no function {name}"
    fits = isinstance(arguments, dict) and arguments.keys() == {"expression"}
    if not fits or not isinstance(arguments["expression"], str):
        return f"error: {name} takes a single text, expression"
    try:
        return str(functions[name](arguments["expression"]))
    except Exception as error:
        return f"error: {error}"


# %%
check("answer_call", answer_call)

# %% [markdown]
# The library's environment has nearly the same tests, with errors in its own words. The environment ignores further keys, such
# as the `id` that some models write, and runs a call whose closing tag is missing at the end of the response: a program
# that stops a response at a tag often leaves the tag out. Missing `arguments` are empty arguments, so `parameters` in place of `arguments` is an
# error only for a function that needs an argument.
#
# The environment reads all calls of a response, so a policy may make **parallel calls**: several calls in a response, whose
# results follow in the same order. A response without a call is the answer, and ends the episode.

# %%
from aligner_lib.tutorial.tool_use.scripted import call

responses = {
    "a call": call("412 + 389"),
    "two calls": call("412 + 389") + "\n" + call("801 * 2"),
    "not JSON": "<tool_call>calculator(412 + 389)</tool_call>",
    "unknown": call("412 + 389").replace("calculator", "calc"),
    "wrong argument": call("412 + 389").replace("expression", "sum"),
    "the tool fails": call("412 / 0"),
    "no call": "801",
}
for name, response in responses.items():
    held_out.reset(0)
    step = held_out.step(response)
    results = " | ".join(message["content"] for message in step.observation)
    print(f"{name:15} {results or f'the episode ends with reward {step.reward:g}'}")

# %% [markdown]
# ### What do programs earn?
#
# Before any training, compute what the reward pays to policies that understand nothing. A trained policy has to be
# compared with the best of them. The next cell plays them in the environment itself.

# %%
from aligner_lib.tutorial.tool_use.scripted import (
    always,
    always_calls,
    combines_numbers,
    most_frequent,
    played,
)


def scores_of(environment, constant, episodes):
    """Print the reward and the calls of scripted policies in an environment."""
    policies = {
        f"always answers {constant}": always(constant),
        "always calls 123 + 456": always_calls("123 + 456"),
    }
    policies |= {f"calls with the numbers and {sign}": combines_numbers(sign) for sign in "+-*"}
    for name, policy in policies.items():
        score = played(environment, policy, episodes)
        print(f"{name:32} reward {score.reward:.2f}   calls {score.calls:.0f}")


constant = most_frequent([calculator(problem) for problem in training.problems])
scores_of(held_out, constant, episodes=500)

# %% [markdown]
# A constant and a constant call earn next to nothing. But the program that adds the numbers of the question earns
# everything: on sums, copying the question into a call suffices. So success on these sums will show only a policy able to
# call, not a policy with an understanding of the question. In the second half of the notebook, copying does not suffice.
#
# ## Offer the tool
#
# Does the model use the calculator if the prompt describes it? GRPO answers two questions in a single step: the validation
# before the step shows how many held-out sums the model solves, and the step itself shows what GRPO can learn from.

# %%
task = {"sums": {"use": "tool_calculator", "args": sums}}
lengths = {"model.encoder_seq_length": min(longest + 64, 512)}  # the smoke model has 512 positions
sampling = {"model.grpo.length_params.max_length": 48, "model.grpo.num_val_samples": 32}
single_step = {f"trainer.grpo.{name}": 1 for name in ("max_steps", "val_check_interval", "save_interval")}
job = lab.submit(
    "grpo",
    "tools-alone",
    **{
        "model.environments": task,
        "pretrained_checkpoint.restore_from_path": lab.model(),
        "model.seed": seed,
    },
    **(lengths | sampling | single_step),
)
display(Monitor(lab.run("tools-alone"), job=job))
await job

# %%
alone = lab.run("tools-alone")
untrained = [record for record in alone.rollouts() if record["split"] == "validation" and record["step"] == 0]
drawn = [record for record in alone.rollouts() if record["split"] == "train"]


def summary(records):
    """The share of right answers, and the mean number of calls. A response that was cut off has no metrics."""
    right, calls = ([record["metrics"].get(name, 0) for record in records] for name in ("right", "calls"))
    return sum(right) / len(right), sum(calls) / len(calls)


print("held-out sums: right {:.2f}, calls {:.2f}".format(*summary(untrained)))
for record in untrained[:3]:
    print(repr(record["response"]))

# %% [markdown]
# ### Why doesn't GRPO find the tool by itself?
#
# GRPO compares the responses of a group. Here are the eight groups of the step: how many responses call, and which
# advantages GRPO computes from the rewards.

# %%
from aligner_lib.algorithms.policy_gradient import grpo_advantages

rewards = torch.tensor([record["reward"] or 0.0 for record in drawn])
group = torch.tensor([record["group"] for record in drawn])
advantages = grpo_advantages(rewards, group)
for number in group.unique().tolist():
    members = [record for record, of_group in zip(drawn, group.tolist()) if of_group == number]
    calls = sum(record["metrics"].get("calls", 0) for record in members)
    largest = advantages[group == number].abs().max()
    print(
        f"group {number}: {calls:g} calls, rewards {[record['reward'] for record in members]}, largest |A| {largest:.2f}"
    )

# %% [markdown]
# If all rewards of a group are 0, all advantages are 0, and the gradient is 0. The step changes nothing. More steps change
# nothing either, because the next step draws from the same policy. How likely is a call by chance? The policy would have to
# write some thirty tokens of an unfamiliar form without an error. Reinforcement learning makes occasional behaviour more
# frequent, and cannot reinforce behaviour without a single occurrence. The limit is called the **exploration problem**.
#
# ## A few steps of SFT
#
# So somebody has to show a call. The 32 conversations are enough. The run has four steps of eight conversations.

# %%
four_steps = {f"trainer.sft.{name}": 4 for name in ("max_steps", "val_check_interval", "save_interval")}
batches = {
    f"model.data.{split}_ds.{size}_batch_size": 8
    for split in ("train", "validation")
    for size in ("micro", "global")
}
data = {f"model.data.{split}_ds.file_path": str(file) for split, file in files.items()}
job = lab.submit(
    "sft",
    "tools-sft",
    **(data | batches | four_steps | lengths),
    **{"model.data.chat_template": "tokenizer", "model.seed": seed},
)
monitor = Monitor(lab.run("tools-sft"), job=job)
display(monitor)

# %% [markdown]
# ### While it trains: what does a call cost?
#
# A call is not free. The policy draws the call's tokens, and then it reads: before each response, a server that keeps
# nothing between two requests reads the whole conversation anew, that is the prompt with the tools, the earlier responses
# and their results. Drawn tokens are slow, because each needs a pass through the model. Read tokens are fast but many, and
# an interface bills both.
#
# By hand: a prompt of 150 tokens, a call of 30, a result of 20, and an answer of 4. The policy draws 34 tokens. It reads 150
# before the call, and 150 + 30 + 20 before the answer, which is 350 in all.


# %% tags=["solution"]
def episode_tokens(prompt, written, observed):
    """The tokens that the policy draws in an episode, and the tokens that it reads.

    prompt: int, the tokens of the prompt; written: list of int, the tokens of each response; observed: list of int, the tokens
    between two responses (the results), one fewer → (int, int): drawn and read in all. Each turn reads the whole conversation
    before its response anew.
    """
    conversation = read = prompt
    for response, results in zip(written, observed):
        conversation += response + results
        read += conversation
    return sum(written), read


# %%
tokens_check = check("episode_tokens", episode_tokens)
display(tokens_check)

# %% [markdown]
# The read tokens grow with the square of the number of turns. Ten calls one after another cost far more than ten parallel
# calls, whose results arrive together. A server that keeps the conversation in its cache reads each token once, as the
# library does within a rollout.

# %%
for calls in (0, 1, 3, 10):
    drawn_tokens, read_tokens = tokens_check.function(150, [30] * calls + [4], [20] * calls)
    print(f"{calls:2} calls: {drawn_tokens:4} tokens drawn, {read_tokens:5} read")

# %%
await monitor

# %% [markdown]
# ### Does the policy call?
#
# The evaluation draws answers to 32 held-out sums, with the same prompts as before the training.

# %%
evaluation = {f"model.ppo.{name}": 32 for name in ("num_val_samples", "val_rollout_micro_batch_size")}
await lab.submit(
    "evaluate",
    "tools-evaluate",
    **(evaluation | lengths | {"model.environments": task, "model.ppo.length_params.max_length": 48}),
    **{
        "policy.restore_from_path": lab.run("tools-sft").path,
        "pretrained_checkpoint.restore_from_path": lab.model(),
        "critic.pretrained_checkpoint.restore_from_path": None,  # the environment judges
        "model.seed": seed,
    },
)
after_sft = list(lab.run("tools-evaluate").rollouts())
for name, records in {"downloaded": untrained, "after SFT": after_sft}.items():
    print(f"{name:12}" + "right {:.2f}, calls {:.2f}".format(*summary(records)))
print(after_sft[0]["response"])

# %% [markdown]
# In our run of the `laptop` profile, the downloaded model solved none of the 32 held-out sums, and never called. After four
# steps of SFT, the policy solved all 32, each with a single call. The model has not learnt to add. The model has learnt a form, and a
# form needs few examples. (The random `smoke` model learns nothing here within four steps.)
#
# | you see | meaning | change |
# | --- | --- | --- |
# | no calls | the form is not learnt yet | more steps or conversations |
# | calls, and answers that differ from the results | the answer after the result is not learnt | look at the mask |
# | a result within a response that no tool gave | the results were learnt | look at the mask |
# | many `failed_calls` | the form is learnt roughly | more steps; read the errors |
#
# ## Tools of your own, and problems in words
#
# A policy can copy a question without any understanding. So ask in words: *A tank holds 620 litres, and 148 litres leak
# out. How many litres remain?* The policy must choose the operation, and no conversation has shown the choice.
#
# A tool of your own needs a file with the functions in a list `TOOLS`, and a reward. The hints and the docstring become the
# description. Change the file as you like: a unit converter, a dictionary, a search in your notes.

# %%
my_tools = lab.out / "my_tools.py"
my_tools.write_text(r'''
import re

from aligner_lib.rollouts.environments.calculator import calculate, shown

def calculator(expression: str) -> str:
    """
    Computes an expression.

    Args:
        expression: Numbers, brackets and + - * / // % **
    """
    return shown(calculate(expression))

TOOLS = [calculator]

def reward(prompt, response, answer, operation, **others):
    numbers = re.findall(r"-?\d+", response)
    right = float(numbers[-1:] == [answer])
    return {"reward": right, operation: right}
''')
print(f"use={my_tools.name}")

# %%
from aligner_lib.tutorial.tool_use.stories import stories, write_stories

prompts = write_stories(lab.out / "data" / "tools")
for story in stories("train")[:3]:
    print(f"{story.operation:6} {story.prompt} {story.answer}")
print()
in_words = make(str(my_tools), "validation", prompts=prompts)
scores_of(in_words, most_frequent([story.answer for story in stories("train")]), episodes=96)

# %% [markdown]
# Each operation occurs in a third of the stories, so a program that always uses the same sign is right in a third. The
# stories of the validation are others than those of the training, with other numbers. A policy that is right in clearly
# more than a third must have read the story.

# %%
await lab.submit(
    "evaluate",
    "tools-stories",
    **(evaluation | lengths | {"model.ppo.length_params.max_length": 48, "model.seed": seed}),
    **{
        "model.environments": {"stories": {"use": str(my_tools), "args": {"prompts": prompts}}},
        "policy.restore_from_path": lab.run("tools-sft").path,
        "pretrained_checkpoint.restore_from_path": lab.model(),
        "critic.pretrained_checkpoint.restore_from_path": None,
    },
)
of_stories = list(lab.run("tools-stories").rollouts())
right_in_words = sum(record["reward"] or 0.0 for record in of_stories) / len(of_stories)
print(f"stories: right {right_in_words:.2f}")
for record in of_stories[:3]:
    print(repr(record["response"]))

# %% [markdown]
# In our run, the policy solved 2 of 32 stories. The calls often hold words of the story, which the calculator refuses.
# So the form has moved to the new task, and the choice of the operation has not. GRPO would find little to compare here.
# The next step would be conversations that solve stories, and then GRPO.

# %%
right, calls = summary(after_sft)
figures = {"right_untrained": summary(untrained)[0], "calls_untrained": summary(untrained)[1]}
figures |= {"right_sft": right, "calls_sft": calls, "stories_sft": right_in_words}
lab.record("14", {"tools": figures})
print(figures)

# %% [markdown]
# ## What you learnt
#
# - A tool call is text, its results are turns of the tool, and no loss covers the results.
# - The program around the model is strict, and returns errors to the policy.
# - SFT introduces new behaviour. Reinforcement learning improves occasional behaviour.
# - A call costs tokens: drawn tokens, and a longer conversation for every later turn to read again.
#
# `aligner serve RUN` answers requests with `tools` in OpenAI's form ([serving](../docs/serving.md)), so any program with
# OpenAI's interface can use the policy.

# %% [markdown]
# ## Further reading
#
# - Cobbe et al. 2021, [*Training verifiers to solve math word problems*](https://arxiv.org/abs/2110.14168): GSM8K, whose
#   solutions call a calculator within the text.
# - Schick et al. 2023, [*Toolformer*](https://arxiv.org/abs/2302.04761): a model finds by itself where a call makes the next
#   words likelier, from a handful of demonstrations of each tool.
# - Yao et al. 2022, [*ReAct*](https://arxiv.org/abs/2210.03629): reasoning and calls in turns.
# - Patil et al. 2023, [*Gorilla*](https://arxiv.org/abs/2305.15334): calls of many interfaces, and how to measure their
#   errors.
# - Jin et al. 2025, [*Search-R1*](https://arxiv.org/abs/2503.09516): reinforcement learning with a search engine as the tool,
#   and what goes wrong if the loss covers the results.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("14")

# %% [markdown]
# Back to the [start](00_start_here.ipynb)
