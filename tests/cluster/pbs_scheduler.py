"""A scheduler of one's own, in one file: PBS (OpenPBS, PBS Professional). ALIGNER_SCHEDULERS=pbs_scheduler makes it known.

It runs one component on any number of nodes, with a notice before the time limit, and a job that gets the notice waits in
the queue again. It has been run against a stand-in for PBS's commands (`pbs_stand_in.py`) and never on a real PBS.
"""

import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import cluster
from cluster import environment, record
from cluster.record import MAIN, Record
from cluster.resources import Resources
from cluster.scheduler import Scheduler, Submission, SubmissionRefused
from cluster.states import State, Status, status_at_end

_BATCH_FUNCTIONS = Path(cluster.__file__).with_name("batch.sh")
_TIMEOUT_S = 10
_UNSUPPORTED = ("gpu_type", "qos", "constraint", "container_image", "sbatch")  # fields of Resources

# How batch.sh asks PBS (cluster/slurm.sh says what each function is for), and how a component spreads over the nodes.
# pbsdsh starts a rank on one line of the node file; the rank finds an almost empty environment there, so it runs this same
# script with the word `rank`. Each rank leaves its exit status in a file, because pbsdsh does not hand it on.
_FUNCTIONS = r"""
attribute() { qstat -x -f "$lab_job" 2>/dev/null | sed -n "s/^ *$1 = //p"; }
lab_job=$PBS_JOBID
lab_restarts=$(attribute run_count)
lab_restarts=$((${lab_restarts:-1} - 1))
lab_attempt=$lab_job.$lab_restarts
lab_hosts=$(sort -u "$PBS_NODEFILE" | paste -sd ,)

end_old_steps() { :; } # PBS ends all tasks of a job with its script
reason_of_the_end() {
    if [ "$(attribute job_state)" = Q ]; then echo REQUEUED
    elif [ $SECONDS -ge $lab_walltime_s ]; then echo TIMEOUT
    else echo CANCELLED; fi
}
is_being_ended() { case "$(attribute job_state)" in R | '') return 1 ;; esac; }
is_preempted() { return 1; } # a preempted job is ended, and PBS queues it again by itself
requeue() { qrerun "$lab_job"; }
requeue_the_rest() { :; }

give_notice_in_time() {
    if [ $lab_notice_s -gt 0 ]; then
        (sleep $lab_notice_s && kill -USR2 $$) >/dev/null 2>&1 &
        lab_clock=$!
        trap 'kill $lab_clock 2>/dev/null' EXIT
    fi
}

spread() {
    local rank=0 local_rank=0 host previous='' status file ended=0 successes
    local size=$(wc -l <"$PBS_NODEFILE") first=$(head -n 1 "$PBS_NODEFILE")
    local port=$((20000 + ${lab_job%%[!0-9]*} % 10000))
    while read -r host; do
        if [ "$host" = "$previous" ]; then local_rank=$((local_rank + 1)); else local_rank=0; fi
        : >"$lab_folder/status_$rank"
        pbsdsh -n $rank -- /bin/bash "$lab_folder/job.sh" rank $lab_attempt \
            RANK=$rank WORLD_SIZE=$size LOCAL_RANK=$local_rank MASTER_ADDR=$first MASTER_PORT=$port &
        rank=$((rank + 1)) previous=$host
    done <"$PBS_NODEFILE"
    while [ $ended -lt $size ]; do
        wait -n
        status=$? ended=$((ended + 1)) successes=0
        for file in "$lab_folder"/status_*; do
            case "$(<"$file")" in
            0) successes=$((successes + 1)) ;;
            ?*) return "$(<"$file")" ;;
            esac
        done
        if [ $status != 0 ]; then return $status; fi
        if [ $successes -lt $ended ]; then return 1; fi # a rank that could not start leaves its file empty
    done
}
"""


