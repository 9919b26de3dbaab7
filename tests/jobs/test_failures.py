"""What goes wrong is told in a sentence, and the run folder keeps everything up to it."""

import errno
import json
import re
import shutil
import subprocess
from pathlib import Path

import forks
import pytest
from smoke_jobs import checkpoint_files, prepare_smoke_job, run_smoke_job, steps, with_other_tokenizer

from aligner_lib.config.compose import compose
from aligner_lib.config.kind import load
from aligner_lib.config.kinds import kind_of
from aligner_lib.errors import UserError
from aligner_lib.jobs.runtime import explain_errors, open_run
from aligner_lib.megatron.engine import NonFiniteError
from aligner_lib.run_folder.explain import explain
from aligner_lib.run_folder.reader import RunFolder, step_name

pytestmark = pytest.mark.usefixtures("here")


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_its_checkpoint(jobs):
    """The run goes on from the checkpoint."""
    run_smoke_job("sft", jobs.settings("sft", "nan", trainer__sft__max_steps=2))
    run = jobs.run_folder("nan")
    before = run.latest_checkpoint()
    weights = checkpoint_files(run)
    too_fast = {"trainer__sft__max_steps": 20, "model__optim__lr": 1e30, "trainer__sft__save_interval": 20}
    words = r"the (loss|gradient norm) is (nan|inf).*Lower model\.optim\.lr \(set to 1e\+30\)"
    with pytest.raises(UserError, match=words):
        run_smoke_job("sft", jobs.settings("sft", "nan", **too_fast))
    assert run.status == "failed" and "Lower model.optim.lr" in run.info["message"]
    assert steps(run)[:3] == [0, 1, 2]
    assert run.latest_checkpoint() == before and checkpoint_files(run) == weights
    # with a sane rate it goes on
    run_smoke_job("sft", jobs.settings("sft", "nan", trainer__sft__max_steps=4))
    assert (run.status, steps(run)) == ("finished", [0, 1, 2, 3, 4])


def test_a_reward_that_fails_for_every_response_ends_the_run(jobs, tmp_path):
    (tmp_path / "broken.py").write_text("def reward(prompt, response):\n    return 1 / 0\n")
    use = {"model__environments__e__use": f"'{tmp_path / 'broken.py'}'", "trainer__grpo__max_steps": 6}
    use["model__grpo__max_rollouts_per_step"] = 3  # dynamic sampling
    words = "(?s)at step 3 no response has had a reward for 3 steps.*raised.*ZeroDivisionError"
    with pytest.raises(UserError, match=words):
        run_smoke_job("grpo", jobs.settings("grpo", "rewards_failed", **use))
    run = jobs.run_folder("rewards_failed")
    assert (run.status, steps(run)) == ("failed", [0, 1, 2])
    for step, record in enumerate(run.metrics()):
        split = "train" if step else "val"
        assert record[f"{split}_rollouts/rewards_failed"] == 1
        assert record[f"{split}_rollouts/rewards"] is None
        assert record.get("train_rollouts/advantages_mean") is None
    alarm = run.alarms()[0]
    assert (alarm["name"], alarm["step"]) == ("rewards_failed", 0)  # of the validation
    assert explain(run).cause.name == "rewards_failed"


def test_a_kl_beyond_the_bound_ends_the_run(jobs):
    bound = {"trainer__ppo__max_init_policy_kl": 1e-6, "trainer__ppo__critic_warmup_steps": 0}
    words = r"at step 2 init_policy_kl, the mean of .*, is .*\.ppo\.max_init_policy_kl=1e-06"
    with pytest.raises(UserError, match=words):
        run_smoke_job("ppo", jobs.settings("ppo", "kl", **bound))
    run = jobs.run_folder("kl")
    assert run.status == "failed"
    assert "raise the bound" in run.info["message"]
    assert "a higher trainer.ppo.initial_policy_kl_penalty" in run.info["message"]
    assert steps(run) == [0, 1]
    assert run.latest_checkpoint().name == step_name(1)  # though it saves every second step
    assert max(record["step"] for record in run.rollouts()) == 2  # what went too far can be read


# ---- settings, data and models that cannot be used, before any model is built ---------------------------------------

