"""`aligner workshop preflight`: checks in half a minute whether a seat is ready, with doctor's checks and a notebook's actions.

The findings are a line of JSON, which `widgets.Classroom` collects from a shared folder (FOLDER/SEAT/preflight.json).
"""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from aligner_lib.cli import doctor
from aligner_lib.config.compose import profile_section
from aligner_lib.errors import UserError
from aligner_lib.run_folder.files import read_object
from cluster.findings import Finding
from cluster.processes import user_name
from cluster.record import write_json

STEPS = 2  # of the smoke profile's SFT
KERNEL_SECONDS = 120
CELL = "import ipywidgets, widgets; widgets.Monitor; print(6 * 7)"
IN_NOTEBOOKS = "disk", "memory"  # doctor reports them only as notes, but an instructor must know them
FILE = "preflight.json"
PARTICIPANT = "participant.json"
MACHINE_ID = Path("/etc/machine-id")
CLOCK_SECONDS = 10.0
"""A larger difference between the clocks of the seat and of the shared folder is reported."""


def seat_name() -> str:
    """A name that does not reveal its owner and stays the same for this user, machine, home and clone."""
    # laptops of a room may share a host name and an account; the machine-id differs
    machine = MACHINE_ID.read_text().strip() if MACHINE_ID.exists() else ""
    owner = f"{user_name()}@{platform.node()}{machine}:{Path.home()}:{Path(__file__).resolve()}"
    return f"seat-{hashlib.blake2b(owner.encode(), digest_size=3).hexdigest()}"


def preflight(
    profile: str, shared: Path | None = None, seat: str | None = None, name: str | None = None
) -> dict:
    """Check this seat. shared: the room's folder; the findings are written into this folder for the classroom.

    Returns {seat, time, ready, failed, seconds, checks}: checks has the findings by name; failed has the names of all failed
    checks that the workshop needs. Raises UserError for a seat that is no name of a visible folder.
    """
    began, seat = time.monotonic(), seat or seat_name()
    if "/" in seat or seat.startswith("."):
        raise UserError(f"--seat {seat}: choose a name without a slash and without a dot at its beginning")
    checks, failed = {}, []
    for finding in _examine(profile, shared, seat, name):
        checks[finding.what] = finding.detail
        if not finding.ok and (finding.needed or finding.what in IN_NOTEBOOKS):
            failed.append(finding.what)
    findings = {
        "seat": seat,
        "time": round(time.time()),
        "ready": not failed,
        "failed": failed,
        "seconds": round(time.monotonic() - began, 1),
        "checks": checks,
    }
    if shared is not None and "shared folder" not in failed:
        write_json(shared / seat / FILE, findings)
        if name:
            write_json(shared / seat / PARTICIPANT, {"name": name})
    return findings


def link_to(folder: Path) -> str:
    """The command that makes the seat's folder the notebooks' default workspace; "" where the folder is already the workspace.

    The command replaces an earlier link, and renames an earlier workspace.
    """
    workspace = Path("runs/tutorial")
    if workspace.resolve() == folder.resolve():
        return ""
    is_own = workspace.is_dir() and not workspace.is_symlink()
    way = (
        f"mv {workspace} {workspace}-before"
        if is_own
        else f"mkdir -p {workspace.parent} && rm -f {workspace}"
    )
    return f"{way} && ln -s {shlex.quote(str(folder.absolute()))} {workspace}"


def as_line(findings: dict) -> str:
    """The findings as a line of JSON."""
    return json.dumps(findings, ensure_ascii=False)


def _examine(profile: str, shared: Path | None, seat: str, name: str | None) -> Iterator[Finding]:
    relevant = {"Python", "cores", "memory", "shared memory", "disk", *doctor.NEEDED}
    yield from (finding for finding in doctor.examine(hub=False) if finding.what in relevant)
    if shared is not None:
        yield _tried("shared folder", lambda: _shared(shared, seat, name))
    yield _tried("port", _port)
    yield _tried("kernel", _kernel)
    yield _tried("training", _train)
    yield _model(profile)  # after the training, which makes the smoke model where it is missing


