"""From a name or a path to a model folder, and a folder's hash."""

import shutil
import subprocess
import sys

import pytest

from aligner_lib.models import model_hash, resolve


@pytest.fixture
def run(tmp_path, smoke):
    """A run folder with two checkpoints, and a third that is being written."""
    for step in ("step_000002", "step_000010", "step_000012.partial"):
        shutil.copytree(smoke, tmp_path / "run/checkpoints" / step)
    return tmp_path / "run"


def test_a_name(smoke, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(smoke.parents[1]))
    assert resolve("smoke") == smoke


def test_a_model_folder(smoke):
    assert resolve(smoke) == smoke
    assert resolve(str(smoke)) == smoke


def test_a_checkpoint(run):
    assert resolve(run / "checkpoints/step_000002") == run / "checkpoints/step_000002"


def test_a_ppo_checkpoint_stands_for_its_policy(run, smoke):
    checkpoint = run / "checkpoints/step_000011"
    shutil.copytree(smoke, checkpoint)
    shutil.copytree(smoke, checkpoint / "critic")
    assert resolve(checkpoint) == checkpoint
    assert resolve(run) == checkpoint


def test_a_run_stands_for_its_latest_whole_checkpoint(run):
    assert resolve(run) == run / "checkpoints/step_000010"


def test_what_was_tried_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"no model\.json in .*, .*checkpoints/step_"):
        resolve(tmp_path)
    with pytest.raises(ValueError, match="smolllm does not exist, and the named models are 'smollm2-135m'"):
        resolve("smolllm")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not a folder"):
        resolve(tmp_path / "file")


# ---- the hash -------------------------------------------------------------------------------------------------------


def test_a_copy_has_the_same_hash(tmp_path, smoke):
    shutil.copytree(smoke, tmp_path / "copy")
    assert model_hash(tmp_path / "copy") == model_hash(smoke)
    assert len(model_hash(smoke)) == 32


@pytest.mark.parametrize("name", ["model.json", "tokenizer.json", "tokenizer_config.json"])
def test_any_byte_of_a_small_file_counts(tmp_path, smoke, name):
    copy = shutil.copytree(smoke, tmp_path / "copy")
    content = bytearray((copy / name).read_bytes())
    content[len(content) // 2] ^= 1
    (copy / name).write_bytes(content)
    assert model_hash(copy) != model_hash(smoke)


def test_of_large_files_length_beginning_end_and_samples_count(tmp_path, smoke):
    copy = shutil.copytree(smoke, tmp_path / "copy")
    path = copy / "weights/more.safetensors"
    size = 20 << 20
    path.write_bytes(bytes(size))
    seen = {model_hash(copy)}
    for position in (0, (1 << 20) - 1, 5 << 20, size - 1):
        with path.open("r+b") as file:
            file.seek(position)
            file.write(b"x")
        seen.add(model_hash(copy))
    with path.open("r+b") as file:
        file.truncate(size - 1)
    seen.add(model_hash(copy))
    assert len(seen) == 6


def test_no_model_no_hash(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a model folder"):
        model_hash(tmp_path)


# ---- imports --------------------------------------------------------------------------------------------------------

IMPORT = """
import sys, time
start = time.process_time()
import aligner_lib.models
seconds = time.process_time() - start
heavy = {"torch", "transformers", "megatron", "gguf", "huggingface_hub", "tokenizers"} & set(sys.modules)
assert not heavy, heavy
assert seconds < 1.0, seconds
"""


def test_importing_the_room_loads_nothing_heavy():
    subprocess.run([sys.executable, "-c", IMPORT], check=True)


def test_fetching_and_importing_need_no_torch(tmp_path):
    code = f"""
import sys
from aligner_lib.models import fetch
fetch("smoke", cache={str(tmp_path)!r})
assert not {{"torch", "transformers", "megatron"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
