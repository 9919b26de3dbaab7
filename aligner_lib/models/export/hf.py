"""A Hugging Face folder, as `transformers` reads it: of a policy, or of a reward model as a sequence classifier.

Weights are read from the store and written one at a time, as an import does: whichever parallelism wrote them, and in
their own dtype. Nothing but a reward model's head is computed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from aligner_lib.datasets.chat_template import PLAIN, own_template, recorded_template, template_in_use
from aligner_lib.datasets.tokenizer import Tokenizer
from aligner_lib.errors import UserError
from aligner_lib.models import families
from aligner_lib.models.export.card import write_card
from aligner_lib.models.export.reward_module import REWARD_MODULE
from aligner_lib.models.export.trained import Options, Trained
from aligner_lib.models.names import Weight, hf_shapes, to_hf, weights
from aligner_lib.models.stream import StreamedTensor, cast, write_shards
from cluster.record import write_json

TORCH_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# What has learnt from plain texts is asked in plain texts, whatever template its tokenizer came with.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n\n' }}{% endif %}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n\nAssistant:' }}{% endif %}"
)
# A reward is read behind the stop token of the last answer, and a template may write a line's end there. {0}: the template
SCORED_PLAIN_TEMPLATE = (
    PLAIN_TEMPLATE
    + "{% if messages and messages[-1]['role'] == 'assistant' and not add_generation_prompt %}{{ eos_token }}{% endif %}"
)
SCORED_TEMPLATE = (
    "{{% set conversation %}}{0}{{% endset %}}"
    "{{{{ conversation if add_generation_prompt else conversation.rstrip() }}}}"
)
SCORE = "score.weight"  # the head of transformers' sequence classifiers, which has no bias


def write(trained: Trained, out: Path, options: Options) -> list[str]:
    """Write a policy or a reward model into a new folder, with tokenizer, generation settings and model card.

    Returns what the user of a reward model should know. Raises UserError for an unknown options.dtype, ValueError for
    a weight that is missing or too large for it, and for a model that no class of transformers computes.
    """
    tokenizer, wanted = Tokenizer(trained.folder), dtype_named(options.dtype)
    out.mkdir()
    tokenizer.save(out)
    is_policy = trained.architecture.head == "lm"
    if not is_policy:
        _write_template(tokenizer, out, _scored_template(tokenizer))
    elif recorded_template(trained.folder) == PLAIN:
        _write_template(tokenizer, out, _plain(tokenizer, PLAIN_TEMPLATE))
    tensors = list(_tensors(trained, wanted))
    config = _config(trained, tokenizer, tensors[0].dtype)
    notes = []
    if is_policy:
        write_json(out / "generation_config.json", _generation_config(trained, tokenizer))
    else:
        config |= _write_reward_parts(trained, tokenizer, out, config["architectures"][0])
        notes = _reward_notes(config)
    write_json(out / "config.json", config)
    write_shards(out, tensors, options.shard_bytes, options.progress)
    write_card(trained, out, config)
    return notes


def _plain(tokenizer: Tokenizer, template: str) -> str:
    return ("{{ bos_token }}" if tokenizer.bos_ids else "") + template


def _scored_template(tokenizer: Tokenizer) -> str:
    """A template whose conversations end in the token at which a reward is read: the stop token of the last answer."""
    if template_in_use(tokenizer) == PLAIN:
        return _plain(tokenizer, SCORED_PLAIN_TEMPLATE)
    return SCORED_TEMPLATE.format(own_template(tokenizer))


def _write_template(tokenizer: Tokenizer, out: Path, template: str) -> None:
    """Put a chat template in the place of the one that the tokenizer's files have."""
    (out / "chat_template.jinja").unlink(missing_ok=True)
    _update_tokenizer_config(out, chat_template=template)


def _update_tokenizer_config(out: Path, **changes: str) -> None:
    path = out / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text()) | changes)


def dtype_named(name: str | None) -> str | None:
    """A dtype as safetensors names it, of torch's name; None for none. Raises UserError for an unknown one."""
    names = {torch_name: dtype for dtype, torch_name in TORCH_NAMES.items()}
    if name is not None and name not in names:
        raise UserError(f"--dtype {name}: there are {', '.join(names)}")
    return names.get(name)


# ---- weights --------------------------------------------------------------------------------------------------------


