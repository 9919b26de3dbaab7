"""Select the environment variables for a job from the variables of the submitting process."""

import os
import site
from collections.abc import Mapping
from pathlib import Path

# Variables of a notebook kernel: a plot backend that needs the kernel, the pid of the kernel's parent, the hub's tokens.
_KERNEL_PREFIXES = ("JPY_", "JUPYTERHUB_", "KERNEL_", "PYDEVD_")
_KERNEL_NAMES = {"CLICOLOR", "CLICOLOR_FORCE", "FORCE_COLOR", "GIT_PAGER", "PAGER"}
# Variables of an outer job. JupyterLab often runs inside an allocation, and the new job has other ranks and limits.
_OUTER_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "SRUN_", "SUBMITIT_", "TORCHELASTIC_", "ALIGNER_JOB_")
RANK_NAMES = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
}
# A user's own defaults for Slurm's commands, such as SQUEUE_PARTITION, would change the answers that tell a job's state.
_DEFAULTS_PREFIXES = ("SACCT_", "SCANCEL_", "SCONTROL_", "SINFO_", "SQUEUE_")
# Slurm's client commands need these variables to find their cluster and to log in, so a job keeps them.
_CLIENT_NAMES = {"SLURM_CONF", "SLURM_JWT", "SLURM_CLUSTERS"}

PROJECT_ROOT = Path(__file__).resolve().parent.parent


def _foreign(name: str, value: str) -> bool:
    if name in _CLIENT_NAMES:
        return False
    if name == "MPLBACKEND":
        return value.startswith("module://")
    return (
        name.startswith(_KERNEL_PREFIXES + _OUTER_PREFIXES + _DEFAULTS_PREFIXES)
        or name in _KERNEL_NAMES | RANK_NAMES
    )


def foreign_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables of the notebook kernel, of an outer job, and the defaults of Slurm's commands: their names, sorted."""
    return sorted(name for name, value in environ.items() if _foreign(name, value))


def job_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a job: the environment of this process without the variables in `foreign_names`."""
    kept = {name: value for name, value in environ.items() if not _foreign(name, value)}
    return kept | own_variables(environ)


def own_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Variables for every job: unbuffered logs, and PYTHONPATH unless the project is installed."""
    variables = {"PYTHONUNBUFFERED": "1"}
    installed = {Path(folder).resolve() for folder in [*site.getsitepackages(), site.getusersitepackages()]}
    if PROJECT_ROOT not in installed:
        paths = [str(PROJECT_ROOT), *filter(None, environ.get("PYTHONPATH", "").split(os.pathsep))]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return variables
