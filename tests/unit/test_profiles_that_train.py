"""The shipped profiles: a cluster's jobs take enough steps on the hub's data and fit on their GPUs; a laptop chooses its precision."""

from functools import cache

import pytest
from omegaconf import OmegaConf

from aligner_lib.cli.size import GPUs, best_layout, memory_of, together, trained_models
from aligner_lib.config.compose import compose, keys
from aligner_lib.config.kinds import kinds
from cluster.sizing import MODELS, Parallelism

GPU_GIB = 80
BY_NAME = ("SmolLM2-1.7B", "Qwen2.5-1.5B")  # docs/models.md; Llama-3.2-1B is smaller
# The hub's records: nine tenths of Dolly, and the training and test pairs of HH, whose prompts PPO takes
TRAINING = {"sft": 13_510, "rm": 160_800, "dpo": 160_800, "ppo": 160_800}
VALIDATION = {"sft": 1_501, "rm": 8_552, "dpo": 8_552}
KINDS = [*TRAINING, "grpo"]
SERVERS_AND_EVALUATION = ("evaluate", "critic", "reward_server")
SUMS = {"grpo": ["model.environments.sums.use=sums"]}
PROFILES = ("gpu", "slurm")

each_job = pytest.mark.parametrize(
    ("profile", "kind"), [(profile, kind) for profile in PROFILES for kind in KINDS]
)


@cache
def composed(profile: str, kind: str):
    """A job's settings, which no test may change."""
    return compose(kind, SUMS.get(kind, []), profile)


def batch_of(config, kind: str) -> int:
    """The samples of a step: responses in PPO and GRPO."""
    if kind == "sft":
        return config.model.data.train_ds.global_batch_size
    if kind == "ppo":
        return config.model.ppo.num_rollout_samples
    if kind == "grpo":
        return config.model.grpo.num_prompts_per_step * config.model.grpo.num_generations_per_prompt
    return config.model.global_batch_size


def steps_of(config, kind: str) -> int:
    loop = config.trainer[kind]
    by_epochs = (loop.max_epochs or 1) * TRAINING.get(kind, 0) // batch_of(config, kind)
    return by_epochs if loop.max_steps < 0 else loop.max_steps


@pytest.mark.parametrize("kind", [*KINDS, *SERVERS_AND_EVALUATION])
def test_a_laptop_chooses_the_precision_of_each_model(kind):
    config = composed("laptop", kind)
    precisions = {OmegaConf.select(config, key) for key in keys(kind) if key.endswith("trainer.precision")}
    assert precisions == {"auto"}


@pytest.mark.parametrize("profile", PROFILES)
def test_servers_and_evaluations_compute_as_the_jobs_that_use_them(profile):
    """With the training kinds, all kinds of the registry."""
    others = {name: composed(profile, name) for name in SERVERS_AND_EVALUATION}
    assert {kind.name for kind in kinds().values()} == {*KINDS, *others}
    ppo = composed(profile, "ppo")
    for name in others:
        assert others[name].trainer.precision == ppo.trainer.precision == "bf16"
    for name in ("encoder_seq_length", "data.chat_template", "ppo.length_params.max_length"):
        assert OmegaConf.select(others["evaluate"].model, name) == OmegaConf.select(ppo.model, name)
    for key in ("optim.lr", "optim.sched.warmup_steps", "micro_batch_size", "global_batch_size"):
        assert OmegaConf.select(others["critic"].model, key) == OmegaConf.select(ppo.critic.model, key)
    for name in ("critic", "reward_server"):
        assert others[name].model.encoder_seq_length >= ppo.model.encoder_seq_length


@each_job
def test_a_job_takes_enough_steps_and_warms_up_validates_and_saves_within_them(profile, kind):
    """At least 100 steps, at most a tenth of them for the warm-up, and validations of fewer samples than the training between them."""
    config, samples_of_a_step = composed(profile, kind), batch_of(composed(profile, kind), kind)
    loop, steps = config.trainer[kind], steps_of(config, kind)
    assert steps >= 100 and loop.val_check_interval <= steps / 4 and loop.save_interval <= steps / 3
    if kind in ("ppo", "grpo"):
        updates = steps * samples_of_a_step // config.model.global_batch_size
        validated = config.model[kind].num_val_samples
    else:
        updates = steps
        batch = config.model.data.validation_ds.global_batch_size if kind == "sft" else samples_of_a_step
        validated = min(loop.limit_val_batches * batch, VALIDATION[kind])
    for trained in [config, config.critic] if kind == "ppo" else [config]:
        assert trained.model.optim.sched.warmup_steps <= updates / 10
    assert 256 <= validated <= loop.val_check_interval * samples_of_a_step / 3
    assert config.model.data.chat_template == "tokenizer"


@pytest.mark.parametrize("model", BY_NAME)
@each_job
def test_a_job_fits_on_its_gpus(profile, kind, model):
    config, shape = composed(profile, kind), MODELS[model]
    gpus = GPUs(config.trainer.num_nodes, config.trainer.devices, GPU_GIB)
    models, parallelism = trained_models(kind, config), Parallelism(1, 1, gpus.number)
    assert together([memory_of(shape, trained, parallelism) for trained in models]) <= GPU_GIB
    assert best_layout(shape, models, gpus) == (parallelism, True)
