"""A Hugging Face folder for `transformers`: of a policy, or of a reward model as a sequence classifier.

Weights are read from the store and written one at a time, as in an import. Any parallelism may have written the store. Weights
keep their dtype. Only the head of a reward model is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aligner_lib.datasets.chat_template import (
    PLAIN,
    SCORED_END,
    exported_template,
    own_template,
    plain_template,
    recorded_date,
    template_in_use,
)
from aligner_lib.datasets.jinja_template import DATE_FUNCTION, dated
from aligner_lib.datasets.json_file import read_object
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import families
from aligner_lib.models.export.card import write_card
from aligner_lib.models.export.reward_module import REWARD_MODULE
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.names import Weight, hf_shapes, to_hf, weights
from aligner_lib.models.sentencepiece_tokenizer import begin_texts
from aligner_lib.models.stream import StreamedTensor, cast, write_shards
from cluster.record import write_json

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# a reward is read at the stop token of the last answer, but a template may write a newline after the token; {0}: the template
SCORED_TEMPLATE = (
    "{{% set conversation %}}{0}{{% endset %}}"
    "{{{{ conversation if add_generation_prompt else conversation.rstrip() }}}}"
)
SCORE = "score.weight"  # the head of transformers' sequence classifiers, which has no bias


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a policy or a reward model into a new folder, with tokenizer, generation settings and model card.

    Returns notes for the user. Raises UserError for an unknown options.dtype, ValueError for a missing
    weight, for a weight too large for the dtype, and for a model that transformers can't represent.
    """
    tokenizer, dtype = Tokenizer(trained.folder), dtype_named(options.dtype)
    out.mkdir()
    write_tokenizer(tokenizer, out)
    is_policy = trained.architecture.head == "lm"
    if not is_policy:
        write_template(out, _scored_template(tokenizer))
    tensors = list(_tensors(trained, dtype))
    config = _config(trained, tokenizer, _loading_dtype(tensors))
    notes = date_notes(tokenizer)
    if is_policy:
        write_json(out / "generation_config.json", _generation_config(trained, tokenizer))
    else:
        config |= _write_reward_parts(trained, tokenizer, out, config["architectures"][0])
        notes += _reward_notes(config)
    write_json(out / "config.json", config)
    write_shards(out, tensors, options.shard_bytes, options.progress)
    write_card(trained, out, config)
    return notes


def _scored_template(tokenizer: Tokenizer) -> str:
    """A template whose conversations end with the stop token of the last answer, where a reward is read."""
    if template_in_use(tokenizer) == PLAIN:
        return plain_template(tokenizer) + SCORED_END
    return SCORED_TEMPLATE.format(dated(own_template(tokenizer), recorded_date(tokenizer.folder)))


def write_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    """Write the tokenizer's files into an export, with the template of the model's training conversations."""
    tokenizer.save(out)
    _write_bos(tokenizer, out)
    if template := exported_template(tokenizer):
        write_template(out, template)


def date_notes(tokenizer: Tokenizer) -> list[str]:
    """A note on the date that the exported chat template writes; empty if the training conversations had no date."""
    if (day := recorded_date(tokenizer.folder)) is None:
        return []
    if f"{DATE_FUNCTION}(" in str(exported_template(tokenizer)):
        return [f"its chat template writes today's date, but its training conversations had {day}"]
    return [f"its chat template writes {day}, the date of its training conversations, not today's date"]


def _write_bos(tokenizer: Tokenizer, out: Path) -> None:
    """Let tokenizer.json begin each text with `bos_ids`, because transformers 5 does not follow add_bos_token."""
    import tokenizers

    library, text = tokenizers.Tokenizer.from_str(tokenizer.json), "a"
    if library.encode(text).ids != tokenizer.encode(text):
        begin_texts(library, tokenizer.bos_ids)
        library.save(str(out / "tokenizer.json"))


def write_template(out: Path, template: str | list[dict[str, str]]) -> None:
    """Replace the chat template in the tokenizer's files of an exported model."""
    (out / "chat_template.jinja").unlink(missing_ok=True)
    _update_tokenizer_config(out, chat_template=template)


def _update_tokenizer_config(out: Path, **changes: str | list[dict[str, str]]) -> None:
    path = out / "tokenizer_config.json"
    write_json(path, read_object(path) | changes)


def dtype_named(name: str | None) -> str | None:
    """The safetensors name of a dtype from torch's name; None for None. Raises UserError for an unknown name."""
    names = {torch_name: dtype for dtype, torch_name in TORCH_NAMES.items()}
    if name is not None and name not in names:
        raise UserError(f"--dtype {name} is unknown: give any of {', '.join(names)}")
    return names.get(name)


# ---- weights --------------------------------------------------------------------------------------------------------


def _tensors(trained: Trained, target: str | None) -> Iterator[StreamedTensor]:
    arch = trained.architecture
    for weight in weights(arch):
        if trained.weights.shape(weight.megatron) != weight.shape:
            raise ValueError(
                f"{weight.megatron} in {trained.folder} has shape {list(trained.weights.shape(weight.megatron))}; "
                f"model.json says {list(weight.shape)}"
            )
        for part, (name, shape) in enumerate(zip(weight.hf, hf_shapes(weight, arch))):
            if name == SCORE:
                yield StreamedTensor(name, "F32", shape, lambda w=weight: _score(trained, w))
            else:
                dtype = target or trained.weights.dtype(weight.megatron)
                yield StreamedTensor(
                    name, dtype, shape, lambda w=weight, p=part: _read(trained, w, p, target)
                )


