"""From a name or a path to a model folder, and a folder's hash."""

import shutil
import subprocess
import sys

import pytest

from aligner_lib.models import model_hash, resolve
from aligner_lib.models.convert import open_source


@pytest.fixture
def run(tmp_path, smoke):
    """A run folder with two checkpoints, and a third that is being written."""
    for step in ("step_000002", "step_000010", "step_000012.partial"):
        shutil.copytree(smoke, tmp_path / "run/checkpoints" / step)
    return tmp_path / "run"


def test_a_run_stands_for_its_latest_whole_checkpoint_and_a_ppo_checkpoint_for_its_policy(
    run, smoke, monkeypatch
):
    monkeypatch.setenv("ALIGNER_CACHE", str(smoke.parents[1]))
    assert resolve("smoke") == resolve(smoke) == resolve(str(smoke)) == smoke
    assert resolve(run / "checkpoints/step_000002") == run / "checkpoints/step_000002"
    assert resolve(run) == run / "checkpoints/step_000010"
    checkpoint = run / "checkpoints/step_000011"
    shutil.copytree(smoke, checkpoint)
    shutil.copytree(smoke, checkpoint / "critic")
    assert resolve(checkpoint) == resolve(run) == checkpoint


def test_what_was_tried_is_told(tmp_path):
    with pytest.raises(ValueError, match=r"no model\.json in .*, .*checkpoints/step_"):
        resolve(tmp_path)
    (tmp_path / "config.json").touch()
    with pytest.raises(
        ValueError, match=r"step_\*; for a Hugging Face folder: aligner model import /.* --out"
    ):
        resolve(tmp_path)
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft/adapter_config.json").touch()
    for read in (resolve, open_source):
        with pytest.raises(ValueError, match=r"adapters of peft .*restore_from_path=/.*/peft, or merge"):
            read(tmp_path / "peft")
    with pytest.raises(FileNotFoundError, match="is not a model folder"):
        model_hash(tmp_path)
    with pytest.raises(ValueError, match="smolllm does not exist, and the named models are 'smollm2-135m'"):
        resolve("smolllm")
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is not a folder"):
        resolve(tmp_path / "file")


def test_a_copy_has_the_same_hash_and_any_byte_of_a_small_file_counts(tmp_path, smoke):
    copy = shutil.copytree(smoke, tmp_path / "copy")
    assert model_hash(copy) == model_hash(smoke) and len(model_hash(smoke)) == 32
    hashes = {model_hash(smoke)}
    for name in ("model.json", "tokenizer.json", "tokenizer_config.json"):
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        hashes.add(model_hash(copy))
    assert len(hashes) == 4


def test_of_large_files_length_beginning_end_and_samples_count(tmp_path, smoke):
    copy = shutil.copytree(smoke, tmp_path / "copy")
    size = 20 << 20
    with (copy / "weights/more.safetensors").open("wb", buffering=0) as file:
        file.truncate(size)
        hashes = {model_hash(copy)}
        for position in (0, (1 << 20) - 1, 5 << 20, size - 1):
            file.seek(position)
            file.write(b"x")
            hashes.add(model_hash(copy))
        file.truncate(size - 1)
        hashes.add(model_hash(copy))
    assert len(hashes) == 6


# what is heavy for the package alone, and for its work
WITHOUT_TORCH = """
import sys
from pathlib import Path
import aligner_lib.models
heavy = {"torch", "transformers", "megatron"}
assert not (heavy | {"gguf", "huggingface_hub", "tokenizers"}) & set(sys.modules)
from aligner_lib.models import fetch, import_hf, import_model
from aligner_lib.models.export import export
folder = Path(sys.argv[1])
smoke = fetch("smoke", cache=folder, progress=False)
export(smoke, "hf", folder / "hf")
import_hf(folder / "hf", folder / "from_hf")
export(smoke, "nemo", folder / "x.nemo")
import_model(folder / "x.nemo", folder / "from_nemo")
assert not (heavy | {"omegaconf"}) & set(sys.modules)
"""


def test_fetching_importing_and_exporting_need_no_torch(tmp_path):
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, str(tmp_path)], check=True)
