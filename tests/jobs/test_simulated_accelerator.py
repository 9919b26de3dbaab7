"""Jobs on a device that is not the CPU: the CPU's figures, no tensor on the wrong side, and what is copied."""

import shutil

import forks
import pytest
from device_jobs import BATCH, MOMENTS, WEIGHTS, read_steps, run_on_device, table
from simulated_accelerator import TO_CPU, TO_DEVICE, simulated_accelerator
from smoke_jobs import figures, first_steps, responses

from aligner_lib.models.tensor_store import StoreReader
from aligner_lib.run_folder.reader import RunFolder


def run_there(jobs, kind: str, steps: int, **more: object) -> RunFolder:
    """The first steps of the kind's run on the device."""
    name = f"{kind}_on_device"
    settings = jobs.settings(kind, name, **first_steps(kind, steps), **more)
    forks.run(run_on_device, kind, settings, jobs.out / f"{name}.json", log=jobs.log(name))
    return jobs.run_folder(name)


def assert_same_figures(run: RunFolder, whole: RunFolder, steps: int) -> None:
    records = figures(run)
    assert len(records) == steps + 1
    for record, expected in zip(records, figures(whole)):
        ours = {name: record[name] for name in expected}  # it has validated after its last step, too
        assert ours == pytest.approx(expected, abs=1e-5, rel=1e-5)


def test_the_first_steps_of_a_reward_model_are_the_cpu_s(jobs, rm):
    """Of SFT: test_bf16.py."""
    assert_same_figures(run_there(jobs, "rm", 2), rm, 2)


def test_a_talk_there_is_the_cpu_s(smoke, rm, here):
    from aligner_lib.jobs.inference import answering, scoring

    def talk() -> tuple[str, float]:
        answer = answering(smoke, max_length=8)("How are you?")
        return answer, scoring(rm.path)("How are you?", answer)

    answer, score = talk()
    with simulated_accelerator() as copies:
        assert talk() == (answer, pytest.approx(score, abs=1e-5))
    assert copies.seen


STEPS = 4  # with a validation after the last one, and two checkpoints
OFFLOADED = {"model__ppo__offload_adam_states": True, "critic__model__offload_adam_states": True}


@pytest.fixture(scope="module")
def ppo_on_device(jobs) -> RunFolder:
    """A PPO run that was stopped on the way and went on, its moments on the CPU while nothing is trained."""
    run = run_there(jobs, "ppo", STEPS, exp_manager__stop_after=3, **OFFLOADED)
    assert run.status == "stopped"
    shutil.copy(jobs.out / "ppo_on_device.json", jobs.out / "ppo_before_its_stop.json")
    return run_there(jobs, "ppo", STEPS, **OFFLOADED)


def test_ppo_saved_and_resumed_has_the_cpu_s_figures(ppo_on_device, ppo):
    assert (ppo_on_device.info["resumed"], ppo_on_device.status) == (1, "finished")
    assert_same_figures(ppo_on_device, ppo, STEPS)
    assert responses(ppo_on_device) == [response for response in responses(ppo) if response[0] <= STEPS]


def bytes_of_weights(checkpoint) -> int:
    store = StoreReader(checkpoint / "weights")
    return 4 * sum(store.read_whole(name).numel() for name in store.names())


def test_a_step_copies_weights_and_moments_once_each_way_and_nothing_else_beyond_the_batch(
    jobs, ppo_on_device
):
    # the third step, after no validation
    copies, batch = read_steps(jobs.out / "ppo_before_its_stop.json")[2]
    print(f"\n{table(copies)}\n\nbatch: {batch:,} bytes")
    actor, critic = (bytes_of_weights(ppo_on_device.latest_checkpoint() / part) for part in (".", "critic"))

    def moved(stage: str, cause: str) -> list[int]:
        """Bytes to the device and to the CPU."""
        return [
            sum(c.bytes for c in copies if (c.stage, c.cause, c.direction) == (stage, cause, direction))
            for direction in (TO_DEVICE, TO_CPU)
        ]

    # an exchange copies one set of weights each way; another one puts the model's own back
    assert moved("reference's log-probabilities", WEIGHTS) == [2 * actor, 2 * actor]
    assert moved("rewards", WEIGHTS) == moved("critic's updates", WEIGHTS) == [critic, critic]
    assert (moved("generate", MOMENTS), moved("actor's updates", MOMENTS)) == ([0, 2 * actor], [2 * actor, 0])
    assert (moved("values", MOMENTS), moved("critic's updates", MOMENTS)) == (
        [0, 2 * critic],
        [2 * critic, 0],
    )
    for cause, total in ((WEIGHTS, 4 * actor + 4 * critic), (MOMENTS, 4 * actor + 4 * critic)):
        assert sum(copy.bytes for copy in copies if copy.cause == cause) == total
    others = [copy.bytes for copy in copies if copy.cause not in (WEIGHTS, MOMENTS)]
    assert max(others) <= batch < actor / 10
    assert {copy.cause for copy in copies} == {BATCH, WEIGHTS, MOMENTS}
