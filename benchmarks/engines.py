"""`python -m benchmarks.engines`: generation beside llama.cpp and CTranslate2, on the same weights in the same precision.

Each engine generates responses of a fixed length greedily to the same prompts, in rounds that alternate. A speed is the number of
generated tokens per second, including the time for reading the prompts. The share of tokens that an engine has in common with
Aligner Lab shows that both compute the same model: after a near tie of two tokens the texts differ.

    --python FILE            an environment with numpy and gguf, and xllamacpp or ctranslate2: uv venv engines; uv pip install
                             --python engines/bin/python gguf xllamacpp ctranslate2
    --only llama.cpp         one of the engines
    --rows 1,32              the numbers of responses at a time
    --precision 32           32 or bf16; CTranslate2 has no bf16 on a CPU
    --tokens 48 --repeats 3  tokens of a response, and rounds
    --threads 1 --clock cpu  threads of each side, and the clock: cpu counts each side's own processor time
    --model smollm2-135m     a model of Llama's architecture with SmolLM2's tokenizer
    --json FILE              write the figures there
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from rich.console import Console

from benchmarks.contest import Contestant, Rounds, compete
from benchmarks.kept import described, write_result
from benchmarks.measure import Comparison, Round
from benchmarks.options import documented_parser, some_of, whole_number
from benchmarks.setting import Setting
from benchmarks.table import table_of

ENGINES = {"llama.cpp": "xllamacpp", "CTranslate2": "ctranslate2"}  # engine → its Python package
WITHOUT = {("CTranslate2", "bf16")}  # CTranslate2 computes bf16 on GPUs alone
OTHER_SIDE = Path(__file__).with_name("other_engines.py")


def prompts_of(setting: Setting) -> list[list[int]]:
    """The prompts of the bundled instruction samples, as token ids."""
    return [sample.tokens[: sample.answer_start] for sample in setting.answers(setting.prompts)]


def ours(setting: Setting, connection) -> None:
    """Aligner Lab's side: the rows of a `ContinuousBatch`, as in a rollout."""
    from aligner_lib.megatron.generate import ContinuousBatch, Sampling
    from benchmarks.ours import make_engine

    prompts, stop_ids = prompts_of(setting), setting.tokenizer().stop_ids
    sampling = Sampling(max_length=setting.new_tokens, min_length=setting.new_tokens, greedy=True)
    engine = make_engine(setting, setting.architecture())
    rounds = Rounds(setting, connection)
    while True:
        rounds.begin()
        batch = ContinuousBatch(engine.module, setting.generation_batch, stop_ids=stop_ids)
        responses = [batch.add(prompt, setting.seed, sampling) for prompt in prompts]
        batch.run()
        tokens = sum(len(response.tokens) for response in responses)
        rounds.end(tokens, generated=tokens)
        keep(setting, "Aligner Lab", [response.tokens for response in responses])


def theirs(setting: Setting, connection, engine: str, python: str, threads: int) -> None:
    """Another engine's side, in a process of another environment."""
    sizes = (setting.precision, setting.generation_batch, setting.new_tokens, threads)
    command = [python, str(OTHER_SIDE), engine, str(setting.folder / "exported"), *map(str, sizes)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    process.stdin.write(json.dumps(prompts_of(setting)) + "\n")
    if process.stdout.readline() != "ready\n":
        raise RuntimeError(f"{engine} did not start: exit code {process.wait()}")
    connection.send("ready")
    while connection.recv() != "stop":
        process.stdin.write("go\n")
        answer = json.loads(process.stdout.readline())
        tokens = sum(map(len, answer["responses"]))
        connection.send(Round(answer[setting.clock], tokens, generated=tokens))
        keep(setting, engine, answer["responses"])
    process.stdin.close()
    process.wait()


def keep(setting: Setting, engine: str, responses: list[list[int]]) -> None:
    (setting.folder / f"{engine}.json").write_text(json.dumps(responses))


def common_share(ours: list[list[int]], theirs: list[list[int]]) -> float:
    """The share of tokens before the first difference of two responses to the same prompt."""
    common = 0
    for a, b in zip(ours, theirs, strict=True):
        common += next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return common / sum(map(len, ours))


def measure(setting: Setting, options: argparse.Namespace) -> tuple[Comparison, dict[str, float]]:
    """The speeds of all engines, and the share of tokens that each has in common with Aligner Lab."""
    rows = setting.generation_batch
    sides = [Contestant("Aligner Lab", f"{rows} at a time", ours)]
    names = [name for name in options.only if (name, setting.precision) not in WITHOUT]
    for name in names:
        run = partial(theirs, engine=name, python=options.python, threads=options.threads)
        sides.append(Contestant(name, f"{rows} at a time", run))
    comparison = compete(f"generation, {rows} at a time", sides, setting, aim=None)
    comparison.sizes = {"prompts": setting.prompts, "generation_batch": rows}
    responses = {
        side.name: json.loads((setting.folder / f"{side.name}.json").read_text()) for side in comparison.sides
    }
    return comparison, {name: common_share(responses["Aligner Lab"], responses[name]) for name in names}


def their_versions(python: str, packages: list[str]) -> dict[str, str]:
    """The installed versions of packages in another environment, whose interpreter is `python`."""
    code = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    printed = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True)
    return dict(zip(packages, printed.stdout.split(), strict=True))


def export(setting: Setting) -> None:
    command = [sys.executable, "-m", "aligner_lib", "model", "export", setting.model]
    subprocess.run(
        [*command, "--out", str(setting.folder / "exported"), "--dtype", "float32"],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def main(options: argparse.Namespace) -> None:
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # read in the sides' processes
    results = []
    with tempfile.TemporaryDirectory(prefix="aligner-engines-") as folder:
        for rows in options.rows:
            setting = Setting(
                Path(folder),
                model=options.model,
                repeats=options.repeats,
                prompts=options.prompts or max(4, rows),
                generation_batch=rows,
                new_tokens=options.tokens,
                precision=options.precision,
                clock=options.clock,
            )
            if not results:
                setting.prepare()
                export(setting)
            comparison, common = measure(setting, options)
            Console(width=110).print(table_of(comparison))
            print("tokens in common with Aligner Lab:", {name: f"{v:.0%}" for name, v in common.items()})
            results.append(comparison.as_dict() | {"tokens_in_common": common})
        if options.json:
            description = described("python -m benchmarks.engines", setting, options)
            packages = [ENGINES[side["name"]] for side in results[0]["sides"][1:]]
            description["versions"] |= their_versions(options.python, packages)
            write_result(options.json, description, results)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = documented_parser("engines", __doc__)
    parser.add_argument("--python", required=True)
    parser.add_argument("--only", type=partial(some_of, ENGINES), default=list(ENGINES))
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 32])
    parser.add_argument("--precision", choices=["32", "bf16"], default="32")
    parser.add_argument("--tokens", type=partial(whole_number, 1), default=48)
    parser.add_argument(
        "--prompts", type=partial(whole_number, 1), help="prompts of a round [4, or as many as rows]"
    )
    parser.add_argument("--repeats", type=partial(whole_number, 1), default=3)
    parser.add_argument("--threads", type=partial(whole_number, 1), default=1)
    parser.add_argument("--clock", choices=["wall", "cpu"], default="cpu")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(parse(sys.argv[1:]))
