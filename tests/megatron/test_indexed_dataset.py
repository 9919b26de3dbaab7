"""Token files against Megatron's own reader and writer: equal to the byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner_lib.datasets.indexed_dataset import (
    DTYPES,
    IndexedDataset,
    best_dtype,
    files_of_prefix,
    write_index,
)


@pytest.fixture(scope="module")
def theirs():
    from aligner_lib.megatron import cpu

    cpu.prepare()
    from megatron.core.datasets import indexed_dataset

    return indexed_dataset


def build(theirs, prefix, documents, vocab_size):
    """As Megatron's tools/preprocess_data.py: a document a text, and one without a sequence for none."""
    binary, index = files_of_prefix(prefix)
    builder = theirs.IndexedDatasetBuilder(str(binary), dtype=theirs.DType.optimal_dtype(vocab_size))
    for ids in documents:
        builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(str(index))
    return binary.read_bytes(), index.read_bytes()


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 65_498), max_size=4), max_size=8),
    st.sampled_from([1024, 65_499, 65_500, 256_000]),
)
def test_the_files_are_theirs_to_the_byte(theirs, tmp_path_factory, documents, vocab_size):
    folder = tmp_path_factory.mktemp("both")
    binary, index = files_of_prefix(folder / "ours")
    dtype = best_dtype(vocab_size)
    binary.write_bytes(np.array([i for ids in documents for i in ids], DTYPES[dtype]).tobytes())
    with open(index, "wb") as file:
        write_index(file, dtype, np.array(list(map(len, documents)), np.int32))
    assert (binary.read_bytes(), index.read_bytes()) == build(
        theirs, folder / "theirs", documents, vocab_size
    )
    assert list(IndexedDataset(folder / "theirs")) == documents


def test_documents_of_several_sequences_are_read_whole(theirs, tmp_path):
    """As Megatron's tool writes them with --split-sentences."""
    binary, index = files_of_prefix(tmp_path / "a")
    builder = theirs.IndexedDatasetBuilder(str(binary), dtype=np.int32)
    builder.add_document([1, 2, 3], [2, 1])
    builder.add_document([70_000], [1])
    builder.finalize(str(index))
    assert list(IndexedDataset(tmp_path / "a")) == [[1, 2, 3], [70_000]]
