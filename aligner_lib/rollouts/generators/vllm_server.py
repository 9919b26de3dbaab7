"""A vLLM server that a run starts for itself on this machine, and ends.

It gets a model folder without weights: they come from the policy, before the first response.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import families
from aligner_lib.models.architecture import Architecture
from aligner_lib.rollouts.generators.vllm import API_KEY, EXTENSION
from cluster.processes import identity
from cluster.record import read_json, write_json

PROJECT = Path(__file__).parents[3]
LOG_LINES = 12  # of its log, in the error of a run whose server has died
POLL_S = 0.2
END_S = 20.0  # between SIGTERM and SIGKILL
NOTE = "server.json"  # which process it is


class Settings(Protocol):
    """What is read here of aligner_lib.kinds.policy_gradient.settings.VllmCfg."""

    executable: str
    precision: str
    tensor_parallel_size: int
    gpu_memory_utilization: float
    enforce_eager: bool
    timeout: float


@dataclass
class VllmServer:
    """A server's process. `close` ends it, and all that it has started."""

    process: subprocess.Popen
    url: str
    api_key: str
    log: Path

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]) + f"\n({self.log})"

    def close(self) -> None:
        """End it, its engine's processes included."""
        _end(self.process.pid)
        self.process.wait()

    def wait(self, seconds: float) -> None:
        """Until it answers. Raises UserError for one that ends before, or does not answer in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise UserError(
                    f"vLLM ended before it answered (exit code {self.process.returncode}). It said last:\n{self.last_words()}"
                )
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return
            time.sleep(POLL_S)
        raise UserError(
            f"vLLM has not answered within model.generation.vllm_cfg.timeout={seconds:g} s. It said last:\n{self.last_words()}"
        )


def start(
    settings: Settings, architecture: Architecture, tokenizer: Tokenizer, longest: int, folder: Path
) -> VllmServer:
    """A server of this architecture that answers, with weights that mean nothing yet.

    longest: tokens of prompt and response. folder: for what it is started with, and its log. Raises UserError where
    vLLM is missing, or does not start.
    """
    executable = shutil.which(settings.executable)
    if executable is None:
        raise UserError(
            f"model.generation.backend=vllm: there is no command {settings.executable!r} here. Install vLLM, in an environment "
            "of its own if you like (model.generation.vllm_cfg.executable=/path/to/vllm), give a running server's "
            "model.generation.vllm_cfg.url, or let the policy itself generate (backend=megatron)"
        )
    end_earlier(folder)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(families.to_hf(architecture), indent=2) + "\n")
    tokenizer.save(folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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
    """End the server of a run that was killed, and could not do so itself: it holds the memory that the next one needs."""
    note = read_json(folder / NOTE)
    if note and note["mark"] is not None and identity(note["pid"]) == note["mark"]:
        _end(note["pid"])


def _end(pid: int) -> None:
    """End a server and what it has started: SIGTERM, END_S to clean up, then SIGKILL."""
    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    family[0].terminate()  # which ends the others
    _, left = psutil.wait_procs(family, END_S)
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, END_S)


def _options(settings: Settings, longest: int, port: int) -> list[str]:
    return [
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--load-format", "dummy", "--worker-extension-cls", EXTENSION),
        *("--dtype", settings.precision, "--max-model-len", str(longest)),
        *("--tensor-parallel-size", str(settings.tensor_parallel_size)),
        *("--gpu-memory-utilization", str(settings.gpu_memory_utilization)),
        *(["--enforce-eager"] if settings.enforce_eager else []),
        # log-probabilities of the distribution that is drawn from, as Megatron's generation has them
        *("--logprobs-mode", "processed_logprobs"),
        *("--generation-config", "vllm"),
    ]
