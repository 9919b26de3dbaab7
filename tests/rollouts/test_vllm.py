"""The real vLLM, where $ALIGNER_VLLM names its command: any release whose workers have `reload_weights`.

ALIGNER_VLLM=/path/to/vllm ./lab test tests/rollouts/test_vllm.py
"""

import os
from dataclasses import replace

import pytest
from smoke_jobs import SmokeJobs

from aligner_lib.models.smoke import ARCHITECTURE, SmokeModel

VLLM = os.environ.get("ALIGNER_VLLM")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VLLM, reason="$ALIGNER_VLLM does not name vLLM's command"),
]
MISMATCH = {"float32": 1e-5, "bfloat16": 5e-3}  # nats a token


@pytest.mark.parametrize("precision", MISMATCH)
def test_grpo_with_responses_of_vllm(formatted, tmp_path, precision):
    # vLLM's attention on a CPU wants heads of 32 or more
    SmokeModel(replace(ARCHITECTURE, kv_channels=32)).make("smoke", tmp_path / "smoke", progress=False)
    jobs = SmokeJobs(tmp_path / "smoke", formatted, tmp_path)
    run = jobs.run(
        "grpo",
        "vllm",
        trainer__grpo__max_steps=3,
        trainer__grpo__val_check_interval=3,
        model__grpo__sampler_correction="truncated",
        model__optim__lr="1e-3",
        model__generation__backend="vllm",
        model__generation__vllm_cfg__executable=f"'{VLLM}'",
        model__generation__vllm_cfg__precision=precision,
        model__generation__vllm_cfg__enforce_eager=True,
        model__generation__vllm_cfg__gpu_memory_utilization=0.1,
    )
    assert run.status == "finished"
    for record in run.metrics()[1:]:
        assert 0 < record["train_rollouts/sampler_mismatch"] < MISMATCH[precision]
        assert record["train_rollouts/sampler_effective_sample_size"] > 0.98
    assert run.metrics()[-1]["train_rollouts/kl"] != 0  # so that the server got the weights of later steps
