"""A vLLM server on this machine that a run starts for itself and ends with the run.

The server gets a model folder without weights. The policy sends the weights before the first response.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psutil

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import families
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.generators.vllm import API_KEY, EXTENSION
from cluster.processes import identity, signalled_with_parent
from cluster.record import read_json, write_json
from cluster.rendezvous import free_port, open_url

PROJECT = Path(__file__).parents[3]
LOG_LINES = 12  # lines of the log in the error of a run whose server has died
POLL_S = 0.2
END_S = 20.0  # between SIGTERM and SIGKILL
NOTE = "server.json"  # identifies the server's process


class ServerSettings(Protocol):
    """The settings of aligner_lib.kinds.policy_gradient.settings.VllmCfg that this module reads."""

    executable: str
    precision: str
    tensor_parallel_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    timeout: float


@dataclass
class VllmServer:
    """The process of a server. `close` ends the server and its child processes."""

    process: subprocess.Popen
    url: str
    api_key: str
    log: Path

    def last_output(self) -> str:
        """The last lines of the server's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]) + f"\n({self.log})"

    def close(self) -> None:
        """End the server, the processes of its engine included."""
        _end(self.process.pid)
        self.process.wait()

    def wait(self, seconds: float) -> None:
        """Wait until the server answers. Raises UserError when the server ends first, or does not answer in time.

        The answer of another program does not count: the program may have taken the port before the server.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise UserError(
                    f"vLLM ended before the first answer (exit code {self.process.returncode}). Its last "
                    f"output:\n{self.last_output()}"
                )
            if self._listens():
                with contextlib.suppress(OSError), open_url(f"{self.url}/health", 5):
                    return
            time.sleep(POLL_S)
        raise UserError(
            f"vLLM has not answered within model.generation.vllm_cfg.timeout={seconds:g} s. Its last output:\n{self.last_output()}"
        )

    def _listens(self) -> bool:
        """Whether the server's process or one of its child processes listens at the server's address."""
        address = urlsplit(self.url)
        listening = (psutil.CONN_LISTEN, (address.hostname, address.port))
        for process in _family(self.process.pid):
            with contextlib.suppress(psutil.Error):  # a child process has just ended
                connections = process.net_connections("tcp")
                if listening in [(connection.status, connection.laddr) for connection in connections]:
                    return True
        return False


def start(
    settings: ServerSettings, architecture: Architecture, tokenizer: Tokenizer, longest: int, folder: Path
) -> VllmServer:
    """Start a server for this architecture and wait until the server answers. The server's weights are still random.

    longest: tokens of prompt and response. folder: gets the model folder and the log. Raises UserError when vLLM is missing or
    does not start.
    """
    executable = shutil.which(settings.executable)
    if executable is None:
        raise UserError(
            f"model.generation.backend=vllm: there is no command {settings.executable!r} here. Install vLLM (its own environment "
            "will do: model.generation.vllm_cfg.executable=/path/to/vllm), give the URL of a running server "
            "(model.generation.vllm_cfg.url), or let the policy itself generate (backend=megatron)"
        )
    end_earlier(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(families.to_hf(architecture), indent=2) + "\n")
    tokenizer.save(folder)
    port = free_port()
    key, log = secrets.token_hex(16), folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [executable, "serve", str(folder), *_options(settings, longest, port)],
            env=os.environ
            | {
                "VLLM_SERVER_DEV_MODE": "1",
                API_KEY: key,
                "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
            },
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # a killed job cannot end the server
            preexec_fn=signalled_with_parent(signal.SIGTERM),
        )
    write_json(folder / NOTE, {"pid": process.pid, "mark": identity(process.pid)})
    server = VllmServer(process, f"http://127.0.0.1:{port}", key, log)
    try:
        server.wait(settings.timeout)
    except BaseException:
        server.close()
        raise
    return server


def end_earlier(folder: Path) -> None:
    """End the server of a run that was killed before it could end its server. The old server still holds memory, which the new
    server needs."""
    note = read_json(folder / NOTE)
    if note and note["mark"] is not None and identity(note["pid"]) == note["mark"]:
        _end(note["pid"])


def _end(pid: int) -> None:
    """End a server and its child processes: SIGTERM, END_S seconds to clean up, then SIGKILL."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = _family(pid)
        family[0].terminate()  # the server then ends the others
        _, left = psutil.wait_procs(family, END_S)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, END_S)
    # a server that was killed has no children any more, but its engine is still in its process group
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _family(pid: int) -> list[psutil.Process]:
    """A server's process, and its child processes."""
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]


def _options(settings: ServerSettings, longest: int, port: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--worker-extension-cls", EXTENSION),
        *("--dtype", settings.precision, "--max-model-len", str(longest)),
        *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
        *("--gpu-memory-utilization", str(settings.gpu_memory_utilization)),
        *(["--enforce-eager"] if settings.enforce_eager else []),
        # log-probabilities under the distribution from which tokens are sampled, as in Megatron's generation
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
    ]
