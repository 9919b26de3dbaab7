"""Archives that are damaged or made to do harm: refused in a sentence, with nothing written, looked up or called."""

import contextlib
import gzip
import io
import pickle
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aligner_lib.models.nemo import archive as archive_module
from aligner_lib.models.nemo import pickled
from aligner_lib.models.nemo.archive import BadArchive, NemoArchive
from aligner_lib.models.nemo.pickled import Call, External, Global, read_pickle, write_pickle
from aligner_lib.models.nemo.source import import_nemo
from aligner_lib.models.nemo.torch_file import TorchFile
from aligner_lib.models.nemo.window import MAX_READ, Window

CONFIG = ("./model_config.yaml", b"num_layers: 2\n")
PACKED = pytest.mark.parametrize("mode", ["w", "w:gz"])


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def pack(path: Path, entries, mode: str = "w") -> Path:
    """A tar of (name or header, content), in this order, whatever the names are."""
    with tarfile.open(path, mode) as tar:
        for info, content in entries:
            info = member(info) if isinstance(info, str) else info
            info.size = len(content) if info.isreg() else info.size
            tar.addfile(info, io.BytesIO(content))
    return path


def refuse(path: Path, message: str) -> None:
    """The import ends with that message, and nothing is there that was not."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(BadArchive, match=message):
        import_nemo(path, path.parent / "model")
    assert sorted(path.parent.rglob("*")) == before


# ---- what is read ---------------------------------------------------------------------------------------------------


@PACKED
def test_the_files_of_a_tar(tmp_path, mode):
    entries = [(member("./", tarfile.DIRTYPE), b""), CONFIG, ("./model_weights/0.0", bytes(range(200)))]
    with NemoArchive(pack(tmp_path / "x.nemo", entries, mode), scratch=tmp_path) as archive:
        assert archive.names() == ["model_config.yaml", "model_weights/0.0"]
        assert archive.read("model_config.yaml") == CONFIG[1]
        with archive.open("model_weights/0.0") as file:
            assert file.seek(100) == 100
            assert file.read(3) == bytes([100, 101, 102])
            assert file.seek(-2, io.SEEK_END) == 198
            assert file.read() == bytes([198, 199])
            assert file.part(10, 20).read() == bytes(range(10, 30))
            with pytest.raises(ValueError, match=r"bytes 190 to 210 of a file with 200 bytes"):
                file.part(190, 20)
        with pytest.raises(BadArchive, match=r"has no common.pt, so the archive is incomplete"):
            archive.open("common.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["x.nemo"]


def test_a_folder_and_an_archive_with_one_folder_in_it(tmp_path):
    inside = tmp_path / "model" / "GPT-2B"
    inside.mkdir(parents=True)
    (inside / "model_config.yaml").write_bytes(CONFIG[1])
    assert NemoArchive(inside).read("model_config.yaml") == CONFIG[1]
    assert NemoArchive(tmp_path / "model").names() == ["model_config.yaml"]
    (tmp_path / "model" / "model_config.yaml").touch()
    assert NemoArchive(tmp_path / "model").names() == ["GPT-2B/model_config.yaml", "model_config.yaml"]


def test_a_window_lends_no_more_than_a_bound(tmp_path):
    (tmp_path / "sparse").touch()
    with (tmp_path / "sparse").open("r+b") as file:
        file.truncate(1 << 40)
        with pytest.raises(ValueError, match="bytes at once"):
            Window(file, 0, 1 << 40).read()
        assert len(Window(file, 0, 1 << 40).read(MAX_READ)) == MAX_READ


# ---- what is refused ------------------------------------------------------------------------------------------------

LINK, DEVICE = "'w' is a link", "'w' is a device or a pipe"
# entries beside the settings
HOSTILE = {
    "absolute": ([("/tmp/owned", b"x")], "'/tmp/owned' is an absolute name"),
    "up": ([("../owned", b"x")], r"'\.\./owned' leads out of the archive"),
    "up inside": ([("a/../../owned", b"x")], "leads out of the archive"),
    "drive": ([("C:/owned", b"x")], "is an absolute name"),
    "backslash": ([("a\\..\\owned", b"x")], "is an absolute name"),
    "symbolic link": ([(member("w", tarfile.SYMTYPE, "/etc/passwd"), b"")], "'w' is a link to '/etc/passwd'"),
    "link inside": ([(member("w", tarfile.SYMTYPE, "model_config.yaml"), b"")], LINK),
    "hard link": ([(member("w", tarfile.LNKTYPE, "model_config.yaml"), b"")], LINK),
    "device": ([(member("w", tarfile.CHRTYPE), b"")], DEVICE),
    "block device": ([(member("w", tarfile.BLKTYPE), b"")], DEVICE),
    "pipe": ([(member("w", tarfile.FIFOTYPE), b"")], DEVICE),
    "sparse": ([(member("w", tarfile.GNUTYPE_SPARSE), b"")], "'w' is a sparse file"),
    "twice": ([CONFIG], "'model_config.yaml' is there twice"),
    "twice in other words": ([("model_config.yaml", b"")], "is there twice"),
    "case": ([("Model_Config.yaml", b"")], "in upper and in lower case"),
    "composed": ([("\u00e9", b""), ("e\u0301", b"")], "is there twice"),
    "case of a folder": ([("W/0", b""), ("w/1", b"")], "in upper and in lower case"),
    "under a file": ([("w", b"x"), ("w/0", b"")], "as a file and a folder"),
    "over a folder": ([("w/0", b"x"), ("w", b"")], "as a file and a folder"),
    "deep": ([("a/" * 20 + "b", b"")], "is not a name of a model's file"),
    "control characters": ([("a\x1b[2J", b"")], "is not a name of a model's file"),
    "not UTF-8": ([("a\udcff", b"")], "is not a name of a model's file"),
    "too many": ([(f"f{i}", b"") for i in range(10)], "more than 10 files"),
}


@PACKED
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_refused(tmp_path, case, mode, monkeypatch):
    monkeypatch.setattr(archive_module, "MAX_MEMBERS", 10)
    entries, message = HOSTILE[case]
    refuse(pack(tmp_path / "x.nemo", [CONFIG, *entries], mode), message)


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0) -> bytes:
    info = member(name, kind)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax(size: str) -> bytes:
    """An archive whose member has a size of its own in an extended header."""
    info, packed = member("w"), io.BytesIO()
    info.pax_headers = {"size": size}
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member("model_config.yaml"))
        tar.addfile(info)
    return packed.getvalue()


def tar_of(*names: str) -> bytes:
    return b"".join(map(header, names)) + bytes(1024)


CLAIMS = "bytes, more than the archive can hold"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty file"),
        (b"x" * 3000, "is not a complete tar"),
        (tar_of("model_weights.ckpt"), "has no model_config.yaml"),
        (tar_of("a/model_config.yaml", "b/model_config.yaml"), "has several model_config.yaml"),
        (header("model_config.yaml") + header("w", size=1 << 50) + bytes(1024), f"claims {1 << 50} {CLAIMS}"),
        (pax("-5"), f"claims -5 {CLAIMS}"),
        (pax("9" * 25), f"claims {'9' * 25} {CLAIMS}"),
    ],
    ids=["empty", "no tar", "no settings", "two settings", "claimed size", "negative size", "long size"],
)
def test_a_damaged_tar_is_refused(tmp_path, content, message):
    (tmp_path / "x.nemo").write_bytes(content)
    refuse(tmp_path / "x.nemo", message)


def test_a_long_name_of_a_gigabyte_is_not_read(tmp_path):
    """A header before the member's says how long the name is: 1 GiB, of which the file has nothing but a hole."""
    path = tmp_path / "x.nemo"
    path.write_bytes(header("././@LongLink", tarfile.GNUTYPE_LONGNAME, 1 << 30))
    with path.open("r+b") as file:
        file.truncate(2 << 30)
    refuse(path, "a header of more than 131072 bytes")


