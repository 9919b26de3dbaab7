"""Settings: overrides, profiles, mistakes, and notices about settings without an effect."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.config import compose as composition
from aligner_lib.config.compose import compose, nearest, notices, profiles
from aligner_lib.config.kinds import kinds
from aligner_lib.errors import ConfigError
from aligner_lib.kinds.policy_gradient.settings import recomputes_logprobs


@pytest.fixture
def write_profile(tmp_path, monkeypatch):
    """Writes the profile `p`, the only one."""
    monkeypatch.setattr(composition, "PROFILES", tmp_path)
    return (tmp_path / "p.yaml").write_text


def test_overrides_come_after_the_profile_and_a_dict_changes_only_its_keys(write_profile):
    config = compose("ppo", ["model.ppo={ratio_eps: 0.3, length_params: {max_length: 7}}"])
    assert config.model.ppo.ratio_eps == 0.3 and config.model.ppo.length_params.max_length == 7
    assert config.model.ppo.num_rollout_samples == 512  # not in the dict
    assert compose("ppo", ["trainer.ppo.max_steps=1e2"]).trainer.ppo.max_steps == 100
    write_profile("sft: {model: {optim: {lr: 0.5}, seed: 3}}\n")
    config = compose("sft", ["model.optim.lr=0.1", "model.optim.lr=0.2"], profile="p")
    assert (config.model.optim.lr, config.model.seed, config.model.optim.weight_decay) == (0.2, 3, 0.01)


@pytest.mark.parametrize("kind", kinds())
def test_every_profile_makes_sense_for_every_job_and_gives_no_notice(kind):
    for profile in profiles():
        assert notices(kind, compose(kind, profile=profile), profile) == []


BATCHES = "a number of batches, -1 for all, or a share"


@pytest.mark.parametrize(
    ("kind", "wrong", "right"),
    [
        ("ppo", "model.ppo.initial_policy_kl_penalty", "trainer.ppo.initial_policy_kl_penalty"),
        ("ppo", "model.optim.learning_rate", "model.optim has name, lr"),
        ("ppo", "trainer.ppo.loss_clip_val", "critic.model.loss_clip_val"),
        ("evaluate", "model.ppo.num_rollout_samples", "model.ppo.num_val_samples"),  # PPO's, which trains
        ("sft", "pretrained_checkpoint.restore_from_path", "the model in model.restore_from_path"),
        ("rm", "model.restore_from_path", "the model in pretrained_checkpoint.restore_from_path"),
        ("evaluate", "model.restore_from_path", "the model in policy.restore_from_path"),
        ("evaluate", "model.data.train_ds.file_path", "an evaluation reads only data_prefix.validation"),
        ("grpo", "reward_model.restore_from_path", "its reward model from reward_model.rm_model_file"),
        ("ppo", "reward_model.rm_model_file", "from critic.pretrained_checkpoint.restore_from_path"),
        ("sft", "model.data.data_prefix", "its training data from model.data.train_ds.file_path"),
        ("dpo", "model.data.validation_ds.file_path", "held-out data from model.data.data_prefix.validation"),
        # nothing is similar
        ("sft", "trainer.gpus", "; trainer has precision, num_nodes, devices"),
        ("sft", "model.foo.bar", "; model has sequence_parallel"),
        ("rm", "nothing", "; the top level has exp_manager"),
        # NeMo-Aligner's
        ("sft", "trainer.max_time", ": before Slurm's time limit"),
        ("sft", "trainer.max_steps", ": each loop has"),
        ("sft", "model.data.chat_prompt_tokens", "chat_template=tokenizer"),
        ("sft", "model.data.validation_ds.prompt_template", "put further words into the input"),
        ("rm", "model.regression.attribute_weights", "gives one reward"),
        ("ppo", "model.reward_standardization.mean", "`aligner rm` sets the scale"),
        ("grpo", "remote_rm.reward_model.ip", "remote_rm.ip"),
    ],
)
def test_an_unknown_key_names_the_nearest(kind, wrong, right):
    with pytest.raises(ConfigError, match=f"'{wrong}'(.|\n)*{right}"):
        compose(kind, [f"++{wrong}=1"])


@settings(max_examples=15)
@given(st.data())
def test_one_slip_of_the_finger_is_understood(data):
    known = composition.keys("ppo")
    right = data.draw(st.sampled_from([key for key in known if len(key.rpartition(".")[2]) > 5]))
    at = data.draw(st.integers(right.rfind(".") + 1, len(right) - 1))
    letter = data.draw(st.sampled_from(string.ascii_lowercase.replace(right[at], "")))
    wrong = data.draw(st.sampled_from([right[:at] + right[at + 1 :], right[:at] + letter + right[at + 1 :]]))
    if wrong not in known:
        assert right in nearest(wrong, known)  # man_length is one slip from max_length, and from min_length


@given(st.text(max_size=40))
def test_any_text_is_an_override_or_a_config_error(text):
    try:
        compose("rm", [text])
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("kind", "override", "words"),
    [
        ("ppo", "model.ppo.ratio_eps=abc", "model.ppo.ratio_eps … 'abc' … float"),
        ("ppo", "model.micro_batch_size=1.5", "model.micro_batch_size … 1.5 … int"),
        ("ppo", "model.micro_batch_size=null", "model.micro_batch_size … None … int"),
        ("ppo", "model.optim.betas=[a,b]", "model.optim.betas … list[float]"),
        ("ppo", "trainer.ppo.use_absolute_kl=perhaps", "trainer.ppo.use_absolute_kl … 'perhaps' … bool"),
        ("ppo", "trainer.ppo=3", "trainer.ppo … group … gae_lambda"),
        # no override at all
        ("ppo", "~model.seed", "write key=value"),
        ("ppo", "model.seed=1,2", "[a, b]"),
        ("ppo", "model.restore_from_path=/a=b", "quotes"),
        ("ppo", "model@there=1", "package"),
        # values without sense
        ("ppo", "trainer.ppo.max_steps=0", "at least 1, or -1"),
        ("ppo", "model.ppo.ratio_eps=0", "above 0"),
        ("ppo", "model.global_batch_size=48", "num_rollout_samples=512 is not divisible"),
        (
            "ppo",
            "model.ppo.num_rollout_samples=96",
            "a multiple of 64, or model.global_batch_size to 1 or 2 or 3 or",
        ),
        ("ppo", "model.ppo.num_generations_per_prompt=3", "in the same global batch: set a multiple of 3"),
        ("rm", "trainer.devices=48", "set a multiple of 48"),
        ("ppo", "trainer.ppo.prompt_baseline=group_mean", "same prompt, but a prompt has a single response"),
        ("ppo", "model.ppo.length_params.max_length=4096", "no room for a prompt"),
        ("grpo", "model.grpo.length_params.min_length=2049", "above max_length=2048, which is half"),
        ("ppo", "model.ppo.sampling_params.temperature=0", "use_greedy=True"),
        ("ppo", "trainer.ppo.gae_lambda=1.5", "between 0 and 1"),
        ("sft", "model.tensor_model_parallel_size=2", "do not divide the 1 processes"),
        ("sft", "trainer.precision=fp16", "bf16 or 32 or auto"),
        ("sft", "model.optim.betas=[0.9]", "two numbers"),
        ("rm", "model.data.data_prefix={trian: [a.jsonl]}", "train, validation, test"),
        ("rm", "model.data.data_prefix=[a.jsonl]", "takes {train: [a.jsonl], validation: …, test: …}"),
        ("rm", "model.reward_standardization=true", "takes {enable: true, mean: …, std: …}"),
        ("ppo", "model.ppo.sampling_params.repetition_penalty=1.2", "no penalty for repeated tokens"),
        ("rm", "model.reward_standardization.enabled=true", "enable, mean, std"),
        ("rm", "model.reward_standardization={mean: 0}", "give std, too, or neither"),
        ("rm", "model.reward_standardization={mean: 0, std: 0}", "above 0"),
        ("rm", "model.reward_standardization={mean: low, std: 1}", "must be a number"),
        ("rm", "model.reward_standardization={enable: false, mean: 0, std: 1}", "set enable=True, or leave"),
        ("rm", "model.rampup_batch_size=[16, 16, 1000]", "set model.global_batch_size"),
        ("ppo", "exp_manager.alarms.kl=nan", "at least 0"),
        ("sft", "model.seed=${model.nothing}", "'model.nothing' not found … as in ${model.seed}"),
        ("sft", "model.optim.lr=${oc.env:NO_SUCH_VARIABLE}", "'NO_SUCH_VARIABLE' not found"),
        ("sft", "model.seed='${int_div:${model.micro_batch_size}, 2}'", "int_div … Give the result"),
        ("rm", "model.data.data_prefix.train=???", "has no value"),
        *(("rm", f"trainer.rm.limit_val_batches={value}", BATCHES) for value in ("0", "1.5", "0.0", "some")),
    ],
)
def test_wrong_types_and_values_are_refused_with_key_and_cure(kind, override, words):
    with pytest.raises(ConfigError) as error:
        compose(kind, [override])
    key = override.partition("=")[0].rpartition(".")[2].strip("~").partition("@")[0]
    assert all(part in str(error.value) for part in [key, *words.split(" … ")])


def test_unknown_kinds_profiles_and_keys_of_profiles_are_refused_with_the_known_ones(write_profile):
    write_profile("rm: {model: {micro_batch: 3}}\n")
    for arguments, words in [(("alignment",), "sft, rm, ppo"), (("sft", (), "desktop"), "profiles are p")]:
        with pytest.raises(ConfigError, match=words):
            compose(*arguments)
    with pytest.raises(ConfigError, match="micro_batch_size"):
        compose("rm", profile="p")


def test_composing_twice_shares_nothing():
    first, second = compose("ppo"), compose("ppo")
    first.model.optim.betas[0] = 0.5
    assert second.model.optim.betas[0] == compose("ppo").model.optim.betas[0] == 0.9


@pytest.mark.parametrize(
    ("setting", "recomputed"),
    [
        ("length_params.min_length=1", False),
        ("sampling_params.top_k=5", True),
        ("sampling_params.top_p=0.9", True),
        ("sampling_params.use_greedy=True", True),
        ("length_params.min_length=2", True),
    ],
)
def test_logprobs_are_computed_again_where_the_sampler_is_cut(setting, recomputed):
    for choice, expected in (("null", recomputed), ("True", True)):
        config = compose("grpo", [f"model.grpo.{setting}", f"model.grpo.recompute_logprobs={choice}"])
        assert recomputes_logprobs(config, needed=False) is expected
    never = [f"model.grpo.{setting}", "model.grpo.recompute_logprobs=False"]
    if not recomputed:
        assert not recomputes_logprobs(compose("grpo", never), needed=False)
    else:
        with pytest.raises(
            ConfigError, match=rf"{setting} cuts .* set model\.grpo\.recompute_logprobs to null"
        ):
            compose("grpo", never)


@pytest.mark.parametrize(("greedy", "words"), [(True, "use_greedy=True"), (False, "top_k=3, top_p=1.0")])
def test_a_greedy_sampler_is_not_called_a_cut_distribution(greedy, words, caplog):
    from aligner_lib.kinds.policy_gradient.build import warn_about_sampling
    from aligner_lib.megatron.generate import Sampling

    warn_about_sampling(Sampling(max_length=8, top_k=3, greedy=greedy))
    (warning,) = caplog.messages
    assert warning.startswith(words)


def test_notices_name_the_settings_without_an_effect():
    given = [
        "model.seed=2",
        "model.megatron_amp_O2=True",
        "exp_manager.wandb_logger_kwargs.name=mine",
        "exp_manager.create_mlflow_logger=True",
        "exp_manager.mlflow_logger_kwargs.experiment_name=mine",
        "model.global_batch_size=64",  # the default
        "model.data.validation_ds.shuffle=true",
    ]
    assert [line.partition(": ")[0] for line in notices("sft", compose("sft", given))] == [
        "model.megatron_amp_O2=True",
        "model.data.validation_ds.shuffle=True",
        "exp_manager.wandb_logger_kwargs.name=mine",
    ]


SUMS = "model.environments={sums:{}}"
CALLBACK = "exp_manager.checkpoint_callback_params"
PACKED = "model.data.packed_sequence=True model.data.packed_sequence_size=512"
CUT = "model.ppo.sampling_params.top_k=5 model.ppo.sampling_params.top_p=0.9"
ONE_RANK = "model.sequence_parallel=True: with tensor_model_parallel_size=1 there is no other rank"


@pytest.mark.parametrize(
    ("kind", "given", "notice"),
    [
        ("sft", "model.sequence_parallel=true", ONE_RANK),
        ("ppo", "critic.trainer.devices=2", "devices=2: in one process the critic has the actor's"),
        ("ppo", "trainer.devices=2 critic.trainer.devices=2", None),  # both have two
        ("ppo", "remote_critic_rm.critic.port=5557", "=5557: critic and reward model are in this process"),
        ("ppo", "remote_critic_rm.critic.ip=a critic.model.optim.lr=1e-5", "the critic is a job of its own"),
        ("critic", "exp_manager.resume_if_exists=False", "set this there"),
        ("sft", "model.optim.sched.min_lr=1", "min_lr=1.0 is above model.optim.lr=5e-06"),
        (
            "ppo",
            "critic.model.optim.lr=1e-7",
            "critic.model.optim.sched.min_lr=9e-07 is above critic.model.optim.lr",
        ),
        ("grpo", "model.optim.sched.min_lr=1e-7", "min_lr=1e-07: with model.optim.sched.name=constant the"),
        ("sft", "trainer.sft.max_epochs=2", None),
        ("sft", "trainer.sft.max_epochs=2 trainer.sft.max_steps=9", None),
        (
            "rm",
            "model.activations_checkpoint_method=block",
            "only model.activations_checkpoint_granularity=full",
        ),
        ("dpo", "model.dpo.num_val_samples=0 model.dpo.val_response_length=9", "length=9: num_val_samples=0"),
        ("reward_server", "model.optim.lr=1e-5", "lr=1e-05: a reward model that serves is not trained"),
        *(
            (kind, "model.cuda_graphs=True", "generates no")
            for kind in ("sft", "rm", "critic", "reward_server")
        ),
        ("rm", f"{PACKED} model.micro_batch_size=2", "micro_batch_size=2: with packed_sequence=True"),
        ("rm", "model.data.packed_sequence=True model.micro_batch_size=2", None),  # times the longest sample
        ("dpo", f"{PACKED} model.micro_batch_size=2", None),  # for validation/kl
        (
            "dpo",
            f"{PACKED} model.micro_batch_size=2 model.dpo.num_val_samples=0",
            "with packed_sequence=True",
        ),
        (
            "sft",
            f"{PACKED} model.data.train_ds.micro_batch_size=2",
            "train_ds.micro_batch_size=2: with packed",
        ),
        (
            "sft",
            "model.data.packed_sequence=True model.data.validation_ds.micro_batch_size=2",
            "validation_ds.micro_batch_size=2: with packed_sequence=True a micro batch has as many samples as train_ds",
        ),
        (
            "sft",
            f"{CALLBACK}.save_best=validation/loss {CALLBACK}.save_top_k=4 trainer.sft.save_interval=3"
            " exp_manager.create_checkpoint_callback=False",
            "=4, trainer.sft.save_interval=3: with exp_manager.create_checkpoint_callback=False no checkpoint",
        ),
        ("rm", f"{CALLBACK}.mode=max", f"without {CALLBACK}.save_best no checkpoint is the best"),
        ("rm", f"{CALLBACK}.mode=max {CALLBACK}.monitor=val_loss", None),
        ("critic", f"{CALLBACK}.save_top_k=4 exp_manager.create_checkpoint_callback=False", "set this there"),
        ("dpo", "model.cuda_graphs=True", None),  # for validation/kl
        ("dpo", "model.cuda_graphs=True model.dpo.preference_loss=orpo", "the job generates no responses"),
        ("ppo", "critic.model.cuda_graphs=True", "the critic generates no responses"),
        ("evaluate", "critic.model.cuda_graphs=True", "the reward model generates no responses"),
        (
            "grpo",
            "model.grpo.objective=distill model.grpo.baseline=group_mean model.grpo.teacher.restore_from_path=m",
            "=m: baseline=group_mean has no teacher",
        ),
        ("grpo", "model.cuda_graphs=True", None),
        ("grpo", "model.cuda_graphs=True model.generation.backend=vllm", "the server generates"),
        ("grpo", "trainer.grpo.use_absolute_kl=True", None),  # of init_policy_kl, too
        (
            "grpo",
            "model.grpo.objective=reinforce_pp model.grpo.max_rollouts_per_step=3",
            "with the batch's mean",
        ),
        ("evaluate", "model.data.data_prefix.train=[a]", "an evaluation reads only data_prefix.validation"),
        (
            "ppo",
            f"{SUMS} model.data.data_prefix={{train:[a],validation:[b]}}",
            "validation=['b']: the prompts come from",
        ),
        (
            "ppo",
            f"model.ppo.sampling_params.use_greedy=True {CUT}",
            "top_k=5, model.ppo.sampling_params.top_p=0.9: mod",
        ),
        ("ppo", f"model.ppo.val_use_greedy=True {CUT}", None),  # training still samples
        (
            "evaluate",
            f"model.ppo.val_use_greedy=True {CUT}",
            "top_p=0.9: model.ppo.val_use_greedy=True takes",
        ),
        (
            "evaluate",
            "model.ppo.val_rollout_micro_batch_size=4 model.ppo.rollout_micro_batch_size=16",
            "rollout_micro_batch_size=16: model.ppo.val_rollout_micro_batch_size is the number",
        ),
    ],
)
def test_which_settings_have_no_effect_depends_on_the_job(kind, given, notice):
    lines = notices(kind, compose(kind, given.split()))
    assert len(lines) == (notice is not None)
    assert not notice or notice in lines[0]


@pytest.mark.parametrize(("written", "kept"), [("1.0", 25), ("1", 8), ("-1", 25), ("0.5", 16), ("0.01", 8)])
def test_validation_batches_are_limited_by_a_share_or_a_number(written, kept):
    """As in PyTorch Lightning and NeMo: 1.0 is all of them, 1 is one. 25 samples are four batches of 8."""
    from aligner_lib.kinds.inputs import limited

    loop = compose("rm", [f"trainer.rm.limit_val_batches={written}"]).trainer.rm
    assert len(limited(list(range(25)), loop, 8)) == kept
