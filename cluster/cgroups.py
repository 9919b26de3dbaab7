"""Find the cgroups of a process, version 1 and 2, and read their memory limits, such as the limit of a container."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cgroups(controller: str, root: Path) -> Iterator[Path]:
    """The folders of the process's cgroups with a controller (cpu, memory), and of the cgroups above them.

    root: contains proc/ and sys/ (in a test, a folder of the test).
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # not Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / (controllers and controller)
            place = PurePosixPath(path.lstrip("/"))
            yield from (mount / place, *(mount / above for above in place.parents))


def memory_limits(root: Path = Path("/")) -> Iterator[tuple[int, int]]:
    """The free memory and the limit in bytes, for each of the process's cgroups with a limit.

    The cache of files counts as free memory, because the system gives the cache's memory to processes.
    """
    for folder in cgroups("memory", root):
        try:
            if (file := folder / "memory.max").exists():  # version 2: bytes or "max"
                limit, used, prefix = file.read_text(), (folder / "memory.current").read_text(), ""
            else:  # version 1: a number above all memory for no limit
                limit = (folder / "memory.limit_in_bytes").read_text()
                used, prefix = (folder / "memory.usage_in_bytes").read_text(), "total_"
            parts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            if limit.strip() == "max":
                continue
            files = sum(int(parts.get(f"{prefix}{name}_file", 0)) for name in ("active", "inactive"))
            free = max(0, int(limit) - int(used) + files)
        except (OSError, ValueError):  # no such file, or a container's imitation of the file
            continue
        yield free, int(limit)
