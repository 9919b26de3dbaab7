"""A device in Python alone, on which aligner_lib computes as it would on a GPU: faults of placement show on any machine.

A tensor of the device holds one of the CPU. An operation whose tensors lie on both devices raises, as CUDA does, and
every copy between them is counted. It shows neither speed nor asynchrony nor what CUDA's kernels refuse. torch's
interfaces for this are private and may change: all of them are used here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend


class _Backend(_DummyBackendModule):
    """What torch asks of the module torch.simulated."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]  # torch.utils.checkpoint asks, also for tensors of the CPU


# At import: torch counts the devices when it first computes a gradient, and never again.
_setup_privateuseone_for_python_backend("simulated", backend_module=_Backend())
DEVICE = torch.device("simulated:0")

aten = torch.ops.aten
TO_DEVICE, TO_CPU = "to the device", "to the CPU"


@dataclass(frozen=True)
class Copy:
    """One copy between the devices."""

    stage: str  # what was done, see `Copies.within`
    cause: str  # what of it the copy belongs to
    direction: str
    bytes: int


@dataclass
class Copies:
    """All copies between the devices since the device was made."""

    seen: list[Copy] = field(default_factory=list)
    _stage: str = ""
    _cause: str = ""

    @contextmanager
    def within(self, stage: str | None = None, cause: str | None = None) -> Iterator[None]:
        """A context manager: copies inside belong to this stage, or to this cause of one."""
        before = self._stage, self._cause
        self._stage, self._cause = stage or self._stage, cause or self._cause
        try:
            yield
        finally:
            self._stage, self._cause = before

    def add(self, direction: str, tensor: torch.Tensor) -> None:
        size = tensor.numel() * tensor.element_size()
        self.seen.append(Copy(self._stage, self._cause, direction, size))


_copies: Copies | None = None  # of the device that is in use


@contextmanager
def simulated_accelerator() -> Iterator[Copies]:
    """A context manager: inside, aligner_lib computes on the device, in this thread. Build the models inside."""
    global _copies
    from aligner_lib.megatron import cpu

    assert not cpu.HAS_CUDA, "it takes the place of CUDA where there is none"
    before, _copies = (cpu.DEVICE, _copies), Copies()
    cpu.DEVICE = DEVICE
    try:
        with _FromNumbers(), _Factories():
            yield _copies
    finally:
        cpu.DEVICE, _copies = before


class DeviceTensor(torch.Tensor):
    """A tensor on the device. held: its values, on the CPU; a view's are a view of what the viewed tensor holds."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )

    def __init__(self, held: torch.Tensor):
        self.held = held

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _execute(operator, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return torch.Tensor.data.__get__(self)

    @data.setter
    def data(self, other: DeviceTensor) -> None:
        torch.Tensor.data.__set__(self, other)
        self.held = other.held

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.held.untyped_storage()

    def tolist(self) -> list:
        return self.cpu().tolist()

    def __repr__(self) -> str:
        return f"DeviceTensor({self.held})"


class _Factories(TorchDispatchMode):
    """Sees the operations that have no tensor to belong to, such as torch.zeros(…, device=…)."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return _execute(operator, args, kwargs or {})


class _FromNumbers(TorchFunctionMode):
    """torch.tensor(numbers) makes a tensor of the CPU where no dispatch mode sees it, and moves that to the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function not in (torch.tensor, torch.as_tensor) or isinstance(args[0], torch.Tensor):
            return function(*args, **kwargs)
        numbers = tree_map(lambda x: x.item() if isinstance(x, DeviceTensor) else x, args[0])
        tensor = function(numbers, **kwargs | {"device": "cpu"})
        return tensor.to(kwargs.get("device"))


def _execute(operator, args: tuple, kwargs: dict):
    """Compute with the held tensors, and put the result where CUDA would put it."""
    if torch.is_inference_mode_enabled():  # without autograd, which takes composed operators apart
        with _Factories():
            result = operator.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    leaves, structure = tree_flatten((args, kwargs))
    on_device = [leaf for leaf in leaves if isinstance(leaf, DeviceTensor)]
    target_device = kwargs.get("device")
    is_copy = operator in (aten._to_copy.default, aten.copy_.default)
    if on_device and not is_copy:
        _check_devices(operator, leaves)
    to_device = target_device == DEVICE if target_device is not None else bool(on_device)
    if not to_device and not on_device:
        return operator(*args, **kwargs)

    wrappers = {id(leaf.held): leaf for leaf in on_device}
    held = [leaf.held if isinstance(leaf, DeviceTensor) else leaf for leaf in leaves]
    plain_args, plain_kwargs = tree_unflatten(held, structure)
    if to_device and target_device is not None:
        plain_kwargs = plain_kwargs | {"device": torch.device("cpu")}
    result = operator(*plain_args, **plain_kwargs)
    _count(operator, args, to_device, result)
    for leaf in on_device:
        assert leaf.held.size() == leaf.size(), f"{operator} changed a shape in place"

    def wrap(value):
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in wrappers:  # an in-place operator returns its own argument
            return wrappers[id(value)]
        if not to_device:
            return value
        with torch.inference_mode(value.is_inference()):  # there, too, a weight's view is an ordinary tensor
            return DeviceTensor(value)

    if operator is aten.copy_.default:
        return args[0]
    return tree_map(wrap, result)


def _check_devices(operator, leaves: list) -> None:
    """CUDA takes a number of the CPU, a tensor without dimensions, and no other tensor."""
    left = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, DeviceTensor)]
    if wrong := [tuple(leaf.shape) for leaf in left if leaf.dim()]:
        raise RuntimeError(f"{operator} on {DEVICE} got a tensor of {wrong[0]} that lies on the CPU")


def _count(operator, args: tuple, to_device: bool, result) -> None:
    if operator is aten._local_scalar_dense.default:  # .item() and its like
        _copies.add(TO_CPU, args[0])
    elif operator is aten._to_copy.default and isinstance(args[0], DeviceTensor) != to_device:
        _copies.add(TO_DEVICE if to_device else TO_CPU, result)
    elif operator is aten.copy_.default:
        target, source = (isinstance(tensor, DeviceTensor) for tensor in args[:2])
        if target != source:
            _copies.add(TO_DEVICE if target else TO_CPU, args[1])
