"""Megatron's import and a step of Adam in a job on a CPU, in a process of its own."""

import subprocess
import sys

import pytest

from aligner_lib.megatron import cpu

PROGRAM = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import aligner_lib.megatron.engine

print(*(name for name in sys.modules if name.startswith(("triton", "wandb", "torch.distributed.tensor"))))

import torch

weight = torch.nn.Parameter(torch.tensor([1.0]))
adam = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.0)
adam.zero_grad()
(3 * weight).backward()
adam.step()
adam.load_state_dict(adam.state_dict())
print(*sys.modules.keys() & {"torch._dynamo", "wandb", "torch.utils.tensorboard"})
print(round(weight.item(), 6), weight.requires_grad)

from torch.distributed.tensor import DTensor

print(DTensor.__mro__[1].__name__)
"""


@pytest.mark.megatron
def test_megatron_is_imported_without_triton_and_the_packages_of_fsdp_and_a_step_without_a_compiler():
    """PyTorch's CPU build has no Triton. An import afterwards gives the real DTensor.

    torch's AdamW would import torch._dynamo, which is a tenth of a job's start. Its first step is the learning rate.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    imported, of_the_step, *others = done.stdout.splitlines()
    assert (imported, others) == ("", ["0.9 True", "Tensor"])
    assert of_the_step == "" or cpu.HAS_CUDA, "a GPU's jobs compile"
