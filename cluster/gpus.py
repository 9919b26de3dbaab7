"""Count the GPUs of the machine, and divide the GPUs among the components of a job. Needs no torch."""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path

_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DEVICES = Path("/dev")
_TIMEOUT_S = 20


def visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The NVIDIA GPUs visible to a process with the environment, in the notation of CUDA_VISIBLE_DEVICES."""
    if _VARIABLE in environ:
        return [gpu for gpu in environ[_VARIABLE].split(",") if gpu.strip() not in ("", "-1")]
    return [str(index) for index in range(_installed())]


@cache
def _installed() -> int:
    """The number of GPUs in nvidia-smi's list, or of the driver's devices when nvidia-smi is missing, as in many containers."""
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return len([*_DEVICES.glob("nvidia[0-9]*")])
    return sum(line.startswith("GPU ") for line in answer.stdout.splitlines())


def divided(gpus: list[str], requests: Mapping[str, int]) -> dict[str, dict[str, str]]:
    """The environment variables by component, with which each component sees the next of `gpus` and no others.

    requests: the number of GPUs by component. There are no variables, so that every component sees all GPUs, for a single
    component, for components without GPUs, and when `gpus` are too few.
    """
    if len(requests) == 1 or not 0 < sum(requests.values()) <= len(gpus):
        return {name: {} for name in requests}
    rest = iter(gpus)
    return {name: {_VARIABLE: ",".join(islice(rest, number))} for name, number in requests.items()}
