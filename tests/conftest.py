"""What several rooms share: the smoke model, SmolLM2, and the bundled samples in the trainers' formats."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
from affected import ROOT, affected, changed_since
from filelock import FileLock
from smoke_jobs import SmokeJobs

# Before torch is imported: these tests hold figures of the CPU, also where a GPU is.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Another worker has the other core, and two threads would wait for each other at every tiny product.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before TRL is imported: it imports trackio, which reads its folder once.
TRACKIO_FOLDER = TemporaryDirectory(prefix="trackio-")
os.environ["TRACKIO_DIR"] = TRACKIO_FOLDER.name

# A property holds however long an example takes: on a busy machine any of them may take a second.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")

from aligner_lib.models import fetch
from aligner_lib.models.download import DownloadError
from aligner_lib.run_folder.reader import RunFolder

# ---- workers: pytest-xdist ------------------------------------------------------------------------------------------

# Files and folders, the longest first, so that no worker is left alone with one at the end.
LONGEST = (
    "test_slurm_notebooks.py test_slurm_training.py notebooks jobs remote_critic megatron models".split()
)
# What shares fixtures that take seconds runs in one worker; of other folders each file by itself.
TOGETHER = ["tests/jobs/", "tests/megatron/"]
DISTANCES = pytest.StashKey[dict[str, int]]()
"""With --since: the test files that the changes reach, and how many imports lie in between."""


def pytest_xdist_auto_num_workers(config):
    """One for each core; none for the one browser, or for single files."""
    alone = config.option.markexpr == "browser" or any(".py" in name for name in config.args)
    return 0 if alone else min(os.cpu_count() or 1, 4)


def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadFileScheduling

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return next((room for room in TOGETHER if file.startswith(room)), file)

    return Together(config, log)


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: min(map([*LONGEST, *item.path.parts].index, item.path.parts)))
    distances = config.stash.get(DISTANCES, None)
    if distances or config.getoption("maxfail") == 1:  # -x: short files may fail soon
        items.sort(key=lambda item: any(name in item.path.parts for name in LONGEST))
    if distances:  # the tests next to the change fail first
        # a file that the command names is collected, too
        items.sort(key=lambda item: distances.get(item.path.relative_to(ROOT).as_posix(), len(distances)))


def made_once(tmp_path_factory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first worker to ask for it makes for all."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{folder}.lock"):
        if not (folder / "made").exists():
            folder.mkdir()
            make(folder)
            (folder / "made").touch()
    return folder


# ---- ./lab test --since REF -----------------------------------------------------------------------------------------


def pytest_addoption(parser):
    parser.addoption(
        "--since", metavar="REF", help="only the tests that a change since this git commit can reach"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Compute what the changes reach, once for all workers. If they reach no test, end before a worker starts."""
    if not (ref := config.getoption("since")):
        return None
    if hasattr(config, "workerinput"):
        config.stash[DISTANCES] = config.workerinput["distances"]
        return None
    try:
        distances, unknown = affected(changed_since(ref))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if not distances:
        print(f"no test reaches a change since {ref}")
        return pytest.ExitCode.OK
    config.stash[DISTANCES] = distances
    counts = sorted(Counter(distances.values()).items())
    nearest_first = ", ".join(f"{files} at {distance}" for distance, files in counts)
    why = f"{unknown} may reach any test" if unknown else f"by imports in between, {nearest_first}"
    print(f"changes since {ref} reach {len(distances)} test files: {why}")
    return None


def pytest_configure_node(node):
    if DISTANCES in node.config.stash:
        node.workerinput["distances"] = node.config.stash[DISTANCES]


def pytest_ignore_collect(collection_path, config):
    if not collection_path.name.startswith("test_"):
        return None
    marker, distances = config.option.markexpr, config.stash.get(DISTANCES, None)
    if distances and collection_path.relative_to(ROOT).as_posix() not in distances:
        return True
    # `-m slurm`: a worker that imports every file of tests, and torch with them, begins half a minute later
    elsewhere = marker.isidentifier() and marker not in collection_path.parts
    return (elsewhere and f"mark.{marker}" not in collection_path.read_text()) or None


def pytest_sessionfinish(session, exitstatus):
    if session.config.getoption("since") and exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK


# ---- models and data ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def smoke() -> Path:
    """The smoke model's folder."""
    return fetch("smoke", progress=False)


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M's folder, fetched into the user's cache once."""
    try:
        return fetch("smollm2-135m", progress=False)
    except DownloadError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def formatted(tmp_path_factory) -> Path:
    """The bundled samples, formatted: train.jsonl, validation.jsonl and {train,test}_{comparisons,prompts}.jsonl."""
    from data import format_dolly, format_hh, resolve

    folder = tmp_path_factory.mktemp("formatted")
    format_dolly(resolve("sample", "dolly").paths, folder)
    for split in ("train", "test"):
        format_hh(resolve("sample", "hh", split=split).paths, folder, split)
    return folder


# ---- jobs on the smoke model: tests/jobs and tests/remote_critic ----


@pytest.fixture(scope="session")
def run_once(smoke, formatted, tmp_path_factory):
    """run_once(kind, name, reward model, **settings): a run that the first worker to ask for it makes for all."""

    def run(kind: str, name: str, reward_model: Path | None = None, **settings: object) -> RunFolder:
        def make(folder: Path) -> None:
            SmokeJobs(smoke, formatted, folder, reward_model).run(kind, name, **settings)

        return RunFolder(made_once(tmp_path_factory, name, make) / name)

    return run


@pytest.fixture(scope="session")
def rm(run_once) -> RunFolder:
    """A reward model's run, which PPO scores with."""
    return run_once("rm", "rm")


@pytest.fixture
def here():
    """This process as the only rank, for jobs whose errors a test looks at."""
    import torch

    from aligner_lib.megatron import parallel

    torch.set_num_threads(1)  # on a busy machine two threads wait for each other at every tiny product
    parallel.initialize()
