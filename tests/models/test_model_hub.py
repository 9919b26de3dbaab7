"""Any repository of the hub by its name: what is fetched and recorded, and what is refused with a way out."""

import shutil

import pytest
from model_servers import Files, put_on_hub, serve
from tiny_llama import ARCH, random_weights, read_json, write_hf

from aligner_lib.errors import UserError
from aligner_lib.models import fetch, resolve
from aligner_lib.models.architecture import Architecture
from aligner_lib.models.download import DownloadError, check_files
from aligner_lib.models.hub_client import HubRefusal, Listing

REPO, COMMIT = "someone/tiny-llama", "c0ffee" + 34 * "0"
META = "meta-llama/Llama-2-7b"
TOKEN = "create a token with read access .* give it as HF_TOKEN"


@pytest.fixture
def folder(tmp_path, smoke):
    """What the repository holds: three shards, and files that the import does not read."""
    folder = write_hf(tmp_path / "hf", ARCH, random_weights(ARCH), smoke, shards=3)
    for name in ("consolidated.safetensors", "README.md"):
        (folder / name).write_bytes(b"not needed")
    return folder


@pytest.fixture
def files(net, folder):
    """What the hub gives out, which is all that can be reached."""
    files = Files()
    put_on_hub(files, folder, REPO, COMMIT, license="apache-2.0")
    with serve(files) as files.url:
        net(hub=files.url)
        yield files


@pytest.fixture
def refused(files, tmp_path):
    """Fetches a name that is refused with these words, and returns them."""

    def refuse(message: str, error: type[Exception] = HubRefusal, name: str = REPO) -> str:
        with pytest.raises(error, match=message) as caught:
            fetched(name, tmp_path)
        assert not (tmp_path / "cache/models" / REPO).exists()
        return str(caught.value)

    return refuse


def fetched(name: str, tmp_path):
    return fetch(name, cache=tmp_path / "cache", progress=False)


def test_a_repository_comes_at_a_commit_that_is_recorded_and_is_there_without_the_hub(
    net, files, folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ValueError, match=f"not exist, .*for a model of the hub: aligner model fetch {REPO}"):
        resolve(REPO)
    assert files.requests == [], "a path asks no hub"
    model = fetch(REPO)
    assert model == tmp_path / "cache/models" / REPO
    assert Architecture.load(model) == ARCH
    assert f"{REPO}: from the Hugging Face hub ({REPO} at {COMMIT[:12]})" in capsys.readouterr().out
    source = read_json(model / "source.json")
    assert (source["origin"], source["license"]) == (f"hub {REPO} {COMMIT}", "apache-2.0")
    assert set(source["sha256"]) == {path.name for path in folder.glob("model-*.safetensors")}
    requests = {path.rpartition("/")[2] for method, path, _ in files.requests if method == "GET"}
    assert not {"consolidated.safetensors", "README.md"} & requests
    template = "additional_chat_templates/tool_use.jinja"
    nested = Listing("c", ("config.json", "original/model.safetensors", template), {}, None)
    assert nested.needed() == ("config.json", template)
    net()
    assert fetch(REPO) == resolve(REPO) == model
    net(hub=files.url)
    shutil.rmtree(model / "weights")
    with pytest.raises(ValueError, match=rf"{REPO} in {model} is damaged or has changed .*: copy the folder"):
        resolve(REPO)
    assert fetch(REPO) == model
    assert "is damaged or of another version" in capsys.readouterr().out


def test_a_revision_has_a_folder_of_its_own_and_the_token_goes_along(files, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_for_this_test")
    other = "/revision/refs%2Fpr%2F3"
    files.content[f"/api/models/{REPO}{other}"] = files.content[f"/api/models/{REPO}/revision/main"]
    assert fetched(f"{REPO}@refs/pr/3", tmp_path).name == "tiny-llama@refs--pr--3"
    assert fetched(f"{REPO}@main", tmp_path).name == "tiny-llama@main"
    assert fetched(REPO, tmp_path).name == "tiny-llama"
    assert set(files.tokens) == {"Bearer hf_for_this_test"}


def test_other_content_than_the_hub_lists_is_refused(files, refused):
    path = next(path for path in files.content if path.endswith("model-00002-of-00003.safetensors"))
    body, headers = files.content[path]
    files.content[path] = body[:-1] + b"\x55", headers
    refused(r"model-00002-of-00003\.safetensors has SHA-256", DownloadError)


def test_a_gated_repository_is_answered_with_how_to_get_in(files, refused):
    """Its list of files is public; the files are not."""
    files.refused = {path: (403, "GatedRepo") for path in files.content if "/resolve/" in path}
    assert "\n" not in refused(f"{REPO} is gated: accept its licence .*{TOKEN}")


@pytest.mark.parametrize(
    ("revision", "answer", "message"),
    [
        ("", (404, "RepoNotFound"), f"the hub has no model {REPO}, or it is private: .*{TOKEN}"),
        ("", (403, ""), f"the hub does not give you access to {REPO} .*{TOKEN}"),
        ("v9", (404, "RevisionNotFound"), f"{REPO} has no revision 'v9'"),
    ],
)
def test_what_the_hub_does_not_give_is_told(files, refused, revision, answer, message):
    files.refused[f"/api/models/{REPO}" + (f"/revision/{revision}" if revision else "")] = answer
    refused(message, name=f"{REPO}@{revision}" if revision else REPO)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (REPO, "can't be downloaded: .*download the model elsewhere and use `aligner model import"),
        # the tutorial's Llama 2 is in Meta's own format
        (f"{META}-chat", f"Meta's own format .*: aligner model fetch {META}-chat-hf"),
        *(
            (name, "there is no model named")
            for name in ("../secret/model", "a/b/c", "/a/b", "a/..", "a/b@x y")
        ),
    ],
)
def test_without_the_hub_another_way_is_named_and_paths_are_no_names(net, tmp_path, name, message):
    with pytest.raises((ValueError, UserError), match=message):
        fetched(name, tmp_path)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (("config.json", "pytorch_model.bin"), r"as pickles \(pytorch_model\.bin\).*refs/pr/N.*save_pretr"),
        (("GPT-2B-001_bf16_tp1.nemo",), r"hf download a/b GPT-2B-001_bf16_tp1\.nemo"),
        (("adapter_config.json", "adapter_model.safetensors"), "contains an adapter"),
        (("unet/model.safetensors", "model_index.json"), "contains no language model .* only unet/model"),
    ],
)
def test_what_holds_no_safetensors_is_refused_with_what_to_do(held, message):
    with pytest.raises(UserError, match=message):
        check_files("a/b", held)


def test_pickles_are_not_even_downloaded(files, folder, refused):
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    files.content.clear()
    put_on_hub(files, folder, REPO, COMMIT)
    refused("as pickles", UserError)
    assert not [path for _, path, _ in files.requests if "/resolve/" in path]
