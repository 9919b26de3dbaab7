"""Settings: overrides as NeMo-Aligner's tutorial writes them, and every kind of mistake."""

import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from aligner_lib.config import compose as composition
from aligner_lib.config.compose import compose, load, nearest, notices, profiles, save
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError
from aligner_lib.run_folder.alarms import Thresholds

# The overrides of the tutorial's commands, with its shell variables filled in.
SFT = [
    "trainer.precision=bf16",
    "trainer.num_nodes=1",
    "trainer.devices=8",
    "trainer.sft.max_steps=-1",
    "trainer.sft.limit_val_batches=40",
    "trainer.sft.val_check_interval=1000",
    "trainer.sft.save_interval=50",
    "model.megatron_amp_O2=True",
    "model.restore_from_path=/path/to/your/mcore_gpt.nemo",
    "model.optim.lr=5e-6",
    "model.answer_only_loss=True",
    "model.data.num_workers=0",
    "model.data.train_ds.micro_batch_size=1",
    "model.data.train_ds.global_batch_size=128",
    "model.data.train_ds.file_path=/path/to/databricks-dolly-15k.jsonl",
    "model.data.validation_ds.micro_batch_size=1",
    "model.data.validation_ds.global_batch_size=128",
    "model.data.validation_ds.file_path=/path/to/databricks-dolly-15k.jsonl",
    "exp_manager.create_wandb_logger=True",
    "exp_manager.explicit_log_dir=/results",
    "exp_manager.wandb_logger_kwargs.project=sft_run",
    "exp_manager.wandb_logger_kwargs.name=dolly_sft_run",
    "exp_manager.checkpoint_callback_params.save_nemo_on_train_end=True",
    "exp_manager.resume_if_exists=True",
    "exp_manager.resume_ignore_no_checkpoint=True",
    "exp_manager.create_checkpoint_callback=True",
    "exp_manager.checkpoint_callback_params.monitor=validation_loss",
]
COMPARISONS = (
    "{train: [/data/train_comparisons.jsonl], validation: [/data/test.jsonl], test: [/data/test.jsonl]}"
)
RM = [
    "trainer.num_nodes=4",
    "trainer.devices=8",
    "++model.micro_batch_size=1",
    "++model.global_batch_size=512",
    "++model.data.data_impl=jsonl",
    "pretrained_checkpoint.restore_from_path='/path/to/megatron_gpt_sft.nemo'",
    f"model.data.data_prefix={COMPARISONS}",
    "exp_manager.create_wandb_logger=False",
    "exp_manager.wandb_logger_kwargs.project=rm_training",
    "exp_manager.wandb_logger_kwargs.name=rm_training",
    "exp_manager.explicit_log_dir=/results",
    "trainer.rm.save_interval=500",
    "trainer.rm.val_check_interval=100",
    "trainer.rm.limit_val_batches=100000",
]
CRITIC = [
    "trainer.devices=1",
    "trainer.num_nodes=8",
    "++model.tensor_model_parallel_size=1",
    "++model.pipeline_model_parallel_size=1",
    "exp_manager.create_wandb_logger=False",
    "exp_manager.wandb_logger_kwargs.name=critic_training",
    "exp_manager.wandb_logger_kwargs.project=nemo_aligner_ppo",
    "exp_manager.explicit_log_dir=critic_results_dir",
    "trainer.ppo.inference_micro_batch_size=4",
    "++pretrained_checkpoint.restore_from_path=/path/to/trained_rm.nemo",
    "++model.megatron_amp_O2=True",
    "++model.activations_checkpoint_granularity=null",
    "++trainer.ppo.combine_rm_and_critic_server=True",
    "++model.offload_adam_states=True",
    "++model.mcore_gpt=True",
    "trainer.ppo.port=5567",
    "++model.micro_batch_size=1",
    "++model.global_batch_size=64",
]
ACTOR = [
    f"++model.data.data_prefix={COMPARISONS.replace('comparisons', 'prompts')}",
    "++model.data.data_impl=jsonl",
    "pretrained_checkpoint.restore_from_path=/path/to/sft_checkpoint.nemo",
    "trainer.num_nodes=1",
    "trainer.devices=8",
    "trainer.ppo.max_steps=15",
    "++model.pipeline_model_parallel_size=1",
    "++model.tensor_model_parallel_size=1",
    "++model.ppo.combine_rm_and_critic_server=True",
    "++model.ppo.offload_adam_states=True",
    "++model.megatron_amp_O2=True",
    "++trainer.ppo.normalize_advantages=True",
    "++model.mcore_gpt=True",
    "exp_manager.create_wandb_logger=False",
    "exp_manager.wandb_logger_kwargs.name=ppo_actor_training",
    "exp_manager.wandb_logger_kwargs.project=nemo_aligner_ppo",
    "exp_manager.explicit_log_dir=/rlhf/actor_test",
    "remote_critic_rm.pad_to_length=2048",
    "++model.micro_batch_size=1",
    "++model.global_batch_size=64",
    "++model.activations_checkpoint_granularity=selective",
    "++model.activations_checkpoint_method=uniform",
    "++model.optim.lr=9e-7",
    "trainer.ppo.val_check_interval=3",
    "++model.optim.sched.min_lr=9e-8",
    "++model.ppo.entropy_bonus=0.0",
    "++model.ppo.ratio_eps=0.2",
    "++model.ppo.num_rollout_samples=512",
    "++model.ppo.rollout_micro_batch_size=8",
    "++model.ppo.length_params.max_length=1024",
    "trainer.ppo.initial_policy_kl_penalty=0.02",
    "remote_critic_rm.critic.ip=node001",
    "remote_critic_rm.critic.port=5567",
]
# The hyperparameters that the reference's page on PPO lists.
PPO_PAGE = [
    "trainer.ppo.initial_policy_kl_penalty=0.02",
    "trainer.ppo.use_absolute_kl=True",
    "trainer.ppo.discount_factor=1.0",
    "trainer.ppo.gae_lambda=0.95",
    "trainer.ppo.normalize_advantages=True",
    "model.ppo.entropy_bonus=0.0",
    "model.ppo.ratio_eps=0.2",
    "remote_critic_rm.reward_model.ip=10.0.0.7",
    "remote_critic_rm.reward_model.port=5555",
    "model.ppo.num_rollout_samples=512",
    "model.ppo.sampling_params.temperature=1.0",
    "model.ppo.rollout_micro_batch_size=8",
    "model.ppo.offload_adam_states=True",
    "model.ppo.length_params.max_length=1024",
]


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("sft", SFT),
        ("rm", RM),
        ("critic", [*CRITIC, "model.loss_clip_val=0.2"]),
        ("ppo", ACTOR),
        ("ppo", PPO_PAGE),
    ],
)
def test_the_tutorials_overrides_work_unchanged(kind, overrides):
    config = compose(kind, overrides)
    for override in overrides:
        key, value = composition.parse_override(override)
        held = OmegaConf.select(config, key)
        held = OmegaConf.to_container(held) if OmegaConf.is_config(held) else held
        assert held == value, override


