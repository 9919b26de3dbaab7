"""Weights from one process to others over TCP, a block of tensors at a time: no file, and no whole model in between.

The sender listens and the receivers connect. A receiver first says who it is, in a line of JSON with the token that it was
told; then blocks follow, each its length (8 bytes, big-endian) and that many bytes of safetensors. Length 0 ends them. This
runs in vLLM's environment, too, and imports nothing of the project.
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
HELLO_BYTES = 1 << 12  # at most
POLL_S = 0.2  # how often a sender that waits for receivers looks whether it should go on


class StreamError(Exception):
    """The other side went away, or is not who it should be. The text says which."""


# ---- the sender -----------------------------------------------------------------------------------------------------


def send(
    weights: Iterable[tuple[str, Tensor]],
    listener: socket.socket,
    token: str,
    timeout: float,
    waits: Callable[[], object],
) -> None:
    """Send weights (on the CPU, any dtype) to all receivers that a listening socket gets, each of which says how many there are.

    timeout: seconds for each to come and to take a block. waits: called while nobody comes; it may raise. Raises
    StreamError.
    """
    with ExitStack() as opened:
        receivers = [opened.enter_context(one) for one in _accepted(listener, token, timeout, waits)]
        for block in _blocks(weights):
            for one in receivers:
                try:
                    one.sendall(len(block).to_bytes(8, "big"))
                    one.sendall(block)
                except OSError as error:
                    raise StreamError(f"it stopped to take weights ({error})") from error


def _accepted(
    listener: socket.socket, token: str, timeout: float, waits: Callable[[], object]
) -> Iterator[socket.socket]:
    """Everybody who is to get the weights; strangers are turned away."""
    come, receivers = 0, 1
    while come < receivers:
        one = _next(listener, timeout, waits)
        one.settimeout(timeout)
        said = _hello(one)
        if not hmac.compare_digest(str(said.get("token")).encode(), token.encode()):
            one.close()
            continue
        come, receivers = come + 1, said["receivers"]
        yield one


def _hello(connection: socket.socket) -> dict:
    """What somebody who connected says; nothing of one that says something else."""
    try:
        said = json.loads(connection.makefile("rb").readline(HELLO_BYTES))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _next(listener: socket.socket, timeout: float, waits: Callable[[], object]) -> socket.socket:
    listener.settimeout(POLL_S)
    for _ in range(max(1, round(timeout / POLL_S))):
        waits()
        try:
            return listener.accept()[0]
        except TimeoutError:
            continue
    raise StreamError(f"it did not come for the weights within {timeout:g} s")


def _blocks(weights: Iterable[tuple[str, Tensor]]) -> Iterator[bytes]:
    """Serialised blocks of about BLOCK_BYTES, and an empty one at the end."""
    block: dict[str, Tensor] = {}
    for name, tensor in weights:
        # a copy, since parts of one fused weight share its memory, which safetensors refuses
        block[name] = tensor.clone(memory_format=torch.contiguous_format)
        if sum(one.nbytes for one in block.values()) >= BLOCK_BYTES:
            yield save(block)
            block = {}
    if block:
        yield save(block)
    yield b""


# ---- the receivers --------------------------------------------------------------------------------------------------


def receive(host: str, port: int, token: str, receivers: int, timeout: float) -> Iterator[tuple[str, Tensor]]:
    """The weights that a sender sends, block by block. receivers: how many get them. Raises StreamError."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(json.dumps({"token": token, "receivers": receivers}).encode() + b"\n")
            stream = connection.makefile("rb")
            while size := int.from_bytes(_exactly(stream, 8), "big"):
                yield from load(_exactly(stream, size)).items()
    except OSError as error:
        raise StreamError(f"the weights of {host}:{port} stopped to come ({error})") from error


def _exactly(stream, size: int) -> bytes:
    found = stream.read(size)
    if len(found) < size:
        raise StreamError("the weights ended before their end: the trainer went away")
    return found
