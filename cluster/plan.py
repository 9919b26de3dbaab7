"""The batch script of a job that is printed and not submitted."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster import record, sbatch
from cluster.resources import Resources


@dataclass(frozen=True)
class Plan:
    """A batch script that was not submitted."""

    name: str
    run: Path
    nodes: int
    gpus: int
    text: str

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Plan {self.name}: {self.nodes} nodes, {self.gpus} GPUs, nothing was submitted>"


def plan(
    components: Mapping[str, list[str]],
    run: Path,
    wanted: Mapping[str, Resources],
    variables: Mapping[str, str],
    name: str,
) -> Plan:
    """Print and return the batch script that `submit(…, where='slurm')` would submit. Writes no file."""
    folder = record.next_submission_folder(run)
    text = sbatch.script([sbatch.Member(run, folder, components)], wanted, variables, name, folder)
    return print_plan(name, run, wanted, text)


def print_plan(name: str, run: Path, wanted: Mapping[str, Resources], text: str, copies: int = 1) -> Plan:
    """Print a batch script and return it with its totals. copies: members of an array."""
    print(text)
    nodes = copies * sum(share.nodes for share in wanted.values())
    gpus = copies * sum(share.gpus for share in wanted.values())
    return Plan(name, run, nodes, gpus, text)
