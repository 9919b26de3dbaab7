"""The compute device, and Megatron Core without CUDA: replacements for the few GPU features that Megatron Core requires.

`prepare()` runs before the first import of `megatron.core`. `as_cuda()` surrounds Megatron code with a hard-coded
`device="cuda"`. With CUDA, neither function changes a computation.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings

import torch
from torch.overrides import TorchFunctionMode

from aligner_lib.megatron.inert_modules import inert_modules
from aligner_lib.megatron.kernels import embedding, swiglu

HAS_CUDA = torch.cuda.is_available()
# The device of weights and computations. Always read as `cpu.DEVICE`: without CUDA a test may set any torch device.
DEVICE = torch.device("cuda") if HAS_CUDA else torch.device("cpu")

FEW_ROWS = 64
UNUSED = (
    "torch.distributed.tensor",
    "torch.distributed._tensor",
    "torch.distributed.fsdp",
    "triton",
)
"""Packages of FSDP, for which Megatron's optimizer compares the class of every tensor, and the compiler of kernels for a GPU. The imports
would take a fifth of a job's start. PyTorch's CPU build has no Triton, which Megatron 0.19 imports without a condition."""

SINGLE_THREAD_WIDTH = 256
"""The hidden size up to which a model answers a notebook with one thread. A product of few rows takes microseconds, and with several
threads it waits for the last thread: for milliseconds if another process uses the thread's core."""

_prepared = False
_widest = 0  # the largest hidden size of the models that `fit_threads` has seen
_threads_before = 0  # torch's number of threads before the first narrow model


def fit_threads(hidden_size: int) -> None:
    """Compute with one thread while all models so far are narrow. The first wide model restores the earlier number of threads."""
    global _widest, _threads_before
    was_narrow = 0 < _widest <= SINGLE_THREAD_WIDTH
    if _widest == 0:
        _threads_before = torch.get_num_threads()
    _widest = max(_widest, hidden_size)
    if _widest <= SINGLE_THREAD_WIDTH:
        torch.set_num_threads(1)
    elif was_narrow:
        torch.set_num_threads(_threads_before)


def peak_memory() -> float | None:
    """The peak GPU memory of tensors since the last call, in GiB; None without CUDA."""
    if not HAS_CUDA:
        return None
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak


def prepare() -> None:
    """Make `import megatron.core` possible without CUDA, and fast. Further calls do nothing."""
    global _prepared
    if _prepared:
        return
    _prepared = True
    warnings.filterwarnings("ignore", module=r"megatron\.core.*")
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # warns about missing CUDA
    # from 0.19 on, Megatron asks callers of GPTModel to migrate, and for a layout that it then computes itself
    for module in ("models.gpt.gpt_model", "distributed.distributed_data_parallel"):
        logging.getLogger(f"megatron.core.{module}").setLevel(logging.ERROR)
    # torch's extension builder loads setuptools, which cannot be imported after distutils
    for name in [name for name in sys.modules if name.split(".")[0] == "distutils"]:
        del sys.modules[name]
    if HAS_CUDA:
        return
    torch.cuda.current_device = lambda: DEVICE
    torch.cuda.current_stream = lambda *_: _Inert()
    torch.cuda.default_stream = lambda *_: _Inert()
    torch.cuda.Stream = torch.cuda.Event = _Inert
    torch.cuda.stream = lambda *_: contextlib.nullcontext()
    for name in ("synchronize", "set_device", "empty_cache"):
        setattr(torch.cuda, name, lambda *_, **__: None)
    torch.Tensor.cuda = lambda self, *_, **__: self.to(DEVICE)
    # Megatron compiles small functions at import. Compiling loads torch._dynamo and _inductor: half of the import's time.
    compile_later = torch.compile
    torch.compile = _identity_decorator
    # Megatron imports these, if installed, only to name their classes
    hidden = [name for name in ("wandb", "torch.utils.tensorboard") if name not in sys.modules]
    sys.modules |= dict.fromkeys(hidden)
    try:
        with inert_modules(UNUSED):
            import megatron.core.tensor_parallel.layers as layers
            import megatron.core.tensor_parallel.random as rng
            from megatron.core.distributed import param_and_grad_buffer as gradients
            from megatron.core.models.gpt import (  # noqa: F401  (imported here, while torch.compile is inert)
                gpt_layer_specs,
                gpt_model,
            )
            from megatron.core.transformer import mlp
    finally:
        torch.compile = compile_later
        for name in hidden:
            del sys.modules[name]
    _keep_adam_from_dynamo()
    for linear in (layers.ColumnParallelLinear, layers.RowParallelLinear):
        linear._forward_impl = _quick_with_few_rows(linear._forward_impl)
    layers.fused_weight_gradient_mlp_cuda = _WeightGradients
    layers._grad_accum_fusion_available = True
    layers.F = _Embeddings
    mlp.bias_swiglu_impl = _bias_swiglu
    for name in ("dist_reduce_scatter_func", "dist_all_gather_func"):
        setattr(gradients, name, _unless_alone(getattr(gradients, name)))
    # recomputation saves and restores the random states
    rng._get_cuda_rng_state = rng._set_cuda_rng_state = lambda *_, **__: None
    rng._CUDA_RNG_STATE_TRACKER = _OneRandomState()
    rng._CUDA_RNG_STATE_TRACKER_INITIALIZED = True