class PBSScheduler(Scheduler):
    """Submits with qsub, follows with qstat, and has a job queued again with qsig and qrerun."""

    name = "pbs"
    title = "PBS"

    def unavailable(self) -> str:
        """Why no job can be submitted from here: no qsub, or a server that does not answer."""
        if shutil.which("qsub") is None:
            return "qsub is not on the machine's PATH"
        try:
            _tool("qstat", "-B")
        except RuntimeError as problem:
            return f"its server does not answer ({problem})"
        return ""

    def refuse_unsupported(
        self, components: Mapping[str, object], resources: Mapping[str, Resources]
    ) -> None:
        """Raises SubmissionRefused for several components, and for resources that PBS is not asked for."""
        super().refuse_unsupported(components, resources)
        for share in resources.values():
            if keys := [key for key in _UNSUPPORTED if getattr(share, key)]:
                raise SubmissionRefused(
                    f"where='pbs': resources set {', '.join(keys)}, which this scheduler does not hand to PBS; leave "
                    "them out"
                )

    def submit(self, submission: Submission) -> list[Record]:
        """Submit with qsub. Raises SubmissionRefused with PBS's reason."""
        shutil.copy(_BATCH_FUNCTIONS, submission.folder)
        script = submission.folder / "job.sh"
        script.write_text(self.script(submission))
        try:
            job_id = _tool("qsub", str(script)).strip()
        except RuntimeError as problem:
            raise SubmissionRefused(f"PBS refused the job: {problem}") from None
        return [submission.record(self.name, submission.name, job_id)]

    def status(self, run: Path, job: Record) -> Status:
        """The job's status: from its exit record, else from qstat."""
        folder = run / job.folder
        cancelled = (folder / "cancelled").exists()
        if (outcome := record.read_json(folder / "exit.json")) is not None:
            return (
                Status(State.CANCELLED, "cancelled")
                if cancelled
                else status_at_end(outcome | _failed_rank(folder))
            )
        try:
            attributes = _attributes(_tool("qstat", "-x", "-f", job.id))
        except RuntimeError as problem:
            if "Unknown Job Id" not in str(problem):
                return Status(State.UNKNOWN, f"PBS does not answer: {problem}")
            attributes = {}
        state = attributes.get("job_state", "")
        nodes = tuple(dict.fromkeys(re.findall(r"([^+/]+)/\d+", attributes.get("exec_host", ""))))
        if state in tuple("QWHT"):
            start = attributes.get("estimated.start_time", "")
            return Status(State.PENDING, attributes.get("comment", ""), start=start)
        if cancelled:
            return Status(State.CANCELLED, "cancelled", nodes)
        if state in tuple("RESU"):
            return Status(State.RUNNING, nodes=nodes)
        return _status_without_record(folder, nodes)

    def cancel(self, run: Path, job: Record) -> None:
        """Cancel the job with qdel. Raises RuntimeError when qdel fails."""
        _tool("qdel", job.id)
        (run / job.folder / "cancelled").touch()  # only after qdel succeeded

    def requeue(self, run: Path, job: Record) -> None:
        """Send the notice that the script itself gives before the time limit. Raises RuntimeError when qsig fails."""
        _tool("qsig", "-s", "SIGUSR2", job.id)

    def script(self, submission: Submission) -> str:
        """The batch script, which is also what each rank runs on its node."""
        member, share = submission.only_member, submission.resources[MAIN]
        seconds = walltime_seconds(share.time)
        exports = {
            **environment.own_variables(),
            **submission.variables,
            "ALIGNER_JOB_FOLDER": str(member.folder),
            "LOCAL_WORLD_SIZE": str(share.tasks),
            "OMP_NUM_THREADS": str(share.cpus_per_task or 1),
        }
        begin = ["begin", str(member.run), str(member.folder), str(share.linger_s), str(share.max_requeues)]
        return "\n".join(
            [
                "#!/bin/bash",
                *(f"#PBS {option}" for option in _options(submission, share, seconds)),
                *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
                f"source {shlex.quote(str(member.folder / 'batch.sh'))}",
                *share.setup,
                "end_setup",
                'if [ "$1" = rank ]; then',
                '    export ALIGNER_JOB_ATTEMPT=$2 "${@:3}"',
                f'    {shlex.join(member.components[MAIN])} >>"$ALIGNER_JOB_FOLDER/{MAIN}_$RANK.log" 2>&1',
                "    status=$?",
                '    echo $status >"$ALIGNER_JOB_FOLDER/status_$RANK"',
                "    exit $status",
                "fi",
                f"lab_walltime_s={seconds} lab_notice_s={seconds - share.signal_delay_s}",
                _FUNCTIONS,
                shlex.join(begin),
                "give_notice_in_time",
                f"component {MAIN} spread",
                "finish",
                "",
            ]
        )


