"""Every kind of job with adapters: what it trains from, what it leaves, and what else can be begun from that."""

import shutil
import sys
from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf
from smoke_jobs import (
    ALL_CHECKPOINTS,
    assert_same_run,
    assert_same_to_the_bit,
    checkpoint_files,
    figures,
    prepare_smoke_job,
)
from test_graduate import one_step, script_of
from typer.testing import CliRunner

from aligner_lib.cli.main import app
from aligner_lib.errors import UserError
from aligner_lib.jobs.graduate import graduate
from aligner_lib.models import model_hash, resolve
from aligner_lib.models.adapters import AdapterRecord, open_weights
from aligner_lib.models.export import export
from aligner_lib.models.tensor_store import StoreReader


def lora(prefix: str = "") -> dict[str, object]:
    peft = f"{prefix}model__peft__"
    return {
        f"{peft}peft_scheme": "lora",
        f"{peft}lora_tuning__target_modules": "[all]",
        f"{peft}lora_tuning__adapter_dim": 4,
        f"{peft}lora_tuning__alpha": 8,
        f"{prefix}model__optim__lr": 3e-3,
        f"{prefix}model__optim__sched__warmup_steps": 0,
        f"{prefix}model__optim__sched__name": "constant",  # a run that is begun again is as long as it likes
    }


SHORT = {"sft": 8, "rm": 4, "dpo": 2, "grpo": 1, "ppo": 3}  # steps


@pytest.fixture(scope="module")
def trained(jobs):
    """trained(kind): a run with adapters of SFT; of the others a run that starts from that run."""
    runs = {}

    def settings(kind: str) -> dict[str, object]:
        more = lora() | ALL_CHECKPOINTS | {f"trainer__{kind}__max_steps": SHORT[kind]}
        if kind == "dpo":
            more |= {"model__micro_batch_size": 4}
        if kind != "sft":
            more |= {"pretrained_checkpoint__restore_from_path": f"'{run('sft').path}'"}
        if kind == "ppo":
            more |= lora("critic__")
            more["critic__pretrained_checkpoint__restore_from_path"] = f"'{run('rm').path}'"
        return more

    def run(kind: str):
        if kind not in runs:
            runs[kind] = jobs.run(kind, f"lora_{kind}", **settings(kind))
        return runs[kind]

    run.settings = settings
    return run


@pytest.mark.parametrize("kind", SHORT)
def test_each_kind_trains_adapters(trained, jobs, kind):
    run = trained(kind)
    assert run.status == "finished"
    checkpoint = run.latest_checkpoint()
    record = AdapterRecord.load(checkpoint)
    expected = jobs.model if kind == "sft" else trained("sft").latest_checkpoint()
    assert record.base == expected
    assert record.base_hash == model_hash(expected)
    store = StoreReader(checkpoint / "weights")
    assert {name.rpartition(".")[2] for name in store.names()} - {"weight", "bias"} == {"lora_a", "lora_b"}
    learnt = [store.read_whole(name).any() for name in store.names() if name.endswith("lora_b")]
    assert all(learnt)
    if kind == "ppo":
        assert AdapterRecord.load(checkpoint / "critic").base == trained("rm").latest_checkpoint()


def test_learning_shows(trained):
    """In a model with random weights, most of which stay."""
    _, losses = trained("sft").series("validation/loss")
    assert losses[-1] < losses[0] - 0.05
    assert figures(trained("rm"))[-1]["train/loss"] < 0.693


def test_the_policy_begins_as_its_reference_and_a_checkpoint_is_small(trained, jobs):
    first = figures(trained("dpo"))[0]
    assert first["validation/loss"] == pytest.approx(0.693147, abs=1e-6)
    assert first["validation/kl"] == 0
    assert figures(trained("ppo"))[1]["train_rollouts/kl"] == pytest.approx(0, abs=1e-5)
    # adapters of rank 4 with Adam's moments, beside the smoke model's weights alone
    of_run = sum(len(content) for content in checkpoint_files(trained("dpo")).values())
    of_model = sum(path.stat().st_size for path in (jobs.model / "weights").iterdir())
    assert of_run < of_model / 2


