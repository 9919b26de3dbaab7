"""Send weights from one process to others over TCP, a block of tensors at a time, without a file or a second copy of the model.

The sender listens and the receivers connect. A receiver first sends a line of JSON with the token that identifies it. Then
blocks follow: for each block its length (8 bytes, big-endian) and as many bytes of safetensors. Length 0 ends the stream. This
module also runs in vLLM's environment, and imports nothing of the project.
"""

from __future__ import annotations

import hmac
import json
import selectors
import socket
import time
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
        receivers = _accepted(listener, token, timeout, check, opened)
        for block in _blocks(weights):
            for receiver in receivers:
                try:
                    receiver.sendall(len(block).to_bytes(8, "big"))
                    receiver.sendall(block)
                except OSError as error:
                    raise StreamError(f"the server stopped taking weights ({error})") from error


def _accepted(
    listener: socket.socket, token: str, timeout: float, check: Callable[[], object], opened: ExitStack
) -> list[socket.socket]:
    """The connections of all receivers. opened: closes all connections; those with a wrong token are closed at once."""
    accepted, receivers, deadline = [], 1, time.monotonic() + timeout
    # All connections wait together, so that a silent connection of another program delays no receiver.
    with selectors.DefaultSelector() as waiting:
        waiting.register(listener, selectors.EVENT_READ)
        while len(accepted) < receivers:
            check()
            if time.monotonic() > deadline:
                raise StreamError(f"the server did not fetch the weights within {timeout:g} s")
            for key, _ in waiting.select(POLL_S):
                connection = key.fileobj
                if connection is listener:
                    connection = opened.enter_context(listener.accept()[0])
                    connection.settimeout(timeout)
                    waiting.register(connection, selectors.EVENT_READ, data=bytearray())
                elif (hello := _hello(connection, key.data)) is not None:
                    waiting.unregister(connection)
                    if hmac.compare_digest(str(hello.get("token")).encode(), token.encode()):
                        accepted.append(connection)
                        receivers, deadline = hello["receivers"], time.monotonic() + timeout
                    else:
                        connection.close()
    return accepted


def _hello(connection: socket.socket, received: bytearray) -> dict | None:
    """The first message of a connection; None before the message's end, and empty when the message is not a JSON object.

    received: the message's earlier bytes; the call adds the connection's next bytes.
    """
    try:
        part = connection.recv(HELLO_BYTES)
        received += part
        if part and b"\n" not in part and len(received) < HELLO_BYTES:
            return None
        message = json.loads(received)
    except (OSError, ValueError):
        return {}
    return message if isinstance(message, dict) else {}


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
