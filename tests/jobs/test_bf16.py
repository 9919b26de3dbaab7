"""Jobs in bf16: a few steps beside float32's, resumed to the bit, and tokens that training finds as likely as generation did.

A CPU without units for bf16 computes in it all the same, if slowly. The tests tell the jobs that this one has them.
"""

from dataclasses import replace

import forks
import pytest
from device_jobs import run_on_device
from smoke_jobs import ALL_CHECKPOINTS, assert_same_to_the_bit, figures, first_steps, run_smoke_job

from aligner_lib.models.tensor_store import StoreReader

STEPS = 3
# How far the figures of a step may be from float32's: about ten times as far as they were.
BOUNDS = {
    "sft": {"train/loss": 1e-3, "train/grad_norm": 0.01},
    "ppo": {"train_rollouts/rewards": 0.01, "train_rollouts/values_mean": 0.01, "critic/loss": 0.01},
}


def run_in_bf16(kind: str, settings: list[str]) -> None:
    from aligner_lib.megatron import precision

    precision.has_bf16_units = lambda: True
    run_smoke_job(kind, settings)


def run_in_bf16_on_device(kind: str, settings: list[str], copies) -> None:
    from aligner_lib.megatron import precision

    precision.has_bf16_units = lambda: True
    run_on_device(kind, settings, copies)


def short(kind: str) -> dict[str, object]:
    """Settings of a job of STEPS steps in bf16."""
    critic = {"critic__trainer__precision": "bf16"} if kind == "ppo" else {}
    return first_steps(kind, STEPS) | ALL_CHECKPOINTS | {"trainer__precision": "bf16"} | critic


@pytest.fixture(scope="module")
def bf16_jobs(jobs):
    return replace(jobs, work=run_in_bf16)


@pytest.fixture(scope="module")
def in_bf16(bf16_jobs):
    """The runs of SFT and of PPO in bf16, by kind."""
    runs = {kind: bf16_jobs.run(kind, f"{kind}_bf16", **short(kind)) for kind in BOUNDS}
    assert {run.info["precision"] for run in runs.values()} == {"bf16"}
    return runs


@pytest.mark.parametrize("kind", BOUNDS)
def test_steps_in_bf16_are_near_those_in_float32(request, in_bf16, kind):
    ours, theirs = (figures(run)[1 : STEPS + 1] for run in (in_bf16[kind], request.getfixturevalue(kind)))
    assert ours[0] != theirs[0]
    # a token that is drawn differently changes a rollout and all that follows: of PPO the first step is compared
    for record, expected in zip(ours[: 1 if kind == "ppo" else STEPS], theirs):
        for name, bound in BOUNDS[kind].items():
            assert record[name] == pytest.approx(expected[name], abs=bound), name


def test_drawing_scoring_and_training_agree_in_bf16(in_bf16):
    records = [record for record in figures(in_bf16["ppo"]) if record["step"] > 0]
    assert records[0]["train_rollouts/init_policy_kl"] == 0  # the reference has the policy's own weights
    ratios = [record["train_optim/first_ppo_ratio"] for record in records if "train_optim/loss" in record]
    assert len(ratios) == STEPS - 1  # the first step warms up the critic
    assert ratios == pytest.approx([1.0] * len(ratios), abs=1e-3)
    assert max(record["train_rollouts/sampler_mismatch"] for record in records) < 1e-3


def test_a_run_in_bf16_goes_on_to_the_bit(bf16_jobs, in_bf16):
    """PPO's, of a policy and a critic, from the checkpoint of its second step."""
    resumed = bf16_jobs.go_on("ppo", in_bf16["ppo"], 2, "ppo_bf16_resumed", **short("ppo"))
    assert resumed.info["resumed_at"] == [2]
    assert_same_to_the_bit(resumed, in_bf16["ppo"])


def test_a_run_in_bf16_on_an_accelerator_is_near_the_cpu_s(jobs, in_bf16):
    name = "sft_bf16_on_device"
    settings, run = jobs.settings("sft", name, **short("sft")), jobs.run_folder(name)
    forks.run(run_in_bf16_on_device, "sft", settings, jobs.out / f"{name}.json", log=jobs.log(name))
    for ours, theirs in zip(figures(run), figures(in_bf16["sft"]), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-3, rel=1e-3)


def test_a_checkpoint_of_a_run_in_bf16_holds_float32_masters(in_bf16):
    store = StoreReader(in_bf16["sft"].latest_checkpoint() / "weights")
    tensors = [store.read_whole(name) for name in store.names()]
    assert {str(tensor.dtype) for tensor in tensors} == {"torch.float32"}
    assert any((tensor != tensor.bfloat16().float()).any() for tensor in tensors)