LANGUAGE_MODEL = r"^{key}={smoke} is a language model \(.*\), without a reward head: give a rew"
REWARD_MODEL = (
    r"^{key}={rm} is a reward model or a critic \(.*\), which scores texts, but cannot write text: give"
)
OWN_RUN = r"^critic.*={rm} is a checkpoint in the job's own run folder, {rm}: choose another run folder"
POSITIONS = r"{key}=513 is beyond the 512 positions of .*smoke: set {key}=512 or less"
TRAIN, RESTORE = "model.data.train_ds.file_path", "pretrained_checkpoint.restore_from_path"
JUDGE, POLICY = f"critic.{RESTORE}", "policy.restore_from_path"


@pytest.mark.parametrize(
    ("kind", "key", "value", "words"),
    [
        ("sft", TRAIN, "'{tmp}/empty.jsonl'", r"no usable sample in .*empty\.jsonl"),
        ("sft", TRAIN, "/nowhere/train.jsonl", r"/nowhere/train\.jsonl does not exist"),
        ("sft", TRAIN, "null", r"model\.data\.train_ds\.file_path is not set"),
        ("sft", "model.restore_from_path", "null", r"is not set: give it as .*=…, a run folder, a model"),
        ("sft", "model.restore_from_path", "/nowhere/model", "/nowhere/model"),
        ("sft", "model.restore_from_path", "'{rm}'", REWARD_MODEL),
        ("ppo", RESTORE, "'{rm}'", REWARD_MODEL),
        ("ppo", JUDGE, "'{smoke}'", LANGUAGE_MODEL),
        ("ppo", JUDGE, "null", r"critic\.pretrained_checkpoint\.restore_from_path"),
        ("evaluate", RESTORE, "'{rm}'", REWARD_MODEL),
        ("evaluate", POLICY, "'{rm}'", REWARD_MODEL),
        ("evaluate", JUDGE, "'{smoke}'", LANGUAGE_MODEL),
        ("evaluate", "exp_manager.explicit_log_dir", "'{rm}'", OWN_RUN),
        # a critic in a job of its own: tests/remote_critic/test_hanging.py
        ("sft", "model.data.train_ds.max_seq_length", 513, POSITIONS),
        ("ppo", "model.encoder_seq_length", 513, POSITIONS),
        ("ppo", "trainer.ppo.critic_warmup_steps", 8, "critic_warmup_steps=8 leaves none of the 8 steps"),
        ("dpo", "model.dpo.val_response_length", 512, "=512 leaves no room for a prompt in the 512"),
        # the reward model reads the actor's samples
        ("ppo", JUDGE, "'{short}'", "encoder_seq_length=160 is beyond the 100 positions of {short}"),
        ("ppo", RESTORE, "'{other}'", "the reward model in {rm}.* than the policy in {other}, "),
        ("evaluate", POLICY, "'{other}'", "the reference in {smoke} .* the policy in {other}, "),
        ("evaluate", JUDGE, "'{judge}'", "the reward model in {judge} .* the policy in {smoke}, "),
    ],
)
def test_what_cannot_be_used_is_refused_before_a_run_begins(jobs, rm, unusable, kind, key, value, words):
    places = {"tmp": unusable, "rm": rm.path, "smoke": jobs.model, "key": key}
    places |= {name: unusable / name for name in ("short", "other", "judge")}
    value = value.format(**places) if isinstance(value, str) else value
    with pytest.raises((UserError, ValueError, FileNotFoundError), match=words.format(**places)):
        run_smoke_job(kind, jobs.settings(kind, "refused", **{key: value}))
    assert not jobs.run_folder("refused").path.exists()


@pytest.fixture(scope="module")
def unusable(jobs, rm, tmp_path_factory):
    """A folder with no samples, a reward model of 100 positions, and models with other tokenizers."""
    folder = tmp_path_factory.mktemp("unusable")
    (folder / "empty.jsonl").touch()
    with_other_tokenizer(jobs.model, folder / "other")
    with_other_tokenizer(rm.latest_checkpoint(), folder / "judge")
    shutil.copytree(rm.latest_checkpoint(), folder / "short")
    model = folder / "short" / "model.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | {"max_position_embeddings": 100}))
    return folder


