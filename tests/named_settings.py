"""The settings that docs/parity.md and docs/migration.md name, and in which kinds of job each has an effect.

The tables of settings in parity have a column for the jobs. Of a setting that other rows name, `ELSEWHERE` has its jobs.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

from aligner_lib.config.compose import compose, keys, notices
from aligner_lib.config.kinds import kind_of, kinds
from aligner_lib.config.other_names import OTHER_NAMES

DOCS = Path(__file__).parents[1] / "docs"
SETTING = re.compile(
    r"(?:trainer|model|exp_manager|pretrained_checkpoint|remote_critic_rm|critic|reward_model|remote_rm|policy)(?:\.\w+)+(?:\.\*)?(?![\w./])"
)
CALLBACK = "exp_manager.checkpoint_callback_params"

# ---- an unusual value of each ----------------------------------------------------------------------------------------

VALUES = dict(
    text.split("=", 1)
    for text in f"""
trainer.num_nodes=2 trainer.devices=4 trainer.precision='32'
model.restore_from_path=m pretrained_checkpoint.restore_from_path=m
model.megatron_amp_O2=True model.mcore_gpt=True model.rampup_batch_size=null
model.optim.lr=1e-7 model.optim.sched.min_lr=1e-8
model.micro_batch_size=2 model.global_batch_size=32
model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 model.sequence_parallel=True
model.activations_checkpoint_granularity=full model.activations_checkpoint_method=block
model.data.data_impl=mmap model.data.data_prefix={{train:[a],validation:[b]}} model.data.data_prefix.test=[c]
model.data.num_workers=4 model.data.packed_sequence=True model.encoder_seq_length=512
exp_manager.explicit_log_dir=r exp_manager.create_tensorboard_logger=False exp_manager.create_wandb_logger=True
exp_manager.wandb_logger_kwargs.project=p exp_manager.wandb_logger_kwargs.name=n
exp_manager.resume_if_exists=False exp_manager.resume_ignore_no_checkpoint=False
exp_manager.create_checkpoint_callback=False
{CALLBACK}.monitor=validation_loss {CALLBACK}.save_nemo_on_train_end=True {CALLBACK}.always_save_nemo=True
trainer.sft.max_steps=7 trainer.sft.limit_val_batches=7 trainer.sft.val_check_interval=7 trainer.sft.save_interval=7
model.answer_only_loss=False
model.data.train_ds.file_path=f model.data.train_ds.micro_batch_size=2 model.data.train_ds.global_batch_size=32
model.data.validation_ds.file_path=f model.data.validation_ds.micro_batch_size=2
model.data.validation_ds.global_batch_size=32
trainer.rm.max_epochs=2 trainer.rm.save_interval=7 trainer.rm.val_check_interval=7 trainer.rm.limit_val_batches=7
trainer.ppo.max_steps=7 trainer.ppo.val_check_interval=7 trainer.ppo.initial_policy_kl_penalty=0.7
trainer.ppo.use_absolute_kl=False trainer.ppo.discount_factor=0.7 trainer.ppo.gae_lambda=0.7
trainer.ppo.normalize_advantages=False trainer.ppo.inference_micro_batch_size=7 trainer.ppo.port=7777
trainer.ppo.combine_rm_and_critic_server=False trainer.ppo.mask_truncated_responses=True
trainer.ppo.trt_llm.*=True trainer.trt_llm.model_type=gptnext trainer.ppo.batch_iterator.use_flask=True
model.ppo.combine_rm_and_critic_server=False model.offload_adam_states=False model.ppo.offload_adam_states=False
model.loss_clip_val=0.7 model.ppo.entropy_bonus=0.7 model.ppo.ratio_eps=0.7 model.ppo.num_rollout_samples=256
model.ppo.num_val_samples=7 model.ppo.rollout_micro_batch_size=7 model.ppo.length_params.max_length=77
model.ppo.sampling_params.*=0.7 model.peft.*=lora model.environments={{e:{{use:sums}}}}
model.generation.backend=vllm model.grpo.num_val_samples=7
remote_critic_rm.critic.ip=10.0.0.7 remote_critic_rm.critic.port=7777 remote_critic_rm.critic.run=c
remote_critic_rm.reward_model.ip=10.0.0.7 remote_critic_rm.reward_model.port=7778 remote_critic_rm.pad_to_length=7
model.dpo.preference_loss=ipo model.dpo.sft_loss_weight=0.7
""".split()
)
"""setting → a value that is not the default"""
MEMBERS = {
    "trainer.ppo.trt_llm.*": "trainer.ppo.trt_llm.enable",
    "model.ppo.sampling_params.*": "model.ppo.sampling_params.temperature",
    "model.peft.*": "model.peft.peft_scheme",
}
"""group → the setting that stands for it"""
ALONE = {
    "exp_manager.create_checkpoint_callback",  # refused with a remote critic
    "model.data.data_prefix",
    "model.data.data_prefix.test",
    "model.data.packed_sequence",  # the micro batch size of SFT's validation has no effect then
    "model.generation.backend",  # refused with two nodes
    "model.environments",  # the reward model's settings have no effect then
    "remote_critic_rm.critic.run",  # stands for critic.ip
}
"""what is composed alone; all others of a kind are composed together, since some need others to have an effect"""
NEEDED = {"model.optim.sched.min_lr": "model.optim.sched.name=CosineAnnealing"}
"""setting → what gives it an effect, and what no row names"""
ONLY = {"model.mcore_gpt": "False", "model.rampup_batch_size": "[2,2,64]"}
"""setting with a single value → another one, which is refused"""


def key_of(name: str) -> str:
    return MEMBERS.get(name, name)


@cache
def keys_of(kind: str) -> tuple[str, ...]:
    return tuple(keys(kind))


def has(kind: str, name: str) -> bool:
    """Whether a kind of job has a setting, or a free-form one that it is a key of."""
    return any(key_of(name) == key or f"{key_of(name)}.".startswith(f"{key}.") for key in keys_of(kind))


def override(name: str) -> str:
    return f"{key_of(name)}={VALUES[name]}"


def together(kind: str) -> list[str]:
    """The unusual values of a kind's settings that can be given at once, as overrides."""
    given = [name for name in VALUES if has(kind, name) and name not in ALONE]
    return [*map(override, given), *(NEEDED[name] for name in given if name in NEEDED)]


