"""A workshop's bundle with a stand-in for the wheels: unpacking restores what was packed, and refuses the rest."""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from aligner_lib.errors import UserError
from aligner_lib.models.fetch import is_cached
from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.tutorial.workshop import bundle as bundles
from aligner_lib.tutorial.workshop import packing
from aligner_lib.tutorial.workshop.bundle import BadBundle, Bundle
from aligner_lib.tutorial.workspace.recorded_runs import recorded

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A git clone with a lock and a line of code in each package."""
    root = tmp_path_factory.mktemp("project")
    for package in bundles.PACKAGES:
        (root / package).mkdir()
        (root / package / "__init__.py").write_text(f"# {package}\n")
    (root / "requirements.lock").write_text("tiny==1.0\n")
    (root / "requirements-pytriton.lock").touch()
    for words in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm one"):
        subprocess.run(["git", "-C", root, *words.split()], check=True)
    return root


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A package and a uv that says who it is."""
    folder = tmp_path_factory.mktemp("wheels")
    with zipfile.ZipFile(folder / "uv-9.9-py3-none-any.whl", "w") as wheel:
        wheel.writestr("uv-9.9.data/scripts/uv", "#!/bin/sh\necho uv 9.9\n")
    (folder / "tiny-1.0-py3-none-any.whl").write_bytes(b"a wheel")
    return folder