def test_samples_as_long_as_the_model_s_positions_are_taken_and_cut_ones_are_in_the_log(jobs, capfd):
    from aligner_lib.jobs.runtime import configure_logging

    configure_logging()
    prepare_smoke_job("sft", jobs.settings("sft", "positions", model__encoder_seq_length=512))
    prepare_smoke_job("sft", jobs.settings("sft", "cut", model__encoder_seq_length=128))
    log = capfd.readouterr().err
    words = r"^train: 70 of 576 samples cut: longer than 128 tokens .* \(first: train\.jsonl:1, "
    assert re.search(words, log, re.MULTILINE)
    assert re.search(r"^validation: 5 of 64 samples cut: ", log, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "limit"),
    [
        ("sft", {"model__data__validation_ds__file_path": "{single}"}),
        ("rm", {"model__data__data_prefix__validation": "[{single}]"}),
        ("ppo", {"model__ppo__num_val_samples": 1}),
    ],
)
def test_copies_of_the_model_that_would_have_nothing_to_validate_on_are_told(jobs, tmp_path, kind, limit):
    name, lines = ("test_comparisons", 2) if kind == "rm" else ("validation", 1)
    single = tmp_path / "single.jsonl"
    texts = (jobs.formatted / f"{name}.jsonl").read_text().splitlines(keepends=True)
    single.write_text("".join(texts[:lines]))
    limit = {key: str(value).format(single=single) for key, value in limit.items()}
    config = compose(kind, jobs.settings(kind, "few", **limit, trainer__devices=1), profile="smoke")
    build = load(kind_of(kind).build)
    build(config)
    config.trainer.devices = 2
    words = r"1 validation samples leave some of the 2 copies of the model without a sample"
    with pytest.raises(UserError, match=words):
        build(config)


def test_a_reward_model_may_be_trained_further(jobs, rm, rm_further):
    assert (
        "note: model.init_method_std=0.5: the run starts with a trained head"
        in jobs.log("rm_further").read_text()
    )
    first, last = rm_further.metrics()[0], rm.metrics()[-1]
    assert first["validation/loss"] == pytest.approx(last["validation/loss"], abs=1e-6)


# ---- processes, folders and checkpoints -----------------------------------------------------------------------------


def wait_in_vain(out: Path) -> None:
    """The first rank asks the other for something, in the group of all and in that of the pipeline, and gets no answer."""
    import torch
    import torch.distributed as dist

    from aligner_lib.jobs import runtime
    from aligner_lib.megatron import parallel

    runtime.GRACE_MINUTES = 0
    two = ["trainer.devices=2", "model.pipeline_model_parallel_size=2"]
    runtime.join_processes(compose("sft", [*two, "trainer.distributed_timeout_minutes=0.05"]))
    if not parallel.is_first_rank():
        forks.until(out.exists, "the first rank's end")
        return
    groups = (None, parallel.parallel_state.get_pipeline_model_parallel_group())
    waits = [dist.all_reduce(torch.zeros(1), group=group, async_op=True) for group in groups]
    words = []
    for wait in waits:
        with pytest.raises(RuntimeError) as error:
            wait.wait()
        words.append(str(error.value))
    forks.write_json(out, words)


def test_a_rank_that_waits_for_another_in_vain_gives_up_after_the_bound_of_the_settings(jobs, tmp_path):
    forks.run_ranks(2, wait_in_vain, tmp_path / "out.json", folder=tmp_path)
    words = json.loads((tmp_path / "out.json").read_text())
    assert len(words) == 2 and all("Timed out waiting 3000ms" in text for text in words)


