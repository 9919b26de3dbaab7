"""What the tests of datasets and templates share: small data files, and the smoke tokenizer with another template."""

import json

import pytest


@pytest.fixture
def jsonl(tmp_path):
    """Writes records into a file; gives the list of files that loaders take."""

    def write(*records: dict) -> list:
        path = tmp_path / "data.jsonl"
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return [path]

    return write


@pytest.fixture
def with_template(smoke, tmp_path):
    """The smoke tokenizer with another chat template, in use."""
    from tiny_tokenizers import with_settings

    from aligner_lib.datasets.chat_template import OWN, use_template
    from aligner_lib.datasets.tokenizer import Tokenizer

    return lambda template: use_template(
        Tokenizer(with_settings(smoke, tmp_path, chat_template=template)), OWN
    )
