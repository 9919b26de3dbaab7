"""Every setting of every job, with NeMo-Aligner's key names, its defaults, and a sentence each.

`aligner_lib.config.compose` composes these with a profile and with overrides. `None` means: not set, or off.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, make_dataclass
from typing import Any

from aligner_lib.run_folder.alarms import Thresholds

# ---- shared by all jobs ---------------------------------------------------------------------------------------------


@dataclass
class Sched:
    name: str = "CosineAnnealing"  # CosineAnnealing or constant
    warmup_steps: int = 10  # optimiser steps of linear warm-up from 0
    constant_steps: int = 0  # optimiser steps at min_lr at the end of the decay
    min_lr: float = 0.0  # where the decay ends
    max_steps: int | None = None  # length of the decay; None: the run's own length


@dataclass
class Optim:
    name: str = "distributed_fused_adam"  # Megatron's distributed AdamW, the only one there is
    lr: float = 9e-6  # peak learning rate
    weight_decay: float = 0.1  # decoupled; not on norms and biases
    betas: list[float] = field(default_factory=lambda: [0.9, 0.98])
    eps: float = 1e-8
    sched: Sched = field(default_factory=Sched)


@dataclass
class Model:
    seed: int = 1234  # of data order, sampling and new weights
    micro_batch_size: int = 1  # samples in one forward-backward
    global_batch_size: int = 64  # samples in one optimiser step
    encoder_seq_length: int = 4096  # longest sample in tokens; longer ones are dropped, counted and reported
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    megatron_amp_O2: bool = (
        False  # bf16 parameters with float32 copies in the optimiser; follows trainer.precision
    )
    mcore_gpt: bool = True  # always Megatron Core here; False is an error
    activations_checkpoint_granularity: str | None = None  # selective or full recomputation of activations
    activations_checkpoint_method: str | None = None  # uniform or block, with full
    activations_checkpoint_num_layers: int | None = None  # layers a recomputed chunk
    optim: Optim = field(default_factory=Optim)


@dataclass
class WandbKwargs:
    project: str | None = None
    name: str | None = None


@dataclass
class CheckpointCallbackParams:
    monitor: str | None = None
    save_top_k: int = 1  # how many checkpoints stay; the newest are kept
    save_nemo_on_train_end: bool = False
    always_save_nemo: bool = False


# The limits of `aligner_lib.run_folder.alarms` as settings; that of the heartbeat is for onlookers alone.
Alarms = make_dataclass(
    "Alarms",
    [(limit.name, float, limit.default) for limit in fields(Thresholds) if limit.name != "heartbeat_seconds"],
)


@dataclass
class ExpManager:
    explicit_log_dir: str | None = None  # the run folder
    create_wandb_logger: bool = False
    wandb_logger_kwargs: WandbKwargs = field(default_factory=WandbKwargs)
    create_tensorboard_logger: bool = True  # exported beside the run: <run>/tensorboard
    create_checkpoint_callback: bool = True  # False: no checkpoint is written
    checkpoint_callback_params: CheckpointCallbackParams = field(default_factory=CheckpointCallbackParams)
    # go on from the run folder's latest checkpoint; False: begin anew, with the old ones in checkpoints-old-1
    resume_if_exists: bool = True
    resume_ignore_no_checkpoint: bool = True  # False: a run folder without a checkpoint is an error
    alarms: Alarms = field(default_factory=Alarms)  # when the run's own alarms (alarms.jsonl) sound


@dataclass
class Loop:
    """What trainer.sft, trainer.rm and trainer.ppo share. Steps are optimiser steps (PPO: rollout-and-train steps)."""

    max_epochs: int = 1
    max_steps: int = -1  # -1: as many as max_epochs gives
    val_check_interval: int = 10  # steps between validations
    save_interval: int = 10  # steps between checkpoints; one is always written at the end
    limit_val_batches: int = -1  # global batches (PPO: rollout micro batches) of a validation; -1: all
    gradient_clip_val: float = 1.0  # norm of the gradient is clipped to this; 0: not


@dataclass
class Trainer:
    num_nodes: int = 1
    devices: int = 1  # processes a node: one a GPU; on a CPU, one a rank
    precision: str = "bf16"  # bf16 or 32; a CPU always computes in float32


@dataclass
class PretrainedCheckpoint:
    restore_from_path: str | None = None  # model name, model folder, checkpoint or run folder


# ---- supervised fine-tuning -----------------------------------------------------------------------------------------


@dataclass
class SFTDataset:
    file_path: Any = None  # a .jsonl file with input and output or conversations, or a list of them
    micro_batch_size: int = 1
    global_batch_size: int = 128
    max_seq_length: int | None = None  # None: model.encoder_seq_length
    shuffle: bool = True


@dataclass
class SFTData:
    num_workers: int = 0  # accepted for compatibility: tokens are prepared once, before the first step
    train_ds: SFTDataset = field(default_factory=SFTDataset)
    validation_ds: SFTDataset = field(default_factory=lambda: SFTDataset(shuffle=False))


@dataclass
class SFTModel(Model):
    restore_from_path: str | None = None  # the start: a model name, model folder, checkpoint or run folder
    answer_only_loss: bool = True  # loss on the output and its stop token only
    data: SFTData = field(default_factory=SFTData)
    optim: Optim = field(default_factory=lambda: Optim(lr=5e-6, weight_decay=0.01))


@dataclass
class SFTTrainerGroup(Trainer):
    sft: Loop = field(default_factory=Loop)


@dataclass
class SFTConfig:
    trainer: SFTTrainerGroup = field(default_factory=SFTTrainerGroup)
    model: SFTModel = field(default_factory=SFTModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- reward model ---------------------------------------------------------------------------------------------------


@dataclass
class Data:
    data_impl: str = "jsonl"
    data_prefix: dict[str, Any] = field(
        default_factory=dict
    )  # {train: [files], validation: [files], test: [files]}
    num_workers: int = 0


@dataclass
class RewardModelModel(Model):
    data: Data = field(default_factory=Data)
    reward_standardization: dict[str, Any] = field(
        default_factory=lambda: {"enable": True, "mean": None, "std": None}
    )  # rewards leave the model as (r - mean) / std; None: measured on the validation pairs when training ends
    optim: Optim = field(default_factory=Optim)


@dataclass
class RewardModelTrainerGroup(Trainer):
    rm: Loop = field(default_factory=Loop)


@dataclass
class RewardModelConfig:
    trainer: RewardModelTrainerGroup = field(default_factory=RewardModelTrainerGroup)
    pretrained_checkpoint: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)
    model: RewardModelModel = field(default_factory=RewardModelModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- PPO: the critic (its own job, or in the actor's process) -------------------------------------------------------


@dataclass
class CriticPPO:
    inference_micro_batch_size: int = 4  # sequences in one forward of critic or reward model
    port: int = 5556
    address: str | None = None  # to listen on; None: loopback, in a Slurm job the node's own
    actor_timeout: float = (
        600.0  # seconds without a word from the actor, after which the server saves and ends
    )
    combine_rm_and_critic_server: bool = True  # False: the reward model has a server of its own (serve-rm)
    gradient_clip_val: float = 1.0


@dataclass
class CriticTrainerGroup(Trainer):
    ppo: CriticPPO = field(default_factory=CriticPPO)


@dataclass
class CriticModel(Model):
    loss_clip_val: float = (
        0.2  # values may move this far from the rollout's in one update's loss; <= 0: not clipped
    )
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-6, sched=Sched(min_lr=9e-7)))
    offload_adam_states: bool = True  # Adam's moments wait on the CPU while nothing is trained


@dataclass
class CriticConfig:
    trainer: CriticTrainerGroup = field(default_factory=CriticTrainerGroup)
    pretrained_checkpoint: PretrainedCheckpoint = field(
        default_factory=PretrainedCheckpoint
    )  # the reward model
    model: CriticModel = field(default_factory=CriticModel)
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- PPO: a reward model served alone --------------------------------------------------------------------------------


@dataclass
class Inference:
    micro_batch_size: int = 4  # sequences in one forward
    port: int = 5555
    address: str | None = None  # as trainer.ppo.address of the critic
    actor_timeout: float = 600.0


@dataclass
class RewardServerConfig:
    rm_model_file: str | None = None  # the reward model: model folder, checkpoint or run folder
    inference: Inference = field(default_factory=Inference)
    trainer: Trainer = field(default_factory=Trainer)
    model: Model = field(default_factory=Model)
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- PPO: the actor -------------------------------------------------------------------------------------------------


@dataclass
class SamplingParams:
    use_greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0  # 0: all tokens
    top_p: float = 1.0  # 1: all tokens
    end_strings: list[str] = field(default_factory=list)  # a response also ends with one of these


@dataclass
class LengthParams:
    max_length: int | None = None  # tokens a response; None: half of encoder_seq_length
    min_length: int = 1  # the stop token can't come before


@dataclass
class ActorPPO:
    num_rollout_samples: int = 512  # responses a PPO step
    rollout_micro_batch_size: int = 8  # prompts generated together
    num_val_samples: int | None = None  # held-out prompts a validation; None: all
    val_rollout_micro_batch_size: int | None = None  # None: rollout_micro_batch_size
    logprob_forward_micro_batch_size: int | None = (
        None  # sequences in one forward; None: model.micro_batch_size
    )
    ratio_eps: float = 0.2  # the policy ratio is clipped to [1 - eps, 1 + eps]
    entropy_bonus: float = 0.0  # weight of the entropy in the loss
    offload_adam_states: bool = True  # Adam's moments wait on the CPU while nothing is trained
    combine_rm_and_critic_server: bool = True  # False: rewards come from remote_critic_rm.reward_model
    sampling_params: SamplingParams = field(default_factory=SamplingParams)
    length_params: LengthParams = field(default_factory=LengthParams)


@dataclass
class ActorModel(Model):
    ppo: ActorPPO = field(default_factory=ActorPPO)
    data: Data = field(default_factory=Data)
    optim: Optim = field(default_factory=lambda: Optim(lr=9e-7, sched=Sched(min_lr=9e-8)))


@dataclass
class PPOLoop(Loop):
    initial_policy_kl_penalty: float = 0.01  # weight of the KL to the reference in the reward of each token
    use_absolute_kl: bool = True
    discount_factor: float = 1.0
    gae_lambda: float = 0.95
    normalize_advantages: bool = True
    critic_warmup_steps: int = 0  # first steps, which train only the critic
    max_init_policy_kl: float | None = (
        None  # nats a token; beyond it the run ends with an error; None: no bound
    )


@dataclass
class PPOTrainerGroup(Trainer):
    ppo: PPOLoop = field(default_factory=PPOLoop)


@dataclass
class Address:
    ip: str | None = (
        None  # host name or address of a job of its own; neither ip nor run: in the actor's process
    )
    port: int = 5556
    run: str | None = None  # in place of ip and port: that job's run folder, which says both


@dataclass
class RemoteCriticRM:
    critic: Address = field(default_factory=Address)
    reward_model: Address = field(default_factory=lambda: Address(port=5555))
    pad_to_length: int | None = None  # requests are padded to this length; None: to the next of a few lengths
    timeout: float = 600.0  # seconds that the actor waits for a server that is not there


@dataclass
class PPOConfig:
    trainer: PPOTrainerGroup = field(default_factory=PPOTrainerGroup)
    pretrained_checkpoint: PretrainedCheckpoint = field(
        default_factory=PretrainedCheckpoint
    )  # the SFT policy
    model: ActorModel = field(default_factory=ActorModel)
    remote_critic_rm: RemoteCriticRM = field(default_factory=RemoteCriticRM)
    critic: CriticConfig = field(
        default_factory=CriticConfig
    )  # used where remote_critic_rm.critic has neither ip nor run
    exp_manager: ExpManager = field(default_factory=ExpManager)


# ---- evaluation -----------------------------------------------------------------------------------------------------


@dataclass
class EvaluateConfig(PPOConfig):
    """PPO's settings, and which policy to evaluate; pretrained_checkpoint is the reference that KL is measured to."""

    policy: PretrainedCheckpoint = field(default_factory=PretrainedCheckpoint)


SCHEMAS = {
    "sft": SFTConfig,
    "rm": RewardModelConfig,
    "ppo": PPOConfig,
    "evaluate": EvaluateConfig,
    "critic": CriticConfig,
    "reward_server": RewardServerConfig,
}
