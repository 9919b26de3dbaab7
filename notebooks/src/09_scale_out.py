# %% [markdown]
# # Scale out
#
# Scale a run from a single process to two nodes and to PPO's two jobs, change one argument at a time, and compute the
# needs of a model with 70 billion parameters.
#
# {{map}}
#
# | goal | the same cells on a cluster: submit, monitor, and resume after preemption or a lost node |
# | --- | --- |
# | needs | nothing; with Slurm the notebook submits jobs, without Slurm it prints the scripts and runs on this machine |
# | downloads | the model, once |
#
# {{card}}

# %% tags=["parameters"]
profile = "laptop"
out = "../runs/tutorial"
dataset = "sample"
where = "auto"  # auto: Slurm if available, else this machine · local · slurm · print: scripts only
gpus_per_node = 0  # 0: processes on CPUs; on one machine, 2 or more for several ranks

# %%
from aligner_lib.tutorial import Diagram, Workspace

lab = Workspace(out, profile, dataset, where)
print("runs go to:", lab.where)

# %% [markdown]
# ## Ranks
#
# A job on several nodes runs the same program many times. Each process is called a **rank**. To find each other, the
# ranks need three facts: their own number, the number of ranks (the world size), and the address of the rendezvous.
# Slurm sets its own variables for the three facts, and `torch.distributed` reads different variables, so the launcher
# translates.
#
# ### By hand
#
# Take two nodes with eight GPUs each. What is the rank of the second process on the second node? Count from zero. The
# first node has ranks 0 to 7, so the rank is $1 \cdot 8 + 1 = 9$ of 16. The rendezvous is on the first node.

# %%
from cluster.launch import from_slurm

slurm_variables = {
    "SLURM_PROCID": "9",
    "SLURM_LOCALID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_JOB_ID": "4711",
}
for name, value in from_slurm(slurm_variables).items():
    print(f"{name:16} {value}")

# %% [markdown]
# The port is computed from the job's id, so two jobs on the same node use different ports.
#
# ## What would be submitted?
#
# Look before you submit. `where="print"` prints the batch script and starts nothing. Here is SFT of a model with 2
# billion parameters on two nodes of eight GPUs, with the hyperparameters of NeMo-Aligner:

# %%
from aligner_lib.tutorial.workspace import slurm_recipes

two_nodes = {"nodes": 2, "gpus_per_node": 8, "exclusive": True}
site = {"account": "course", "partition": "batch"}
data = {"train": "/shared/dolly/train.jsonl", "validation": "/shared/dolly/validation.jsonl"}
plan = slurm_recipes.sft(
    "/shared/runs/sft", model="/shared/models/2b", **data, where="print", resources=two_nodes, site=site
)

# %% [markdown]
# | line | purpose |
# | --- | --- |
# | `--nodes`, `--ntasks-per-node`, `--gres` | two nodes, a rank for each GPU |
# | `--signal=B:USR2@180` | three minutes' notice before the time limit: enough for a step and a checkpoint |
# | `--requeue` | after the notice, or after a node is lost, the job returns to the queue |
# | `begin` … `finish` | turns a notice into a checkpoint; see [the page on clusters](../docs/cluster.md) |
# | `trainer.num_nodes`, `trainer.devices` | derived from the resources, so that all three always agree |
#
# ## Is the cluster ready?
#
# Do not wait in the queue for an hour only to learn that a folder is not shared. The next cell asks Slurm and a compute
# node beforehand (`aligner cluster check` does the same in a terminal):

# %%
from cluster import check

print(*check(shared=out), sep="\n")

# %% [markdown]
# ## One process, then several
#
# First start a short run as in notebook 03, then the same run on several ranks. With **data parallelism**, each rank
# computes its share of the batch, and the gradients are summed. Only the argument `resources` changes.

# %%
from cluster import Resources
from widgets import Monitor, curves

one_process = Resources(gpus_per_node=min(gpus_per_node, 1), time="0:30:00")
several = one_process.but(
    nodes=1 if lab.where == "local" else 2, gpus_per_node=gpus_per_node, tasks_per_node=gpus_per_node or 2
)
short = {"trainer.sft.max_steps": 8, "trainer.sft.val_check_interval": 8, "trainer.sft.limit_val_batches": 2}
sizes = {"micro_batch_size": 2}
if gpus_per_node:  # both runs have the same batch: a micro batch for each of the several ranks
    sizes["global_batch_size"] = 2 * several.ranks
share = {f"model.data.{split}_ds.{size}": n for split in ("train", "validation") for size, n in sizes.items()}

alone = lab.submit("sft", "scale-one", one_process, **short, **share)
if not lab.only_prints:
    await Monitor(lab.run("scale-one"), job=alone)

# %%
together = lab.submit("sft", "scale-several", several, **short, **share)
if not lab.only_prints:
    monitor = Monitor(lab.run("scale-several"), job=together)
    display(monitor)
    await monitor

# %%
if not lab.only_prints:
    losses = [lab.run(name).series("train/loss")[1] for name in ("scale-one", "scale-several")]
    difference = max(abs(a - b) / a for a, b in zip(*losses, strict=True))
    print(f"{several.ranks} ranks, 8 steps: losses differ by at most {difference:.1e} of their value")
    lab.record("09", {"scale_out": {"ranks": several.ranks, "largest_difference": difference}})

# %% [markdown]
# ### What you should see
#
# Both runs have the same losses, step by step. In the recorded run with `smoke` and {{smoke.scale_out.ranks:.0f}}
# ranks, the losses differed by {{smoke.scale_out.largest_difference:.0e}} of their value, and with `laptop` in bf16 by a few thousandths. The difference is rounding,
# because the sums are computed in another order. A difference that is visible in a plot is a bug, for example ranks
# that average their means instead of adding sums and counts.

