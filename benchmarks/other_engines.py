"""The other sides of `python -m benchmarks.engines`: llama.cpp's server and CTranslate2.

This file runs as a script in an environment of its own, which has numpy and gguf, and xllamacpp or ctranslate2. It imports nothing
of the project. It reads an exported Hugging Face folder, writes the engine's own format, prints "ready", and answers each line of
its input with a line of JSON: CPU seconds, wall seconds, and the tokens of each response.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

Generate = Callable[[list[list[int]]], list[list[int]]]
"""Maps prompts, given as token ids, to responses."""


def read_safetensors(file: Path) -> dict[str, np.ndarray]:
    """The float32 weights of a safetensors file, mapped into memory."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    header.pop("__metadata__", None)
    bytes_ = np.memmap(file, np.uint8, "r", offset=8 + size)
    tensors = {}
    for name, entry in header.items():
        assert entry["dtype"] == "F32", (
            f"{file.name}: {name} is {entry['dtype']}; export with --dtype float32"
        )
        begin, end = entry["data_offsets"]
        tensors[name] = bytes_[begin:end].view(np.float32).reshape(entry["shape"])
    return tensors


# ---- llama.cpp ------------------------------------------------------------------------------------------------------


def write_gguf(folder: Path, path: Path, precision: str) -> None:
    """Write a Llama model as GGUF: matrices in the precision (32, bf16), norms in float32."""
    import gguf

    config = json.loads((folder / "config.json").read_text())
    kind = {"32": gguf.GGMLQuantizationType.F32, "bf16": gguf.GGMLQuantizationType.BF16}[precision]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    stored = json.loads((folder / "tokenizer.json").read_text())
    special = {token["content"]: token["id"] for token in stored["added_tokens"]}
    ids = {**stored["model"]["vocab"], **special}
    tokens = sorted(ids, key=ids.get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if token in special else normal for token in tokens])
    merges = stored["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, tensor in read_safetensors(folder / "model.safetensors").items():
        part = name.split(".")[-2]
        # llama.cpp rotates neighbouring rows of a head, Hugging Face rows that are half a head apart
        if part in heads:
            tensor = tensor.reshape(heads[part], 2, -1, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
        of_tensor = kind if tensor.ndim == 2 else gguf.GGMLQuantizationType.F32
        quantized = gguf.quantize(np.ascontiguousarray(tensor), of_tensor)
        writer.add_tensor(names.get_name(name, (".weight",)), quantized, raw_dtype=of_tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp(folder: Path, precision: str, rows: int, new_tokens: int, threads: int) -> Generate:
    """llama.cpp's server in this process, with a slot for each row. Generates greedily and ignores stop tokens."""
    import xllamacpp

    path = folder / f"model-{precision}.gguf"
    if not path.exists():
        write_gguf(folder, path, precision)
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_parallel, params.n_ctx = rows, rows * 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    if precision == "32":  # the default is 16 bits
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_prompt = False  # a round's prompts are those of the round before
    params.cache_ram_mib = 0
    params.verbosity = -1
    print(xllamacpp.get_system_info(), file=sys.stderr)
    server = xllamacpp.Server(params)
    pool = ThreadPoolExecutor(rows)

    def respond(prompt: list[int]) -> list[int]:
        request = {
            "prompt": prompt,
            "n_predict": new_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_tokens": True,
            "cache_prompt": False,
        }
        address = f"{server.listening_address}/completion"
        headers = {"Content-Type": "application/json"}
        posted = urllib.request.Request(address, json.dumps(request).encode(), headers)
        with urllib.request.urlopen(posted) as answer:
            return json.loads(answer.read())["tokens"]

    return lambda prompts: list(pool.map(respond, prompts))


# ---- CTranslate2 ----------------------------------------------------------------------------------------------------


def write_ctranslate2(folder: Path, out: Path) -> None:
    """Write a Llama model in CTranslate2's format, in float32. The token of an id is the id's digits."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = json.loads((folder / "config.json").read_text())
    weights = read_safetensors(folder / "model.safetensors")
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        config["num_attention_heads"],
        activation=common_spec.Activation.SWISH,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config["rope_theta"],
        num_heads_kv=config["num_key_value_heads"],
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights["model.embed_tokens.weight"]
    decoder.projection.weight = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    for number, layer in enumerate(decoder.layer):
        prefix = f"model.layers.{number}."
        of_layer = {
            name.removeprefix(prefix).removesuffix(".weight"): tensor
            for name, tensor in weights.items()
            if name.startswith(prefix)
        }
        layer.self_attention.layer_norm.gamma = of_layer["input_layernorm"]
        layer.ffn.layer_norm.gamma = of_layer["post_attention_layernorm"]
        projections = [of_layer[f"self_attn.{name}_proj"] for name in "qkv"]
        layer.self_attention.linear[0].weight = np.concatenate(projections)
        layer.self_attention.linear[1].weight = of_layer["self_attn.o_proj"]
        layer.ffn.linear_0.weight = of_layer["mlp.gate_proj"]
        layer.ffn.linear_0_noact.weight = of_layer["mlp.up_proj"]
        layer.ffn.linear_1.weight = of_layer["mlp.down_proj"]
    spec.register_vocabulary([str(i) for i in range(config["vocab_size"])])
    spec.config.bos_token = spec.config.unk_token = "0"
    spec.config.eos_token = str(config["eos_token_id"])
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    spec.validate()
    spec.optimize()
    out.mkdir(exist_ok=True)
    spec.save(str(out))


def ctranslate2(folder: Path, precision: str, rows: int, new_tokens: int, threads: int) -> Generate:
    """CTranslate2's Generator. Generates greedily and not before the last token a stop token."""
    import ctranslate2 as engine

    kinds = engine.get_supported_compute_types("cpu")
    print(f"CTranslate2 computes in {sorted(kinds)} on this processor", file=sys.stderr)
    compute = {"32": "float32", "bf16": "bfloat16"}[precision]
    assert compute in kinds, f"CTranslate2 does not compute in {compute} on this processor"
    out = folder / "ctranslate2"
    if not (out / "model.bin").exists():
        write_ctranslate2(folder, out)
    generator = engine.Generator(
        str(out), device="cpu", compute_type=compute, inter_threads=1, intra_threads=threads
    )

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        results = generator.generate_batch(
            [[str(token) for token in prompt] for prompt in prompts],
            max_batch_size=rows,
            max_length=new_tokens,
            min_length=new_tokens,
            include_prompt_in_result=False,
        )
        return [result.sequences_ids[0] for result in results]

    return generate


ENGINES = {"llama.cpp": llama_cpp, "CTranslate2": ctranslate2}


def main(engine: str, folder: str, precision: str, rows: str, new_tokens: str, threads: str) -> None:
    generate = ENGINES[engine](Path(folder), precision, int(rows), int(new_tokens), int(threads))
    prompts = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        responses = generate(prompts)
        seconds = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
        print(json.dumps({**seconds, "responses": responses}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