def test_a_group_of_settings_can_be_given_as_a_dict():
    config = compose("ppo", ["model.ppo={ratio_eps: 0.3, length_params: {max_length: 7}}"])
    assert config.model.ppo.ratio_eps == 0.3
    assert config.model.ppo.length_params.max_length == 7
    assert config.model.ppo.num_rollout_samples == 512  # its neighbours stay


def test_a_later_override_wins_and_a_profile_comes_before_all(tmp_path, monkeypatch):
    (tmp_path / "p.yaml").write_text("sft: {model: {optim: {lr: 0.5}, seed: 3}}\n")
    monkeypatch.setattr(composition, "PROFILES", tmp_path)
    config = compose("sft", ["model.optim.lr=0.1", "model.optim.lr=0.2"], profile="p")
    assert (config.model.optim.lr, config.model.seed, config.model.optim.weight_decay) == (0.2, 3, 0.01)


@pytest.mark.parametrize("profile", profiles())
@pytest.mark.parametrize("kind", kinds())
def test_every_profile_makes_sense_for_every_job(kind, profile):
    compose(kind, profile=profile)


def test_there_are_the_four_profiles():
    assert profiles() == ["gpu", "laptop", "slurm", "smoke"]


def test_whole_numbers_may_be_written_as_floats():
    assert compose("ppo", ["trainer.ppo.max_steps=1e2"]).trainer.ppo.max_steps == 100


