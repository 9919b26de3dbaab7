"""The command lines of the documents that the project promises to take, as they stand there, less the launcher.

A document's commands are in its order: (script, words). In them ${NAME} is a variable of the document's shell.
"""

from __future__ import annotations

import re
import shlex

SPLITS = "{train: [${TRAIN_DATA_PATH}], validation: [${VALID_DATA_PATH}], test: [${VALID_DATA_PATH}]}"


def _commands(text: str) -> list[tuple[str, str]]:
    """A command begins where a line does; further lines are indented."""
    lines = re.split(r"\n(?=\S)", text.strip().replace("SPLITS", SPLITS))
    return [tuple(line.split(maxsplit=1)) for line in lines]


# NeMo-Aligner's RLHF tutorial. Its commands for SFT and the reward model without Slurm set nothing that those with Slurm don't.
TUTORIAL = _commands("""
train_gpt_sft trainer.precision=bf16 trainer.num_nodes=${SLURM_JOB_NUM_NODES} trainer.devices=8
    trainer.sft.max_steps=-1 trainer.sft.limit_val_batches=40 trainer.sft.val_check_interval=1000
    trainer.sft.save_interval=50 model.megatron_amp_O2=True
    model.restore_from_path=${PRETRAINED_ACTOR_NEMO_FILE} model.optim.lr=5e-6 model.answer_only_loss=True
    model.data.num_workers=0 model.data.train_ds.micro_batch_size=1 model.data.train_ds.global_batch_size=128
    model.data.train_ds.file_path=${TRAIN_DATA_PATH} model.data.validation_ds.micro_batch_size=1
    model.data.validation_ds.global_batch_size=128 model.data.validation_ds.file_path=${VALID_DATA_PATH}
    exp_manager.create_wandb_logger=True exp_manager.explicit_log_dir=${RESULTS_DIR}
    exp_manager.wandb_logger_kwargs.project=${PROJECT} exp_manager.wandb_logger_kwargs.name=dolly_sft_run
    exp_manager.resume_if_exists=True exp_manager.resume_ignore_no_checkpoint=True
    exp_manager.create_checkpoint_callback=True
    exp_manager.checkpoint_callback_params.save_nemo_on_train_end=True
    exp_manager.checkpoint_callback_params.monitor=validation_loss
train_reward_model trainer.num_nodes=${SLURM_JOB_NUM_NODES} trainer.devices=8
    pretrained_checkpoint.restore_from_path='${PRETRAINED_CHECKPOINT_NEMO_FILE}'
    "++model.data.data_prefix=SPLITS" ++model.micro_batch_size=1 ++model.global_batch_size=512
    ++model.data.data_impl=jsonl exp_manager.explicit_log_dir=${RESULTS_DIR}
    exp_manager.create_wandb_logger=True exp_manager.wandb_logger_kwargs.name=${NAME}
    trainer.rm.save_interval=500 trainer.rm.val_check_interval=100 trainer.rm.limit_val_batches=100000
    exp_manager.wandb_logger_kwargs.project=${PROJECT}
serve_ppo_critic trainer.devices=1 trainer.num_nodes=8 ++model.tensor_model_parallel_size=1
    ++model.pipeline_model_parallel_size=1 exp_manager.create_wandb_logger=False
    exp_manager.wandb_logger_kwargs.name=critic_training
    exp_manager.wandb_logger_kwargs.project=nemo_aligner_ppo exp_manager.explicit_log_dir=${RESULTS_DIR}
    trainer.ppo.inference_micro_batch_size=4 ++pretrained_checkpoint.restore_from_path=${CHECKPOINT_NEMO_FILE}
    ++model.megatron_amp_O2=True ++model.activations_checkpoint_granularity=null
    ++trainer.ppo.combine_rm_and_critic_server=True ++model.offload_adam_states=True ++model.mcore_gpt=True
train_gpt_ppo_actor "++model.data.data_prefix=SPLITS" ++model.data.data_impl=jsonl
    pretrained_checkpoint.restore_from_path=${PRETRAINED_ACTOR_NEMO_FILE} trainer.num_nodes=1 trainer.devices=8
    ++model.pipeline_model_parallel_size=1 ++model.tensor_model_parallel_size=1
    ++model.ppo.combine_rm_and_critic_server=True ++model.ppo.offload_adam_states=True
    ++model.megatron_amp_O2=True ++trainer.ppo.normalize_advantages=True ++model.mcore_gpt=True
    exp_manager.create_wandb_logger=False exp_manager.wandb_logger_kwargs.name=ppo_actor_training
    exp_manager.wandb_logger_kwargs.project=nemo_aligner_ppo exp_manager.explicit_log_dir=/rlhf/actor_test
    ++model.ppo.entropy_bonus=0.0 remote_critic_rm.pad_to_length=2048
serve_ppo_critic trainer.ppo.inference_micro_batch_size=4 trainer.devices=8
    trainer.num_nodes=${SLURM_JOB_NUM_NODES_HET_GROUP_0} exp_manager.explicit_log_dir=${CRITIC_LOG_DIR}
    exp_manager.create_wandb_logger=True exp_manager.wandb_logger_kwargs.name=${CRITIC_NAME}
    exp_manager.wandb_logger_kwargs.project=${PROJECT} trainer.ppo.port=${CRITIC_PORT}
    ++model.offload_adam_states=True ++model.micro_batch_size=1 ++model.global_batch_size=64
    pretrained_checkpoint.restore_from_path=${RM_NEMO_FILE}
train_gpt_ppo_actor trainer.devices=8 trainer.num_nodes=${SLURM_JOB_NUM_NODES_HET_GROUP_1}
    trainer.ppo.max_steps=15 ++model.data.data_impl=jsonl "++model.data.data_prefix=SPLITS"
    pretrained_checkpoint.restore_from_path=${ACTOR_NEMO_FILE} exp_manager.explicit_log_dir=${ACTOR_LOG_DIR}
    exp_manager.create_wandb_logger=True exp_manager.wandb_logger_kwargs.name=${ACTOR_NAME}
    exp_manager.wandb_logger_kwargs.project=${PROJECT} ++model.micro_batch_size=1 ++model.global_batch_size=64
    ++model.activations_checkpoint_granularity=selective ++model.activations_checkpoint_method=uniform
    ++model.optim.lr=9e-7 trainer.ppo.val_check_interval=3 ++model.optim.sched.min_lr=9e-8
    ++model.ppo.entropy_bonus=0.0 ++model.ppo.ratio_eps=0.2 ++model.ppo.num_rollout_samples=512
    ++model.ppo.rollout_micro_batch_size=8 ++model.ppo.length_params.max_length=1024
    trainer.ppo.initial_policy_kl_penalty=0.02 remote_critic_rm.critic.ip=${host_critic}
    remote_critic_rm.critic.port=${CRITIC_PORT}
""")
# NeMo-Reinforcer's page, whose settings have other names
REINFORCER = _commands("""
run_sft policy.model_name="meta-llama/Meta-Llama-3-8B" policy.train_global_batch_size=128
    sft.val_global_batch_size=128 cluster.gpus_per_node=8
run_sft cluster.num_nodes=$NUM_ACTOR_NODES cluster.gpus_per_node=8
    checkpointing.checkpoint_dir='results/sft_llama8b_2nodes' logger.wandb_enabled=True
    logger.wandb.name='sft-llama8b'
run_grpo_math cluster.gpus_per_node=8
run_grpo_math policy.model_name="Qwen/Qwen2-1.5B" checkpointing.checkpoint_dir="results/qwen1_5b_math"
    logger.wandb_enabled=True logger.wandb.name="grpo-qwen1_5b_math" logger.num_val_samples_to_print=10
run_grpo_math cluster.num_nodes=$NUM_ACTOR_NODES checkpointing.checkpoint_dir='results/llama8b_2nodes'
    logger.wandb_enabled=True logger.wandb.name='grpo-llama8b_math'
""")
# What the page on a hands-on tells to write into the reward model's settings, and the page on hyperparameters names.
HANDS_ON = """
model.rampup_batch_size=null exp_manager.checkpoint_callback_params.always_save_nemo=True
exp_manager.checkpoint_callback_params.save_nemo_on_train_end=True
""".split()
PPO_PAGE = """
trainer.ppo.initial_policy_kl_penalty=0.02 trainer.ppo.use_absolute_kl=True trainer.ppo.discount_factor=1.0
trainer.ppo.gae_lambda=0.95 trainer.ppo.normalize_advantages=True model.ppo.entropy_bonus=0.0
model.ppo.ratio_eps=0.2 remote_critic_rm.reward_model.ip=10.0.0.7 remote_critic_rm.reward_model.port=5555
remote_critic_rm.critic.ip=10.0.0.7 remote_critic_rm.critic.port=5556 model.ppo.num_rollout_samples=512
model.ppo.sampling_params.temperature=1.0 model.ppo.rollout_micro_batch_size=8 model.ppo.offload_adam_states=True
model.ppo.length_params.max_length=1024
""".split()

KINDS = {
    "train_gpt_sft": "sft",
    "train_reward_model": "rm",
    "serve_ppo_critic": "critic",
    "train_gpt_ppo_actor": "ppo",
    "run_sft": "sft",
    "run_grpo_math": "grpo",
}
VARIABLES = dict(
    variable.split("=")
    for variable in """
SLURM_JOB_NUM_NODES=4 SLURM_JOB_NUM_NODES_HET_GROUP_0=1 SLURM_JOB_NUM_NODES_HET_GROUP_1=1 NUM_ACTOR_NODES=2
CRITIC_PORT=5567 host_critic=node001 PROJECT=ppo_run NAME=2p_ppo CRITIC_NAME=2p_ppo_critic ACTOR_NAME=2p_ppo_actor
""".split()
)


def overrides(words: str) -> list[str]:
    """A command's settings as its shell would give them."""
    filled = re.sub(
        r"\$\{?(\w+)\}?", lambda found: VARIABLES.get(found[1], f"/path/{found[1].lower()}"), words
    )
    return shlex.split(filled)


TAKEN = [(KINDS[script], overrides(words)) for script, words in TUTORIAL] + [
    ("rm", HANDS_ON),
    ("ppo", PPO_PAGE),
]
