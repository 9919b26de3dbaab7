"""Jobs that start from NeMo's archives, as the tutorial's commands have them."""

import forks
import pytest
from smoke_jobs import figures, run_smoke_job

from aligner_lib.models.export import export

pytestmark = pytest.mark.megatron


def test_ppo_from_archives_is_ppo_from_folders(jobs, ppo, rm, tmp_path):
    """Policy and reward model with its scale: the first step's rollouts, rewards, values and losses are the same."""
    export(str(jobs.model), "nemo", tmp_path / "megatron_gpt_sft.nemo")
    export(str(rm.path), "nemo", tmp_path / "megatron_gpt.nemo")
    settings = jobs.settings(
        "ppo",
        "from_nemo",
        pretrained_checkpoint__restore_from_path=tmp_path / "megatron_gpt_sft.nemo",
        critic__pretrained_checkpoint__restore_from_path=tmp_path / "megatron_gpt.nemo",
        trainer__ppo__max_steps=1,
    )
    log, cache = jobs.log("from_nemo"), {"ALIGNER_CACHE": str(tmp_path / "cache")}
    forks.finish(forks.start(run_smoke_job, "ppo", settings, log=log, environment=cache), log)
    ours, theirs = (
        {name: value for name, value in figures(run)[0].items() if name.startswith(("train_", "critic/"))}
        for run in (jobs.run_folder("from_nemo"), ppo)
    )
    assert "train_rollouts/rewards" in ours
    assert ours == theirs
