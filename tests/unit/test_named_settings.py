"""Each setting that docs/parity.md and docs/migration.md name does, in each kind of job, what its row says."""

import re

import pytest
from named_settings import (
    ELSEWHERE,
    FIRST,
    NOT_HERE,
    ONLY,
    VALUES,
    claims,
    effects,
    key_of,
    kinds_of,
    named,
    rows,
    says_no_effect,
)

from aligner_lib.config.compose import compose
from aligner_lib.config.kinds import kinds
from aligner_lib.config.other_names import OTHER_NAMES
from aligner_lib.errors import ConfigError

JOBS = {name: jobs for name, (_, jobs, _) in claims().items()} | {
    name: kinds_of(cell) for name, cell in ELSEWHERE.items()
}
ABOUT = [
    (name, " | ".join(list(row.values())[1:]).partition("`tests/")[0])
    for page in ("parity", "migration")
    for row in rows(page)
    for name in dict.fromkeys(named(next(iter(row.values()))))
]
ABOUT += [(name, words) for name, (words, _, first) in claims().items() if not named(first)]
ABOUT += [(name, "") for name in sorted(ELSEWHERE.keys() - dict(ABOUT).keys())]


def test_every_setting_that_a_row_names_is_known_here():
    cells = [cell for page in ("parity", "migration") for row in rows(page) for cell in row.values()]
    in_rows = {name for cell in cells for name in named(cell)}
    assert len(claims()) > 65 and len(ABOUT) > 75
    assert in_rows - JOBS.keys() - NOT_HERE.keys() == set(), "add it to tests/named_settings.py"
    assert JOBS.keys() - VALUES.keys() == set(), "give it an unusual value in tests/named_settings.py"
    assert (ELSEWHERE.keys() | VALUES.keys()) - in_rows == set(), "no row names it"
    assert ELSEWHERE.keys() & claims().keys() == set(), "its row names its jobs"


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, words in ABOUT if name not in NOT_HERE])
def test_a_setting_has_an_effect_in_the_jobs_of_its_row_and_in_no_other(name, words):
    taken = {kind: effects(kind)[name] for kind in kinds() if name in effects(kind)}
    kinds_with = set(taken) if says_no_effect(words) else {kind for kind in taken if taken[kind]}
    assert kinds_with == JOBS[name], (
        "a new kind of job: extend the row's jobs, or ELSEWHERE in named_settings.py"
    )
    assert not (says_no_effect(words) and any(taken.values()))


@pytest.mark.parametrize("name", [*ONLY, *NOT_HERE])
def test_what_is_refused_is_refused_with_the_setting_s_name(name):
    jobs = JOBS.get(name) or kinds_of(NOT_HERE[name])
    expected = "there is no setting" if name in NOT_HERE else "must be"
    for kind in jobs:
        with pytest.raises(ConfigError, match=expected) as refusal:
            compose(kind, [f"{key_of(name)}={ONLY.get(name, 7)}"])
        assert name in str(refusal.value)


def test_a_row_that_says_refused_is_about_a_setting_that_is():
    refused = {name for name, words in ABOUT if "refused" in words}
    assert refused == {"model.rampup_batch_size", *NOT_HERE, "model.dpo.preference_loss"}  # test_migration.py


@pytest.mark.parametrize(
    "row",
    [row for row in rows("parity") if OTHER_NAMES.keys() & set(re.findall(r"`([^`]+)`", row[FIRST]))],
    ids=lambda row: row[FIRST],
)
def test_a_name_of_nemo_reinforcer_s_is_refused_with_the_row_s_settings_one_of_which_the_job_has(row):
    (name,) = re.findall(r"`([^`]+)`", row[FIRST])
    here = named(row["here"])
    for kind in kinds_of(row["jobs"]):
        with pytest.raises(ConfigError, match="there is no setting") as refusal:
            compose(kind, [f"{name}=1"])
        assert here and all(setting in str(refusal.value) for setting in here)
        assert any(effects(kind).get(setting) for setting in here)
