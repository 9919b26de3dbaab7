# %% [markdown]
# # Scale out
#
# You scale a run from one process to two nodes and to PPO's two jobs, changing one argument at a time, and compute what
# 70 billion parameters would need.
#
# {{map}}
#
# | goal | the same cells on a cluster: submit, monitor, and resume after preemption or a lost node |
# | --- | --- |
# | needs | nothing; with Slurm it submits jobs, without it prints the scripts and runs on this machine |
# | downloads | the model, once |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "auto"  # auto: Slurm where it answers, else this machine · local · slurm · print: scripts only
gpus_per_node = 0  # 0: processes on CPUs

# %%
from aligner_lib.tutorial.workspace import Workspace

lab = Workspace(out, profile, dataset, where)
print("runs go to:", lab.where)

# %% [markdown]
# ## Ranks
#
# A job on several nodes is the same program many times. Each process, a **rank**, needs its number, the number of ranks
# (the world size), and the address of the rendezvous. Slurm sets variables of its own for these; `torch.distributed`
# reads others.
#
# ### By hand
#
# Two nodes with eight GPUs each. What is the rank of the second process on the second node? Count from zero: the
# first node has ranks 0 to 7, so it is $1 \cdot 8 + 1 = 9$ of 16, and the rendezvous is on the first node.

# %%
from cluster.launch import from_slurm

slurm_says = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "4711",
}
for name, value in from_slurm(slurm_says).items():
    print(f"{name:16} {value}")

# %% [markdown]
# The port comes from the job's id, so that two jobs on one node do not use the same port.
#
# ## What would be submitted?
#
# Look before you submit. `where="print"` prints the batch script and starts nothing. Here is SFT of a 2 B model on two
# nodes of eight GPUs, with the reference's hyperparameters:

# %%
from aligner_lib.tutorial import slurm_recipes

two_nodes = {"nodes": 2, "gpus_per_node": 8, "exclusive": True}
site = {"account": "course", "partition": "batch"}
data = {"train": "/shared/dolly/train.jsonl", "validation": "/shared/dolly/validation.jsonl"}
plan = slurm_recipes.sft(
    "/shared/runs/sft", model="/shared/models/2b", **data, where="print", resources=two_nodes, site=site
)

# %% [markdown]
# | line | what it is for |
# | --- | --- |
# | `--nodes`, `--ntasks-per-node`, `--gres` | two nodes, a rank for each GPU |
# | `--signal=B:USR2@180` | three minutes' notice before the time limit: enough for a step and a checkpoint |
# | `--requeue` | after the notice, or when a node is lost, the job waits in the queue again |
# | `begin` … `finish` | what turns a notice into a checkpoint; see [the page on clusters](../docs/cluster.md) |
# | `trainer.num_nodes`, `trainer.devices` | derived from the resources, so that they always agree |
#
# ## Is the cluster ready?
#
# Do not wait an hour in the queue to learn that a folder is not shared. This check asks Slurm and a compute node
# beforehand (`aligner cluster check` does the same in a terminal):

# %%
from cluster import check

print(*check(shared=out), sep="\n")

# %% [markdown]
# ## One process, then several
#
# First a short run as in notebook 03. Then the same on several ranks: **data parallel**, each rank takes its share of
# the batch, and the gradients are summed. Only the argument `resources` changes.

# %%
from cluster import Resources
from widgets import Monitor, curves

short = {"trainer.sft.max_steps": 8, "trainer.sft.val_check_interval": 8, "trainer.sft.limit_val_batches": 2}
share = {f"model.data.{name}_ds.micro_batch_size": 2 for name in ("train", "validation")}
one = Resources(gpus_per_node=min(gpus_per_node, 1), time="0:30:00")
several = one.but(
    nodes=1 if lab.where == "local" else 2, gpus_per_node=gpus_per_node, tasks_per_node=gpus_per_node or 2
)

alone = lab.submit("sft", "scale-one", one, **short, **share)
if lab.where != "print":
    await Monitor(lab.run("scale-one"), job=alone)

# %%
together = lab.submit("sft", "scale-several", several, **short, **share)
if lab.where != "print":
    monitor = Monitor(lab.run("scale-several"), job=together)
    display(monitor)
    await monitor

# %%
if lab.where != "print":
    losses = [lab.run(name).series("train/loss")[1] for name in ("scale-one", "scale-several")]
    apart = max(abs(a - b) / a for a, b in zip(*losses, strict=True))
    print(f"{several.ranks} ranks, 8 steps: losses differ by {apart:.1e} of their value at most")
    lab.record("09", {"scale_out": {"ranks": several.ranks, "largest_difference": apart}})

# %% [markdown]
# ### What you should see
#
# The same losses, step by step: they differed by {{smoke.scale_out.largest_difference:.0e}} of their value in the
# recorded run with `smoke` and {{smoke.scale_out.ranks:.0f}} ranks, which is rounding: sums in another order. A
# difference that is visible in a plot is a bug, most often a batch that was not divided.

# %%
if lab.where != "print":
    display(curves([lab.run("scale-one"), lab.run("scale-several")], metrics=["train/loss"], smoothing=0))

# %% [markdown]
# What do the two write? The same weights but for rounding, and the same random numbers: the same texts, until a rounding
# happens to tip a draw.

