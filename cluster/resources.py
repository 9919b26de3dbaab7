"""The resources that a job requests: nodes, GPUs, time, a container. They are read from YAML files and checked before
submission."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path

CONFIGS = Path(__file__).parent / "configs"
_TIME = re.compile(r"^(\d+-)?\d+(:\d{1,2}){0,2}$")  # minutes, h:mm:ss, days-h:mm
_EARLY_S = 60  # Slurm may give its notice so much earlier (man sbatch, --signal)
# Flags of `sbatch:` that the project sets itself, with the reason or the cure.
_OWN_FLAGS = {
    "comment": "is the mark by which a job is found again: remove it, and use `account` or sbatch.wckey",
    "signal": "is the notice before the time limit: set signal_delay_s",
    "requeue": "is how a job goes on after a notice: remove it, and set max_requeues: 0 for a job that is never requeued",
    "output": "is the log in the run folder: remove it",
    "error": "is the log in the run folder: remove it",
    "open-mode": "is append, so that a requeued job keeps its log: remove it",
    "array": "is set by submit_sweep: remove it",
    "job-name": "is the argument `name` of submit: remove it",
    "ntasks": "follows from the nodes: set nodes and tasks_per_node",
    "ntasks-per-node": "follows from tasks_per_node: set tasks_per_node",
    "clusters": "would send the job where squeue and scancel do not look: remove it, and set the variable SLURM_CLUSTERS",
    "parsable": "hides the job's id from submit: remove it",
    "quiet": "hides the job's id from submit: remove it",
    "test-only": "submits no job: remove it, and use where='print' or `aligner cluster check`",
    "wait": "would block submit until the job's end: remove it, and call job.wait()",
}


@dataclass(frozen=True)
class Resources:
    """The resources of a component. A hetjob has several Resources, by component name.

    Raises ValueError for values that contradict each other or are out of range.
    """

    nodes: int = 1
    tasks_per_node: int = 0
    """Processes on a node; 0: a process for each GPU, or a single process on a node without GPUs."""
    gpus_per_node: int = 0
    """0: a CPU job."""
    gpu_type: str = ""
    """For typed GRES: "h100" requests gpu:h100:8."""
    cpus_per_task: int = 0
    """0: the cluster's default."""
    mem: str = ""
    """Memory of a node in Slurm's notation ("512G"; "0": all memory); "": the cluster's default."""
    account: str = ""
    partition: str = ""
    qos: str = ""
    time: str = "4:00:00"
    exclusive: bool = False
    constraint: str = ""
    container_image: str = ""
    """pyxis: an image's name or a .sqsh file."""
    container_mounts: tuple[str, ...] = ()
    """"from:to"."""
    python: str = ""
    """The interpreter on the nodes, for the wrapper of the command; "": this process's interpreter."""
    setup: tuple[str, ...] = ()
    """Shell lines before the run (module load …)."""
    sbatch: Mapping[str, object] = field(default_factory=dict)
    """Further flags: {reservation: course}. true: a flag without a value; false: no flag; a list: values with commas between."""
    signal_delay_s: int = 180
    """Seconds of notice before the time limit; must exceed the time of a step and a checkpoint."""
    max_requeues: int = 100
    """After so many requeues an interrupted job has FAILED, so that a job is not requeued forever."""
    linger_s: int = 120
    """Seconds that the other components have to save and exit after the main component has ended."""

    def __post_init__(self):
        for name in (
            "nodes",
            "tasks_per_node",
            "gpus_per_node",
            "cpus_per_task",
            "signal_delay_s",
            "max_requeues",
            "linger_s",
        ):
            value, least = getattr(self, name), 1 if name == "nodes" else 0
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"resources: {name}={value!r} must be a whole number of at least {least}")
        if not isinstance(self.time, str) or not _TIME.match(self.time):
            raise ValueError(
                f"resources: time={self.time!r} is not a Slurm time: write h:mm:ss or days-h:mm:ss (in YAML, put the "
                "time in quotes: without quotes, 4:00:00 is read as a number)"
            )
        object.__setattr__(self, "sbatch", _flags(self.sbatch))
        least = self.signal_delay_s + _EARLY_S
        for name, time in (("time", self.time), ("sbatch.time-min", str(self.sbatch.get("time-min", "")))):
            if seconds_of(time) < least:
                raise ValueError(
                    f"resources: {name}={time!r} leaves no time before the notice of signal_delay_s={self.signal_delay_s}, so the "
                    f"job would be stopped as soon as it starts: set a time of {-(-least // 60)} minutes or more, or a smaller signal_delay_s"
                )
        for name in _texts():
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"resources: {name}={value!r} must be text: write the value in quotes")
        if self.gpu_type and not self.gpus_per_node:
            raise ValueError(
                f"resources: gpu_type={self.gpu_type!r} without gpus_per_node: set gpus_per_node, too"
            )
        if self.gpus_per_node and (own := re.search(r"\bgpu\b[^,]*", str(self.sbatch.get("gres", "")))):
            raise ValueError(
                f"resources: sbatch.gres={own[0]!r} beside gpus_per_node={self.gpus_per_node} asks for GPUs twice: remove it, "
                "and set gpus_per_node and gpu_type"
            )
        counts = [part.split(":")[-1] for part in str(self.sbatch.get("gpus-per-node", "")).split(",")]
        # Slurm itself counts a part without a number, such as h100
        has_counts = all(count.isdigit() for count in counts)
        if self.gpus_per_node and has_counts and sum(map(int, counts)) != self.gpus_per_node:
            raise ValueError(
                f"resources: sbatch.gpus-per-node={self.sbatch['gpus-per-node']!r} differs from "
                f"gpus_per_node={self.gpus_per_node}: set both to one number"
            )
        if self.container_mounts and not self.container_image:
            raise ValueError(
                f"resources: container_mounts={self.container_mounts} without a container_image: set "
                "container_image, or remove the mounts"
            )
        if self.gpus_per_node and self.tasks_per_node > self.gpus_per_node:
            raise ValueError(
                f"resources: tasks_per_node={self.tasks_per_node} is more than gpus_per_node={self.gpus_per_node}: "
                "ranks cannot share a GPU, so lower tasks_per_node"
            )

    @property
    def tasks(self) -> int:
        """Processes on each node."""
        return self.tasks_per_node or self.gpus_per_node or 1

    @property
    def ranks(self) -> int:
        """Processes on all nodes."""
        return self.nodes * self.tasks

    @property
    def gpus(self) -> int:
        """GPUs on all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def gres(self) -> str:
        """Slurm's GRES of a node, such as gpu:h100:8; "" without GPUs."""
        return (
            ":".join(filter(None, ["gpu", self.gpu_type, str(self.gpus_per_node)]))
            if self.gpus_per_node
            else ""
        )

    def but(self, **changes) -> "Resources":
        """A copy with some values changed: `resources.but(account="me", nodes=4)`. Raises ValueError."""
        return from_mapping({**{f.name: getattr(self, f.name) for f in fields(self)}, **changes})