def test_a_bomb_is_refused_before_anything_is_written_and_behind_the_end(tmp_path, monkeypatch):
    """100 MiB of zeros in 100 KiB: a thousandfold, where weights shrink by less than two."""
    path, end = tmp_path / "x.nemo", gzip.compress(tar_of("model_config.yaml") + bytes(8 << 20))
    with monkeypatch.context() as patch:
        patch.setattr(archive_module, "SMALL", 1 << 20)
        path.write_bytes(end)
        refuse(path, "is cut off or damaged")
    packed = pack(path, [CONFIG, ("model_weights.ckpt", bytes(100 << 20))], "w:gz")
    assert packed.stat().st_size < 1 << 18
    monkeypatch.setattr(archive_module, "_inflated", None)
    refuse(packed, "made to fill a disk")


def test_no_room_for_a_gzip_tar(tmp_path, monkeypatch):
    path = pack(tmp_path / "x.nemo", [CONFIG], "w:gz")
    full = archive_module.shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(archive_module.shutil, "disk_usage", lambda folder: full)
    with pytest.raises(archive_module.DiskFull, match="has less room: free space there"):
        NemoArchive(path, scratch=tmp_path)


@PACKED
def test_wherever_it_is_cut_it_is_refused(tmp_path, mode):
    path = pack(tmp_path / "x.nemo", [CONFIG, ("model_weights.ckpt", b"w" * 700)], mode)
    whole = path.read_bytes()
    # a plain tar is filled up with zeros; the first block of them is its end
    end = len(whole) if mode == "w:gz" else 512 * (1 + 1 + 1 + 2) + 512
    for length in {*range(0, end, 113), end - 1}:
        path.write_bytes(whole[:length])
        refuse(path, "")


