"""The reference's Slurm scripts as one call each: every flag and every hyperparameter is in what is submitted."""

import shlex

import pytest
from omegaconf import OmegaConf

from aligner_lib.config.compose import compose, parse_override
from aligner_lib.errors import ConfigError
from aligner_lib.tutorial.workspace import slurm_recipes

SITE = {"account": "course", "partition": "batch", "python": "python"}
SITE |= {"container_image": "/images/lab.sqsh", "container_mounts": ["/shared:/shared"]}
FILES = {"train": "/data/train.jsonl", "validation": "/data/test.jsonl"}
WANDB = "exp_manager.create_wandb_logger=true exp_manager.wandb_logger_kwargs.project=aligner-lab"

# What NeMo-Aligner's page gives each of its four commands; values that the page leaves to its reader are FILES and SITE.
COMMANDS = {
    "sft": f"""
        trainer.precision=bf16 trainer.num_nodes=1 trainer.devices=8 trainer.sft.max_steps=-1
        trainer.sft.limit_val_batches=40 trainer.sft.val_check_interval=1000 trainer.sft.save_interval=50
        model.megatron_amp_O2=true model.restore_from_path=/models/2b model.optim.lr=5e-6 model.answer_only_loss=true
        model.data.num_workers=0 model.data.train_ds.micro_batch_size=1 model.data.train_ds.global_batch_size=128
        model.data.validation_ds.micro_batch_size=1 model.data.validation_ds.global_batch_size=128
        model.data.train_ds.file_path={FILES["train"]} model.data.validation_ds.file_path={FILES["validation"]}
        {WANDB} exp_manager.wandb_logger_kwargs.name=dolly_sft_run
        exp_manager.resume_if_exists=true exp_manager.resume_ignore_no_checkpoint=true
        exp_manager.create_checkpoint_callback=true
        exp_manager.checkpoint_callback_params.save_nemo_on_train_end=true
        exp_manager.checkpoint_callback_params.monitor=validation_loss""",
    "rm": f"""
        trainer.num_nodes=4 trainer.devices=8 pretrained_checkpoint.restore_from_path=/runs/sft
        model.micro_batch_size=1 model.global_batch_size=512 model.data.data_impl=jsonl
        trainer.rm.save_interval=500 trainer.rm.val_check_interval=100 trainer.rm.limit_val_batches=100000
        {WANDB} exp_manager.wandb_logger_kwargs.name=rm_training""",
    "critic": f"""
        trainer.ppo.inference_micro_batch_size=4 trainer.devices=8 trainer.num_nodes=1 trainer.ppo.port=5567
        model.offload_adam_states=true model.micro_batch_size=1 model.global_batch_size=64
        pretrained_checkpoint.restore_from_path=/runs/rm {WANDB} exp_manager.wandb_logger_kwargs.name=2p_ppo_critic""",
    "ppo": f"""
        trainer.devices=8 trainer.num_nodes=1 trainer.ppo.max_steps=15 trainer.ppo.val_check_interval=3
        trainer.ppo.initial_policy_kl_penalty=0.02 model.data.data_impl=jsonl
        pretrained_checkpoint.restore_from_path=/runs/sft model.micro_batch_size=1 model.global_batch_size=64
        model.activations_checkpoint_granularity=selective model.activations_checkpoint_method=uniform
        model.optim.lr=9e-7 model.optim.sched.min_lr=9e-8 model.ppo.entropy_bonus=0.0 model.ppo.ratio_eps=0.2
        model.ppo.num_rollout_samples=512 model.ppo.rollout_micro_batch_size=8
        model.ppo.length_params.max_length=1024 remote_critic_rm.critic.port=5567
        {WANDB} exp_manager.wandb_logger_kwargs.name=2p_ppo_actor""",
}


def recipe_for(recipe, run: str, **models):
    """A recipe with everything but the changes of a test."""
    return lambda site=SITE, **more: recipe(run, where="print", site=site, **models, **FILES, **more)


sft = recipe_for(slurm_recipes.sft, "/runs/sft", model="/models/2b")
reward_model = recipe_for(slurm_recipes.reward_model, "/runs/rm", policy="/runs/sft")
ppo = recipe_for(slurm_recipes.ppo, "/runs/ppo", policy="/runs/sft", reward_model="/runs/rm")


