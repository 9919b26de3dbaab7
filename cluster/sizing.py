"""How many GPUs a model needs: memory on each GPU, from bytes per parameter and the parallelism.

The result is an estimate for planning. It adds OVERHEAD_GIB for fragmentation and NCCL's buffers.
"""

from dataclasses import astuple, dataclass

GIB = 2**30
OVERHEAD_GIB = 5.0  # CUDA context, NCCL buffers, fragmentation
ROLES = ("sft", "reward model", "actor", "critic")
SCALAR_ROLES = ("reward model", "critic")


@dataclass(frozen=True)
class ModelShape:
    """The shape of a decoder-only transformer."""

    name: str
    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    vocabulary: int
    tied: bool = False
    head_size: int = 0
    """Values of a head; 0: hidden / heads."""
    gated: bool = True
    """The MLP has a third matrix for its gate, as in SwiGLU."""

    @property
    def head(self) -> int:
        """The number of values of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def queries(self) -> int:
        """The number of values of all query heads together, for each token."""
        return self.heads * self.head

    def is_divided_by(self, tp: int) -> bool:
        """Whether TP ranks get equal shares of every matrix. The engine refuses any other number of ranks."""
        return all(size % tp == 0 for size in (self.heads, self.kv_heads, self.feed_forward, self.vocabulary))

    @property
    def parameters(self) -> int:
        """The number of weights of the language model."""
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.layer + self.embedding * (1 if self.tied else 2) + norms

    @property
    def layer(self) -> int:
        """The number of weights in one layer's matrices."""
        attention = 2 * self.hidden * self.queries + 2 * self.hidden * self.kv_heads * self.head
        return attention + (3 if self.gated else 2) * self.hidden * self.feed_forward

    @property
    def embedding(self) -> int:
        """The number of weights in the input embedding. The output layer has as many, unless `tied`."""
        return self.vocabulary * self.hidden