# ---- what else takes such a checkpoint ------------------------------------------------------------------------------


def test_full_fine_tuning_goes_on_from_adapters(trained, jobs):
    begin = {"model__restore_from_path": f"'{trained('sft').path}'", "trainer__sft__max_steps": 1}
    started = jobs.run("sft", "after_lora", **begin)
    assert AdapterRecord.load(started.latest_checkpoint()) is None
    before = [record for record in figures(trained("sft")) if "validation/loss" in record][-1]
    assert figures(started)[0]["validation/loss"] == pytest.approx(before["validation/loss"], abs=1e-5)


@pytest.fixture(scope="module")
def restored(trained, jobs):
    """A step of DPO with the adapters of the run of SFT."""
    return jobs.run(
        "dpo",
        "restored",
        pretrained_checkpoint__restore_from_path=f"'{jobs.model}'",
        **lora()
        | {
            "model__peft__lora_tuning__adapter_dim": 2
        },  # without effect: restored adapters have their own rank
        model__peft__restore_from_path=f"'{trained('sft').path}'",
        trainer__dpo__max_steps=1,
    )


def test_adapters_go_on_from_adapters(trained, restored):
    """model.peft.restore_from_path: the same adapters learn on, and where they stood is the reference."""
    again = restored
    checkpoint = again.latest_checkpoint()
    assert AdapterRecord.load(checkpoint) == AdapterRecord.load(trained("sft").latest_checkpoint())
    assert figures(again)[0]["validation/loss"] == pytest.approx(0.693147, abs=1e-6)
    afresh = figures(trained("dpo"))[0]  # on the merged model
    for name in ("validation/logprobs_chosen", "validation/logprobs_rejected"):
        assert figures(again)[0][name] == pytest.approx(afresh[name], abs=1e-3)
    assert "adapters" in again.info["hashes"]


@pytest.mark.parametrize(
    ("to", "ranks"),
    [
        ("trl", {"lora.r": 4, "lora.lora_alpha": 8}),
        ("nemo-rl", {"policy.dtensor_cfg.lora_cfg.dim": 4, "policy.dtensor_cfg.lora_cfg.alpha": 8}),
    ],
)
def test_restored_adapters_leave_for_another_library(to, ranks, trained, restored, tmp_path):
    graduate(restored.path, to, tmp_path / "out")
    export(trained("sft").path, "hf", tmp_path / "reference")
    written, expected = (tmp_path / name / "model.safetensors" for name in ("out/start", "reference"))
    assert written.read_bytes() == expected.read_bytes()
    config = OmegaConf.load(tmp_path / "out" / "config.yaml")
    assert {key: OmegaConf.select(config, key) for key in ranks} == ranks
    assert "adapter_dim" not in (tmp_path / "out" / "README.md").read_text()