# %%
if lab.where != "print":
    from aligner_lib.jobs.inference import answering
    from widgets import Chat

    chat = Chat({name: answering(lab.run(name).path) for name in ("scale-one", "scale-several")})
    for prompt in ("How do I boil an egg?", "Name three rivers in Africa."):
        chat.ask(prompt)
    display(chat)

# %% [markdown]
# ## Restarts and failures
#
# The run folder contains everything about a job: any notebook or terminal that sees the folder can attach to the job.

# %%
from cluster import Job

if lab.where != "print":
    again = Job.attach(lab.run("scale-several").path)
    display(again)
    print(again.tail(3))

# %% [markdown]
# | what happens | what the run does |
# | --- | --- |
# | this kernel restarts | nothing: `Job.attach(run)`, or `aligner logs RUN -f` |
# | the time limit nears, or a job with more priority takes the nodes | checkpoint, wait in the queue, resume |
# | a node goes down | resume from the last checkpoint, on other nodes |
# | `job.stop()` · `job.cancel()` · `job.requeue()` | checkpoint and end · end now · checkpoint and queue again |
#
# Afterwards the metrics are bit for bit those of an uninterrupted run: data order, random numbers and learning rate
# depend on the step alone.
#
# ## Several values at once
#
# A **sweep** is an array job: each value has its own run folder and its own job. Without Slurm this prints the script.

# %%
paper = lab if lab.where == "slurm" else Workspace(out, profile, dataset, where="print")
sweep = paper.submit_sweep("sft", "model.optim.lr", [3e-4, 3e-3], one, **short)
if lab.where == "slurm":
    sweep.wait()
    for row in sweep.table(["validation/loss"]):
        print(row)

# %% [markdown]
# ## PPO as two jobs
#
# Large models no longer fit together into one job. Critic and reward model become one component of a **hetjob**, actor
# and reference another. Each has its own nodes, and Slurm starts and ends both together. The critic writes its address
# into the run folder, where the actor reads it.

# %%
data = {"train": "/shared/hh/train_prompts.jsonl", "validation": "/shared/hh/test_prompts.jsonl"}
models = {"policy": "/shared/runs/sft", "reward_model": "/shared/runs/rm"}
plan = slurm_recipes.ppo("/shared/runs/ppo", **models, **data, where="print", resources="ppo_1_1", site=site)
print(plan.nodes, "nodes,", plan.gpus, "GPUs")

# %% [markdown]
# ## What changes with 70 billion parameters?
#
# For each parameter, training needs 2 bytes of weights (bf16), 4 of gradient (fp32), and 12 of optimizer state: the fp32
# master weight and Adam's two moments.
#
# ### By hand
#
# $70 \cdot 10^9 \cdot 18 = 1.26$ TB before the first activation, and a GPU has 80 GB: at least 16 GPUs. There are three
# ways to divide this:
#
# - **tensor parallel** (TP) splits each matrix; its ranks communicate in every layer, so it stays inside a node;
# - **pipeline parallel** (PP) splits the stack of layers; its ranks communicate once per stage, across nodes;
# - **data parallel** (DP) replicates weights and gradients, but shards the optimizer state: 12 bytes become 12/DP.

# %%
import matplotlib.pyplot as plt

from cluster.sizing import MODELS, Parallelism, memory

splits = [
    Parallelism(8, 1, 1),
    Parallelism(8, 2, 1),
    Parallelism(8, 2, 2),
    Parallelism(8, 4, 2),
    Parallelism(8, 4, 8),
]
needs = [memory(MODELS["Llama-2-70B"], parallelism, "actor") for parallelism in splits]
labels = [f"{split.tp} × {split.pp} × {split.dp}\n{split.gpus} GPUs" for split in splits]
figure, axes = plt.subplots(figsize=(8, 3))
bottom = [0.0] * len(splits)
for part in ("weights", "gradients", "optimizer", "activations", "kv_cache"):
    heights = [getattr(need, part) for need in needs]
    axes.bar(labels, heights, bottom=bottom, label=part)
    bottom = [low + height for low, height in zip(bottom, heights)]
axes.axhline(80, color="0.4", linestyle="--")
axes.set(ylabel="GiB on the fullest GPU", xlabel="TP × PP × DP")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# The dashed line is the GPU's memory. The first split that fits has two replicas of a model that is split 16 ways,
# since the optimizer state is then sharded. The smallest parallelism of each model and role, in GPUs of 80 GiB with
# sequences of 4096 tokens:

# %%
from IPython.display import Markdown

from cluster import sizing

display(Markdown(sizing.as_markdown(sizing.table(["Llama-3.2-1B", "Llama-2-7B", "Llama-2-70B"]))))

# %% [markdown]
# The smallest parallelism is slow; more DP makes it faster. Two more things change with size: a checkpoint takes
# minutes, so the notice before the time limit must be longer (`signal_delay_s: 600` in
# `cluster/configs/ppo_64_32.yaml`), and nodes fail daily, so `trainer.ppo.save_interval` decides how much a failure
# costs.
#
# ## What you learnt
#
# - A job has a command, a run folder and resources; only the resources change from a laptop to a hundred nodes.
# - After a preemption or a lost node, the run resumes to the same metrics.
# - 18 bytes per parameter, divided by TP and PP, and 12 of them also by DP.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("09")

# %% [markdown]
# Back to the [start](00_start_here.ipynb)
