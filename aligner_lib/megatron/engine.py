"""A trainable model: Megatron's data-parallel wrapper, distributed optimizer and pipeline schedule.

Trainers pass micro batches and a loss function, and need to know neither the device nor the parallelism. The engine moves each
micro batch to the device when its turn comes. Losses are sums with a count, so a step's result depends neither on the
micro-batch size nor on the split of samples over ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from aligner_lib.models.adapters import AdapterRecord
from aligner_lib.models.architecture import Architecture
from aligner_lib.megatron import adam, checkpoint, cpu, masters, parallel
from aligner_lib.megatron.bare_pass import MicroBatchPass
from aligner_lib.megatron.lora import LoRA, add_adapters, reset_adapters, seed_dropout
from aligner_lib.megatron.model import Numerics, Transformer, build_model
from aligner_lib.megatron.seeded import seeded_generator
from aligner_lib.megatron.spans import note, span
from aligner_lib.datasets.batches import TokenBatch, alike_grouped
from aligner_lib.models.hash import model_hash
from aligner_lib.models.peft_folder import open_adapters
from aligner_lib.models.reward_scale import RewardScale
from aligner_lib.models.tensor_store import StoreReader, StoreWriter

from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func


@dataclass
class LossTerms:
    """One micro batch's part of the loss: sums over its items, and the number of items (tokens or pairs).

    loss_sum: float [], differentiable. count: integer. metrics: float [] each, sums over the same items, for
    logging. All sums are divided by the count of the whole global batch.
    """

    loss_sum: Tensor
    count: Tensor | int
    metrics: dict[str, Tensor] = field(default_factory=dict)


LossFunction = Callable[[Transformer, TokenBatch, Tensor], LossTerms]  # (model, batch, hidden [S, B, H])
TokenFunction = Callable[[Transformer, TokenBatch, Tensor], Tensor]  # same arguments → [B, ...]


def _detached(terms: LossTerms) -> tuple[Tensor, dict[str, Tensor]]:
    """The number of items, and the sums for logging in double precision."""
    sums = {"loss": terms.loss_sum, **terms.metrics}
    count = torch.as_tensor(terms.count, device=terms.loss_sum.device)
    return count, {name: value.detach().double() for name, value in sums.items()}


class NonFiniteError(RuntimeError):
    """A loss or gradient is NaN or infinite. No checkpoint contains the failed step.

    settings: prefix of the model's settings in a job with two models, such as `critic.`.
    """

    def __init__(self, text: str, settings: str = ""):
        super().__init__(text)
        self.settings = settings


class Engine:
    """A model with its optimizer. Without `optim`, the engine only runs inference."""

    def __init__(
        self,
        architecture: Architecture,
        numerics: Numerics,
        optim: dict | None = None,
        clip: float = 1.0,
        lora: LoRA | None = None,
        num_layers_unfrozen: int | None = None,
    ):
        """optim: keys lr, weight_decay, betas, eps (Adam). clip: largest L2 norm of the gradient; 0: no clipping. lora: the
        adapters to train, with a scalar head, instead of all weights. num_layers_unfrozen: the number of last layers to train,
        with the modules after them; None: all weights are trained.

        Raises ValueError when the parallelism does not divide the architecture, or when a pipeline stage would train nothing.
        """
        self.module: Transformer = build_model(architecture, numerics, trains=optim is not None)
        self.lora = lora
        # base and shapes of `lora`'s adapters, once weights are loaded
        self.adapters: AdapterRecord | None = None
        if lora is not None:
            add_adapters(self.module, lora)
        if num_layers_unfrozen is not None:
            self.module.freeze_below(num_layers_unfrozen)
        self.optimizer = None
        self.has_trained_head = False  # whether the initial adapters came with a scalar head
        self.steps = 0  # optimizer steps taken
        self.offloads_adam = False  # whether `offload_optimizer` puts Adam's moments on the CPU
        self.start: Path | None = None  # the model folder to which `go_on_from(None)` returns
        self._wrapped = self.module
        if optim is not None:
            with cpu.as_cuda():
                self._wrapped, self.optimizer = _make_trainable(self.module, numerics, optim, clip)
            self._weight_decay = optim["weight_decay"]

    # -- training -------------------------------------------------------------------------------------------------

    def train_step(
        self, micro_batches: Sequence[TokenBatch], loss: LossFunction, lr: float
    ) -> dict[str, float]:
        """One optimizer step over this rank's micro batches of a global batch. All ranks call it together.

        lr: the learning rate of this step. Returns loss and the loss function's metrics, each a mean over the items of the
        global batch, and grad_norm (L2, before clipping). If no item of the global batch counts, the engine takes no step and
        returns {}. Raises NonFiniteError.
        """
        assert self.optimizer is not None, "this engine was built to compute only"
        self._reload_optimizer()
        with cpu.as_cuda():
            self.module.train()
            self._wrapped.zero_grad_buffer()
            self.optimizer.zero_grad()
            terms = self._run(micro_batches, loss, forward_only=False)
            if not terms:
                return {}  # a step would move the weights by Adam's momentum alone
            if not math.isfinite(terms["loss"]):
                raise NonFiniteError(f"the loss is {terms['loss']}")
            for group in self.optimizer.param_groups:
                group["lr"] = lr * group.get("lr_mult", 1.0)
                group["weight_decay"] = self._weight_decay * group.get("wd_mult", 1.0)
            with span("optimizer_step"):
                _, grad_norm, _ = self.optimizer.step()
        self.steps += 1
        terms["grad_norm"] = float(grad_norm)
        if not math.isfinite(terms["grad_norm"]):
            raise NonFiniteError(f"the gradient norm is {terms['grad_norm']}")
        return terms

    def evaluate(self, micro_batches: Sequence[TokenBatch], loss: LossFunction) -> dict[str, float]:
        """The loss and its metrics without a step: means over the items of all ranks' micro batches."""
        with cpu.as_cuda(), torch.no_grad():
            self.module.eval()
            return self._run(micro_batches, loss, forward_only=True)

    def means_without_pass(
        self, micro_batches: Sequence[TokenBatch], terms: Callable[[TokenBatch], LossTerms]
    ) -> dict[str, float]:
        """The result of `evaluate` for terms that need no pass through the model."""
        return self._means([_detached(terms(batch.to(cpu.DEVICE))) for batch in micro_batches])

    def map(self, micro_batches: Sequence[TokenBatch], function: TokenFunction) -> list[Tensor]:
        """Apply a function to each of this rank's micro batches, without gradients.

        function: (model, batch, hidden [S, B, H]) → tensor [B, ...]. Returns one tensor for each micro batch, on every pipeline
        stage. With `offloads_adam`, Adam's moments are offloaded first.
        """
        self.offload_optimizer()
        with cpu.as_cuda(), torch.no_grad():
            self.module.eval()
            results = self._schedule(
                micro_batches,
                lambda batch, hidden, **_: function(self.module, batch, hidden),
                forward_only=True,
                collect_non_loss_data=True,
            )
        return [parallel.from_last_stage(results[i] if results else None) for i in range(len(micro_batches))]

    def map_rows(
        self, batch: TokenBatch, function: TokenFunction, micro_batch_size: int, extra: int = 0
    ) -> Tensor:
        """Apply a function in micro batches of rows that begin alike (`alike_grouped`); the result has the batch's row order.

        micro_batch_size: rows in a micro batch; extra: columns of the function's result beyond S − 1. Returns
        float32 [B, ..., S − 1 + extra], padded with 0, on the CPU.
        """
        groups = alike_grouped(batch, micro_batch_size)
        results = self.map([batch.rows(group) for group in groups], function)
        out = torch.zeros(batch.size, *results[0].shape[1:-1], batch.tokens.shape[1] - 1 + extra)
        for group, result in zip(groups, results):
            out[torch.tensor(group), ..., : result.shape[-1]] = result.float().cpu()
        return out

    def _run(self, micro_batches, loss: LossFunction, forward_only: bool) -> dict[str, float]:
        def megatron_loss(batch, hidden):
            terms = loss(self.module, batch, hidden)
            count, sums = _detached(terms)
            return terms.loss_sum, count.int(), (count, sums)

        return self._means(self._schedule(micro_batches, megatron_loss, forward_only))

    def _means(self, done: list[tuple[Tensor, dict[str, Tensor]]]) -> dict[str, float]:
        """Means over the items of all ranks' micro batches. done: `_detached` terms, which only the last pipeline stage needs."""
        names = sorted(done[0][1]) if done else []
        sums = (
            torch.stack(
                [sum(count.double() for count, _ in done), *(sum(m[name] for _, m in done) for name in names)]
            )
            if done
            else torch.zeros(0)
        )
        if parallel.pp_size() > 1:
            names = parallel.from_last_stage_object(names if parallel.is_last_stage() else None)
            sums = parallel.from_last_stage(sums if parallel.is_last_stage() else None)
        sums = parallel.sum_over_dp(sums)
        count, *totals = sums.tolist()
        return {name: total / count for name, total in zip(names, totals)} if count else {}

    def _schedule(self, micro_batches, loss, forward_only: bool, collect_non_loss_data: bool = False) -> list:
        def forward_step(batches, model):
            number, batch = next(batches)
            if self.lora is not None and self.lora.dropout and self.module.training:
                seed_dropout(self.lora, self.steps, number)
            hidden = model(batch.tokens, batch.lengths)
            return hidden, lambda output, **kwargs: loss(batch, output, **kwargs)

        with span("forward" if forward_only else "forward_backward"):
            note(MicroBatchPass(self.module, micro_batches, loss, trains=not forward_only))
            return get_forward_backward_func()(
                forward_step_func=forward_step,
                data_iterator=((number, batch.to(cpu.DEVICE)) for number, batch in enumerate(micro_batches)),
                model=self._wrapped,
                num_microbatches=len(micro_batches),
                seq_length=1,  # ignored: the stages exchange shapes, because micro batches differ in length
                micro_batch_size=1,
                forward_only=forward_only,
                collect_non_loss_data=collect_non_loss_data,
            )

    @contextmanager
    def keeping_frozen_outputs(self) -> Iterator[None]:
        """Inside, passes keep the outputs of the frozen layers, and later passes over the same rows skip these layers."""
        frozen = self.module.frozen_outputs
        if frozen is not None:
            frozen.keeps = True
        try:
            yield
        finally:
            if frozen is not None:
                frozen.keeps = False

    def forget_frozen_outputs(self) -> None:
        """Drop the outputs kept by `keeping_frozen_outputs`."""
        if self.module.frozen_outputs is not None:
            self.module.frozen_outputs.forget()

    def offload_optimizer(self) -> None:
        """With `offloads_adam`, move Adam's moments to the CPU until the next optimizer step.

        Offloading frees device memory for inference.
        """
        if self.offloads_adam:
            adam.to_cpu(self.optimizer.optimizer)

    def _reload_optimizer(self) -> None:
        if self.offloads_adam:
            adam.to_device(self.optimizer.optimizer)

    # -- weights --------------------------------------------------------------------------------------------------

    def load(self, folder: Path, with_optimizer: bool = False, new_head: bool = False) -> None:
        """Load weights, and with_optimizer also the optimizer state, from a checkpoint of any parallelism.

        new_head: the checkpoint is a language model's, and the scalar head keeps its values (zero in a new engine). With
        adapters and without optimizer state, the folder is the base of the adapters, and the adapters are reset. Raises
        FileNotFoundError when there is no checkpoint, ValueError for a checkpoint of another architecture, and with optimizer
        state also for a checkpoint with other adapters than the engine's.
        """
        self._reload_optimizer()
        self.forget_frozen_outputs()
        folder = Path(folder)
        if with_optimizer:
            self._check_adapters(folder)
        if self.lora is None:
            checkpoint.load_weights(self.module, folder, new_head)
        elif with_optimizer:
            checkpoint.load_trained(self.module, StoreReader(folder / "weights"))
        else:
            self._begin_from(folder, new_head)
        if self.optimizer is not None and with_optimizer:
            with cpu.as_cuda():
                checkpoint.load_optimizer(self.module, self.optimizer, folder / "optimizer")
            self.steps = json.loads((folder / "optimizer" / "steps.json").read_text())
            _set_adam_steps(self.optimizer.optimizer, self.steps)

    def _begin_from(self, folder: Path, new_head: bool) -> None:
        """Load the base of the adapters, and set the adapters to their initial values."""
        checkpoint.load_weights(self.module, folder, new_head)
        reset_adapters(self.module, self.lora)
        if self.lora.start is not None:
            store = open_adapters(self.lora.start, self.module.architecture)
            checkpoint.load_trained(self.module, store, head_may_stay=True)
            self.has_trained_head = "value_head.weight" in store
        self.adapters = AdapterRecord(folder.absolute(), model_hash(folder), self.lora.layers)

    def _check_adapters(self, folder: Path) -> None:
        """Raises ValueError unless checkpoint and engine have adapters of the same shapes and base, or neither has adapters."""
        saved = AdapterRecord.load(folder)
        if (saved is None) != (self.adapters is None) or (saved and not saved.is_of_same(self.adapters)):
            raise ValueError(
                f"{folder} holds {_described(saved)}, but the settings say {_described(self.adapters)}: set the "
                "original model and model.peft of the run, or begin anew with exp_manager.resume_if_exists=False"
            )

    def go_on_from(self, checkpoint: Path | None) -> None:
        """Load weights and optimizer state; None: return to the state before the first step."""
        if checkpoint is not None:
            self.load(checkpoint, with_optimizer=True)
        else:
            self.load(self.start)
            self.reset_optimizer()

    def draw_head(self, std: float, seed: int) -> None:
        """Draw a new scalar head: weights from N(0, std²), the same on all ranks with a head, and zero bias."""
        head = getattr(self.module, "value_head", None)  # on the last pipeline stage
        if head is not None:
            drawn = torch.randn(head.weight.shape, generator=seeded_generator(seed))
            head.weight.data.copy_(std * drawn)
            head.bias.data.zero_()

    def standardize_values(self, scale: RewardScale) -> None:
        """Rescale a scalar head: its output becomes (value − mean) / std."""
        head = getattr(self.module, "value_head", None)  # on the last pipeline stage
        if head is not None:
            with torch.no_grad():
                head.weight.div_(scale.std)
                head.bias.sub_(scale.mean).div_(scale.std)

    def reset_optimizer(self) -> None:
        """Reset the optimizer to its state before the first step: moments and step count are zero."""
        self._reload_optimizer()
        self.steps = 0
        adam.forget(self.optimizer.optimizer)
        _set_adam_steps(self.optimizer.optimizer, 0)

    def save(self, folder: Path, with_optimizer: bool = True) -> None:
        """Write this rank's share of weights and optimizer state into a checkpoint shared by all ranks."""
        self._reload_optimizer()
        writer = StoreWriter(Path(folder) / "weights", parallel.rank())
        checkpoint.save_weights(self.module, writer, trained_only=self.lora is not None)
        writer.flush()
        if self.optimizer is not None and with_optimizer:
            writer = StoreWriter(Path(folder) / "optimizer", parallel.rank())
            checkpoint.save_optimizer(self.module, self.optimizer, writer)
            writer.flush()
            if parallel.is_first_rank():
                (Path(folder) / "optimizer" / "steps.json").write_text(json.dumps(self.steps))
        if parallel.is_first_rank():
            self.module.architecture.save(folder)
            if self.adapters is not None:
                self.adapters.save(folder)