@pytest.fixture(scope="module")
def tutorial(smoke, tmp_path_factory):
    """A finished tutorial's folder with one run."""
    run = tmp_path_factory.mktemp("tutorial") / "runs" / "sft"
    shutil.copytree(smoke, run / "checkpoints" / "step_000002")
    info = {"name": "sft", "kind": "sft", "status": "finished", "profile": "smoke", "host": "h"}
    info |= {"config": {}, "hashes": {}, "created": 1.0, "heartbeat": {"time": 5.0, "step": 2}}
    (run / "run.json").write_text(json.dumps(info))
    (run / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n{"step": 2, "time": 5.0}\n')
    return run.parents[1]


@pytest.fixture(scope="module")
def packed(project, wheels, tutorial, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "new folder" / "the bundle.tar"
    return packing.pack("smoke", out, tutorial, wheels, root=project, echo=lambda _: None)


@pytest.fixture
def as_project(project, monkeypatch, tmp_path):
    """This checkout is taken for the small one, with a cache of its own."""
    here = bundles.made_for(project)
    monkeypatch.setattr(bundles, "made_for", lambda root=None: here)
    monkeypatch.setenv("ALIGNER_CACHE", str(tmp_path / "cache"))
    return here


def rewritten(packed: Path, out: Path, change=lambda name, content: content, members=()) -> Path:
    """A copy of a bundle: `change(name, bytes)` gives each file's content; members: added (TarInfo, bytes)."""
    with tarfile.open(packed) as old, tarfile.open(out, "w") as new:
        files = [(member, change(member.name, old.extractfile(member).read())) for member in old]
        for member, content in [*files, *members]:
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return out


def test_what_was_packed_comes_out_once_and_has_nothing_of_the_machine(packed, as_project, smoke, tmp_path):
    assert not is_cached("smoke")
    lines = []
    packing.take_over(packed, lines.append)
    assert is_cached("smoke") and "sft" in lines[-1]
    run = recorded("smoke", "sft")
    assert run.info["recorded"]["seconds"] == 4.0 and "host" not in run.info
    assert (run.latest_checkpoint() / "model.json").read_bytes() == (smoke / "model.json").read_bytes()
    file = (run.path / "metrics.jsonl").stat().st_ino
    packing.take_over(packed, lines.append)  # a second time nothing is copied
    assert (run.path / "metrics.jsonl").stat().st_ino == file
    shutil.rmtree(run.path / "checkpoints")
    assert recorded("smoke", "sft") is None
    packing.take_over(packed, lines.append)
    assert recorded("smoke", "sft").latest_checkpoint().name == "step_000002"
    bundles.unpack_wheels(packed, tmp_path / "wheels")
    assert (tmp_path / "wheels" / "tiny-1.0-py3-none-any.whl").read_bytes() == b"a wheel"
    assert subprocess.check_output([tmp_path / "wheels" / "uv"], text=True) == "uv 9.9\n"
    assert str(tmp_path.parents[0]) not in str(Bundle(packed).manifest)
    with tarfile.open(packed) as archive:
        assert {(member.uname, member.uid) for member in archive} == {("", 0)}
        with tarfile.open(fileobj=archive.extractfile("project.tar.gz")) as project:
            assert "aligner-lab/requirements.lock" in project.getnames()


def test_a_foreign_bundle_is_refused_with_the_cure(packed, as_project):
    for what, value, cure in [
        ("python", "3.99", "LAB_PYTHON=python3.1"),
        ("platform", "linux-sparc", "pack a bundle on "),
        ("lock", "0", "requirements.lock differs here: git checkout"),
        (
            "sources",
            "0",
            rf"the code differs here: git checkout.*tar -xOf '{packed}' project.tar.gz \| tar -xz",
        ),
    ]:
        with pytest.raises(BadBundle, match=cure):
            Bundle(packed).check_fits(as_project | {what: value})


def test_a_change_of_the_code_is_another_bundle(project, tmp_path):
    copy = shutil.copytree(project, tmp_path / "copy")
    (copy / "data" / "__pycache__").mkdir()
    (copy / "data" / "__pycache__" / "a.pyc").write_bytes(b"x")
    assert bundles.made_for(copy) == bundles.made_for(project)
    (copy / "data" / "more.py").touch()
    assert bundles.made_for(copy)["sources"] != bundles.made_for(project)["sources"]


def test_a_flipped_byte_and_an_unknown_file_are_found_and_leave_nothing(packed, as_project, tmp_path):
    bad, model = tmp_path / "bad.tar", "model/model.json"
    rewritten(packed, bad, lambda name, content: content.replace(b"a wheel", b"a whEel"))
    with pytest.raises(BadBundle, match=r"tiny-1.0-py3-none-any.whl is damaged.*copy the bundle again"):
        bundles.unpack_wheels(bad, tmp_path / "wheels")
    rewritten(packed, bad, members=[(tarfile.TarInfo("wheels/evil.whl"), b"")])
    with pytest.raises(BadBundle, match=r"evil.whl' differs from the manifest"):
        bundles.unpack_wheels(bad, tmp_path / "wheels")
    assert os.listdir(tmp_path) == ["bad.tar"]
    rewritten(packed, bad, lambda name, content: content[:-1] + b"?" if name == model else content)
    with pytest.raises(BadBundle, match=f"{model} is damaged"):
        packing.take_over(bad)
    assert not is_cached("smoke")


def test_a_copy_that_was_cut_short_and_what_is_no_bundle_are_refused(packed, as_project, tmp_path):
    whole = packed.read_bytes()
    for share in (0.001, 0.5, 0.9):
        (tmp_path / "cut.tar").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(BadBundle):
            bundles.unpack_wheels(tmp_path / "cut.tar", tmp_path / "wheels")
            packing.take_over(tmp_path / "cut.tar")
    for content in (b"", b"text", b"\0" * 10240):
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(BadBundle, match="is no bundle"):
            Bundle(tmp_path / "file")


HOSTILE_NAMES = (
    ["", ".", "..", "../victim", "../../../victim", "a/../../victim", "/etc/x", "//x", "a//b", "a/", "a/./b", "a\\b",
     "..\\..\\victim", "C:\\x", "C:x", "a\0b", "a\nb", "\udc80", "\u202e", "n" * 256]
)  # fmt: skip
FEW_NAMES = ["..", "../victim", "a\0b"]
HOSTILE_CHANGES = {
    **dict.fromkeys(["run", "file"], HOSTILE_NAMES),
    **dict.fromkeys(["profile", "model", "wheel"], FEW_NAMES),
    "size": [-1, 1.0, True, None, "1", 1 << 70],
    "sha256": ["", "0" * 63, "G" * 64, 0, None],
    "type": [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.GNUTYPE_SPARSE],
    "twice": ["run", "key", "member", "file and folder"],
    "gone": ["files", "runs", "profile", "model", "commit", "run.json", "a file"],
}
EVIL = b"evil"
ENTRY = {"size": len(EVIL), "sha256": hashlib.sha256(EVIL).hexdigest()}


def with_manifest(packed: Path, out: Path, change, members) -> Path:
    """A copy of a bundle whose manifest is `change(manifest)`, a dict or a text."""

    def changed(name: str, content: bytes) -> bytes:
        if name != "manifest.json":
            return content
        manifest = change(json.loads(content))
        return manifest.encode() if isinstance(manifest, str) else json.dumps(manifest).encode()

    return rewritten(packed, out, changed, [(member, EVIL) for member in members])


def hostile_bundle(packed: Path, out: Path, kind: str, value) -> Path:
    """A bundle that differs from a good one in one place; where it names something, the archive holds that too."""
    names = {"run": f"recorded/{value}/run.json", "file": f"recorded/sft/{value}", "wheel": f"wheels/{value}"}
    evil = tarfile.TarInfo(names.get(kind, "recorded/sft/evil"))
    twice = {"member": [evil, evil], "file and folder": [evil, tarfile.TarInfo(f"{evil.name}/below")]}
    added = twice.get(value, [evil])
    if kind == "type":
        evil.type, evil.linkname = value, "../../../victim"
    elif kind in ("profile", "model", "gone") or value in ("run", "key"):
        added = []

    def change(manifest: dict) -> dict | str:
        files = manifest["files"]
        files |= {member.name: dict(ENTRY) for member in added}
        if kind == "run":
            manifest["runs"] = [value]
        elif kind in ("profile", "model"):
            manifest[kind] = value
        elif kind in ("size", "sha256"):
            files[evil.name][kind] = value
        elif (kind, value) == ("twice", "run"):
            manifest["runs"] *= 2
        elif value == "key":
            return json.dumps(manifest)[:-1] + ', "runs": []}'
        elif value == "run.json":
            del files["recorded/sft/run.json"]
        elif value == "a file":
            files["recorded/sft/missing"] = ENTRY
        elif kind == "gone":
            del manifest[value]
        return manifest

    return with_manifest(packed, out, change, added)


def tree(folder: Path) -> dict[str, bytes | None]:
    paths = [path for path in folder.rglob("*") if not path.name.endswith(".lock")]
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.mark.parametrize("kind", HOSTILE_CHANGES)
def test_a_hostile_bundle_touches_nothing(packed, as_project, tmp_path, kind, monkeypatch):
    """The cache lies three folders deep, so that ../../../victim is the folder beside it."""
    home = tmp_path / "home"
    (home / "cache" / "models").mkdir(parents=True)
    run = home / "cache" / "recorded" / "smoke" / "sft"
    for folder in (tmp_path / "victim", home / "victim", home / "cache" / "victim", run):
        folder.mkdir(parents=True)
        (folder / "precious").write_text("mine")
    monkeypatch.setenv("ALIGNER_CACHE", str(home / "cache"))
    before = tree(tmp_path)
    for value in HOSTILE_CHANGES[kind]:
        bad = hostile_bundle(packed, tmp_path / "bad.tar", kind, value)
        with pytest.raises(BadBundle):
            bundles.unpack_wheels(bad, home / "wheels") if kind == "wheel" else packing.take_over(bad)
            pytest.fail(f"{kind} {value!r} was taken")
        bad.unlink()
        assert tree(tmp_path) == before, repr(value)


def test_a_run_s_place_that_is_a_link_is_left_alone(packed, as_project, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("kept")
    (tmp_path / "cache" / "recorded" / "smoke").mkdir(parents=True)
    (tmp_path / "cache" / "recorded" / "smoke" / "sft").symlink_to(tmp_path / "mine")
    with pytest.raises(BadBundle, match=r"leads to .*mine: remove the link"):
        packing.take_over(packed)
    assert (tmp_path / "mine" / "notes").read_text() == "kept" and not is_cached("smoke")


def test_an_older_model_and_run_are_replaced_by_the_bundle_s(packed, as_project, tmp_path):
    for folder in ("models/smoke", "recorded/smoke/sft"):
        (tmp_path / "cache" / folder).mkdir(parents=True)
        (tmp_path / "cache" / folder / "old").write_text("old")
    packing.take_over(packed)
    assert is_cached("smoke") and recorded("smoke", "sft").info["kind"] == "sft"
    assert not list((tmp_path / "cache").rglob("old")) and not list((tmp_path / "cache").rglob("*.partial"))


def test_uncommitted_changes_and_runs_of_another_profile_are_not_packed(project, wheels, tutorial, tmp_path):
    copy = shutil.copytree(project, tmp_path / "copy")
    (copy / "data" / "__init__.py").write_text("# changed\n")
    with pytest.raises(UserError, match=r"has uncommitted changes \(data/__init__.py"):
        packing.pack("smoke", tmp_path / "out.tar", None, wheels, root=copy)
    with pytest.raises(UserError, match="is a run of the profile smoke, but the bundle is for laptop"):
        packing._check_profile(RunFolder(tutorial / "runs" / "sft"), "laptop")


def test_only_a_folder_without_a_commit_is_called_no_git_clone(project, wheels, tmp_path):
    with pytest.raises(UserError, match=r"is no git clone, which packing needs: .*not a git repository"):
        packing.pack("smoke", tmp_path / "out.tar", None, wheels, root=tmp_path)
    with pytest.raises(UserError, match=rf"^`git archive` fails in {project}: .*nowhere"):
        packing._project(project, tmp_path / "nowhere")


LOCK = """a==1 ; python_full_version < '3.11.5' \\
    --hash=sha256:1 \\
    --hash=sha256:2
    # via b
a==2 ; python_full_version >= '3.11.5' \\
    --hash=sha256:3
b==1 ; python_full_version < '3.11' \\
    --hash=sha256:4
c==1 \\
    --hash=sha256:5
"""


@pytest.mark.parametrize(
    ("python", "entries"),
    [
        ("3.11.7", ["a==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\n"]),
        ("3.11.2", ["a==2 \\\n    --hash=sha256:3\n"]),
        ("3.12.1", []),
    ],
)
def test_a_bundle_has_the_packages_of_the_other_patch_releases(python, entries):
    assert packing.entries_of_other_patches(LOCK, python) == entries


def test_a_folder_of_wheels_without_uv_is_refused(project, tmp_path):
    (tmp_path / "tiny-1.0-py3-none-any.whl").touch()
    with pytest.raises(UserError, match=r"there is no uv-\*\.whl.*pip download --no-deps -d .* 'uv>=0\.8'"):
        packing.pack("smoke", tmp_path / "out.tar", None, tmp_path, root=project)


@pytest.mark.parametrize("other", ["tiny-1.1-py3-none-any.whl", "tiny-1.0-cp27-cp27m-win32.whl", "tiny.txt"])
def test_a_folder_of_wheels_without_a_package_of_the_lock_is_refused(other, project, tmp_path):
    for name in ("uv-9.9-py3-none-any.whl", other):
        (tmp_path / name).touch()
    with pytest.raises(UserError, match=r"lacks tiny==1\.0 of requirements\.lock, .*: pip download"):
        packing.pack("smoke", tmp_path / "out.tar", None, tmp_path, root=project)


def test_the_packages_that_a_folder_lacks_are_those_whose_markers_fit():
    markers = "a==1 ; sys_platform == 'never' \\\n    --hash=sha256:1\nb-c==2.0 \\\nd==3 ; python_version > '3' \\\n"
    assert packing._missing(markers, {("b-c", Version("2"))}) == ["d==3"]


def test_the_part_that_lab_calls_needs_no_package(packed, tmp_path):
    """-S: without site-packages, as the Python that an environment is made with."""
    module = ["-S", "-m", "aligner_lib.tutorial.workshop.bundle", packed, tmp_path / "wheels"]
    done = subprocess.run([sys.executable, *module], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("lab: ") and "git checkout" in done.stderr
    assert len(done.stderr.splitlines()) == 1