def _loading_dtype(tensors: list[StreamedTensor]) -> str:
    """The dtype for loading the model: the widest dtype of its matrices.

    A bf16 run with `num_layers_unfrozen` trains float32 masters of some layers and keeps the frozen layers in bfloat16. If the
    model were loaded in bfloat16, the masters would lose most of the run's updates. Norms and the head do not count, because
    they may be wider than all other weights.
    """
    matrices = [tensor.dtype for tensor in tensors if len(tensor.shape) > 1 and tensor.name != SCORE]
    return min(matrices, key=[*TORCH_NAMES].index)


def _read(trained: Trained, weight: Weight, part: int, dtype: str | None) -> np.ndarray:
    """One Hugging Face weight, number `part`, of a Megatron weight."""
    stored = trained.weights.dtype(weight.megatron)
    values = to_hf(weight, trained.weights.read(weight.megatron), trained.architecture)[part]
    try:
        return cast(values, stored, dtype or stored)
    except ValueError as error:
        raise ValueError(f"{weight.hf[part]}: {error}; choose another --dtype") from None


def _score(trained: Trained, weight: Weight) -> np.ndarray:
    """The head in the units of rewards, float32 [1, H]. The head stays in float32 under bf16, as in training."""
    return (trained.weights.read(weight.megatron).astype(np.float64) / trained.scale.std).astype(np.float32)


# ---- settings -------------------------------------------------------------------------------------------------------


def _config(trained: Trained, tokenizer: Tokenizer, dtype: str) -> dict:
    return families.to_hf(trained.architecture) | {
        "bos_token_id": tokenizer.id_of("bos_token"),
        "eos_token_id": tokenizer.eos_id,
        "pad_token_id": tokenizer.id_of("pad_token"),
        "torch_dtype": TORCH_NAMES[dtype],
    }


def _generation_config(trained: Trained, tokenizer: Tokenizer) -> dict:
    """The sampling of the run's rollouts, or the model's original settings. `eos_token_id` begins with the stop token."""
    pad_id = tokenizer.id_of("pad_token")
    return (_sampling(trained) or _original_generation(trained)) | {
        "bos_token_id": tokenizer.id_of("bos_token"),
        "eos_token_id": list(tokenizer.stop_ids),
        "pad_token_id": tokenizer.eos_id if pad_id is None else pad_id,
    }


def _original_generation(trained: Trained) -> dict:
    path = trained.folder / "generation_config.json"
    original = read_object(path) if path.exists() else {}
    original.pop("transformers_version", None)
    return original


def _sampling(trained: Trained) -> dict:
    """The sampling of the run's rollouts under transformers' names; empty for a run without rollouts."""
    rollouts = trained.config.get("model", {}).get(trained.run.kind) if trained.run else None
    if not rollouts or "sampling_params" not in rollouts:
        return {}
    params, lengths = rollouts["sampling_params"], rollouts["length_params"]
    settings = {"do_sample": not params["use_greedy"], "max_new_tokens": lengths["max_length"]}
    if params["use_greedy"]:
        return settings  # transformers warns about a temperature without an effect
    return settings | {name: params[name] for name in ("temperature", "top_k", "top_p")}


# ---- reward models --------------------------------------------------------------------------------------------------


def reward_constant(trained: Trained) -> float:
    """The part of a reward beyond head · hidden state: (bias − mean) / std of the reward's scale."""
    bias = float(trained.weights.read("value_head.bias")[0])
    return (bias - trained.scale.mean) / trained.scale.std


def _write_reward_parts(trained: Trained, tokenizer: Tokenizer, out: Path, base: str) -> dict:
    """Write the module that extends transformers' class `base`, and the padding token in the tokenizer's settings.

    Returns the entries for config.json.
    """
    (out / "reward_model.py").write_text(REWARD_MODULE.format(base=base), encoding="utf-8")
    pad_id = _pad_id(tokenizer)
    if pad_id is not None:
        pad_token = tokenizer.decode([pad_id], special_tokens=True)
        _update_tokenizer_config(out, pad_token=pad_token)
    return {
        "pad_token_id": pad_id,
        "problem_type": "regression",  # otherwise pipeline() returns the sigmoid of a reward
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "reward_constant": reward_constant(trained),
        "auto_map": {"AutoModelForSequenceClassification": "reward_model.RewardModel"},
    }


def _pad_id(tokenizer: Tokenizer) -> int | None:
    """A padding token that ends no text; None when there is no suitable special token.

    transformers reads the score before the padding, and recognises padding only by the token's id. A stop token ends a
    response, so no stop token can be the padding. Without a padding token, transformers scores one text at a time.
    """
    ids = [tokenizer.id_of(key) for key in ("pad_token", "unk_token", "bos_token")]
    ids += sorted(tokenizer.special_ids)
    return next((token_id for token_id in ids if token_id not in (None, *tokenizer.stop_ids)), None)


def _reward_notes(config: dict) -> list[str]:
    notes = [
        "load it with AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True): without its "
        f"reward_model.py every reward is lower by {config['reward_constant']:.6g}, and their differences are the same"
    ]
    if config["pad_token_id"] is None:
        notes.append("its vocabulary has no token for padding: score one text at a time")
    return notes
