"""Convert adapters to and from the format of Hugging Face's `peft`: adapter_config.json and adapter_model.safetensors.

    R rank, I inputs, O outputs

Hugging Face's models have separate matrices for queries, keys and values, and for gate and up. Megatron fuses these matrices.
An export turns an adapter of a fused matrix into an adapter for each part, with the same A and the part's rows of B. An import
turns parts with different A into a single adapter, whose rank is the sum of the parts' ranks: the A matrices are stacked, and
the B matrices become blocks. The fused adapter computes the same function, except for the order of sums.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aligner_lib.datasets.json_file import read_object
from aligner_lib.models.adapters import A, Adapter, AdapterRecord, B
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.names import Weight, hf_shapes, to_hf, to_megatron, weights
from aligner_lib.models.tensor_store import Block, StoreReader, check_file
from cluster.record import write_json

if TYPE_CHECKING:
    import torch

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # PEFT's prefix of the model's names
# settings that would change the function, and their neutral values
UNREAD = {
    "use_dora": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "lora_bias": False,
    "layer_replication": None,
    "use_qalora": False,
    **dict.fromkeys(
        ("alora_invocation_tokens", "kasa_config", "monteclora_config", "use_bdlora", "arrow_config")
    ),
}
# Values of init_lora_weights that leave the weights of the base unchanged. The other values (pissa, olora, corda, loftq,
# lora_ga …) move a part of the base into the adapters, which are then useless without the changed base.
KEEPS_BASE = (True, False, None, "gaussian", "eva", "orthogonal", "mica")


# ---- out ------------------------------------------------------------------------------------------------------------


def export_peft(folder: Path, out: Path, base: str | None = None) -> Path:
    """Write a checkpoint's adapters into a new folder, for `peft.PeftModel.from_pretrained(model, out)`. Returns the folder.

    base: the base's name or path for transformers, used by `AutoPeftModelForCausalLM`; None: `name_of_base`, or else the base's
    path. Raises ValueError for a model folder without adapters, for a reward model, and when `out` exists.
    """
    from safetensors.torch import save_file

    folder, out = Path(folder), Path(out)
    record, arch = AdapterRecord.load(folder), Architecture.load(folder)
    if record is None:
        raise ValueError(
            f"{folder} has no adapters: the folder holds all weights itself. Export the model with --to hf"
        )
    if arch.head != "lm":
        raise ValueError(
            f"{folder} is a reward model or a critic, whose head PEFT's format can't hold: merge the adapters (`aligner model "
            "merge`), and export the result with --to hf"
        )
    if out.exists():
        raise ValueError(f"{out} exists already: remove {out}, or choose another folder")
    tensors, adapters, store = {}, {}, StoreReader(folder / "weights")
    for weight in weights(arch):
        layer = weight.megatron.removesuffix(".weight")
        if f"{layer}.{A}" not in store:
            continue
        a, b = (store.read_whole(f"{layer}.{kind}") for kind in (A, B))
        narrow = replace(weight, shape=tuple(b.shape))
        for name, part in zip(weight.hf, to_hf(narrow, b, arch)):
            module = name.removesuffix(".weight")
            tensors[f"{PREFIX}{module}.lora_A.weight"] = a.clone()
            tensors[f"{PREFIX}{module}.lora_B.weight"] = part.contiguous()
            adapters[module.rpartition(".")[2]] = record.layers[layer.rpartition(".")[2]]
    out.mkdir(parents=True)
    save_file(tensors, out / TENSORS, metadata={"format": "pt"})
    name, revision = _hub_origin(record.base)
    pinned = {"revision": revision} if revision and base in (None, name) else {}
    write_json(out / CONFIG, _config(adapters, base or name or str(record.base)) | pinned)
    return out


def lora_config(adapters: Mapping[str, Adapter]) -> dict[str, Any]:
    """The modules with adapters, their ranks and their scales, for LoraConfig of `peft`. adapters: by the name of a module, such
    as q_proj."""
    usual, _ = Counter(adapters.values()).most_common(1)[0]
    others = {name: adapter for name, adapter in adapters.items() if adapter != usual}
    return {
        "r": usual.rank,
        "lora_alpha": _alpha(usual),
        "rank_pattern": {name: adapter.rank for name, adapter in others.items()},
        "alpha_pattern": {name: _alpha(adapter) for name, adapter in others.items()},
        "target_modules": sorted(adapters),
    }


def _config(adapters: Mapping[str, Adapter], base: str) -> dict:
    """adapter_config.json. adapters: by the name of a module; base: the name of the base."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": True,
        **lora_config(adapters),
        "lora_dropout": 0.0,
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "modules_to_save": None,
    }


def _alpha(adapter: Adapter) -> int | float:
    alpha = adapter.scale * adapter.rank
    return round(alpha) if abs(alpha - round(alpha)) < 1e-9 * alpha else alpha