def components(text: str) -> dict[str, list[str]]:
    """The words of each component's line in a batch script, as the shell reads them."""
    body = text[text.index("\nbegin ") : text.index("\nfinish")].replace("\\\n", " ")
    lines = [shlex.split(line) for line in body.splitlines() if line.startswith("component ")]
    return {words[1]: words for words in lines}


def overrides(words: list[str]) -> list[str]:
    return words[words.index("--run") + 2 :]


@pytest.mark.parametrize(
    ("kind", "recipe", "component"),
    [("sft", sft, "main"), ("rm", reward_model, "main"), ("critic", ppo, "critic"), ("ppo", ppo, "actor")],
)
def test_what_is_submitted_composes_to_the_page_s_hyperparameters(kind, recipe, component):
    config = compose(kind, overrides(components(recipe().text)[component]))
    for key, value in map(parse_override, COMMANDS[kind].split()):
        assert OmegaConf.select(config, key) == value, key
    if kind in ("rm", "ppo"):  # which take lists of files
        files = {"train": "train", "validation": "validation", "test": "validation"}
        assert config.model.data.data_prefix == {key: [FILES[name]] for key, name in files.items()}


def test_the_actor_finds_its_critic_by_its_run():
    config = compose("ppo", overrides(components(ppo().text)["actor"]))  # the page guesses a host after 30 s
    assert config.remote_critic_rm.critic.run == "/runs/ppo/critic"


@pytest.mark.parametrize(("recipe", "nodes"), [(sft, 1), (reward_model, 4)])
def test_the_jobs_flags_are_the_scripts(recipe, nodes):
    flags = recipe().text
    names = "account=course partition=batch time=4:00:00 ntasks-per-node=8 exclusive overcommit"
    for flag in (*names.split(), f"nodes={nodes}"):
        assert f"#SBATCH --{flag}\n" in flags
    reserved = recipe(site=SITE | {"sbatch": {"reservation": "course"}}).text
    assert "#SBATCH --reservation=course\n" in reserved and "#SBATCH --overcommit\n" in reserved
    words = components(flags)["main"]
    assert f"--ntasks={8 * nodes}" in words
    assert "--container-image=/images/lab.sqsh" in words and "--container-mounts=/shared:/shared" in words


def test_ppo_is_a_hetjob_of_two_such_nodes():
    text = ppo().text
    critic, actor = text.split("#SBATCH hetjob\n")
    for block in (critic, actor):
        for flag in ("account=course", "nodes=1", "ntasks-per-node=8", "time=4:00:00", "exclusive"):
            assert f"#SBATCH --{flag}\n" in block
    words = components(text)
    assert list(words) == ["critic", "actor"]
    assert "--het-group=0" in words["critic"] and "--het-group=1" in words["actor"]
    command = words["critic"][words["critic"].index("aligner_lib") + 1 :]
    assert command[:3] == ["serve-critic", "--run", "/runs/ppo/critic"]


def test_a_containers_python_runs_wrapper_and_trainer():
    words = components(sft().text)["main"]
    before = [words[i - 1] for i, word in enumerate(words) if word in ("-m", "-u")]
    assert before == ["python", "-u", "python"]


def test_a_change_of_size_or_setting_is_a_keyword_and_a_mistake_is_refused():
    two = sft(resources={"nodes": 2, "gpus_per_node": 8}, **{"model.optim.lr": 1e-5})
    assert two.gpus == 16
    settings = dict(map(parse_override, overrides(components(two.text)["main"])))
    assert (settings["trainer.num_nodes"], settings["model.optim.lr"]) == (2, 1e-5)
    slow = ppo(**{"critic.model.optim.lr": 1e-6})
    assert "model.optim.lr=1e-06" in components(slow.text)["critic"]
    assert "model.optim.lr=9e-07" in components(slow.text)["actor"]
    with pytest.raises(ConfigError, match=r"did you mean model\.optim\.lr"):
        sft(**{"model.optim.lrr": 1e-5})
    with pytest.raises(ConfigError, match="not divisible"):
        reward_model(resources={"nodes": 3, "gpus_per_node": 8})
