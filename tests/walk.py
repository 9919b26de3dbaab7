"""Count the way from a notebook's cell to the optimiser step: function calls and process starts, traced in a real run.

    python tests/walk.py        trains the smoke profile's reward model and one PPO step, and prints the walk

The cell is `lab.submit_ppo(…)` of notebook 05. A **call** is one function of this project that is unfinished when the
optimiser takes the policy's first step, in each process from the cell's kernel to the process that trains. Frames of
libraries, comprehensions, a module's own top level, and functions that have returned by then are no calls. A **process
start** is a process of that chain; helpers that the job also starts (git, exporters) are not in it.

Every process is traced from outside: the walk puts a `sitecustomize` on PYTHONPATH, which Python imports at its start. An
audit hook records the stack at each `subprocess.Popen`, and a profile function the stack at the optimiser step.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from import_graph import ROOMS, ROOT

TRACE = "ALIGNER_WALK"  # names the file that all processes append their records to
BOUND_S = 600
# from Python 3.12 on comprehensions have no frame
_NO_CALLS = {"<module>", "<listcomp>", "<setcomp>", "<dictcomp>"}
CELL = """
import sys
from aligner_lib.tutorial.workspace.workspace import Workspace
lab = Workspace(sys.argv[1], "smoke")
quiet = {"exp_manager.create_tensorboard_logger": False}
if lab.run("rm").latest_checkpoint() is None:
    lab.submit("rm", **{"trainer.rm.max_steps": 1} | quiet).wait()
lab.submit_ppo(**{"trainer.ppo.max_steps": 1, "trainer.ppo.critic_warmup_steps": 0} | quiet).wait()
"""


@dataclass(frozen=True)
class Walk:
    """The calls of each process of the chain, the cell's process first; each call as `file function`."""

    processes: list[list[str]]

    @property
    def calls(self) -> list[str]:
        """All calls in their order."""
        return [call for calls in self.processes for call in calls]

    @property
    def process_starts(self) -> int:
        """How many processes are started on the way."""
        return len(self.processes) - 1

    def __str__(self) -> str:
        lines = [f"{len(self.calls)} calls and {self.process_starts} process starts"]
        for number, calls in enumerate(self.processes):
            lines += [f"process {number}", *(f"    {call}" for call in calls)]
        return "\n".join(lines)


def walk(out: Path) -> Walk:
    """Run the cell with its workspace in `out`, and follow it. A reward model in out/runs/rm is taken, else one is trained."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text("import walk\nwalk.trace()\n")
        paths = [folder, str(Path(__file__).parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
        trace_file = Path(folder, "trace.jsonl")
        variables = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), TRACE: str(trace_file)}
        command = [sys.executable, "-c", CELL, str(out)]
        cell = subprocess.run(
            command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=BOUND_S
        )
        assert cell.returncode == 0, cell.stderr
        records = [json.loads(line) for line in trace_file.read_text().splitlines()]
    return _chain(records)


def _chain(records: list[dict]) -> Walk:
    """From the process that took the policy's step back to the one that nobody here has started."""
    started = {record["pid"]: record for record in records if record["event"] == "start"}
    step = next(record for record in records if record["event"] == "step")
    processes, pid = [step["calls"]], step["pid"]
    while started[pid]["parent"] in started:
        command, pid = started[pid]["command"], started[pid]["parent"]
        processes.append(
            next(
                record["calls"]
                for record in records
                if (record["event"], record["pid"]) == ("popen", pid) and record["command"][1:] == command[1:]
            )
        )
    return Walk(processes[::-1])


# ---- in each traced process -----------------------------------------------------------------------------------------


def trace() -> None:
    """Record this process's start, the processes that it starts, and the policy's first optimiser step."""
    if TRACE in os.environ:
        _write("start", None, parent=os.getppid(), command=sys.orig_argv)
        sys.addaudithook(_on_event)


def _on_event(event: str, arguments: tuple) -> None:
    if event == "subprocess.Popen":
        _write("popen", sys._getframe(1), command=[str(word) for word in arguments[1]])
    elif event == "import" and arguments[0] == "megatron.core.optimizer":
        sys.setprofile(_on_call)  # not earlier: the imports before would take twice as long


def _on_call(frame: FrameType, event: str, argument: object) -> None:
    if event != "call" or frame.f_code.co_name != "step":
        return
    if not frame.f_globals["__name__"].startswith("megatron.core.optimizer"):
        return
    calls = _calls(frame)
    # The critic takes a step of its own before the policy does.
    if "PolicyGradientTrainer" in str(calls) and not any(" Critic." in call for call in calls):
        sys.setprofile(None)
        _write("step", frame)


def _write(event: str, frame: FrameType | None, **details: object) -> None:
    line = json.dumps({"event": event, "pid": os.getpid(), "calls": _calls(frame), **details}) + "\n"
    descriptor = os.open(os.environ[TRACE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())  # one write, so that lines of several processes are never mixed
    os.close(descriptor)


def _calls(frame: FrameType | None) -> list[str]:
    """The project's functions on the stack that ends in this frame, the outermost first."""
    calls = []
    while frame is not None:
        code = frame.f_code
        path = os.path.relpath(code.co_filename, ROOT)
        if path.startswith(tuple(f"{room}{os.sep}" for room in ROOMS)) and code.co_name not in _NO_CALLS:
            calls.append(f"{path} {code.co_qualname}")
        frame = frame.f_back
    return calls[::-1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as workspace:
        print(walk(Path(workspace)))