def name_of_base(base: Path) -> str | None:
    """The hub's name of a model folder downloaded from the hub; None for any other folder."""
    return _hub_origin(base)[0]


def _hub_origin(base: Path) -> tuple[str | None, str | None]:
    """The hub's name and revision of a model folder downloaded from the hub; None for what is not known."""
    try:
        source = read_object(base / "source.json")
    except OSError:
        return None, None
    origin = "" if "merged_from" in source else source.get("origin", "")  # else the ancestor's
    name, revision = [*origin.split()[1:], None, None][:2] if origin.startswith("hub ") else (None, None)
    return name, revision


def refused_as_model(folder: Path) -> str | None:
    """The error's text for a folder of PEFT where a model belongs; None for any other folder."""
    if not (folder / CONFIG).is_file() or (folder / "config.json").exists():
        return None
    return (
        f"{folder} holds adapters of peft and no model: start from their base with model.peft.peft_scheme=lora "
        f"model.peft.restore_from_path={folder}, or merge the adapters in peft (merge_and_unload), save model and tokenizer, and "
        "import their folder"
    )


# ---- in -------------------------------------------------------------------------------------------------------------


def adapter_layers(folder: Path, arch: Architecture) -> dict[str, Adapter]:
    """Rank and scale of the adapters in a run's checkpoint or in a PEFT folder, by Megatron's layer names.

    Raises ValueError for a folder without adapters, for adapters of another model, and for unsupported features of PEFT.
    """
    record = AdapterRecord.load(folder)
    return dict(record.layers) if record is not None else _PeftFolder(folder, arch).layers


def check_peft_base(folder: Path, base: Path) -> None:
    """Raises ValueError for PEFT's adapters of another hub model than `base`.

    Only names are compared. The check passes if `base` was not downloaded from the hub, or if the adapters name a folder as
    their base. In these cases only shapes are checked (`adapter_layers`).
    """
    theirs, ours = (
        read_object(folder / CONFIG, "correct the file").get("base_model_name_or_path"),
        name_of_base(base),
    )
    is_hub_name = bool(theirs) and re.fullmatch(r"[\w.-]+/[\w.-]+", theirs) and not Path(theirs).exists()
    if is_hub_name and ours and theirs.lower() != ours.lower():
        raise ValueError(
            f"{folder} holds adapters of {theirs} (base_model_name_or_path in {CONFIG}), but the model is {ours}: start from "
            f"{theirs}. If both are the same model under two names, write {ours} there"
        )


def open_adapters(folder: Path, arch: Architecture) -> StoreReader:
    """The adapters' tensors, under Megatron's names. Raises as `adapter_layers`."""
    if AdapterRecord.load(folder) is not None:
        return StoreReader(Path(folder) / "weights")
    return _PeftFolder(folder, arch)


@dataclass
class _PeftAdapter:
    """An adapter in PEFT's format."""

    a: torch.Tensor
    """[R, I]."""
    b: torch.Tensor
    """[O, R]."""
    scale: float