def _tensors(trained: Trained, wanted: str | None) -> Iterator[StreamedTensor]:
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
                dtype = wanted or trained.weights.dtype(weight.megatron)
                yield StreamedTensor(
                    name, dtype, shape, lambda w=weight, p=part: _read(trained, w, p, wanted)
                )


def _read(trained: Trained, weight: Weight, part: int, wanted: str | None) -> np.ndarray:
    """One of the Hugging Face weights that a Megatron weight is made of."""
    stored = trained.weights.dtype(weight.megatron)
    values = to_hf(weight, trained.weights.read(weight.megatron), trained.architecture)[part]
    try:
        return cast(values, stored, wanted or stored)
    except ValueError as error:
        raise ValueError(f"{weight.hf[part]}: {error}; choose another --dtype") from None


def _score(trained: Trained, weight: Weight) -> np.ndarray:
    """The head in the units of rewards, float32 [1, H]: kept in float32, as it is here under bf16, too."""
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
    """How the run drew its rollouts; else what the model came with. Its stop token is the first of those there are."""
    path = trained.folder / "generation_config.json"
    came_with = json.loads(path.read_text()) if path.exists() else {}
    came_with.pop("transformers_version", None)
    pad_id = tokenizer.id_of("pad_token")
    return (
        came_with
        | _sampling(trained)
        | {
            "bos_token_id": tokenizer.id_of("bos_token"),
            "eos_token_id": list(tokenizer.stop_ids),
            "pad_token_id": tokenizer.eos_id if pad_id is None else pad_id,
        }
    )


def _sampling(trained: Trained) -> dict:
    """The sampling of the run's rollouts under transformers' names; empty for a run that generates nothing."""
    rollouts = trained.config.get("model", {}).get(trained.run.kind) if trained.run else None
    if not rollouts or "sampling_params" not in rollouts:
        return {}
    params, lengths = rollouts["sampling_params"], rollouts["length_params"]
    settings = {"do_sample": not params["use_greedy"], "max_new_tokens": lengths["max_length"]}
    if params["use_greedy"]:
        return settings  # transformers warns of a temperature that has no effect
    return settings | {name: params[name] for name in ("temperature", "top_k", "top_p")}


# ---- reward models --------------------------------------------------------------------------------------------------


def reward_constant(trained: Trained) -> float:
    """What a reward is beyond the head's product with the hidden state: (bias − mean) / std of the reward's scale."""
    bias = float(trained.weights.read("value_head.bias")[0])
    return (bias - trained.scale.mean) / trained.scale.std


def _write_reward_parts(trained: Trained, tokenizer: Tokenizer, out: Path, base: str) -> dict:
    """Write the module for what transformers' class `base` has no place for, and the token that its tokenizer pads with.

    Returns what config.json says of it.
    """
    (out / "reward_model.py").write_text(REWARD_MODULE.format(base=base), encoding="utf-8")
    pad_id = _pad_id(tokenizer)
    if pad_id is not None:
        pad_token = tokenizer.decode([pad_id], special_tokens=True)
        _update_tokenizer_config(out, pad_token=pad_token)
    return {
        "pad_token_id": pad_id,
        "problem_type": "regression",  # else pipeline() gives the sigmoid of a reward
        "id2label": {"0": "reward"},
        "label2id": {"reward": 0},
        "reward_constant": reward_constant(trained),
        "auto_map": {"AutoModelForSequenceClassification": "reward_model.RewardModel"},
    }


def _pad_id(tokenizer: Tokenizer) -> int | None:
    """A token that no text ends with: transformers reads the score before the padding, which it knows by the id alone.

    Not the stop token, with which a response ends. None where there is no other special token: transformers then takes
    one text at a time.
    """
    ids = [tokenizer.id_of(key) for key in ("pad_token", "unk_token", "bos_token")]
    ids += sorted(tokenizer.special_ids)
    return next((token_id for token_id in ids if token_id not in (None, tokenizer.eos_id)), None)


def _reward_notes(config: dict) -> list[str]:
    notes = [
        "load it with AutoModelForSequenceClassification.from_pretrained(FOLDER, trust_remote_code=True): without its "
        f"reward_model.py every reward is less by {config['reward_constant']:.6g}, and their differences stay"
    ]
    if config["pad_token_id"] is None:
        notes.append("its vocabulary has no token to pad with: score one text at a time")
    return notes