class FrozenWeights:
    """A second set of weights for a loaded model: the reference policy beside the actor, the reward model beside the critic.

    The second set stays on the CPU and is swapped with the model's own weights while in use. For a model with adapters, the set
    holds only the trained parameters. New adapters change nothing, so the reference is then the model without adapters.
    """

    def __init__(self, module: Transformer):
        """Copies the module's current trainable weights to the CPU."""
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.weights = [parameter.detach().cpu().clone() for parameter in self.parameters]
        self.by_value = cpu.DEVICE.type != "cpu"
        self._are_in = False

    @contextmanager
    def swap_in(self):
        """A context manager: inside, the module computes with the second set. Do not train inside."""
        self.put_in()
        try:
            yield
        finally:
            self.put_back()

    def put_in(self) -> None:
        """Let the module compute with the second set until `put_back`. Do not train, save or load the module meanwhile."""
        if not self._are_in:
            self._exchange()

    def put_back(self) -> None:
        """Let the module compute with its own weights again."""
        if self._are_in:
            self._exchange()

    def _exchange(self) -> None:
        self._are_in = not self._are_in
        for i, parameter in enumerate(self.parameters):
            if self.by_value:  # the optimizer writes to the parameter's memory, which must not move
                resident = parameter.data.to("cpu", copy=True)
                parameter.data.copy_(self.weights[i])
                self.weights[i] = resident
            else:  # swap the two tensors; the next call swaps them back
                parameter.data, self.weights[i] = self.weights[i], parameter.data


