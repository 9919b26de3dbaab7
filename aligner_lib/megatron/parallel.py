"""Processes and the parallel groups between them: tensor, pipeline and data parallel."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from aligner_lib.megatron import cpu
from cluster.launch import STORE_VARIABLE

cpu.prepare()

from megatron.core import parallel_state


def initialize(
    tensor_model_parallel_size: int = 1, pipeline_model_parallel_size: int = 1, timeout_minutes: float = 60.0
) -> None:
    """Join the job's processes and form the tensor-, pipeline- and data-parallel groups.

    timeout_minutes: how long a rank waits for other ranks in a collective operation of any group before the rank gives up.
    RANK, WORLD_SIZE and MASTER_* come from the environment, as torchrun sets them; without them, the process runs alone. Ranks of
    a single node find each other through the file in STORE_VARIABLE, if our launchers have set it. Raises ValueError when the
    sizes do not divide the number of processes.
    """
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    model_parallel = tensor_model_parallel_size * pipeline_model_parallel_size
    if world_size % model_parallel:
        raise ValueError(
            f"{world_size} processes can't be split into tensor_model_parallel_size={tensor_model_parallel_size} × "
            f"pipeline_model_parallel_size={pipeline_model_parallel_size}: set trainer.devices × trainer.num_nodes to a "
            f"multiple of {model_parallel}"
        )
    if not dist.is_initialized():
        if cpu.HAS_CUDA:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
        backend = "cpu:gloo,cuda:nccl" if cpu.HAS_CUDA else "gloo"  # metrics are summed on the CPU
        if world_size == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # opens no port
        else:
            _join(backend, world_size, timedelta(minutes=timeout_minutes))
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size,
            pipeline_model_parallel_size,
            distributed_timeout_minutes=timeout_minutes,
        )
        if cpu.HAS_CUDA:
            from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

            # dropout is off, but Megatron requires its random-state trackers
            model_parallel_cuda_manual_seed(1234)


def _join(backend: str, world_size: int, timeout: timedelta) -> None:
    """Join the job's other processes."""
    path = os.environ.get(STORE_VARIABLE)
    if not path:
        dist.init_process_group(backend, timeout=timeout)
        return
    # else gloo would listen at the address of the host's name, which other machines may reach
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = dist.FileStore(path, world_size)
    store.set_timeout(timeout)
    # No rank removes the file: until another rank has ended, its NCCL reads the store, and waits for a missing file.
    rank = int(os.environ["RANK"])
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)


def shutdown() -> None:
    """Destroy the groups, so that tests can form other groups, or the process can exit cleanly."""
    parallel_state.destroy_model_parallel()
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """This process's global rank; 0 outside of torch.distributed."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first_rank() -> bool:
    """Whether this process has global rank 0."""
    return rank() == 0


def dp_rank() -> int:
    """This process's rank in its data-parallel group."""
    return parallel_state.get_data_parallel_rank()


def dp_size() -> int:
    """The number of data-parallel replicas."""
    return parallel_state.get_data_parallel_world_size()


def tp_rank() -> int:
    """This process's rank in its tensor-parallel group."""
    return parallel_state.get_tensor_model_parallel_rank()


def tp_size() -> int:
    """The number of tensor-parallel ranks."""
    return parallel_state.get_tensor_model_parallel_world_size()


def tp_group() -> dist.ProcessGroup:
    """This process's tensor-parallel group."""
    return parallel_state.get_tensor_model_parallel_group()


def pp_size() -> int:
    """The number of pipeline stages."""
    return parallel_state.get_pipeline_model_parallel_world_size()


def is_last_stage() -> bool:
    """Whether this process holds the last pipeline stage, which has the head."""
    return parallel_state.is_pipeline_last_stage()


def is_first_stage() -> bool:
    """Whether this process holds the first pipeline stage, which has the embedding."""
    return parallel_state.is_pipeline_first_stage()


def sum_over_dp(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over data-parallel ranks, on every rank. Changes the tensor (any shape) in place."""
    if dp_size() > 1:
        dist.all_reduce(tensor, group=parallel_state.get_data_parallel_group())
    return tensor


def gather_over_dp(value: object) -> list:
    """Each data-parallel rank's picklable value, in rank order, on every rank."""
    if dp_size() <= 1:  # 0 in a process without ranks
        return [value]
    values = [None] * dp_size()
    dist.all_gather_object(values, value, group=parallel_state.get_data_parallel_group())
    return values


def gather_over_all(value: object) -> list:
    """Each rank's picklable value, in rank order, on every rank."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def from_last_stage(tensor: torch.Tensor | None) -> torch.Tensor:
    """Broadcast a tensor from the last pipeline stage to every stage.

    The other stages pass None and need not know shape or dtype.
    """
    if pp_size() == 1:
        assert tensor is not None
        return tensor
    group = parallel_state.get_pipeline_model_parallel_group()
    source = parallel_state.get_pipeline_model_parallel_last_rank()
    header = [(tensor.shape, tensor.dtype) if tensor is not None else None]
    dist.broadcast_object_list(header, src=source, group=group)
    shape, dtype = header[0]
    if tensor is None:
        tensor = torch.empty(shape, dtype=dtype, device=cpu.DEVICE)
    dist.broadcast(tensor.contiguous(), src=source, group=group)
    return tensor


def from_last_stage_object(value: object) -> object:
    """As `from_last_stage`, for a small picklable object."""
    box = [value]
    source = parallel_state.get_pipeline_model_parallel_last_rank()
    dist.broadcast_object_list(box, src=source, group=parallel_state.get_pipeline_model_parallel_group())
    return box[0]


def from_head(tensor: torch.Tensor) -> torch.Tensor:
    """Broadcast a tensor from the last stage's first tensor-parallel rank to all ranks of this replica.

    All ranks pass a tensor of the same shape and dtype. The tensors of the other ranks are overwritten.
    """
    if tp_size() * pp_size() > 1:
        group = parallel_state.get_model_parallel_group()
        source = dist.get_process_group_ranks(group)[-tp_size()]  # ranks are ordered by stage
        dist.broadcast(tensor, src=source, group=group)
    return tensor


def leads_replica() -> bool:
    """Whether this process is the first rank of its data-parallel replica. The first rank acts for the replica."""
    return dist.get_rank() == parallel_state.get_model_parallel_src_rank()


def from_replica_leader(value: object) -> object:
    """Broadcast a picklable value from the first rank of this replica to all of its ranks."""
    if tp_size() * pp_size() == 1:
        return value
    box = [value]
    source = parallel_state.get_model_parallel_src_rank()
    dist.broadcast_object_list(box, src=source, group=parallel_state.get_model_parallel_group())
    return box[0]


def from_first_rank(value: object) -> object:
    """Broadcast rank 0's picklable value to every rank (control requests, decisions to stop)."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def is_of_a_lost_rank(error: BaseException) -> bool:
    """Whether a collective operation failed because another rank is gone."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


def barrier() -> None:
    """Wait until every rank has reached the barrier. Does nothing in a single process."""
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