# ---- mistakes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("ppo", "trainer.ppo.inital_policy_kl_penalty", "trainer.ppo.initial_policy_kl_penalty"),
        ("ppo", "model.ppo.initial_policy_kl_penalty", "trainer.ppo.initial_policy_kl_penalty"),
        ("ppo", "initial_policy_kl_penalty", "trainer.ppo.initial_policy_kl_penalty"),
        ("ppo", "trainer.ppo.ratio_eps", "model.ppo.ratio_eps"),
        ("ppo", "model.optim.learning_rate", "model.optim has name, lr"),
        ("ppo", "trainer.ppo.loss_clip_val", "critic.model.loss_clip_val"),
        ("sft", "model.data.train_ds.filepath", "model.data.train_ds.file_path"),
        ("sft", "trainer.max_steps", "trainer.sft.max_steps"),
        ("rm", "model.data.data_prefx", "model.data.data_prefix"),
    ],
)
def test_an_unknown_key_names_the_nearest(kind, wrong, right):
    with pytest.raises(ConfigError) as error:
        compose(kind, [f"++{wrong}=1"])
    assert f"'{wrong}'" in str(error.value)
    assert right in str(error.value)


@given(st.data())
def test_one_slip_of_the_finger_is_understood(data):
    known = composition.keys("ppo")
    right = data.draw(st.sampled_from([key for key in known if len(key.rpartition(".")[2]) > 5]))
    at = data.draw(st.integers(right.rindex(".") + 1, len(right) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase.replace(right[at], "")))
    wrong = data.draw(st.sampled_from([right[:at] + right[at + 1 :], right[:at] + letter + right[at + 1 :]]))
    if wrong not in known:
        assert nearest(wrong, known)[0] == right


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.ppo.ratio_eps=abc", ["model.ppo.ratio_eps", "'abc'", "float"]),
        ("model.micro_batch_size=1.5", ["model.micro_batch_size", "1.5", "int"]),
        ("model.micro_batch_size=null", ["model.micro_batch_size", "None", "int"]),
        ("model.optim.betas=[a, b]", ["model.optim.betas", "list[float]"]),
        ("model.activations_checkpoint_granularity=[1]", ["str or None"]),
        ("trainer.ppo.use_absolute_kl=perhaps", ["trainer.ppo.use_absolute_kl", "'perhaps'", "bool"]),
        ("trainer.ppo=3", ["trainer.ppo", "group", "gae_lambda"]),
        ("model.ppo={ratio_eps: wide}", ["model.ppo.ratio_eps", "'wide'", "float"]),
    ],
)
def test_a_wrong_type_names_key_value_and_type(override, words):
    with pytest.raises(ConfigError) as error:
        compose("ppo", [override])
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("~model.seed", "write key=value"),
        ("model.seed", "key=value"),
        ("model.seed=1,2", "[a, b]"),
        ("model.restore_from_path=/a=b", "quotes"),
        ("model@there=1", "package"),
        ("=3", "key=value"),
    ],
)
def test_what_is_no_override_is_refused_with_the_cure(override, cure):
    with pytest.raises(ConfigError, match=cure.replace("[", r"\[")):
        compose("sft", [override])


