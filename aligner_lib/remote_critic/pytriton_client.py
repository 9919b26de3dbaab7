"""Calls to a server over PyTriton's gRPC client. Only the pytriton modules use PyTriton.

The calls use gRPC because a gRPC client can serve many threads, while the HTTP client's gevent deadlocks. A client neither
detects a hanging server nor stops waiting, so the caller limits the wait (see `connection`).
"""

from __future__ import annotations

import functools
import importlib.util
import socket
import threading
import warnings
from typing import TYPE_CHECKING

from aligner_lib.errors import UserError

if TYPE_CHECKING:  # a notebook's kernel calls `check_installed`, and needs no torch
    from aligner_lib.remote_critic.serialization import Arrays

PROBE_S = 3.0
READY_S = 1.0  # for a server that listens while its models are loading: the next attempt follows soon
CHANNEL = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.max_send_message_length", (1 << 31) - 1),
    ("grpc.max_receive_message_length", (1 << 31) - 1),
]


class ServerUnreachable(ConnectionError):
    """The server did not answer. The message completes "the critic at host:port …"."""


class PyTritonConnection:
    """A connection to a server. When the server stops answering, make a new connection."""

    def __init__(self, host: str, port: int, token: str):
        self.host, self.port, self._token = host, port, token
        self._clients: dict[tuple, object] = {}
        self._lock = threading.Lock()

    def call(self, endpoint: str, arrays: Arrays, parameters: dict, timeout_s: float) -> Arrays:
        """The endpoint's answer. Any thread may call. Raises ServerUnreachable."""
        probe(self.host, self.port)
        from pytriton.client.exceptions import PyTritonClientError
        from tritonclient.utils import InferenceServerException

        try:
            client = self._client(endpoint, timeout_s)
            send = client.infer_batch if client.is_batching_supported else client.infer_sample
            return send(parameters=parameters, **arrays)
        except (PyTritonClientError, InferenceServerException, TimeoutError, OSError) as error:
            raise ServerUnreachable(_reason(error)) from error

    def _client(self, endpoint: str, timeout_s: float):
        with self._lock:
            if (endpoint, timeout_s) not in self._clients:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the warning that gRPC limits only infer calls
                    self._clients[endpoint, timeout_s] = _client_class()(
                        f"grpc://{self.host}:{self.port}",
                        endpoint,
                        init_timeout_s=READY_S,
                        inference_timeout_s=timeout_s,
                        access_token=self._token,
                    )
            return self._clients[endpoint, timeout_s]


@functools.cache
def _client_class() -> type:
    """PyTriton's ModelClient, with a separate connection that retries within a second.

    By default, all channels of a process to an address share a connection and its waiting time, which grows with each failed
    attempt. With the default, the client did not find a restarted server for 20 s.
    """
    from pytriton.client import ModelClient

    class Client(ModelClient):
        def _get_init_extra_args(self) -> dict:
            return super()._get_init_extra_args() | {"channel_args": CHANNEL}

    return Client


def check_installed() -> None:
    """Raises UserError when PyTriton is missing. Client and server need PyTriton."""
    if importlib.util.find_spec("pytriton") is None:
        raise UserError(
            "PyTriton is not installed, so critic and reward model can't be jobs of their own: run "
            "`pip install -e '.[pytriton]'` with Python 3.11 or 3.12 on Linux, or train PPO as one job"
        )


def probe(host: str, port: int) -> None:
    """Raises ServerUnreachable, with the reason, unless a program listens at the address."""
    try:
        socket.create_connection((host, port), timeout=PROBE_S).close()
    except socket.gaierror:
        raise ServerUnreachable(f"has an unknown host name ({host})") from None
    except ConnectionRefusedError:
        raise ServerUnreachable("is not listening (connection refused)") from None
    except OSError as error:
        raise ServerUnreachable(f"can't be reached ({error or type(error).__name__})") from None


def _reason(error: Exception) -> str:
    """The reason in a single line, because PyTriton's messages contain tracebacks and metadata."""
    text = str(error)
    if "protocol is restricted" in text:
        return "refuses the token: it was started again, or is another run's server"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return f"does not answer ({type(error).__name__}: {lines[0][:160] if lines else 'no reason given'})"
