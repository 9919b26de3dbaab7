"""A container's memory, and the threads of a job: as many as the cores that it may use, and idle ones that sleep soon."""

from pathlib import Path

import pytest

from cluster.cgroups import memory_limits
from cluster.cores import task_thread_variables, thread_variables, usable_cores


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine of eight cores, without cgroups until a test writes some."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    write_files(tmp_path, {"proc/self/cgroup": ""})
    return tmp_path


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


OLD_CGROUP = {
    "proc/self/cgroup": "5:memory:/x\n3:cpu,cpuacct:/job",
    "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000",
    "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
    "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
    "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpu.max": "250000 100000"}, 3),  # 2.5, rounded up
        ({"proc/self/cgroup": "0::/a/job", "sys/fs/cgroup/a/cpu.max": "200000 100000"}, 2),  # the parent's
        ({"proc/self/cgroup": "0::/job", "sys/fs/cgroup/job/cpu.max": "max 100000"}, 8),
        (OLD_CGROUP, 1),
    ],
)
def test_the_limits_of_cgroups_of_both_versions_lower_the_number(machine, files, cores):
    write_files(machine, files)
    assert usable_cores({}, machine) == cores


@pytest.mark.parametrize(
    ("cgroup", "names", "unlimited", "statistics"),
    [
        ("0::/a/job", ["a/memory.max", "a/memory.current", "a/memory.stat", "a/job/memory.max"], "max", ""),
        (
            "3:cpu:/x\n5:memory:/x",
            [
                "memory/memory.limit_in_bytes",
                "memory/memory.usage_in_bytes",
                "memory/memory.stat",
                "cpu/none",
            ],
            "9223372036854771712",
            "total_",
        ),
    ],
)
def test_the_free_memory_of_a_cgroup_is_its_limit_without_the_used_memory_that_is_no_file_s(
    machine, cgroup, names, unlimited, statistics
):
    stat = f"anon 500\n{statistics}active_file 150\n{statistics}inactive_file 50\n"
    texts = ["1500", "700", stat, "max"]
    files = {f"sys/fs/cgroup/{name}": text for name, text in zip(names, texts)}
    write_files(machine, files | {"proc/self/cgroup": cgroup})
    assert [*memory_limits(machine)] == [(1000, 1500)]
    write_files(machine, {f"sys/fs/cgroup/{names[0]}": unlimited})
    assert all(free > 1 << 60 for free, _ in memory_limits(machine))


def test_affinity_and_lab_threads_lower_the_number_and_lab_threads_is_a_number(machine, monkeypatch):
    for value, cores in {"2": 2, "99": 8}.items():
        assert usable_cores({"LAB_THREADS": value}, machine) == cores
    for value in ("0", "two", "-1"):
        with pytest.raises(ValueError, match=f"LAB_THREADS={value}"):
            usable_cores({"LAB_THREADS": value}, machine)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {4, 5, 6})
    assert usable_cores({}, machine) == 3


@pytest.mark.parametrize(
    ("environ", "ranks", "threads"),
    [
        ({}, 1, None),  # torch's own number: one for each physical core
        ({}, 2, "4"),
        ({"SLURM_CPUS_ON_NODE": "2"}, 1, "2"),  # not the 8 of the whole machine
        ({"SLURM_CPUS_ON_NODE": "2"}, 8, "1"),
        ({"LAB_THREADS": "3"}, 1, "3"),
        ({"OMP_NUM_THREADS": "3"}, 8, "3"),
    ],
)
def test_ranks_share_a_nodes_cores_and_sleep_when_idle(machine, environ, ranks, threads):
    variables = thread_variables(ranks, environ)
    assert variables.get("OMP_NUM_THREADS", environ.get("OMP_NUM_THREADS")) == threads
    assert variables["GOMP_SPINCOUNT"] == "1000"
    assert thread_variables(ranks, {"GOMP_SPINCOUNT": "0"})["GOMP_SPINCOUNT"] == "0"


@pytest.mark.parametrize(("bound_to", "threads"), [(16, "2"), (2, "2"), (1, "1")])
def test_slurms_tasks_share_the_nodes_cores_once_whether_or_not_slurm_binds_each_task(
    machine, monkeypatch, bound_to, threads
):
    """16 cores for 8 tasks are 2 for each."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(bound_to)))
    assert task_thread_variables(8, {"SLURM_CPUS_ON_NODE": "16"})["OMP_NUM_THREADS"] == threads