# %%
if not lab.only_prints:
    display(curves([lab.run("scale-one"), lab.run("scale-several")], metrics=["train/loss"], smoothing=0))

# %% [markdown]
# What do the two policies write? Their weights are equal except for rounding, and their random numbers are equal. So
# the texts are equal as well, until rounding changes a draw.

# %%
if not lab.only_prints:
    from aligner_lib.jobs.inference import answering
    from widgets import Chat

    chat = Chat({name: answering(lab.run(name).path) for name in ("scale-one", "scale-several")})
    for prompt in ("How do I boil an egg?", "Name three rivers in Africa."):
        chat.ask(prompt)
    display(chat)

# %% [markdown]
# ## Restarts and failures
#
# The run folder contains everything about a job. Therefore any notebook or terminal that can read the folder can attach
# to the job.

# %%
from cluster import Job

if not lab.only_prints:
    attached = Job.attach(lab.run("scale-several").path)
    display(attached)
    print(attached.tail(3))

# %% [markdown]
# | event | reaction of the run |
# | --- | --- |
# | this kernel restarts | nothing changes: use `Job.attach(run)`, or `aligner logs RUN -f` |
# | the time limit nears, or a job with more priority takes the nodes | save a checkpoint, return to the queue, resume |
# | a node goes down | resume from the last checkpoint, on other nodes |
# | `job.stop()` · `job.cancel()` · `job.requeue()` | checkpoint and end · end now · checkpoint and queue again |
#
# After a restart the metrics are bit for bit those of an uninterrupted run, because data order, random numbers and
# learning rate depend only on the step.
#
# ## Several values at once
#
# A **sweep** is an array job: each value has its own run folder and its own job. Without Slurm, the next cell prints
# the script.

# %%
planned = lab if lab.where == "slurm" else Workspace(out, profile, dataset, where="print")
sweep = planned.submit_sweep("sft", "model.optim.lr", [3e-4, 3e-3], one_process, **short)
if lab.where == "slurm":
    sweep.wait()
    for row in sweep.table(["validation/loss"]):
        print(row)

# %% [markdown]
# ## PPO as two jobs
#
# The four models of PPO no longer fit into one job when the models are large. So critic and reward model become one
# component of a **hetjob**, and actor and reference become another. Each component has its own nodes, and Slurm starts
# and ends both together. The critic writes its address into the run folder, and the actor reads the address there.

# %%
data = {"train": "/shared/hh/train_prompts.jsonl", "validation": "/shared/hh/test_prompts.jsonl"}
models = {"policy": "/shared/runs/sft", "reward_model": "/shared/runs/rm"}
plan = slurm_recipes.ppo("/shared/runs/ppo", **models, **data, where="print", resources="ppo_1_1", site=site)
print(plan.nodes, "nodes,", plan.gpus, "GPUs")

# %%
Diagram("two-jobs")

# %% [markdown]
# ## What changes with 70 billion parameters?
#
# For each parameter, training needs 2 bytes of weights (bf16), 4 bytes of gradient (fp32), and 12 bytes of optimizer
# state: the fp32 master weight and Adam's two moments.
#
# ### By hand
#
# $70 \cdot 10^9 \cdot 18 = 1.26$ TB before the first activation, and a GPU has 80 GB, so training needs at least 16
# GPUs. There are three ways to divide the memory:
#
# - **tensor parallel** (TP) splits each matrix. Its ranks communicate in every layer, so TP stays inside a node.
# - **pipeline parallel** (PP) splits the stack of layers. Its ranks communicate once per stage, across nodes.
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
# The dashed line is the memory of a GPU. The first split below the line divides the model among 16 GPUs and keeps
# two replicas. A single replica does not fit. With two replicas, each stores only half of the optimizer state. The next table shows the smallest parallelism of each model and role,
# in GPUs of 80 GiB with sequences of 4096 tokens:

# %%
from IPython.display import Markdown

from cluster import sizing

display(Markdown(sizing.as_markdown(sizing.table(["Llama-3.2-1B", "Llama-2-7B", "Llama-2-70B"]))))

# %% [markdown]
# The smallest parallelism is slow, and more DP makes training faster. Two more things change with size. A checkpoint
# takes minutes, so the notice before the time limit must be longer (`signal_delay_s: 600` in
# `cluster/configs/ppo_64_32.yaml`). And nodes fail daily, so `trainer.ppo.save_interval` decides how much work a
# failure costs.
#
# ## What you learnt
#
# - A job has a command, a run folder and resources. From a laptop to a hundred nodes, only the resources change.
# - After a preemption or a lost node, the run resumes to the same metrics.
# - Training takes 18 bytes per parameter, divided by TP and PP, and 12 of the 18 also by DP.
#
# ## Further reading
#
# - Shoeybi et al. 2019, [*Megatron-LM*](https://arxiv.org/abs/1909.08053): tensor parallelism, layer by layer.
# - Narayanan et al. 2021, [*Efficient large-scale language model training on GPU
#   clusters*](https://arxiv.org/abs/2104.04473): how tensor, pipeline and data parallelism combine.
# - Rajbhandari et al. 2020, [*ZeRO*](https://arxiv.org/abs/1910.02054): where the 18 bytes per parameter go, and how
#   ranks share them.
# - Shen et al. 2024, [*NeMo-Aligner*](https://arxiv.org/abs/2405.01481): PPO as two jobs with a PyTriton server, at 70
#   billion parameters.
# - Sheng et al. 2024, [*HybridFlow*](https://arxiv.org/abs/2409.19256): the other design, in which all four models share
#   the same machines.
#
# ## Questions

# %%
from widgets import Quiz

Quiz("09")

# %% [markdown]
# Back to the [start](00_start_here.ipynb)
