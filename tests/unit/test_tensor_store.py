"""Blocks on disk, read back in any other cut; damaged and missing ones are named."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from aligner_lib.models.tensor_store import Block, StoreReader, StoreWriter, check_store

NUMBERS = torch.arange(24.0).reshape(4, 6)


def block(rows: tuple[int, int], columns: tuple[int, int], flat=None, shape=(4, 6)) -> Block:
    """Rows [a, b) and columns [c, d) of the tensor `w`."""
    sizes = (rows[1] - rows[0], columns[1] - columns[0])
    return Block("w", shape, (rows[0], columns[0]), sizes, flat)


WHOLE = block((0, 4), (0, 6))


def cut(b: Block) -> torch.Tensor:
    """The numbers that belong in a block."""
    (row, column), (rows, columns) = b.offset, b.shape
    values = NUMBERS[row : row + rows, column : column + columns]
    return values if b.flat is None else values.flatten()[b.flat[0] : b.flat[1]]


def write(folder, *ranks: list[Block]) -> StoreReader:
    for rank, blocks in enumerate(ranks):
        writer = StoreWriter(folder, rank)
        for b in blocks:
            writer.add(b, cut(b))
        writer.flush()
    return StoreReader(folder)


def test_a_whole_tensor_comes_back(tmp_path):
    writer = StoreWriter(tmp_path)
    tensors = {"w": NUMBERS, "scalar": torch.tensor(3.5), "half": torch.ones(3, dtype=torch.bfloat16)}
    for name, tensor in tensors.items():
        writer.add(Block.whole(name, tensor), tensor)
    writer.flush()
    reader = StoreReader(tmp_path)
    assert reader.names() == sorted(tensors)
    for name, tensor in tensors.items():
        whole = reader.read_whole(name)
        assert torch.equal(whole, tensor) and whole.dtype == tensor.dtype
        assert reader.shape(name) == tuple(tensor.shape)
    assert reader.read_whole("half", torch.float32).dtype == torch.float32


def test_equal_tensors_make_equal_files_that_others_may_read(tmp_path):
    files = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        writer = StoreWriter(folder)
        for i in range(20):  # enough that a random order would differ
            writer.add(Block.whole(f"tensor.{i}", NUMBERS), NUMBERS.clone())
        writer.flush()
        files += folder.iterdir()
    (tmp_path / "plain").touch()
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_mode == (tmp_path / "plain").stat().st_mode


def cuts_of(size: int):
    """Ways to cut [0, size) into ranges."""
    inner = st.sets(st.integers(1, size - 1), max_size=3).map(sorted)
    return inner.map(lambda at: list(zip([0, *at], [*at, size])))


@settings(max_examples=40)
@given(st.data())
def test_any_layout_reads_what_any_other_wrote(tmp_path_factory, data):
    """Blocks, and flat parts of blocks that go on in another process's file."""
    ranks = []
    for rows in data.draw(cuts_of(4)):
        for columns in data.draw(cuts_of(6)):
            whole = block(rows, columns)
            size = math.prod(whole.shape)
            parts = data.draw(cuts_of(size)) if size > 1 and data.draw(st.booleans()) else [None]
            ranks += [[block(rows, columns, part)] for part in parts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda number: None)  # a hundred examples would wait for the disk
        reader = write(tmp_path_factory.mktemp("store"), *ranks)
    for rows in data.draw(cuts_of(4)):
        for columns in data.draw(cuts_of(6)):
            target = block(rows, columns)
            assert torch.equal(reader.read(target), cut(target))
    assert torch.equal(reader.read_whole("w", torch.float64), NUMBERS.double())


def test_a_full_file_is_written_out(tmp_path, monkeypatch):
    monkeypatch.setattr("aligner_lib.models.tensor_store.FILE_BYTES", 1)
    write(tmp_path, [block((0, 2), (0, 6)), block((2, 4), (0, 6))])
    assert len(list(tmp_path.iterdir())) == 2


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no weights in"):
        StoreReader(tmp_path)
    reader = write(tmp_path, [block((0, 4), (0, 3))])
    assert "w" in reader and "v" not in reader
    assert torch.equal(reader.read(block((1, 3), (0, 2))), NUMBERS[1:3, 0:2])
    with pytest.raises(ValueError, match=r"w in .* is incomplete: 12 of 24 values"):
        reader.read_whole("w")
    with pytest.raises(KeyError, match="no tensor 'v'"):
        reader.read_whole("v")
    with pytest.raises(ValueError, match=r"w in .* has shape \[4, 6\], but the model needs \[4, 7\]"):
        reader.read(block((0, 4), (0, 7), shape=(4, 7)))
    with pytest.raises(AssertionError, match="w: 5 values for a block of 24"):
        StoreWriter(tmp_path).add(WHOLE, torch.zeros(5))


@settings(max_examples=40)
@given(keep=st.integers(0, 400))
def test_a_file_that_lost_its_end_is_named(tmp_path_factory, keep):
    folder = tmp_path_factory.mktemp("store")
    write(folder, [WHOLE])
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    assert check_store(folder) == len(whole)
    path.write_bytes(whole[: min(keep, len(whole) - 1)])
    with pytest.raises(ValueError, match=rf"{path} is damaged"):
        check_store(folder)


@pytest.mark.parametrize("content", ["no list of blocks", "its header can't be read"])
def test_a_file_without_a_list_of_blocks_or_with_a_spoilt_header_is_refused(tmp_path, content):
    path = tmp_path / "rank00000_00000.safetensors"
    save_file({"0": NUMBERS}, path)
    if content != "no list of blocks":
        stored = path.read_bytes()
        path.write_bytes(stored[:8] + b"\xff" * 4 + stored[12:])
    with pytest.raises(ValueError, match=content):
        StoreReader(tmp_path)