@cache
def effects(kind: str) -> dict[str, bool]:
    """The settings that a kind of job takes, each with whether it has an effect: no notice says that it has none."""
    usual = compose(kind)

    def outcome(names: list[str], given: list[str]) -> dict[str, bool]:
        config = compose(kind, given)
        for name in names:
            changed = OmegaConf.select(config, key_of(name)) != OmegaConf.select(usual, key_of(name))
            assert changed or name in ONLY, f"{override(name)} is the default"
        lines = notices(kind, config)
        return {name: not any(f"{key_of(name)}=" in line for line in lines) for name in names}

    alone = [name for name in VALUES if has(kind, name) and name in ALONE]
    have_effect = outcome([name for name in VALUES if has(kind, name) and name not in ALONE], together(kind))
    for name in alone:
        have_effect |= outcome([name], [override(name)])
    return have_effect


# ---- the pages -------------------------------------------------------------------------------------------------------

ELSEWHERE = {
    "exp_manager.create_tensorboard_logger": "all",
    "model.data.data_prefix.test": "all but sft, serve-critic, serve-rm",
    "model.data.packed_sequence": "sft, rm, dpo",
    "model.dpo.preference_loss": "dpo",
    "model.dpo.sft_loss_weight": "dpo",
    "model.encoder_seq_length": "all but serve-critic, serve-rm",
    "model.environments": "ppo, grpo, evaluate",
    "model.generation.backend": "ppo, grpo, evaluate",
    "model.grpo.num_val_samples": "grpo",
    "model.ppo.num_val_samples": "ppo, evaluate",
    "model.sequence_parallel": "all",
    "remote_critic_rm.critic.run": "ppo",
    "trainer.ppo.mask_truncated_responses": "ppo",
    "trainer.rm.max_epochs": "rm",
}
"""setting → its jobs, where the row says it in words or not at all"""
NOT_HERE = {"model.dpo.preference_loss_weight": "dpo", "model.dpo.gt_reward_scale": "dpo"}
"""a setting of NeMo-Aligner's that a row says is refused → its job"""


def kinds_of(cell: str) -> set[str]:
    """The kinds of job that a cell names by their commands: `sft`, `rm` or all, or all but some."""
    every = {kind_of(kind).command: kind for kind in kinds()}
    listed = {every[name] for name in re.findall(r"[\w-]+", re.sub(r"^all( but)?", "", cell))}
    return set(every.values()) - listed if cell.startswith("all") else listed


@cache
def rows(page: str) -> list[dict[str, str]]:
    """A page's rows: of each the cells, by the titles of its table."""
    table, titles = [], []
    for line in (DOCS / f"{page}.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("| "):
            titles = []
        elif not titles:
            titles = cells
        elif cells[0] != "---":
            table.append(dict(zip(titles, cells, strict=True)))
    return table


def named(cell: str) -> list[str]:
    """The settings in a cell; a value behind one and a command before it are left out."""
    ticked = re.findall(r"`([^`]+)`", cell)
    return [found[0] for text in ticked if (found := SETTING.match(text)) and found[0] not in OTHER_NAMES]


FIRST = "the documents say"
IDLE = ("a name only", "names only", "taken, and told", "taken by name, and told")


@cache
def claims() -> dict[str, tuple[str, set[str], str]]:
    """Setting → (what its row of parity says it is here, the jobs that it is for, the row's first cell)."""
    claimed = {}
    for row in rows("parity"):
        theirs = set(re.findall(r"`([^`]+)`", row[FIRST]))
        if "jobs" in row and not theirs & OTHER_NAMES.keys() and not row[FIRST].startswith("`--"):
            for name in named(row[FIRST]) or named(row["here"])[:1]:
                claimed[name] = row["here"], kinds_of(row["jobs"]), row[FIRST]
    return claimed


def says_no_effect(words: str) -> bool:
    """Whether a row says that the setting is taken and does nothing."""
    return any(idle in words for idle in IDLE)
