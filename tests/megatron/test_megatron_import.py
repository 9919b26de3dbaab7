"""Megatron's import in a job on a CPU, in a process of its own."""

import subprocess
import sys

import pytest

IMPORT = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import aligner_lib.megatron.engine

print(*(name for name in sys.modules if name.startswith(("triton", "wandb", "torch.distributed.tensor"))))
from torch.distributed.tensor import DTensor

print(DTensor.__mro__[1].__name__)
"""


@pytest.mark.megatron
def test_megatron_is_imported_without_triton_and_without_the_packages_of_fsdp():
    """PyTorch's CPU build has no Triton. An import afterwards gives the real DTensor."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=120)
    assert (done.stdout.splitlines(), done.returncode) == (["", "Tensor"], 0), done.stderr