def _tried(what: str, look: Callable[[], str]) -> Finding:
    """Run a trial and return the finding, with the seconds. An error is a finding, too."""
    began = time.monotonic()
    try:
        return Finding(what, True, f"{look()} ({time.monotonic() - began:.1f} s)")
    except Exception as error:  # an error here would also occur in the first notebook
        reason = (str(error).strip().splitlines() or [""])[0]
        return Finding(what, False, f"{type(error).__name__}: {reason}"[:300])


def _model(profile: str) -> Finding:
    from aligner_lib.models.fetch import cache_root, is_cached

    model = profile_section(profile, "tutorial").get("model", "smollm2-135m")
    if is_cached(model):
        return Finding("model", True, f"{model} in {cache_root()}")
    return Finding(
        "model",
        False,
        f"{model} is not in {cache_root()}: ./lab setup --bundle FILE, or `aligner model fetch {model}`",
    )


def _shared(shared: Path, seat: str, name: str | None) -> str:
    """Write like a run folder: append, rename, read again."""
    if not shared.is_dir():  # a new folder would be on the seat's own disk
        raise NotADirectoryError(f"{shared} is not a folder: mount the room's folder, or correct --shared")
    folder = shared / seat
    folder.mkdir(exist_ok=True)
    if name and (folder / PARTICIPANT).exists():
        owner = read_object(folder / PARTICIPANT).get("name")
        if owner not in (None, name):
            raise FileExistsError(f"{seat} belongs to {owner}: take --seat NAME with another name")
    probe = folder / f".preflight-{uuid.uuid4().hex}"
    probe.write_text("one")
    with open(probe, "a") as file:
        file.write("two")
    ahead = time.time() - probe.stat().st_mtime
    moved = probe.rename(probe.with_name(f"{probe.name}-renamed"))
    assert moved.read_text() == "onetwo", f"{folder} does not return what was written to it"
    is_private = not moved.stat().st_mode & 0o044
    moved.unlink()
    notes = [f"{folder} is writable"]
    if is_private:
        notes.append("but unreadable for other accounts (`umask 022`)")
    if abs(ahead) > CLOCK_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        notes.append(f"but the seat's clock is {abs(ahead):.0f} s {direction} the folder's: set the clock")
    return ", ".join(notes)


def _port() -> str:
    """Connect a server and a client on this machine, like a notebook and its kernel."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        with socket.create_connection(address, timeout=5) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"x")
                assert accepted.recv(1) == b"x", "nothing came back"
    return "127.0.0.1 answers"


def _kernel() -> str:
    """Start a notebook's kernel, and import the widgets in the kernel."""
    from jupyter_client.manager import start_new_kernel

    quiet = ["--IPKernelApp.log_level=CRITICAL"]
    manager, client = start_new_kernel(
        kernel_name="python3", startup_timeout=KERNEL_SECONDS, extra_arguments=quiet
    )
    try:
        messages = []
        client.execute_interactive(CELL, timeout=KERNEL_SECONDS, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    errors = [message["content"]["evalue"] for message in messages if message["msg_type"] == "error"]
    texts = [message["content"].get("text", "") for message in messages if message["msg_type"] == "stream"]
    if errors or "42" not in "".join(texts):
        raise RuntimeError(errors[0] if errors else "the kernel gave no answer")
    return "starts, and has the widgets"


def _train() -> str:
    """Train a few real steps of the smallest profile, in a separate process."""
    from contextlib import redirect_stdout

    from aligner_lib.tutorial.workspace.workspace import Workspace

    with tempfile.TemporaryDirectory(prefix="aligner-preflight-") as folder, redirect_stdout(sys.stderr):
        lab = Workspace(folder, "smoke")
        lab.submit("sft", **{"trainer.sft.max_steps": STEPS}).wait()
        return f"{lab.run('sft').metrics()[-1]['step']} steps of smoke's SFT"