def _options(submission: Submission, share: Resources, seconds: int) -> list[str]:
    """The options of qsub: a chunk for each node."""
    memory = "" if share.mem in ("", "0") else f":mem={share.mem.lower().removesuffix('b')}b"
    gpus = f":ngpus={share.gpus_per_node}" if share.gpus_per_node else ""
    cores = share.tasks * (share.cpus_per_task or 1)
    return [
        "-N " + re.sub(r"\s", "_", submission.name),  # PBS takes no space in a name
        f"-l select={share.nodes}:ncpus={cores}:mpiprocs={share.tasks}{gpus}{memory}",
        f"-l place=scatter{':excl' if share.exclusive else ''}",
        f"-l walltime={seconds}",
        "-j oe",
        f"-o {shlex.quote(str(submission.folder / 'pbs.log'))}",
        "-r y",
        "-S /bin/bash",
        *([f"-q {share.partition}"] if share.partition else []),
        *([f"-A {share.account}"] if share.account else []),
    ]


def walltime_seconds(time: str) -> int:
    """Seconds of a time as Resources writes it: minutes, h:mm:ss, or days-h:mm:ss."""
    days, _, clock = time.rpartition("-")
    numbers = [int(number) for number in clock.split(":")]
    if not days and len(numbers) < 3:  # minutes, or minutes:seconds
        numbers = [0, *numbers]
    hours, minutes, seconds = (numbers + [0, 0])[:3]
    return int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds


def _status_without_record(folder: Path, nodes: tuple[str, ...]) -> Status:
    """The status of a job that has left the queue before the script wrote how the command ended."""
    taken = folder / "taken"
    reason = taken.read_text().strip() if taken.exists() else ""
    if reason == "CANCELLED":
        return Status(State.CANCELLED, "cancelled with qdel", nodes)
    if reason == "TIMEOUT":
        return Status(State.FAILED, "TIMEOUT: ask for more time or a longer signal_delay_s", nodes)
    return Status(State.FAILED, "it left the queue without an exit record; see pbs.log and batch.log", nodes)


def _failed_rank(folder: Path) -> dict[str, int]:
    """{rank} of the first rank that ended with another exit status than 0; {} without one."""
    files = sorted(folder.glob("status_*"), key=lambda file: file.stat().st_mtime_ns)
    failed = [file for file in files if file.read_text().strip() not in ("", "0")]
    return {"rank": int(failed[0].name.removeprefix("status_"))} if failed else {}


def _attributes(text: str) -> dict[str, str]:
    """The attributes in qstat's full listing; a long value goes on in lines that begin with a tab."""
    lines = text.replace("\n\t", "").splitlines()
    return {
        key.strip(): value.strip() for key, sign, value in (line.partition(" = ") for line in lines) if sign
    }


def _tool(*words: str) -> str:
    """What one of PBS's commands prints. Raises RuntimeError with its message when it fails or does not answer."""
    try:
        answer = subprocess.run(
            words, env=environment.job_environment(), capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except FileNotFoundError:
        raise RuntimeError(f"{words[0]} is not on the machine's PATH") from None
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{words[0]} did not answer within {_TIMEOUT_S} s") from None
    if answer.returncode:
        raise RuntimeError(answer.stderr.strip() or f"{words[0]} ended with {answer.returncode}")
    return answer.stdout


SCHEDULER = PBSScheduler
