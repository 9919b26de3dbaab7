"""Micro batches of so many tokens take the step that those of so many samples take, in any layout."""

import forks
import pytest
from smoke_jobs import figures, run_smoke_job

PACKED = {"model__data__packed_sequence": True, "model__data__packed_sequence_size": 300}
STEPS = {
    "sft": {"trainer__sft__max_steps": 4},
    "rm": {"trainer__rm__max_steps": 3},
    "dpo": {"trainer__dpo__max_steps": 3},
}
LAYOUTS = {
    "dp2": {},
    "tp2": {"model__tensor_model_parallel_size": 2},
    "pp2": {"model__pipeline_model_parallel_size": 2},
    "dp2_pp2": {"model__pipeline_model_parallel_size": 2, "trainer__devices": 4},
}


@pytest.fixture(scope="module")
def counted(jobs):
    """counted("sft"): a short run with a number of samples in a micro batch."""
    done = {}

    def run(kind: str):
        if kind not in done:
            done[kind] = jobs.run(kind, f"{kind}_counted", **STEPS[kind])
        return done[kind]

    return run


def assert_the_same_steps(packed, counted):
    assert packed.status == "finished"
    for ours, theirs in zip(figures(packed), figures(counted), strict=True):
        assert without_level(ours) == pytest.approx(without_level(theirs), rel=1e-5, abs=1e-5)


def without_level(record: dict) -> dict:
    """A reward model's rewards by their margin. Their level is learnt from nothing: the loss sees differences, so the
    gradient of the head's bias is what rounding leaves, and Adam makes a whole step of it."""
    levels = [
        name
        for name in record
        if "/rewards_all_" in name or name.endswith(("_chosen_mean", "_rejected_mean"))
    ]
    margins = {
        f"{split}/margin": record[f"{split}/rewards_chosen_mean"] - record[f"{split}/rewards_rejected_mean"]
        for split in ("train", "validation")
        if f"{split}/rewards_chosen_mean" in record
    }
    return {name: value for name, value in record.items() if name not in levels} | margins


@pytest.mark.parametrize("kind", STEPS)
def test_packed_micro_batches_take_the_same_steps(jobs, counted, kind):
    packed = jobs.run(kind, f"{kind}_packed", **STEPS[kind], **PACKED)
    assert_the_same_steps(packed, counted(kind))
    assert packed.metrics()[1]["train/padding"] != counted(kind).metrics()[1]["train/padding"]


def test_kto_s_unrelated_responses_are_packed_with_their_samples(jobs):
    kto = {"model__dpo__preference_loss": "kto"} | STEPS["dpo"]
    counted, packed = (
        jobs.run("dpo", f"kto_{name}", **kto, **more) for name, more in (("counted", {}), ("packed", PACKED))
    )
    assert_the_same_steps(packed, counted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_on_several_processes_is_counted_on_one(jobs, counted, layout):
    """Of two pipelines one may have more micro batches than the other."""
    name, layout = f"sft_packed_{layout}", {"trainer__devices": 2} | LAYOUTS[layout]
    settings = jobs.settings("sft", name, **STEPS["sft"], **PACKED, **layout)
    forks.run_ranks(layout["trainer__devices"], run_smoke_job, "sft", settings, folder=jobs.logs(name))
    assert_the_same_steps(jobs.run_folder(name), counted("sft"))


def test_a_killed_run_goes_on_to_the_bit(jobs):
    """Micro batches are functions of the step."""
    whole = jobs.run("sft", "sft_packed_whole", **STEPS["sft"], **PACKED)
    more = PACKED | {"model__optim__sched__max_steps": 4}
    jobs.run("sft", "sft_packed_resumed", **more, trainer__sft__max_steps=2)
    resumed = jobs.run("sft", "sft_packed_resumed", **more, trainer__sft__max_steps=4)
    assert figures(resumed)[-1] == figures(whole)[-1]