def _make_trainable(module: Transformer, numerics: Numerics, optim: dict, clip: float):
    module.config.finalize_model_grads_func = finalize_model_grads
    ddp_config = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=True,
        overlap_grad_reduce=False,
        check_for_nan_in_grad=False,
    )
    wrapped = DistributedDataParallel(module.config, ddp_config, module)
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=optim["lr"],
        weight_decay=optim["weight_decay"],
        adam_beta1=optim["betas"][0],
        adam_beta2=optim["betas"][1],
        adam_eps=optim["eps"],
        clip_grad=clip or math.inf,  # at 0 Megatron does not compute the norm and reports 0
        bf16=numerics.bf16,
        params_dtype=numerics.dtype,
        use_distributed_optimizer=True,
    )
    chained = get_megatron_optimizer(optimizer_config, [wrapped])
    assert len(chained.chained_optimizers) == 1, "a dense model has one distributed optimizer"
    optimizer = chained.chained_optimizers[0]
    adam.fuse(optimizer.optimizer)
    masters.attach(module, optimizer)
    for group in optimizer.optimizer.param_groups:
        # create the moments now: a checkpoint may be saved before the first step
        for parameter in group["params"]:
            optimizer.optimizer.state[parameter].update(
                step=torch.tensor(0.0),
                exp_avg=torch.zeros_like(parameter),
                exp_avg_sq=torch.zeros_like(parameter),
            )
    return wrapped, optimizer


def _described(adapters: AdapterRecord | None) -> str:
    if adapters is None:
        return "a model without adapters"
    layers = ", ".join(
        f"{name} (rank {adapter.rank}, scale {adapter.scale:g})" for name, adapter in adapters.layers.items()
    )
    return f"adapters of {layers} on the model with hash {adapters.base_hash}"


def _set_adam_steps(adam: torch.optim.Optimizer, steps: int) -> None:
    """Set the step count for Adam's bias correction.

    torch stores the count with each parameter, fused variants with each parameter group.
    """
    for group in adam.param_groups:
        group["step"] = steps
        for parameter in group["params"]:
            adam.state[parameter]["step"] = torch.tensor(float(steps))
