"""The figures of a job do not depend on its layout, on shared prefixes, or on how samples are packed into micro batches."""

import pytest
from smoke_jobs import SmokeJobs, assert_same_run, figures, first_steps

# half of the prompts have groups that are alike, and some responses no reward
PICKY_REWARD = """
def reward(prompt, response):
    if "q" in response:
        raise RuntimeError("I don't like the letter q")
    return response.count("e") if len(prompt) % 2 else 1.0
"""
STEPS = {
    "sft": first_steps("sft", 2),
    "rm": first_steps("rm", 2),
    "dpo": {"trainer__dpo__max_steps": 2, "model__micro_batch_size": 4},
    "grpo": {"trainer__grpo__max_steps": 2, "model__grpo__max_rollouts_per_step": 3},
    # each prompt's responses are on one rank or on both, whose rewards make the baseline
    "ppo": {
        "trainer__ppo__max_steps": 2,
        "trainer__ppo__critic_warmup_steps": 0,
        "trainer__ppo__prompt_baseline": "leave_one_out",
        "model__ppo__num_generations_per_prompt": 4,
    },
}
# the environments have two rewards and one, and a rank may have prompts of only one of them
TWO_REWARDS = """
def reward(prompt, response):
    return {"vowels": sum(map(response.count, "aeiou")), "short": len(response) < 40}
"""
STEPS["gdpo"] = {"trainer__grpo__max_steps": 2, "model__grpo__objective": "gdpo"}
KINDS = {"kto": "dpo", "gdpo": "grpo"}
STEPS["kto"] = STEPS["dpo"] | {"model__dpo__preference_loss": "kto"}
DP2 = {}
TP2 = {"model__tensor_model_parallel_size": 2}
PP2 = {"model__pipeline_model_parallel_size": 2}
UNSHARED = {"model__share_prefix": False}
PACKED = {"model__data__packed_sequence": True, "model__data__packed_sequence_size": 300}


@pytest.fixture(scope="module")
def steps(tmp_path_factory) -> dict[str, dict]:
    """The settings of each kind's short run."""
    file = tmp_path_factory.mktemp("reward") / "picky.py"
    file.write_text(PICKY_REWARD)
    (two := file.with_name("two.py")).write_text(TWO_REWARDS)
    return STEPS | {
        "grpo": STEPS["grpo"] | {"model__environments__e__use": f"'{file}'"},
        "gdpo": STEPS["gdpo"]
        | {
            "model__environments__e__use": f"'{two}'",
            "model__environments__e__rewards": "{vowels: 1, short: 0.5}",
            "model__environments__sums__use": "sums",
        },
    }


@pytest.fixture(scope="module")
def alone(jobs: SmokeJobs, steps, request):
    """alone("ppo"): the run of one process; of sft and rm the session's, whose first steps are these."""
    done = {}

    def run(kind: str):
        if kind in ("sft", "rm"):
            return request.getfixturevalue(kind)
        if kind not in done:
            done[kind] = jobs.run(KINDS.get(kind, kind), f"{kind}_alone", **steps[kind])
        return done[kind]

    return run


@pytest.mark.parametrize(
    "kind, layout",
    [
        # each trainer in each layout, each with shared and unshared prefixes. Of DPO's losses KTO's alone needs the whole
        # batch, on replicas and stages; of tensor-parallel ranks, which share a vocabulary, no loss sees anything: DPO
        # stands for KTO, and PPO for GRPO.
        ("dpo", TP2 | UNSHARED),
        ("kto", DP2 | UNSHARED),
        ("kto", PP2),
        ("grpo", DP2),
        ("gdpo", DP2),
        ("grpo", PP2 | UNSHARED),
        ("ppo", DP2),
        ("ppo", TP2),
        ("ppo", PP2),
    ],
)
def test_two_processes_take_the_steps_of_one(jobs, steps, alone, kind, layout):
    name = "_".join([kind, "two", *(f"{key}_{value}" for key, value in layout.items())])
    two = jobs.run_ranks(KINDS.get(kind, kind), name, 2, **steps[kind], **layout)
    assert_same_run(two, alone(kind), within=1e-4 if kind == "ppo" else 1e-5)
    if kind == "grpo":
        records = alone("grpo").metrics()[
            1:
        ]  # it draws groups again and meets failures, and ranks share these
        assert max(record["train_rollouts/groups"] for record in records) > 4
        assert all(record["train_environments/e/failed"] > 0 for record in records)
        # each rank meets failures; one is written down
        assert (two.path / "environment_failures.txt").read_text().count("failed (raised)") == 1


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
    assert len(figures(packed)) == 3
    for record, expected in zip(figures(packed), figures(alone)):
        both = [without_level(each) for each in (record, expected)]
        both[0] = {name: both[0][name] for name in both[1]}  # the last of all steps is validated, too
        if record["step"] == 0:  # policy and reference are equal, so rounding decides whose reward is higher
            for figures_of_start in both:
                figures_of_start.pop("validation/acc", None)
        assert both[0] == pytest.approx(both[1], rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def sft_packed(jobs):
    return jobs.run("sft", "sft_packed", **STEPS["sft"], **PACKED)


@pytest.mark.parametrize("kind", ["sft", "rm", "dpo", "kto"])
def test_packed_micro_batches_take_the_same_steps(jobs, steps, alone, request, kind):
    if kind == "sft":
        packed = request.getfixturevalue("sft_packed")
    else:
        packed = jobs.run(kind.replace("kto", "dpo"), f"{kind}_packed", **steps[kind], **PACKED)
    assert_same_steps(packed, alone(kind))
    assert packed.metrics()[1]["train/padding"] != alone(kind).metrics()[1]["train/padding"]


def test_packed_micro_batches_of_several_processes_take_the_same_steps(jobs, alone):
    """Of two pipelines one may have more micro batches than the other."""
    run = jobs.run_ranks("sft", "sft_packed_dp2_pp2", 4, **STEPS["sft"], **PACKED, **PP2)
    assert_same_steps(run, alone("sft"))


def test_a_resumed_run_packs_the_same_micro_batches_to_the_bit(jobs, sft_packed):
    for steps in (1, 2):
        resumed = jobs.run("sft", "sft_packed_resumed", **PACKED, **first_steps("sft", steps))
    assert figures(resumed)[-1] == figures(sft_packed)[-1]