class _PeftFolder(StoreReader):
    """PEFT's adapters as a store. All adapters are converted when the folder is opened, because they are small."""

    def __init__(self, folder: Path, arch: Architecture):
        self.folder, self._tensors = Path(folder), {}
        self.layers: dict[str, Adapter] = {}
        parts, by_layer = _read_parts(self.folder), defaultdict(dict)
        for weight in weights(replace(arch, head="lm")):
            of_weight = [parts.pop(name.removesuffix(".weight"), None) for name in weight.hf]
            if any(of_weight):
                self._check_shapes(weight, of_weight, arch)
                path = weight.megatron.removesuffix("weight")
                a, b, scale = _fused(weight, of_weight, arch)
                self._tensors |= {path + A: a, path + B: b}
                by_layer[path.split(".")[-2]][path] = Adapter(a.shape[0], scale)
        if parts or not by_layer:
            raise ValueError(
                f"{self.folder} adapts {next(iter(parts), 'nothing')}, but only the linear layers of attention and MLP can have "
                "adapters here"
            )
        for layer, adapters in by_layer.items():
            if len(adapters) < arch.num_layers or len(set(adapters.values())) > 1:
                raise ValueError(
                    f"{self.folder} adapts {layer} in {len(adapters)} of {arch.num_layers} layers, with "
                    f"{len(set(adapters.values()))} pairs of rank and scale: here all layers must have the same"
                )
            self.layers[layer] = next(iter(adapters.values()))

    def names(self) -> list[str]:
        """See StoreReader."""
        return sorted(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """See StoreReader."""
        return tuple(self._tensors[name].shape)

    def read(self, block: Block, dtype: torch.dtype | None = None) -> torch.Tensor:
        """See StoreReader."""
        part = tuple(slice(start, start + length) for start, length in zip(block.offset, block.shape))
        return self._tensors[block.name][part].to(dtype or self._tensors[block.name].dtype)

    def _check_shapes(self, weight: Weight, parts: Sequence[_PeftAdapter | None], arch: Architecture) -> None:
        for name, part, shape in zip(weight.hf, parts, hf_shapes(weight, arch)):
            if part is not None and (adapted := (part.b.shape[0], part.a.shape[1])) != tuple(shape):
                raise ValueError(
                    f"{self.folder} belongs to another model: its adapter of {name} is for a matrix of shape {list(adapted)}, "
                    f"but the model's is {list(shape)}"
                )


def _read_parts(folder: Path) -> dict[str, _PeftAdapter]:
    """PEFT's adapters by the module's name, such as model.layers.0.self_attn.q_proj."""
    from safetensors.torch import load_file

    if not (folder / CONFIG).is_file():
        raise ValueError(
            f"{folder} holds no adapters: the folder has neither adapter.json (a checkpoint of a run with "
            f"model.peft) nor {CONFIG}"
        )
    config = read_object(folder / CONFIG, "correct the file")
    if config.get("peft_type") != "LORA":
        raise ValueError(
            f"{folder} holds adapters of peft_type={config.get('peft_type')}; only LORA can be read"
        )
    for key, plain in UNREAD.items():
        if config.get(key) not in (plain, None):
            raise ValueError(f"{folder} has {key}={config[key]}, but only {key}={plain} can be read")
    if (init := config.get("init_lora_weights")) not in KEEPS_BASE:
        raise ValueError(
            f"{folder} has init_lora_weights={init}: these adapters belong to a base whose weights were changed when the "
            "adapters were made, so they are wrong on the base that the folder names. Convert them: peft's save_pretrained(FOLDER, "
            "path_initial_model_for_weight_conversion=INITIAL), where INITIAL is the folder of the adapters before training"
        )
    if not (folder / TENSORS).is_file():
        raise ValueError(
            f"{folder} has no {TENSORS}: save the adapters with peft's save_pretrained, as safetensors"
        )
    check_file(folder / TENSORS)
    halves = load_file(folder / TENSORS)
    parts = {}
    for name in [name for name in halves if name.endswith(".lora_A.weight")]:
        module = name.removesuffix(".lora_A.weight")
        a, b = halves.pop(name), halves.pop(f"{module}.lora_B.weight", None)
        if b is None or not a.ndim == b.ndim == 2 or a.shape[0] != b.shape[1]:
            raise ValueError(
                f"{folder / TENSORS} has {name} without a lora_B of the same rank: save the adapters again with peft's "
                "save_pretrained"
            )
        module = module.removeprefix(PREFIX)
        parts[module] = _PeftAdapter(a, b, _scale(module, a.shape[0], config, folder / CONFIG))
    if halves:
        raise ValueError(
            f"{folder} has {next(iter(halves))}, which is not a part of a linear layer's adapter and can't be read"
        )
    return parts


def _scale(module: str, rank: int, config: Mapping, where: Path) -> float:
    """The scale by PEFT's rules. A pattern is a regular expression for the end of a module's name. where: for errors."""
    patterns = config.get("alpha_pattern") or {}
    try:
        alpha = next(
            (value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module)),
            config.get("lora_alpha"),
        )
    except (AttributeError, re.error) as error:
        raise ValueError(
            f"{where}: alpha_pattern is {patterns}, but must map regular expressions to numbers ({error}): correct the file"
        ) from None
    if type(alpha) not in (int, float) or not alpha or not math.isfinite(alpha):
        raise ValueError(
            f"{where} gives the adapter of {module} lora_alpha={alpha!r}, but the adapter has an effect only with a number other "
            "than 0: write the lora_alpha of its training there, or start without the adapters"
        )
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _fused(
    weight: Weight, parts: Sequence[_PeftAdapter | None], arch: Architecture
) -> tuple[torch.Tensor, torch.Tensor, float]:
    """A single adapter (A, B, scale) of a fused matrix, from the adapters of its parts. A part may have no adapter."""
    import torch

    adapters = [part for part in parts if part is not None]
    scale, first = adapters[0].scale, adapters[0].a
    rows = [shape[0] for shape in hf_shapes(weight, arch)]
    if len(adapters) == len(parts) and all(torch.equal(part.a, first) for part in adapters):
        a, blocks = first, [part.b * (part.scale / scale) for part in parts]
    else:
        a, blocks, begin = torch.cat([part.a for part in adapters]), [], 0
        for part, length in zip(parts, rows):
            block = a.new_zeros(length, len(a))
            if part is not None:
                block[:, begin : begin + len(part.a)] = part.b * (part.scale / scale)
                begin += len(part.a)
            blocks.append(block)
    narrow = replace(weight, shape=(sum(rows), len(a)))
    return a, to_megatron(narrow, blocks, arch), scale
