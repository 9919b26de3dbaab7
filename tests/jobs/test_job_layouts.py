"""The figures of a job do not depend on its layout, on shared prefixes, or on how samples are packed into micro batches."""

import pytest
from smoke_jobs import ALL_CHECKPOINTS, assert_same_run, figures, first_steps

# half of the prompts have groups that are alike, and some responses no reward
PICKY_REWARD = """
def reward(prompt, response):
    if "q" in response:
        raise RuntimeError("I don't like the letter q")
    return response.count("e") if len(prompt) % 2 else 1.0
"""
# each prompt's responses are on one rank or on both, whose rewards make the baseline
PPO = {
    "trainer__ppo__max_steps": 2,
    "trainer__ppo__critic_warmup_steps": 0,
    "trainer__ppo__prompt_baseline": "leave_one_out",
    "model__ppo__num_generations_per_prompt": 4,
}
DP2 = {}
TP2 = {"model__tensor_model_parallel_size": 2}
PP2 = {"model__pipeline_model_parallel_size": 2}
UNSHARED = {"model__share_prefix": False}
PACKED = {"model__data__packed_sequence": True, "model__data__packed_sequence_size": 300}


@pytest.fixture(scope="module")
def ppo_alone(jobs):
    return jobs.run("ppo", "ppo_alone", **PPO)


@pytest.mark.parametrize("layout", [DP2, TP2, PP2 | UNSHARED], ids=["DP2", "TP2", "PP2 unshared"])
def test_two_processes_take_ppo_s_steps_of_one(jobs, ppo_alone, layout):
    two = jobs.run_ranks("ppo", "_".join(["ppo_two", *layout]), 2, **PPO, **layout)
    assert_same_run(two, ppo_alone, within=1e-4)


def test_two_processes_share_groups_that_are_drawn_again_and_failures(jobs, tmp_path):
    (file := tmp_path / "picky.py").write_text(PICKY_REWARD)
    settings = {"trainer__grpo__max_steps": 2, "model__grpo__max_rollouts_per_step": 3}
    settings["model__environments__e__use"] = f"'{file}'"
    alone = jobs.run("grpo", "grpo_alone", **settings)
    two = jobs.run_ranks("grpo", "grpo_two", 2, **settings)
    assert_same_run(two, alone)
    records = alone.metrics()[1:]
    assert max(record["train_rollouts/groups"] for record in records) > 4
    assert all(record["train_environments/e/failed"] > 0 for record in records)
    # each rank meets failures; one is written down
    assert (two.path / "environment_failures.txt").read_text().count("failed (raised)") == 1


def test_two_processes_normalise_several_rewards_together(jobs, gdpo, gdpo_settings):
    """A rank may have prompts of only one of the two environments."""
    assert_same_run(jobs.run_ranks("grpo", "gdpo_two", 2, **gdpo_settings), gdpo)


# ---- packed micro batches: of so many tokens instead of so many samples ---------------------------------------------


def without_level(record: dict) -> dict:
    """A reward model's rewards by their margin. Their level is learnt from nothing: the loss sees differences, so the
    gradient of the head's bias is what rounding leaves, and Adam makes a whole step of it."""
    ends = ("_chosen_mean", "_rejected_mean")
    levels = [name for name in record if "/rewards_all_" in name or name.endswith(ends)]
    margins = {
        f"{split}/margin": record[f"{split}/rewards_chosen_mean"] - record[f"{split}/rewards_rejected_mean"]
        for split in ("train", "validation")
        if f"{split}/rewards_chosen_mean" in record
    }
    return {name: value for name, value in record.items() if name not in levels} | margins


def assert_same_steps(packed, alone):
    assert packed.status == "finished"
    assert len(figures(packed)) >= 3
    for record, expected in zip(figures(packed), figures(alone)):
        both = [without_level(each) for each in (record, expected)]
        both[0] = {name: both[0][name] for name in both[1]}  # the last of all steps is validated, too
        if record["step"] == 0:  # policy and reference are equal, so rounding decides whose reward is higher
            for figures_of_start in both:
                figures_of_start.pop("validation/acc", None)
        assert both[0] == pytest.approx(both[1], rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def sft_packed(jobs):
    return jobs.run("sft", "sft_packed", **first_steps("sft", 3), **PACKED, **ALL_CHECKPOINTS)


def test_packed_micro_batches_take_the_same_steps(jobs, sft, rm, sft_packed):
    rm_packed = jobs.run("rm", "rm_packed", **first_steps("rm", 2), **PACKED)
    for packed, alone in ((sft_packed, sft), (rm_packed, rm)):
        assert_same_steps(packed, alone)
        assert packed.metrics()[1]["train/padding"] != alone.metrics()[1]["train/padding"]


def test_packed_micro_batches_of_two_replicas_of_two_stages_take_the_same_steps(jobs):
    """Of two pipelines one may have more micro batches than the other. KTO's reference point is of the whole batch."""
    settings = {"trainer__dpo__max_steps": 2, "model__dpo__preference_loss": "kto"}
    alone = jobs.run("dpo", "kto_alone", **settings)
    two = jobs.run_ranks("dpo", "kto_packed_dp2_pp2", 4, **settings, **PACKED, **PP2, **UNSHARED)
    assert alone.metrics()[2]["train/reference_point"] > 0.1
    assert_same_steps(two, alone)


def test_a_resumed_run_packs_the_same_micro_batches_to_the_bit(jobs, sft_packed):
    resumed = jobs.go_on("sft", sft_packed, 2, "sft_packed_resumed", **PACKED, **first_steps("sft", 3))
    assert resumed.info["resumed_at"] == [2]
    assert figures(resumed) == figures(sft_packed)
