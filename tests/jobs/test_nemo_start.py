"""Jobs that start from NeMo's archives, as the tutorial's commands have them."""

import forks
from smoke_jobs import figures, run_smoke_job

from aligner_lib.models.export import export


def test_ppo_from_archives_is_ppo_from_folders(jobs, ppo, rm, tmp_path):
    """Policy and reward model with its scale: the first step's responses, rewards, values and KL are the same."""
    export(str(jobs.model), "nemo", tmp_path / "megatron_gpt_sft.nemo")
    export(str(rm.path), "nemo", tmp_path / "megatron_gpt.nemo")
    settings = jobs.settings(
        "ppo",
        "from_nemo",
        pretrained_checkpoint__restore_from_path=tmp_path / "megatron_gpt_sft.nemo",
        critic__pretrained_checkpoint__restore_from_path=tmp_path / "megatron_gpt.nemo",
        trainer__ppo__max_steps=1,
        trainer__ppo__critic_warmup_steps=0,
    )
    log, cache = jobs.log("from_nemo"), {"ALIGNER_CACHE": str(tmp_path / "cache")}
    forks.finish(forks.start(run_smoke_job, "ppo", settings, log=log, environment=cache), log)
    ours, theirs = (rollouts_of_the_first_step(run) for run in (jobs.run_folder("from_nemo"), ppo))
    assert ours == theirs


def rollouts_of_the_first_step(run) -> dict:
    first = next(record for record in figures(run) if "train_rollouts/rewards" in record)
    return {name: value for name, value in first.items() if name.startswith("train_rollouts/")}
