"""The text of a batch script: what Slurm is asked for, and the `srun` lines. Sends nothing."""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from submitit.slurm.slurm import _make_sbatch_string

from cluster import environment, record
from cluster.resources import Resources

_SPECIAL = re.compile(r'["$`\\]')  # what a shell reads between double quotes
_OPTION = re.compile(r"\+{0,2}[\w.]+=")  # Hydra's key=value, +key=value, ++key=value


@dataclass(frozen=True)
class Member:
    """One run: its folder, the folder of this submission, and the commands of its components."""

    run: Path
    folder: Path
    components: Mapping[str, list[str]]


def header(resources: Resources, name: str, folder: Path, array: str = "") -> list[str]:
    """#SBATCH lines of one component, through submitit."""
    extra = {
        # To the batch script alone (B:), which then asks the trainer: a signal at every rank would kill them.
        "signal": f"B:USR2@{resources.signal_delay_s}",
        "requeue": True,
        "output": str(folder / "batch.log"),
        "comment": str(folder),  # tells this job from one with the same id on another cluster
        **({"array": array} if array else {}),
        **{key.replace("_", "-"): value for key, value in resources.sbatch.items()},
    }
    text = _make_sbatch_string(
        command="",
        folder=folder,
        job_name=name,
        partition=resources.partition or None,
        account=resources.account or None,
        qos=resources.qos or None,
        time=resources.time,
        nodes=resources.nodes,
        ntasks_per_node=resources.tasks,
        cpus_per_task=resources.cpus_per_task or None,
        gres=resources.gres or None,
        mem=resources.mem or None,
        constraint=resources.constraint or None,
        exclusive=resources.exclusive or None,
        wckey=None,
        stderr_to_stdout=True,
        use_srun=False,
        additional_parameters=extra,
    )
    return [line for line in text.splitlines() if line.startswith("#SBATCH")]


def srun_words(resources: Resources, folder: Path, component: str, index: int, het: bool) -> list[str]:
    """`srun` and its options for one component, up to the command."""
    words = ["srun", *([f"--het-group={index}"] if het else [])]
    words += [
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.ranks}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
    ]
    if resources.cpus_per_task:  # since Slurm 22.05 a step does not take this from its job
        words.append(f"--cpus-per-task={resources.cpus_per_task}")
    words += ["--open-mode=append", f"--output={record.log_path(folder, component, '%t')}"]
    return words + container_words(resources)


def container_words(resources: Resources) -> list[str]:
    """pyxis' options of srun."""
    words = [f"--container-image={resources.container_image}"] if resources.container_image else []
    if resources.container_mounts:
        words.append(f"--container-mounts={','.join(resources.container_mounts)}")
    return words


def member_lines(member: Member, wanted: Mapping[str, Resources]) -> list[str]:
    """Shell lines that run one member: `begin` and its components."""
    het = len(member.components) > 1
    linger = max(share.linger_s for share in wanted.values())
    requeues = min(share.max_requeues for share in wanted.values())
    lines = [shlex.join(["begin", str(member.run), str(member.folder), str(linger), str(requeues)])]
    lines += [line for share in dict.fromkeys(share.setup for share in wanted.values()) for line in share]
    for index, (name, command) in enumerate(member.components.items()):
        share = wanted[name]
        wrapper = [
            share.python or sys.executable,
            "-u",
            "-m",
            "cluster.launch",
            "--component",
            str(index),
            "--",
        ]
        parts = [
            ["component", name],
            srun_words(share, member.folder, name, index, het),
            wrapper,
            *_by_option(command),
        ]
        lines.append(" \\\n    ".join(" ".join(map(quoted, part)) for part in parts))
    return lines


def quoted(word: str) -> str:
    """A word for the shell; one with single quotes inside goes between double ones where that is easier to read."""
    return f'"{word}"' if "'" in word and not _SPECIAL.search(word) else shlex.quote(word)


def _by_option(command: list[str]) -> list[list[str]]:
    """The program and its first words on one line, then a line for each key=value."""
    first = next((i for i, word in enumerate(command) if _OPTION.match(word)), len(command))
    return [command[:first], *([word] for word in command[first:])]


def script(
    members: list[Member],
    wanted: Mapping[str, Resources],
    variables: Mapping[str, str],
    name: str,
    folder: Path,
    parallel: int = 0,
) -> str:
    """The whole batch script of one job, a hetjob (several components), or an array (several members)."""
    array = f"0-{len(members) - 1}" + (f"%{parallel}" if parallel else "") if len(members) > 1 else ""
    blocks = [header(share, name, folder, array) for share in wanted.values()]
    head = "\n#SBATCH hetjob\n".join("\n".join(block) for block in blocks)
    exports = {**environment.own_variables(), **variables}
    lines = ["#!/bin/bash", head, ""]
    lines += [f"export {key}={shlex.quote(value)}" for key, value in exports.items()]
    lines += [f"source {shlex.quote(str(folder / 'batch.sh'))}", ""]
    if array:
        lines.append('case "$SLURM_ARRAY_TASK_ID" in')
        for index, member in enumerate(members):
            lines += [f"{index})", *member_lines(member, wanted), ";;"]
        lines.append("esac")
    else:
        lines += member_lines(members[0], wanted)
    return "\n".join([*lines, "finish", ""])
