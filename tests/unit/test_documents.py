"""The documents' command lines: those of NeMo-Aligner are taken as they stand, those of NeMo-Reinforcer told what to write."""

import json

import documents
import pytest
from omegaconf import OmegaConf

from aligner_lib.config.compose import compose, keys, load, parse_override, save
from aligner_lib.errors import ConfigError


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
