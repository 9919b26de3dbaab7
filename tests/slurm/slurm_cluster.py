"""A real Slurm cluster on this machine, in a temporary folder: started by pid, ended by pid, no systemd.

ReturnToService=1, so that a node which a test sets down stays down: else Slurm starts the job there again at once, finds
the processes of the attempt before, and holds the job ("launch failed requeued held").

Four nodes n1 … n4 of eight (pretended) CPUs and GPUs share 127.0.0.1. See ../shared/facts/slurm-on-one-machine.md
for what each odd line of the configuration is for.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil
from filelock import FileLock
from processes_help import until

from cluster import Job, processes
from cluster.rendezvous import free_port

NODES = ("n1", "n2", "n3", "n4")
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
ACCOUNTING_TOOLS = ("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db", "sacct", "sacctmgr")

_CONF = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/run/munge.sock,cred_expire=12
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=1
SlurmdTimeout=10
KillWait=10
OverTimeLimit=0
MinJobAge=3600
FirstJobId={first_job}
MailProg=/bin/true
GresTypes=gpu
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
_NODE = (
    "NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=64000 Gres=gpu:8"
)
_DATABASE_CONF = """
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.sock
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageLoc=slurm_acct_db
StorageUser=root
"""


def missing_tools(accounting: bool = False) -> list[str]:
    needed = TOOLS + (ACCOUNTING_TOOLS if accounting else ())
    return [tool for tool in needed if shutil.which(tool) is None]


class SlurmCluster:
    """Start with `start()`, end with `stop()`; `conf` is what SLURM_CONF has to name."""

    def __init__(self, name: str = "test", accounting: bool = False):
        self.name, self.accounting = name, accounting
        self.folder = Path(tempfile.mkdtemp(prefix=f"slurm-{name}-"))  # short: munge's socket path is bounded
        self.conf = self.folder / "slurm.conf"
        self.daemons: dict[str, subprocess.Popen] = {}

    # Starting and ending

    def start(self) -> "SlurmCluster":
        for sub in ("run", "log", "state", "spool"):
            (self.folder / sub).mkdir()
        self._write_configuration()
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for node in NODES:
            self.start_node(node)
        try:
            until(lambda: self.tool("sinfo", "-h", "-o", "%T %D") == f"idle {len(NODES)}", "idle nodes")
        except AssertionError as error:
            logs = [f"{path.name}: {path.read_text()[-1500:]}" for path in (self.folder / "log").iterdir()]
            raise AssertionError(
                "\n".join([str(error), self.tool("sinfo", "--Node", "--long"), *logs])
            ) from None
        return self

    def stop(self) -> None:
        for name in reversed(list(self.daemons)):
            self.kill(name, signal.SIGTERM)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        daemon = self.daemons.pop(name)
        daemon.send_signal(number)
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()

    def start_controller(self) -> None:
        self._daemon("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])
        until(lambda: self.tool("scontrol", "ping").endswith("is UP"), "slurmctld")

    def start_node(self, node: str) -> None:
        self._daemon(node, ["slurmd", "-D", "-f", str(self.conf), "-N", node])

    # Talking to it

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def tool(self, *words: str) -> str:
        """stdout of one of Slurm's tools, stripped; empty when it fails."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()

    def succeeds(self, *words: str) -> bool:
        return subprocess.run(words, env=self.environment, capture_output=True).returncode == 0

    def set_node(self, node: str, state: str) -> None:
        """Set a node's state; asked again where a busy controller does not answer."""
        command = ("scontrol", "update", f"nodename={node}", f"state={state}", "reason=test")
        until(lambda: self.succeeds(*command), f"{node} to be set to {state}")

    def describe(self, job: Job) -> str:
        """Queue, nodes, processes and logs, for the message about a job that does not get on."""
        lines = [self.tool("squeue", "--all"), self.tool("sinfo", "--Node", "--long")]
        lines += [self.tool("scontrol", "show", "job", job.id), str(processes.of_job(str(job.folder)))]
        log = self.folder / "log" / "slurmctld.log"
        return "\n".join([*lines, (job.folder / "batch.log").read_text(), log.read_text()[-5000:]])

    def power_cut(self, node: str, job_id: str) -> None:
        """Kill the node's daemon, and the job's step daemons with all their children. The job has this node alone."""
        self.kill(node)
        titled = [
            (process, " ".join(process.info["cmdline"] or [])) for process in psutil.process_iter(["cmdline"])
        ]
        steps = [process for process, title in titled if title.startswith(f"slurmstepd: [{job_id}.")]
        assert steps, f"no step daemon of job {job_id}"
        for process in steps + [child for step in steps for child in step.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()

    def drain_jobs(self) -> None:
        """Cancel what is left, bring every node back, and wait until the cluster is idle again."""
        self.tool("scancel", "--user", "root", "--full")
        self.tool("scancel", "--user", "root")
        until(lambda: not self.tool("squeue", "-h"), "an empty queue")
        for node in NODES:
            if node not in self.daemons:
                self.start_node(node)
            if "idle" not in self.tool("sinfo", "-h", "-n", node, "-p", "debug", "-o", "%T"):
                # refused where the node has come back by itself in the meantime
                self.tool("scontrol", "update", f"nodename={node}", "state=resume")
        until(lambda: self.tool("sinfo", "-h", "-p", "debug", "-o", "%T %D") == "idle 4", "idle nodes")

    # The parts

    @property
    def _host(self) -> str:
        return socket.gethostname().split(".")[0]

    def _daemon(self, name: str, command: list[str], **environment: str) -> None:
        with (self.folder / "log" / f"{name}.start").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                env={**self.environment, **environment},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # ctrl-C in pytest is not for them
            )

    def _write_configuration(self) -> None:
        # a power cut looks for step daemons by their job: no other cluster on this machine may have its number
        values = {
            "folder": self.folder,
            "name": self.name,
            "host": self._host,
            "first_job": os.getpid() % 60_000 * 1000 + 1,
        }
        lines = [_CONF.format(port=free_port(), **values)]
        lines += [_NODE.format(node=node, port=free_port()) for node in NODES]
        self.database_port = free_port()
        lines += self._accounting_lines()
        self.conf.write_text("\n".join(lines) + "\n")
        # GRES by count alone is refused: it wants a character device an index.
        for index in range(8):
            (self.folder / f"gpu{index}").symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-7]\n")
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _accounting_lines(self) -> list[str]:
        if not self.accounting:
            return ["AccountingStorageType=accounting_storage/none"]
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.database_port}",
            f"AccountingStoragePass={self.folder}/run/munge.sock",
            "AccountingStorageEnforce=associations,qos",
        ]

    def _start_munge(self) -> None:
        key, run = self.folder / "munge.key", self.folder / "run"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        paths = {"key-file": key, "socket": run / "munge.sock", "pid-file": run / "munged.pid"}
        paths |= {"log-file": self.folder / "log" / "munged.log", "seed-file": run / "munged.seed"}
        options = [f"--{name}={path}" for name, path in paths.items()]
        self._daemon("munged", ["munged", "--foreground", "--force", *options])
        until((run / "munge.sock").exists, "munge's socket")

    def _start_accounting(self) -> None:
        data, sock = self.folder / "mysql", self.folder / "run" / "mysql.sock"
        subprocess.run(
            ["mariadb-install-db", "--no-defaults", f"--datadir={data}", "--user=root", "--skip-test-db"],
            check=True,
            capture_output=True,
        )
        options = [f"--datadir={data}", f"--socket={sock}", "--user=root", "--skip-networking"]
        self._daemon("mariadbd", ["mariadbd", "--no-defaults", *options, "--innodb-buffer-pool-size=64M"])
        until(sock.exists, "the database's socket")
        sql = ["mariadb", "--no-defaults", f"--socket={sock}", "--user=root"]
        sql += ["-e", "create database slurm_acct_db"]
        until(lambda: subprocess.run(sql, capture_output=True).returncode == 0, "the database")
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(_DATABASE_CONF.format(folder=self.folder, port=self.database_port, host=self._host))
        conf.chmod(0o600)
        self._daemon("slurmdbd", ["slurmdbd", "-D"], MYSQL_UNIX_PORT=str(sock))
        until(lambda: self.succeeds("sacctmgr", "-i", "add", "cluster", self.name), "slurmdbd")
        self.tool("sacctmgr", "-i", "add", "account", "course", f"cluster={self.name}")
        self.tool("sacctmgr", "-i", "add", "user", "root", "account=course", f"cluster={self.name}")


@contextlib.contextmanager
def names_resolve():
    """The nodes' names in /etc/hosts while the cluster runs: MASTER_ADDR is one of them. Each session has its line."""
    line = f"127.0.0.1 {' '.join(NODES)} # aligner tests, process {os.getpid()}\n"
    _edit_hosts(lambda text: text.rstrip("\n") + "\n" + line)
    yield
    _edit_hosts(lambda text: text.replace(line, ""))


def _edit_hosts(change: Callable[[str], str]) -> None:
    hosts = Path("/etc/hosts")
    with FileLock(f"{tempfile.gettempdir()}/aligner-tests-hosts.lock"):
        hosts.write_text(change(hosts.read_text()))