def test_new_adapters_begin_in_trl_with_the_run_s_loss_and_the_run_s_distribution(
    trained, tmp_path, monkeypatch
):
    pytest.importorskip("trl", reason="TRL is not installed: ./lab test installs it")
    graduate(trained("sft").path, "trl", tmp_path / "out")
    trainer = script_of(tmp_path / "out", monkeypatch).make_trainer("start", **one_step(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py", "--out", str(tmp_path / "adapters")])
    sys.modules["graduated"].train(lambda *_, **__: trainer)
    loss = next(record["train/loss"] for record in figures(trained("sft")) if record["step"] == 1)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(loss, rel=1e-4)
    # divided by the standard deviation of Xavier's normal distribution; a first step with B = 0 leaves A as it is
    drawn = [
        matrix.detach().flatten() * (sum(matrix.shape) / 2) ** 0.5
        for name, matrix in trainer.model.named_parameters()
        if ".lora_A." in name
    ]
    assert torch.cat(drawn).std().item() == pytest.approx(1.0, abs=0.05)


def test_new_adapters_leave_for_verl(trained, tmp_path):
    graduate(trained("sft").path, "verl", tmp_path / "out")
    config = OmegaConf.load(tmp_path / "out" / "config.yaml")
    assert (config.model.lora_rank, config.model.lora_alpha) == (4, 8)


def test_a_reward_model_s_adapters_go_on_with_their_head(trained, jobs):
    again = jobs.run(
        "rm",
        "restored_rm",
        pretrained_checkpoint__restore_from_path=f"'{trained('sft').path}'",
        **lora(),
        model__peft__restore_from_path=f"'{trained('rm').path}'",
        trainer__rm__max_steps=1,
    )
    before = [record for record in figures(trained("rm")) if "validation/loss" in record][-1]
    assert before["validation/loss"] < 0.69
    assert figures(again)[0]["validation/loss"] == pytest.approx(before["validation/loss"], abs=1e-5)


def test_the_command_merges(trained, tmp_path):
    run = trained("dpo")
    result = CliRunner().invoke(app, ["model", "merge", str(run.path), "--out", str(tmp_path / "merged")])
    assert result.exit_code == 0, result.output
    merged, adapted = (open_weights(folder) for folder in (tmp_path / "merged", run.latest_checkpoint()))
    assert AdapterRecord.load(resolve(tmp_path / "merged")) is None
    assert merged.names() == adapted.names()
    for name in merged.names():
        torch.testing.assert_close(merged.read_whole(name), adapted.read_whole(name), atol=1e-6, rtol=1e-6)
    assert (tmp_path / "merged" / "tokenizer.json").exists()


# ---- gone, changed, moved -------------------------------------------------------------------------------------------


def test_adapters_whose_base_is_gone_or_another_model_by_now_are_refused(jobs, trained, tmp_path):
    base, elsewhere = shutil.copytree(jobs.model, tmp_path / "base"), tmp_path / "elsewhere"
    checkpoint = shutil.copytree(trained("sft").latest_checkpoint(), tmp_path / "checkpoint")
    record = AdapterRecord(base, model_hash(base), AdapterRecord.load(checkpoint).layers)
    record.save(checkpoint)
    assert resolve(checkpoint) == checkpoint
    before = model_hash(checkpoint)
    base.rename(elsewhere)
    words = r"holds adapters \(LoRA\) of the model in .*base, which is gone: put the model back"
    with pytest.raises(ValueError, match=words):
        resolve(checkpoint)
    replace(record, base=elsewhere).save(checkpoint)
    assert resolve(checkpoint) == checkpoint
    assert model_hash(checkpoint) == before  # it is the same model
    file = next((elsewhere / "weights").iterdir())
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="which has changed: its hash is now"):
        resolve(checkpoint)


def test_adapters_of_another_model_are_not_begun_with(jobs, trained, here):
    keys = ("model__restore_from_path", "model__peft__restore_from_path")
    settings = lora() | dict.fromkeys(keys, f"'{trained('sft').path}'")
    words = r"these adapters belong to the model in .*, but the run starts from"
    with pytest.raises(UserError, match=words):
        prepare_smoke_job("sft", jobs.settings("sft", "none", **settings))


# ---- again, and elsewhere -------------------------------------------------------------------------------------------


def test_a_run_goes_on_to_the_bit(trained, jobs):
    """PPO's, which has adapters of a policy and of a critic, from the checkpoint of its second step."""
    resumed = jobs.go_on("ppo", trained("ppo"), 2, "lora_ppo_resumed", **trained.settings("ppo"))
    assert resumed.info["resumed_at"] == [2]
    assert_same_to_the_bit(resumed, trained("ppo"))


@pytest.mark.parametrize("kind", ["dpo", "grpo"])
def test_two_processes_learn_what_one_does(trained, jobs, kind):
    """Every layout of an engine with adapters: megatron/test_lora.py. The first of GRPO's two ranks, which are a single copy
    of the model, asks the environment for both."""
    layout = {"model__tensor_model_parallel_size": 2, "model__sequence_parallel": True}
    two = jobs.run_ranks(kind, f"lora_two_{kind}", 2, **trained.settings(kind) | layout)
    assert_same_run(two, trained(kind))