@given(st.text(max_size=40))
def test_any_text_is_an_override_or_a_config_error(text):
    try:
        compose("rm", [text])
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("kind", "override", "cure"),
    [
        ("ppo", "trainer.ppo.max_steps=-2", "at least 1, or -1"),
        ("ppo", "trainer.ppo.max_steps=0", "at least 1, or -1"),
        ("ppo", "model.ppo.ratio_eps=0", "above 0"),
        ("ppo", "model.mcore_gpt=False", "True"),
        ("ppo", "model.global_batch_size=48", "num_rollout_samples=512 is not divisible"),
        ("ppo", "model.ppo.length_params.max_length=4096", "no room for a prompt"),
        ("ppo", "model.ppo.sampling_params.temperature=0", "use_greedy=True"),
        ("ppo", "model.ppo.sampling_params.top_p=0", "above 0"),
        ("ppo", "trainer.ppo.gae_lambda=1.5", "between 0 and 1"),
        ("ppo", "critic.model.micro_batch_size=3", "critic.model.global_batch_size=64 is not divisible"),
        ("sft", "trainer.devices=3", "multiple of 3"),
        ("sft", "model.tensor_model_parallel_size=2", "don't divide the 1 processes"),
        ("sft", "trainer.precision=fp16", "bf16 or 32"),
        ("sft", "model.optim.name=adam", "distributed_fused_adam"),
        ("sft", "model.optim.betas=[0.9]", "two numbers"),
        ("rm", "model.data.data_impl=mmap", "jsonl"),
        ("rm", "model.data.data_prefix={trian: [a.jsonl]}", "train, validation, test"),
        ("rm", "model.reward_standardization.enabled=true", "enable, mean, std"),
    ],
)
def test_values_that_make_no_sense(kind, override, cure):
    with pytest.raises(ConfigError) as error:
        compose(kind, [override])
    assert cure in str(error.value)
    assert override.partition("=")[0].rpartition(".")[2] in str(error.value)


def test_unknown_kinds_and_profiles_are_refused_with_what_there_is():
    with pytest.raises(ConfigError, match="sft, rm, ppo"):
        compose("dpo")
    with pytest.raises(ConfigError, match="laptop"):
        compose("sft", profile="desktop")


def test_a_profile_with_a_misspelt_key_is_refused(tmp_path, monkeypatch):
    (tmp_path / "p.yaml").write_text("rm: {model: {micro_batch: 3}}\n")
    monkeypatch.setattr(composition, "PROFILES", tmp_path)
    with pytest.raises(ConfigError, match="micro_batch_size"):
        compose("rm", profile="p")


# ---- kept in run.json, and told ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "overrides"), [("sft", SFT), ("rm", RM), ("critic", CRITIC), ("ppo", ACTOR)]
)
def test_saved_settings_load_equal(kind, overrides):
    config = compose(kind, overrides)
    assert load(kind, json.loads(json.dumps(save(config)))) == config


def test_composing_twice_shares_nothing():
    first, second = compose("ppo"), compose("ppo")
    first.model.ppo.ratio_eps = 0.7
    first.model.optim.betas[0] = 0.5
    assert second.model.ppo.ratio_eps == 0.2
    assert compose("ppo").model.optim.betas[0] == 0.9


def test_notices_tell_what_was_asked_for_without_an_effect():
    told = notices("sft", compose("sft", SFT))
    assert [line.split("=")[0].rpartition(".")[2] for line in told] == [
        "create_wandb_logger",
        "monitor",
        "save_nemo_on_train_end",
    ]
    assert notices("sft", compose("sft")) == []
    alone = compose("sft", ["model.sequence_parallel=true"])
    assert notices("sft", alone) == [
        "model.sequence_parallel=True: with tensor_model_parallel_size=1 there is nobody to share with"
    ]


# ---- alarms ---------------------------------------------------------------------------------------------------------


def test_the_limits_of_alarms_are_settings():
    limits = composition.compose("ppo", ["exp_manager.alarms.kl=1"]).exp_manager.alarms
    assert Thresholds(**limits) == Thresholds(kl=1.0)
    assert Thresholds(**composition.compose("sft").exp_manager.alarms) == Thresholds()


@pytest.mark.parametrize(
    "override, words",
    [
        ("exp_manager.alarms.klo=1", "exp_manager.alarms.kl"),
        ("exp_manager.alarms.kl=much", "takes float"),
        ("exp_manager.alarms.kl=-1", "at least 0"),
        ("exp_manager.alarms.kl=nan", "at least 0"),
    ],
)
def test_a_limit_that_makes_no_sense_is_told(override, words):
    with pytest.raises(ConfigError, match=words):
        composition.compose("ppo", [override])
