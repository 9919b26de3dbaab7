"""A server on PyTriton: endpoints that are bound to functions. Only the pytriton modules use PyTriton.

Start the server from the main thread, because tritonserver ends when the *thread* that started tritonserver ends.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import glob
import ipaddress
import logging
import os
import socket
import sysconfig
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from aligner_lib.errors import UserError
from aligner_lib.remote_critic import pytriton_cleanup
from aligner_lib.remote_critic.serialization import Arrays, Signature

logger = logging.getLogger(__name__)

# `health` and `model-config` stay open, because PyTriton's own client needs both without a token.
RESTRICTED = ["inference", "metadata", "model-repository", "shared-memory", "statistics", "trace", "logging"]
# limit of the samples in a merged request; the worker splits a request into micro batches
LARGEST_BATCH = 1 << 20
BATCH_DELAY_US = 2000  # time for which a request waits for another request of the same shape
START_S = 120.0  # PyTriton's own limit
PORT_S = 20.0  # for the port of a predecessor that is ending
EXIT_S = 1  # for requests in progress when the server ends
# tritonserver makes a folder with such a name, uses the folder only for packed interpreters, and does not remove the folder
ENVIRONMENTS = "/tmp/python_env_*"

Answer = Callable[[list[tuple[dict, Arrays]]], list[Arrays]]  # requests (parameters, arrays) → their answers


@dataclass(frozen=True)
class EndpointHandler:
    """An endpoint of the server: its arrays, and the function for its requests."""

    name: str
    signature: Signature
    answer: Answer


class PyTritonServer:
    """tritonserver and a Python stub for each endpoint, as child processes of this process."""

    def __init__(self, host: str, port: int, token: str, folder: Path, endpoints: list[EndpointHandler]):
        """folder: the run folder, for workspace and log. The constructor removes the remains of a killed earlier server."""
        self.host, self.port = host, port
        self._folder = Path(folder)
        self._log = self._folder / "job" / "tritonserver.log"
        self._others = psutil.Process().children(recursive=True)  # earlier children of this process
        self._children: list[psutil.Process] = []
        self._environments: list[str] = []
        pytriton_cleanup.clear(folder)
        from pytriton.triton import TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig

        logging.getLogger("pytriton").setLevel(logging.ERROR)
        warnings.filterwarnings("ignore", message="tritonclient.grpc doesn't support timeout")
        self._log.parent.mkdir(exist_ok=True)
        # another path to the log: PyTriton splits tritonserver's arguments at white space, which the run folder may have
        self._log_file = self._log.open("a")
        log_file = Path(f"/proc/{os.getpid()}/fd/{self._log_file.fileno()}")
        self._triton = _prompt_triton(host, port)(
            config=TritonConfig(
                allow_http=False,
                allow_grpc=True,
                grpc_address=host,
                grpc_port=port,
                allow_metrics=False,
                log_file=log_file,
                exit_timeout_secs=EXIT_S,
            ),
            security_config=TritonSecurityConfig(access_token=token, restricted_endpoints=RESTRICTED),
            workspace=pytriton_cleanup.workspace(folder),
            # tritonserver finds all models at its start, loads them in parallel, and leaves no copies in /tmp
            triton_lifecycle_policy=TritonLifecyclePolicy(local_model_store=True),
        )
        for endpoint in endpoints:
            self._bind(endpoint)

    def start(self) -> None:
        """Start the server. Returns when the server answers. Raises UserError when the server does not answer in time."""
        from pytriton.client.exceptions import PyTritonClientTimeoutError

        # the stub loads the first libpython on the path, which must be the library of the running interpreter
        first = sysconfig.get_config_var("LIBDIR")
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, [first, os.environ.get("LD_LIBRARY_PATH")]))
        before = glob.glob(ENVIRONMENTS)
        self._note_down()
        try:
            self._triton.run()
        except PyTritonClientTimeoutError:
            raise UserError(
                f"tritonserver did not answer at {self.host}:{self.port} within two minutes of its start: see {self._log}; "
                "if another program took the port meanwhile, start the same command again"
            ) from None
        self._environments = [folder for folder in glob.glob(ENVIRONMENTS) if folder not in before]
        self._note_children()

    def problem(self) -> str | None:
        """A sentence when a process of the server has died, else None. PyTriton does not notice the death of a stub."""
        gone = [child for child in self._children if not pytriton_cleanup.is_alive(child)]
        if gone or not self._triton.is_alive():
            return f"a process of PyTriton's server ended (pid {', '.join(str(child.pid) for child in gone)})"
        return None

    def stop(self) -> None:
        """End the child processes and remove their files and shared memory.

        Triton.stop() would take 7 s, because it waits for its threads in turn. The threads end with this process anyway.
        """
        atexit.unregister(self._triton.stop)
        with contextlib.suppress(OSError):  # the run folder may have been removed
            self._note_children()  # a failed run() may have started some of the processes
        pytriton_cleanup.clear(self._folder, self._resources(), finish_s=2 * EXIT_S)
        self._log_file.close()

    def _note_children(self) -> None:
        """Record the processes to end; a later server reads the record. The stubs of a dead tritonserver are no longer among
        the children, so known processes stay in the record."""
        children = psutil.Process().children(recursive=True)
        known = {*self._others, *self._children}
        for other in self._others:  # an exporter starts processes of its own at any time
            with contextlib.suppress(psutil.NoSuchProcess):
                known |= {*other.children(recursive=True)}
        self._children += [child for child in children if child not in known]
        self._note_down()

    def _note_down(self) -> None:
        pytriton_cleanup.note_down(self._folder, self._resources())

    def _resources(self) -> dict:
        return pytriton_cleanup.resources(self._children, self._environments)

    def _bind(self, endpoint: EndpointHandler) -> None:
        from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

        def tensors(arrays: dict) -> list[Tensor]:
            return [Tensor(name=name, dtype=dtype, shape=shape) for name, (dtype, shape) in arrays.items()]

        def answer(requests):
            return endpoint.answer(
                [(request.parameters or {}, dict(request.items())) for request in requests]
            )

        batching = ModelConfig(
            batching=True,
            max_batch_size=LARGEST_BATCH,
            batcher=DynamicBatcher(max_queue_delay_microseconds=BATCH_DELAY_US),
        )
        self._triton.bind(
            endpoint.name,
            answer,
            inputs=tensors(endpoint.signature.inputs),
            outputs=tensors(endpoint.signature.outputs),
            config=batching if endpoint.signature.batched else ModelConfig(batching=False),
            strict=True,  # otherwise a missing output is silently ignored
        )


def _prompt_triton(host: str, port: int) -> type:
    """PyTriton's Triton, which continues as soon as its server listens.

    PyTriton's own check runs once a second, over a gRPC channel that retries a closed port at growing intervals. That check
    took two seconds more.
    """
    from pytriton.triton import Triton

    class PromptTriton(Triton):
        def _wait_for_server(self) -> None:
            pause, deadline = threading.Event(), time.monotonic() + START_S
            while not _listens(host, port) and self._is_alive_impl() and time.monotonic() < deadline:
                pause.wait(0.02)
            super()._wait_for_server()

    return PromptTriton


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


# ---- before the start -----------------------------------------------------------------------------------------------


def check_numpy() -> None:
    if int(np.__version__.split(".")[0]) >= 2:
        raise UserError(
            f"numpy {np.__version__} is installed, but PyTriton 0.7 answers with empty arrays under numpy 2: install "
            "'numpy>=1.26,<2' where the server runs"
        )


def check_port(host: str, port: int) -> None:
    """Raises UserError when the port is taken or the address is not this machine's. PyTriton itself would wait a minute.

    A requeued server may start beside its predecessor, whose processes are still ending. Therefore the check waits PORT_S for
    a port that is in use.
    """
    if host == "" or _is_every(host):
        raise UserError(
            f"the address {host!r} would open the server to every network: give an address of the machine, or none "
            "for loopback"
        )
    begin, is_logged = time.monotonic(), False
    while (error := _error_of_binding(host, port)) is not None:
        if error.errno != errno.EADDRINUSE or time.monotonic() - begin >= PORT_S:
            raise UserError(
                f"port {port} of {host} can't be used ({error.strerror}): another server uses the port, or the "
                "address is not the machine's: choose another port"
            )
        if not is_logged:
            logger.info(
                "port %d of %s is in use: waiting %.0f s for the server that has it to end",
                port,
                host,
                PORT_S,
            )
            is_logged = True
        time.sleep(0.2)


def _error_of_binding(host: str, port: int) -> OSError | None:
    """The error of binding the port; None for a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error


def _is_every(host: str) -> bool:
    """Whether a host stands for all addresses of this machine, in any spelling."""
    try:
        addresses = socket.getaddrinfo(host, None)
    except OSError:
        return False  # the check of the port reports the error
    return any(ipaddress.ip_address(address[0]).is_unspecified for *_, address in addresses)