def _texts() -> list[str]:
    """The names of the values that are text, except the time, whose message names YAML's mistake."""
    return [f.name for f in fields(Resources) if f.type is str and f.name != "time"]


def seconds_of(time: str) -> float:
    """A time in Slurm's notation in seconds; infinity for "0" and for text such as "infinite", which mean no limit."""
    if not _TIME.match(time):
        return math.inf
    days, _, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if days:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds or math.inf


def _flags(given: Mapping | None) -> dict[str, object]:
    """The flags of `sbatch:` as sbatch spells them. Raises ValueError for a flag that the project or another key sets."""
    _spelled(given)
    flags: dict[str, object] = {}
    # gpus_per_node becomes --gres, so a cluster that insists on --gpus-per-node needs the flag itself
    keys = {f.name.replace("_", "-"): f.name for f in fields(Resources) if f.name != "gpus_per_node"}
    for key, value in (given or {}).items():
        name = str(key).replace("_", "-").lstrip("-")
        own = {"no-requeue": "requeue", "cluster": "clusters"}.get(name, name)
        # `requeue: true` and a false value of another flag change nothing
        if own in keys or (own in _OWN_FLAGS and value is not (name == "requeue")):
            reason = f"has a key of its own: set {keys[own]}" if own in keys else _OWN_FLAGS[own]
            raise ValueError(f"resources: sbatch.{key} {reason}")
        if value is None:
            raise ValueError(f"resources: sbatch.{key} has no value: write true for a flag without a value")
        if value is not False:
            flags[name] = ",".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flags


def _spelled(given: Mapping | None) -> dict[str, object]:
    """Flags and values, with the flags' names as sbatch spells them. Raises ValueError for other values."""
    if not isinstance(given or {}, Mapping):
        raise ValueError(
            f"resources: sbatch={given!r} must hold flags and values, as in {{reservation: course}}"
        )
    return {str(key).replace("_", "-").lstrip("-"): value for key, value in (given or {}).items()}