MODELS = {
    model.name: model
    for model in (
        ModelShape("SmolLM2-135M", 30, 576, 1536, 9, 3, 49_152, tied=True),
        ModelShape("SmolLM2-1.7B", 24, 2048, 8192, 32, 32, 49_152, tied=True),
        ModelShape("Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 151_936, tied=True),
        ModelShape("Llama-3.2-1B", 16, 2048, 8192, 32, 8, 128_256, tied=True),
        ModelShape("GPT-2B-001", 24, 2048, 5440, 16, 16, 256_000),
        ModelShape("Llama-2-7B", 32, 4096, 11_008, 32, 32, 32_000),
        ModelShape("Meta-Llama-3-8B", 32, 4096, 14_336, 32, 8, 128_256),
        ModelShape("Llama-2-70B", 80, 8192, 28_672, 64, 8, 32_000),
    )
}


@dataclass(frozen=True)
class Parallelism:
    """Sizes of tensor, pipeline and data parallelism."""

    tp: int
    pp: int
    dp: int

    @property
    def gpus(self) -> int:
        """The number of GPUs, TP × PP × DP."""
        return self.tp * self.pp * self.dp


@dataclass(frozen=True)
class Adapters:
    """LoRA's adapters, which are trained instead of the weights."""

    rank: int
    layers: tuple[str, ...]
    """The layers with adapters, by Megatron's names: linear_qkv, linear_proj, linear_fc1, linear_fc2."""


@dataclass(frozen=True)
class Recomputation:
    """Full recomputation of activations: the backward pass computes the activations of a layer again from the layer's input."""

    layers: int
    """uniform: the layers between two stored inputs. block: the recomputed layers of a pipeline stage; others store all."""
    block: bool = False
    """model.activations_checkpoint_method=block."""


@dataclass(frozen=True)
class Memory:
    """Memory in GiB on the GPU with the largest need."""

    weights: float
    """bf16."""
    gradients: float
    """fp32, of the trained weights alone."""
    optimizer: float
    """fp32 masters of the trained weights and Adam's two moments, sharded over data parallel ranks."""
    activations: float
    kv_cache: float

    @property
    def total(self) -> float:
        """The sum in GiB, overhead included."""
        return sum(astuple(self)) + OVERHEAD_GIB


def fullest_shard(model: ModelShape, parallelism: Parallelism, role: str) -> float:
    """The number of weights on the fullest GPU.

    Matrices are divided by TP; norms and a scalar head are not. The first pipeline stage holds the input embedding. The last
    pipeline stage holds the final norm and the output layer, or in a reward model and a critic the scalar head.
    """
    layers = model.layers / parallelism.pp * (model.layer / parallelism.tp + 2 * model.hidden)
    embedding = model.embedding / parallelism.tp
    head = model.hidden + 1 if role in SCALAR_ROLES else embedding
    if parallelism.pp > 1:
        return layers + max(embedding, model.hidden + head)
    shared = model.tied and role not in SCALAR_ROLES
    return layers + embedding + model.hidden + (0 if shared else head)


def adapter_shard(model: ModelShape, parallelism: Parallelism, adapters: Adapters, role: str) -> float:
    """The number of adapters' weights on the fullest GPU, and of the scalar head's, which is trained beside the adapters.

    An adapter of a matrix [outputs, inputs] has A [rank, inputs] and B [outputs, rank]. TP divides B of linear_qkv and linear_fc1,
    and A of linear_proj and linear_fc2.
    """
    keys, gate = model.kv_heads * model.head, 2 if model.gated else 1
    divided = {
        "linear_qkv": model.queries + 2 * keys,
        "linear_proj": model.queries,
        "linear_fc1": gate * model.feed_forward,
        "linear_fc2": model.feed_forward,
    }
    layer = adapters.rank * sum(divided[name] / parallelism.tp + model.hidden for name in adapters.layers)
    head = model.hidden + 1 if role in SCALAR_ROLES else 0
    return layer * model.layers / parallelism.pp + head


def unfrozen_shard(model: ModelShape, parallelism: Parallelism, last_layers: int, role: str) -> float:
    """The largest number of trained weights on a GPU if only the last layers are trained, and the norm and head after them."""
    layer, of_stage = model.layer / parallelism.tp + 2 * model.hidden, model.layers // parallelism.pp
    head = model.hidden + 1 if role in SCALAR_ROLES else model.embedding / parallelism.tp
    return min(last_layers, of_stage) * layer + model.hidden + head


def activation_bytes(
    model: ModelShape,
    parallelism: Parallelism,
    tokens: int,
    role: str,
    sequence_parallel: bool = True,
    last_layers: int | None = None,
    recomputation: Recomputation | None = None,
) -> float:
    """Bytes of stored activations for one micro batch of `tokens`, with selective recomputation unless `recomputation` is given.

    The estimate is 34 bytes for each token, layer and hidden unit, as in table 2 of Korthikanti et al. 2022 (arXiv:2205.05198).
    With sequence parallelism all 34 bytes are divided by TP, without sequence parallelism only 24 of the 34. The first pipeline
    stage stores PP micro batches of layers/PP layers, and each later stage stores one micro batch less. Frozen layers below
    `last_layers` store nothing, because they have no backward pass; full recomputation gives frozen layers one.

    With full recomputation, a recomputed part stores its input (2 bytes for each token and hidden unit), and one part at a time
    has its activations. The result also includes the logits and their gradient in fp32, which the last stage stores for one
    micro batch.
    """
    tp, pp, of_stage = parallelism.tp, parallelism.pp, model.layers // parallelism.pp
    logits = 0 if role in SCALAR_ROLES else 8 * tokens * model.vocabulary / tp
    whole = 0 if sequence_parallel else 10  # bytes that TP does not divide: norms and dropout
    layer = (whole + (34 - whole) / tp) * tokens * model.hidden
    if recomputation:
        layer_input = 2 * tokens * model.hidden / (tp if sequence_parallel else 1)
        if recomputation.block:
            stored = min(recomputation.layers, of_stage)
            return pp * (stored * layer_input + (of_stage - stored) * layer) + layer + logits
        return pp * of_stage / recomputation.layers * layer_input + recomputation.layers * layer + logits
    trained = model.layers if last_layers is None else min(last_layers, model.layers)
    of_stages = [
        max(min(trained - stage * of_stage, of_stage), 0) for stage in range(pp)
    ]  # the last one first
    return max((stage + 1) * layers for stage, layers in enumerate(of_stages)) * layer + logits


def memory(
    model: ModelShape,
    parallelism: Parallelism,
    role: str,
    sequence: int = 4096,
    micro_batch: int = 1,
    rollout_batch: int = 8,
    sequence_parallel: bool = True,
    adapters: Adapters | None = None,
    last_layers: int | None = None,
    recomputation: Recomputation | None = None,
) -> Memory:
    """GiB that a role needs on each GPU.

    role: 'sft', 'reward model' (a micro batch of pairs), 'actor' (also generates and has a reference policy) or 'critic' (also
    has a reward model); a second set of weights stays on the CPU and is swapped in, so that only one set is on the GPU. sequence:
    tokens; micro_batch: samples; rollout_batch: responses generated at a time. sequence_parallel: model.sequence_parallel, which is on by default when TP > 1 and Transformer Engine is installed. adapters: trained instead of
    all weights. Their activations are not counted. last_layers: model.num_layers_unfrozen, the number of trained layers.
    recomputation: full recomputation of activations.

    Raises ValueError for an unknown role, and for a parallelism that does not divide the model.
    """
    if role not in ROLES:
        raise ValueError(f"role={role!r}: known roles are {', '.join(ROLES)}")
    if model.layers % parallelism.pp or not model.is_divided_by(parallelism.tp):
        raise ValueError(
            f"{model.name}: {model.layers} layers cannot be split over {parallelism.pp} stages, or {model.heads} heads, "
            f"{model.kv_heads} key/value heads, {model.feed_forward} values of the MLP and {model.vocabulary} tokens over "
            f"{parallelism.tp} ranks"
        )
    shard = fullest_shard(model, parallelism, role) / GIB
    of_adapters = adapter_shard(model, parallelism, adapters, role) / GIB if adapters else 0.0
    of_layers = unfrozen_shard(model, parallelism, last_layers, role) / GIB if last_layers else shard
    trained = of_adapters or min(of_layers, shard)
    tokens = sequence * micro_batch * (2 if role == "reward model" else 1)
    kv_heads = model.kv_heads / parallelism.tp
    kv_token = 2 * 2 * (model.layers / parallelism.pp) * kv_heads * model.head  # keys and values, bf16
    return Memory(
        weights=2 * (shard + of_adapters),
        gradients=4 * trained,
        optimizer=12 * trained / parallelism.dp,
        activations=activation_bytes(
            model, parallelism, tokens, role, sequence_parallel, last_layers, recomputation
        )
        / GIB,
        kv_cache=kv_token * sequence * rollout_batch / GIB if role == "actor" else 0.0,
    )


def tensor_parallel_sizes(model: ModelShape, gpus_per_node: int) -> list[int]:
    """The numbers of TP ranks that divide the model, and whose groups lie within a node."""
    return [tp for tp in (1, 2, 4, 8) if gpus_per_node % tp == 0 and model.is_divided_by(tp)]


def smallest_parallelism(
    model: ModelShape, role: str, gpu_gib: float = 80.0, gpus_per_node: int = 8, **options
) -> Parallelism:
    """The parallelism with the fewest GPUs that fits: TP inside a node, then PP, then DP.

    gpu_gib: memory of a GPU in GiB. All sizes are powers of 2, so a split over several nodes of 8 GPUs uses whole nodes. Among
    splits with the same number of GPUs, the function returns the split with the least TP × PP, because it communicates less.
    Raises ValueError when 4096 GPUs are too few.
    """
    for power in range(13):
        for parallelism in layouts(model, 2**power, gpus_per_node):
            if memory(model, parallelism, role, **options).total <= gpu_gib:
                return parallelism
    raise ValueError(
        f"{model.name} as {role} does not fit with any parallelism of up to 4096 GPUs of {gpu_gib} GiB"
    )


def layouts(model: ModelShape, gpus: int, gpus_per_node: int = 8) -> list[Parallelism]:
    """Every split of a number of GPUs, sorted by data parallelism, largest first: TP inside a node, whole layers in PP."""
    tps = tensor_parallel_sizes(model, gpus_per_node)
    pps = [pp for pp in (1, 2, 4, 8, 16) if model.layers % pp == 0]
    splits = [Parallelism(tp, pp, gpus // (tp * pp)) for tp in tps for pp in pps if gpus % (tp * pp) == 0]
    return sorted(splits, key=lambda split: (split.tp * split.pp, split.pp))


@dataclass(frozen=True)
class StepFlops:
    """Floating-point operations of a step, by work."""

    training: float
    """Passes with gradients."""
    scoring: float
    """Passes without gradients over texts, for example by a reference."""
    generation: float


def token_flops(model: ModelShape, role: str, tokens: int) -> int:
    """Floating-point operations of a pass without gradients for each token of a text. A pass with gradients has three times as
    many.

    Each weight of a matrix counts 2 operations: the weights of the layers and, unless the head is scalar, of the output layer.
    Attention's two products count 4 · tokens · queries in each layer, as if each token attended to the whole text. MFU is defined
    by this count. Source: Chowdhery et al. 2022 (arXiv:2204.02311), appendix B.
    """
    output = 0 if role in SCALAR_ROLES else model.embedding
    return 2 * (model.layers * model.layer + output) + 4 * model.layers * model.queries * tokens


def step_flops(
    model: ModelShape,
    role: str,
    texts: int,
    tokens: int,
    trained: int = 1,
    scored: int = 0,
    generated: bool = False,
    adapted: bool = False,
    trained_share: float = 1.0,
    recomputed_share: float = 0.0,
) -> StepFlops:
    """Floating-point operations of a step (`token_flops`).

    role: a name in ROLES; texts: read in a step; tokens: of a text; trained: passes with gradients; scored: passes without
    gradients; generated: whether the texts are generated first, which costs another pass. adapted: adapters are trained, so a
    pass with gradients computes no gradients of the weights and has twice the operations, not three times. trained_share: of the
    layers, if the first layers are frozen, which have no backward pass. recomputed_share: of the layers, which the backward pass
    computes again.
    """
    one_pass = texts * tokens * token_flops(model, role, tokens)
    with_gradients = 1 + (1 if adapted else 2) * trained_share + recomputed_share
    return StepFlops(with_gradients * trained * one_pass, scored * one_pass, generated * one_pass)


def table(models: list[str] | None = None, gpu_gib: float = 80.0, **options) -> list[dict]:
    """A row for each model and role: the smallest parallelism that fits, and GiB on its fullest GPU."""
    rows = []
    for name in models or list(MODELS):
        for role in ROLES:
            parallelism = smallest_parallelism(MODELS[name], role, gpu_gib, **options)
            need = memory(MODELS[name], parallelism, role, **options)
            row = {
                "model": name,
                "role": role,
                "parameters": MODELS[name].parameters,
                "gpus": parallelism.gpus,
            }
            rows.append(
                row
                | {
                    "tp": parallelism.tp,
                    "pp": parallelism.pp,
                    "dp": parallelism.dp,
                    "gib": round(need.total, 1),
                }
            )
    return rows


def as_markdown(rows: list[dict]) -> str:
    """The rows of `table` as a Markdown table."""
    lines = ["| model | role | GPUs | TP × PP × DP | GiB on the fullest |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        parallelism = f"{row['tp']} × {row['pp']} × {row['dp']}"
        lines.append(f"| {row['model']} | {row['role']} | {row['gpus']} | {parallelism} | {row['gib']} |")
    return "\n".join(lines)
