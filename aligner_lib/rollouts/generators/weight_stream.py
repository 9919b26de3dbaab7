"""Send weights from one process to others over TCP, a block of tensors at a time, without a file or a second copy of the model.

The sender listens and the receivers connect. A receiver first sends a line of JSON with the token that identifies it. Then
blocks follow: for each block its length (8 bytes, big-endian) and as many bytes of safetensors. Length 0 ends the stream. This
module also runs in vLLM's environment, and imports nothing of the project.
"""

from __future__ import annotations

import hmac
import json
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

import torch
from safetensors.torch import load, save
from torch import Tensor

BLOCK_BYTES = 1 << 26
HELLO_BYTES = 1 << 12  # limit of a receiver's first line
POLL_S = 0.2  # seconds between two calls of `check` while the sender waits for receivers


class StreamError(Exception):
    """The other side was lost, or is not the expected one. The message says which."""


# ---- the sender -----------------------------------------------------------------------------------------------------


def send(
    weights: Iterable[tuple[str, Tensor]],
    listener: socket.socket,
    token: str,
    timeout: float,
    check: Callable[[], object],
) -> None:
    """Send weights (on the CPU, any dtype) to all receivers that connect. Each receiver states how many receivers there are.

    timeout: seconds for each receiver to connect and to receive a block. check: called repeatedly while the sender waits;
    `check` may raise to stop the wait. Raises StreamError.
    """
    with ExitStack() as opened:
        receivers = [
            opened.enter_context(connection) for connection in _accepted(listener, token, timeout, check)
        ]
        for block in _blocks(weights):
            for receiver in receivers:
                try:
                    receiver.sendall(len(block).to_bytes(8, "big"))
                    receiver.sendall(block)
                except OSError as error:
                    raise StreamError(f"the server stopped taking weights ({error})") from error


def _accepted(
    listener: socket.socket, token: str, timeout: float, check: Callable[[], object]
) -> Iterator[socket.socket]:
    """The connections of all receivers; connections with a wrong token are closed."""
    accepted, receivers = 0, 1
    while accepted < receivers:
        connection = _next(listener, timeout, check)
        connection.settimeout(timeout)
        hello = _hello(connection)
        if not hmac.compare_digest(str(hello.get("token")).encode(), token.encode()):
            connection.close()
            continue
        accepted, receivers = accepted + 1, hello["receivers"]
        yield connection


def _hello(connection: socket.socket) -> dict:
    """The first message of a connection; empty when the message is not a JSON object."""
    try:
        message = json.loads(connection.makefile("rb").readline(HELLO_BYTES))
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


def _next(listener: socket.socket, timeout: float, check: Callable[[], object]) -> socket.socket:
    listener.settimeout(POLL_S)
    for _ in range(max(1, round(timeout / POLL_S))):
        check()
        try:
            return listener.accept()[0]
        except TimeoutError:
            continue
    raise StreamError(f"the server did not fetch the weights within {timeout:g} s")


def _blocks(weights: Iterable[tuple[str, Tensor]]) -> Iterator[bytes]:
    """Serialised blocks of about BLOCK_BYTES, and an empty block at the end."""
    block: dict[str, Tensor] = {}
    for name, tensor in weights:
        # a copy, because the parts of a fused weight share memory, and safetensors refuses shared memory
        block[name] = tensor.clone(memory_format=torch.contiguous_format)
        if sum(part.nbytes for part in block.values()) >= BLOCK_BYTES:
            yield save(block)
            block = {}
    if block:
        yield save(block)
    yield b""


# ---- the receivers --------------------------------------------------------------------------------------------------


def receive(host: str, port: int, token: str, receivers: int, timeout: float) -> Iterator[tuple[str, Tensor]]:
    """The weights of a sender, block by block. receivers: the number of receivers. Raises StreamError."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(json.dumps({"token": token, "receivers": receivers}).encode() + b"\n")
            stream = connection.makefile("rb")
            while size := int.from_bytes(_exactly(stream, 8), "big"):
                yield from load(_exactly(stream, size)).items()
    except OSError as error:
        raise StreamError(f"the weights from {host}:{port} stopped coming ({error})") from error


def _exactly(stream, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise StreamError("the stream of weights was cut off: the trainer went away")
    return data