def _keep_adam_from_dynamo() -> None:
    """torch's optimizers import torch._dynamo at their first call, only to exclude their methods from compilation. A job on a CPU
    compiles nothing, and the import would take a tenth of the CPU time of a job's start."""
    for name in ("add_param_group", "zero_grad", "state_dict", "load_state_dict"):
        method = getattr(torch.optim.Optimizer, name)
        original = getattr(method, "__wrapped__", method)
        original.__dynamo_disable = (
            original  # torch calls this attribute, and imports torch._dynamo if there is none
        )
    if step := getattr(torch.optim.Adam.step, "__wrapped__", None):
        torch.optim.Adam.step = torch.no_grad()(step)


def as_cuda():
    """A context manager: inside, `device="cuda"` means `DEVICE`, and `pin_memory=True` has no effect.

    Tensor types are also reported under the CUDA names that Megatron's distributed optimizer expects. With CUDA, the context
    manager does nothing.
    """
    return contextlib.nullcontext() if HAS_CUDA else _CudaMeansDevice()


class _CudaMeansDevice(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            kwargs = kwargs | {"device": DEVICE}
        if kwargs.get("pin_memory"):
            kwargs = kwargs | {"pin_memory": False}
        result = function(*args, **kwargs)
        if function is torch.Tensor.type and isinstance(result, str):
            # the distributed optimizer sorts parameters by the names of CUDA tensor types
            return f"torch.cuda.{result.rpartition('.')[2]}"
        return result


class _Inert:
    """Stands in for a CUDA stream or event: every method does nothing."""

    def __init__(self, *_, **__):
        pass

    def __getattr__(self, name):
        return lambda *_, **__: None


class _OneRandomState:
    """Replaces Megatron's tracker of CUDA random states. A CPU has a single random state, which no code here uses."""

    states_: dict = {}  # noqa: RUF012  (Megatron reads the attribute)

    def fork(self, *_, **__):
        return contextlib.nullcontext()

    def is_initialized(self):
        return True

    def get_states(self):
        return {}

    def set_states(self, _):
        pass

    def add(self, *_):
        pass

    def reset(self):
        pass


class _WeightGradients:
    """Replaces Megatron's CUDA extension `fused_weight_gradient_mlp_cuda`: adds a weight gradient to main_grad, in float32."""

    @staticmethod
    def wgrad_gemm_accum_fp32(input, grad_output, main_grad):
        if input.dtype == main_grad.dtype:
            main_grad.addmm_(grad_output.t(), input)
        else:  # bf16: a bf16 product is several times as fast as a product of factors cast to float32
            main_grad.add_(grad_output.t() @ input)


class _Embeddings:
    """The part of torch.nn.functional that Megatron's layers use."""

    embedding = staticmethod(embedding)


def _bias_swiglu(x, bias, *_):
    assert bias is None, "no model here has biases"
    return swiglu(x)


def _unless_alone(collective):
    """Skip a collective over a single rank.

    gloo's thread would copy the tensor with OpenMP threads of its own. If there are more OpenMP threads than processors, idle
    threads sleep instead of spinning for the rest of the process, and each small operation waits until they wake up. Without
    the skip, training was a third slower.
    """

    def collect(output, input, *args, group, **kwargs):
        if group.size() > 1:
            return collective(output, input, *args, group=group, **kwargs)
        assert output.data_ptr() == input.data_ptr(), "one rank's part is the whole, in place"

    return collect


def _quick_with_few_rows(forward):
    """Compute x Wᵀ as (W xᵀ)ᵀ for the few rows of a generation step: 1.4 times as fast on 2 AVX2 cores. In bf16 the usual order is
    faster."""

    def few_rows_forward(self, input, weight, *args, **kwargs):
        rows = input.numel() // input.shape[-1]
        if torch.is_grad_enabled() or rows > FEW_ROWS or kwargs.get("sequence_parallel"):
            return forward(self, input, weight, *args, **kwargs)
        x = input.reshape(rows, input.shape[-1])  # also of no rows at all
        in_order = weight.dtype == torch.bfloat16
        output = torch.mm(x, weight.t()) if in_order else torch.mm(weight, x.t()).t().contiguous()
        if (bias := kwargs.get("bias")) is not None:
            output += bias
        return output.view(*input.shape[:-1], weight.shape[0])

    return few_rows_forward


def _identity_decorator(function=None, *_, **__):
    return function if callable(function) else (lambda decorated: decorated)