@given(st.data())
def test_a_damaged_tar_is_read_or_refused(tmp_path_factory, data):
    """Any bytes changed: an archive with safe names, or BadArchive."""
    folder = tmp_path_factory.mktemp("damaged")
    whole = bytearray(pack(folder / "x.nemo", [CONFIG, ("a/b", b"w" * 600), ("c", b"")]).read_bytes())
    changes = st.lists(st.tuples(st.integers(0, 3583), st.integers(0, 255)), min_size=1, max_size=8)
    for position, value in data.draw(changes):
        whole[position] = value
    packed = data.draw(st.booleans())
    (folder / "x.nemo").write_bytes(gzip.compress(whole, 1) if packed else whole)
    try:
        with NemoArchive(folder / "x.nemo", scratch=folder) as archive:
            for name in archive.names():
                assert not name.startswith("/") and ".." not in name.split("/")
                assert len(archive.open(name).read()) <= len(whole)
    except BadArchive:
        pass
    assert [path.name for path in folder.iterdir()] == ["x.nemo"]


@given(st.lists(st.text("aAbB./\\:\u0131\u0130 \n", max_size=8), max_size=5))
def test_names_that_are_accepted_are_distinct_places_inside(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("names")
    try:
        archive = NemoArchive(pack(folder / "x.nemo", [CONFIG, *((name, b"") for name in names)]))
    except BadArchive:
        return
    accepted = archive.names()
    assert len({name.casefold() for name in accepted}) == len(accepted)
    for name in accepted:
        assert (folder / "root" / name).resolve().is_relative_to(folder / "root")


def test_a_link_out_of_a_folder_an_empty_folder_and_nothing(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "model" / "model_config.yaml").symlink_to(tmp_path / "secret")
    with pytest.raises(BadArchive, match="is a link out of the folder: put the file itself there"):
        NemoArchive(tmp_path / "model").read("model_config.yaml")
    for name, message in (("empty", r"has no model_config\.yaml"), ("x.nemo", "does not exist")):
        with pytest.raises(BadArchive, match=message):
            NemoArchive(tmp_path / name)


# ---- pickles --------------------------------------------------------------------------------------------------------


class Evil:
    """A pickle that would create a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def torch_zip(values: bytes, **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in {"data.pkl": values, "version": b"3\n", **more}.items():
            archive.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def torch_file(path: Path, content: bytes) -> TorchFile:
    path.write_bytes(content)
    return TorchFile(Window(path.open("rb"), 0, len(content)), "w.ckpt")


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path, protocol):
    dangerous = pickle.dumps({"model.x": Evil(tmp_path / "owned")}, protocol)
    with pytest.raises(
        ValueError, match=r"contains '.*', which weights do not need: nothing of the pickle was run"
    ):
        torch_file(tmp_path / "w.ckpt", torch_zip(dangerous))
    assert not (tmp_path / "owned").exists()
    pickle.loads(dangerous)
    assert (tmp_path / "owned").exists(), "the pickle does no harm: this test shows nothing"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "w.ckpt is refused: BadZipFile"),
        (b"x" * 100, "w.ckpt is refused: BadZipFile"),
        (b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + b"x" * 50, "saved by torch before 1.6"),
        (torch_zip(b""), "its pickle is damaged"),
        (torch_zip(b"\x80\x02}"), "its pickle is damaged"),
        (torch_zip(b"\x80\x02."), "its pickle is damaged"),
        (torch_zip(b"\x80\x02(."), "a mark where a value should be"),
        (torch_zip(b"\x80\x02]\x86."), "its pickle is damaged"),
        (torch_zip(b"\x80\x02KEh\x05."), "its pickle is damaged"),
        (torch_zip(b"(ios\nsystem\n."), "has the opcode INST"),
        (torch_zip(pickle.dumps({}, 2), byteorder=b"big"), "big-endian"),
    ],
)
def test_a_damaged_file_of_torch_is_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        torch_file(tmp_path / "w.ckpt", content)


def weight_of(path: Path, stored: bytes, size=4, start=0, shape=(4,), strides=(1,)) -> TorchFile:
    """A file of torch with a tensor `w`, a view of so many numbers in float32."""
    storage = External(("storage", Global("torch.FloatStorage"), "0", "cpu", size))
    arguments = (storage, start, shape, strides, False, Call(pickled.ORDERED_DICT, ()))
    content = write_pickle({"w": Call("torch._utils._rebuild_tensor_v2", arguments)})
    return torch_file(path, torch_zip(content, **{"data/0": stored}))


@pytest.mark.parametrize(
    ("start", "shape", "strides"),
    [(0, (5,), (1,)), (2, (3,), (1,)), (-1, (2,), (1,)), (0, (1 << 40,), (0,)), (0, (2, 2), (1, 0)),
     (0, (2,), (1, 1)), (0, (-1,), (1,)), (0, (True,), (1,)), (0, (2, 2), (3, 1))],
)  # fmt: skip
def test_a_tensor_beyond_its_storage_is_refused(tmp_path, start, shape, strides):
    with pytest.raises(ValueError, match="reaches beyond its storage"):
        weight_of(tmp_path / "w.ckpt", bytes(16), 4, start, shape, strides).state_dict()


def test_storages_of_another_size_and_changed_numbers_are_damaged(tmp_path):
    path = tmp_path / "w.ckpt"
    for stored in (b"", bytes(12), bytes(20)):
        with pytest.raises(ValueError, match=r"w is damaged .its storage has .* bytes instead of 16"):
            weight_of(path, stored).state_dict()["w"].read()
    weight_of(path, b"0123456789abcdef")
    file = torch_file(path, path.read_bytes().replace(b"0123456789abcdef", b"0123456789abcdeg"))
    with pytest.raises(ValueError, match=r"w is damaged .BadZipFile.*CRC"):
        file.state_dict()["w"].read()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN, st.sampled_from([0, 1, 2, 3, 4, 5]))
def test_plain_values_are_pickled_and_read_as_python_does(value, protocol):
    assert read_pickle(pickle.dumps(value, protocol), lambda name: False) == value
    written = write_pickle(value)
    assert pickle.loads(written) == value == read_pickle(written, lambda name: False)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_pickle_or_refused(data):
    with contextlib.suppress(pickled.Refused):
        read_pickle(b"\x80\x02" + data, lambda name: False)
