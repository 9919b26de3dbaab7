"""Figures of benchmarks as JSON: how and where they were measured, without names and folders of the machine.

Kept files lie in benchmarks/results/; `python -m benchmarks.page` writes them into docs/performance.md.
"""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import time
from argparse import Namespace
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.setting import ROOT, Setting

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("torch", "megatron-core", "transformers", "trl", "accelerate")
UNITS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
SIZES = (
    "repeats",
    "steps",
    "global_batch",
    "micro_batch",
    "max_length",
    "prompts",
    "generation_batch",
    "group_size",
    "new_tokens",
    "dpo_beta",
    "grpo_beta",
    "lr",
    "grpo_lr",
)


def machine() -> dict:
    """The machine: the processor's model and its units for vectors, the cores that this process may use, memory in GiB, the GPU."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(known.get("flags", "").split())
    return {
        "processor": known.get("model name") or platform.machine(),
        "units": [unit for unit in UNITS if unit in flags],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "gpu": gpu(),
    }


def gpu() -> str | None:
    """The GPU's name; None without a GPU."""
    import torch  # only now, because the parent process of a comparison needs torch for nothing else

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def commit() -> str:
    """The last commit that changed the library, with a plus sign if the library's files differ from it."""

    def git(*words: str) -> str:
        command = ["git", *words, "--", "aligner_lib"]
        try:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()
        except FileNotFoundError:  # without git the figures are still worth keeping
            return ""

    changed = git("status", "--porcelain")
    return (git("log", "-1", "--format=%h", "--abbrev=10") or "unknown") + ("+" if changed else "")


def command_line(command: str, options: Namespace, positional: Sequence[str] = ()) -> str:
    """The command with its settings. Of a file only the name is kept; the place of the JSON file is left out.

    positional: names of the settings that the command takes without an option, in its order.
    """
    words = [command]
    for name in positional:
        words += _shown(getattr(options, name))
    for name, value in vars(options).items():
        if name in ("json", *positional) or value is None or value is False:
            continue
        words.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {','.join(_shown(value))}"))
    return " ".join(words)


def _shown(value: object) -> list[str]:
    """The option's values without folders."""
    return [_without_folder(each) for each in (value if isinstance(value, list | tuple) else [value])]


def _without_folder(value: object) -> str:
    """An option's value, of which only a file's name is kept, also in NAME=FILE."""
    name = re.match("[^/=]*=|", str(value))[0]
    return name + Path(str(value).removeprefix(name)).name


def versions() -> dict[str, str]:
    """The installed versions of LIBRARIES."""
    installed = {}
    for library in LIBRARIES:
        try:
            installed[library] = version(library)
        except PackageNotFoundError:
            continue
    return installed


def described_run(command: str, options: Namespace, positional: Sequence[str] = ()) -> dict:
    """When, where and with which versions figures were measured. positional: see `command_line`."""
    return {
        "command": command_line(command, options, positional),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
        "python": platform.python_version(),
        "versions": versions(),
    }


def described(command: str, setting: Setting, options: Namespace) -> dict:
    """How a comparison was measured: `described_run`, the model and the settings that all sides share."""
    return described_run(command, options) | {
        "threads": options.threads or "torch's default",
        "clock": setting.clock,
        "model": setting.model,
        "parameters": setting.architecture().num_parameters,
        "precision": setting.precision,
        "pairs": setting.raw_pairs.name,
        "sizes": {name: getattr(setting, name) for name in SIZES},
    }


def write_result(path: Path, description: dict, results: list[dict]) -> None:
    """Write a file of figures. Creates the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(description | {"results": results}, indent=1) + "\n")