def _lines(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def from_mapping(values: Mapping, where: str = "resources") -> Resources:
    """Resources from plain values. Raises ValueError, which names an unknown key and the nearest known key.

    where: the origin of the values, for messages.
    """
    known = {f.name for f in fields(Resources)}
    for key in values:
        if key not in known:
            near = get_close_matches(str(key), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise ValueError(f"{where}: unknown key {key!r}; {hint}")
    values = dict(values)
    for name in ("setup", "container_mounts"):
        values[name] = _lines(values.get(name))
    for name in _texts():  # YAML reads a name of digits as a number, and a key without a value as None
        value = values.get(name, "")
        values[name] = str(value) if type(value) is int else "" if value is None else value
    try:
        return Resources(**values)
    except (ValueError, TypeError) as error:
        raise ValueError(str(error).replace("resources", where, 1)) from None


def load_resources(name: str | Path) -> Resources | dict[str, Resources]:
    """Resources from a YAML file: a file under cluster/configs by name, or any file by path.

    A file with `components:` describes a hetjob; its other keys apply to every component. Raises ValueError for a missing file,
    and for values that Resources rejects.
    """
    import yaml

    path = Path(name) if _is_path(name) else CONFIGS / f"{name}.yaml"
    if not path.exists():
        there = ", ".join(sorted(file.stem for file in CONFIGS.glob("*.yaml")))
        raise ValueError(
            f"there are no resources {str(name)!r}: {path} does not exist; known names are {there}"
        )
    try:
        values = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path}: must hold keys and values, but holds {type(values).__name__}")
    components = values.pop("components", None)
    if components is None:
        return from_mapping(values, str(path))
    return {
        name: from_mapping({**values, **(own or {})}, f"{path}, component {name}")
        for name, own in components.items()
    }


def _is_path(name: str | Path) -> bool:
    return str(name).endswith((".yaml", ".yml"))


def by_component(given, names: list[str], site: Mapping | None = None) -> dict[str, Resources]:
    """Resources for each component, from the argument of `submit` (None, Resources, a mapping, or a file).

    site: a cluster's own values, such as its account, for every component. They win over the values of a file under
    cluster/configs, and lose to the values of other resources. Setup lines of both run, the site's first, and flags of both hold.
    The smallest time, the smallest sbatch.time-min and the largest signal_delay_s of the components hold for all. Raises
    ValueError when the components differ from `names`.
    """
    is_included = isinstance(given, str | Path) and not _is_path(given)
    if isinstance(given, str | Path):
        given = load_resources(given)
    if given is None or isinstance(given, Resources):
        given = dict.fromkeys(names, given or Resources())
    given = given if _names_components(given) else {"": given}
    given = {
        name: _at_site(share, site or {}, is_included, f"resources {name}".strip())
        for name, share in given.items()
    }
    if len(given) == 1 and len(names) == 1:
        return {names[0]: next(iter(given.values()))}
    if "" in given:
        return {name: given[""] for name in names}
    if set(given) != set(names):
        raise ValueError(
            f"resources name the components {sorted(given)}, but commands name {sorted(names)}: name the same "
            "components in both"
        )
    return _with_one_limit({name: given[name] for name in names})


def _with_one_limit(shares: Mapping[str, Resources]) -> dict[str, Resources]:
    """The resources with one time limit and one notice for all components.

    A component that meets its time limit ends the whole job, but Slurm gives notice of the first component's limit alone.
    """
    time = min((share.time for share in shares.values()), key=seconds_of)
    least = [str(share.sbatch["time-min"]) for share in shares.values() if "time-min" in share.sbatch]
    flags = {"time-min": min(least, key=seconds_of)} if least else {}
    delay = max(share.signal_delay_s for share in shares.values())
    return {
        name: share.but(time=time, sbatch={**share.sbatch, **flags}, signal_delay_s=delay)
        for name, share in shares.items()
    }


def _at_site(share: Resources | Mapping, site: Mapping, site_wins: bool, where: str) -> Resources:
    """The resources of a component with the site's values (see `by_component`). where: the origin of the values, for messages.

    Raises ValueError as `from_mapping` does.
    """
    if isinstance(share, Resources):
        own = {f.name: value for f in fields(share) if (value := getattr(share, f.name)) != f.default}
    else:
        own = dict(share)
    if not site:
        return from_mapping(own, where)
    first, last = (own, site) if site_wins else (site, own)
    values = {**first, **last}
    values["setup"] = (*_lines(site.get("setup")), *_lines(own.get("setup")))
    values["sbatch"] = _spelled(first.get("sbatch")) | _spelled(last.get("sbatch"))
    return from_mapping(values, where)


def own_components(given, site: Mapping | None = None) -> dict[str, Resources]:
    """Like `by_component`, with the component names in `given`, or `main` when `given` has no component names."""
    loaded = load_resources(given) if isinstance(given, str | Path) else given
    several = isinstance(loaded, Mapping) and _names_components(loaded)
    return by_component(given, list(loaded) if several else ["main"], site)


def _names_components(given: Mapping) -> bool:
    """Whether a mapping has resources by component. Of the keys of Resources, only sbatch has a mapping as its value."""
    return all(isinstance(value, Resources | Mapping) and key != "sbatch" for key, value in given.items())