def list_open_addresses(out: Path) -> None:
    import psutil

    from aligner_lib.megatron import parallel

    parallel.initialize()
    connections = psutil.Process().net_connections("tcp")
    addresses = {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    forks.write_json(out / f"{parallel.rank()}.json", [*addresses])
    parallel.barrier()


def test_ranks_of_one_machine_open_no_port_to_other_machines(tmp_path):
    forks.run_ranks(2, list_open_addresses, tmp_path, folder=tmp_path)
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [["127.0.0.1"]] * 2


def test_a_checkpoint_that_must_be_there_and_is_not_is_told(jobs):
    with pytest.raises(FileNotFoundError, match="no checkpoint to resume from"):
        run_smoke_job("sft", jobs.settings("sft", "must", exp_manager__resume_ignore_no_checkpoint=False))
    assert jobs.run_folder("must").status == "failed"


def test_processes_that_nobody_started_are_told(jobs):
    two = {"trainer__devices": 2}
    two |= {f"model__data__{split}_ds__micro_batch_size": 4 for split in ("train", "validation")}
    with pytest.raises(UserError, match=r"asks for 2 processes, but 1 is here"):
        run_smoke_job("sft", jobs.settings("sft", "none", **two))


LOWER_CRITIC_S = r"Lower critic\.model\.optim\.lr \(set to 3e-06\) or gradient_clip_val in critic\.trainer"


@pytest.mark.parametrize(
    ("kind", "error", "words"),
    [
        ("sft", NonFiniteError("the loss is nan"), r"the run ends here, and {kept}\. Lower"),
        (
            "ppo",
            NonFiniteError("the loss is nan", settings="critic."),
            LOWER_CRITIC_S + ", and .* of this step$",
        ),
        (
            "ppo",
            NonFiniteError("the gradient norm is nan"),
            r"functions.loss \(own.py\) is your own: its gradient",
        ),
        ("sft", OSError(errno.ENOSPC, "No space"), "start the same command again; it {goes_on}"),
        ("sft", OSError(errno.ENOSPC, "No space", "/tmp/own/file"), "disk of /tmp/own is full: "),
    ],
)
def test_what_is_left_of_a_run_that_went_wrong_is_told_as_it_is(tmp_path, kind, error, words):
    from aligner_lib.jobs.runtime import explain_errors

    settings = [f"exp_manager.explicit_log_dir='{tmp_path}'"]
    config = compose(kind, settings + ["critic.model.optim.lr=3e-6"] * (kind == "ppo"))
    config.functions = {"loss": "own.py"} if kind == "ppo" else {}

    def assert_explained(kept: str, goes_on: str) -> None:
        explained = pytest.raises(UserError, match=words.format(kept=kept, goes_on=goes_on))
        with explained, explain_errors(kind, config):
            raise error

    assert_explained("it has no checkpoint yet", "begins anew, because there is no checkpoint yet")
    (tmp_path / "checkpoints" / step_name(4)).mkdir(parents=True)
    assert_explained("its last checkpoint, step_000004, is intact", "continues from step_000004")


def test_a_run_folder_that_was_moved_during_the_run_is_named_with_the_cure(tmp_path):
    config = compose("sft", [f"exp_manager.explicit_log_dir='{tmp_path / 'run'}'"])
    words = r"the run folder .*run was moved or removed while .* with the folder's new place"
    with pytest.raises(UserError, match=words), open_run("sft", config, None, {}) as run:
        run.start(0)
        with explain_errors("sft", config):
            run.path.rename(tmp_path / "moved")
            run.log(1, {"train/loss": 1.0})
    assert not run.path.exists() and RunFolder(tmp_path / "moved").metrics()[0]["step"] == 1
    with pytest.raises(PermissionError), explain_errors("sft", config):  # a server that can't make its folder
        raise PermissionError(errno.EACCES, "Permission denied", str(run.path))


# ---- a full disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(sft, tmp_path):
    """A file system with room for one checkpoint of the smoke model, and not for a second beside it."""
    files = sft.latest_checkpoint().rglob("*")
    size = int(1.7 * sum(path.stat().st_size for path in files))
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode:
        pytest.skip(f"a small file system can't be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_is_told_and_the_run_goes_on_once_there_is_room(jobs, small_disk):
    settings = jobs.settings(
        "sft", "full", exp_manager__explicit_log_dir=f"'{small_disk / 'run'}'", trainer__sft__max_steps=4
    )
    run = jobs.run_folder(small_disk / "run")
    with pytest.raises(UserError, match="is full: free some space and start the same command again"):
        run_smoke_job("sft", settings)
    assert run.latest_checkpoint().name == "step_000002"
    assert steps(run) == [0, 1, 2, 3, 4]
    assert run.status == "failed"
    assert "is full" in run.info["message"]
    subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
    run_smoke_job("sft", settings)
    assert (run.status, run.latest_checkpoint().name) == ("finished", "step_000004")
