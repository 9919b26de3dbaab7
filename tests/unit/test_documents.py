"""The documents' command lines: those of NeMo-Aligner are taken as they stand, those of NeMo-Reinforcer told what to write."""

import json
import shlex
from pathlib import Path

import documents
import pytest
from omegaconf import OmegaConf

from aligner_lib.config.compose import compose, keys, load, parse_override, save
from aligner_lib.errors import ConfigError

# laid beside the checkout where the documents themselves are at hand
SEEDS = Path(__file__).parents[3] / "shared" / "seeds"


@pytest.mark.parametrize(("kind", "overrides"), documents.TAKEN)
def test_every_command_line_composes_to_what_it_says_and_is_loaded_as_saved(kind, overrides):
    config = compose(kind, overrides)
    for override in overrides:
        key, value = parse_override(override)
        held = OmegaConf.select(config, key)
        held = OmegaConf.to_container(held) if OmegaConf.is_config(held) else held
        assert held == value, override
    assert load(kind, json.loads(json.dumps(save(config)))) == config


@pytest.mark.parametrize(("script", "words"), documents.REINFORCER)
def test_every_setting_with_another_name_is_refused_with_the_name_here(script, words):
    kind = documents.KINDS[script]
    for override in documents.overrides(words):
        key = override.partition("=")[0]
        words = f"there is no setting '{key}', which is NeMo-Reinforcer's: here"
        with pytest.raises(ConfigError, match=words) as error:
            compose(kind, [override])
        assert any(own in str(error.value) for own in keys(kind) if "." in own)


@pytest.mark.parametrize(
    ("document", "commands"),
    [("000_01287c4141bee7be.txt", documents.TUTORIAL), ("004_2747c00c09e9b2ba.txt", documents.REINFORCER)],
)
def test_the_table_has_the_commands_as_they_stand(document, commands):
    if not SEEDS.exists():
        pytest.skip("the documents are not here")
    listed = [(script, shlex.split(words)) for script, words in commands]
    assert documents.commands_in((SEEDS / document).read_text(encoding="utf-8", errors="replace")) == listed
