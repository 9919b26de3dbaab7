"""One JupyterLab and one Chromium for all browser tests. Without a browser the tests say so and are skipped."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "widgets"))

import fake_trainer
from kernelless import Desk
from lab import BOUND_S, ROOT, Lab, Page, chromium, wait_for

from aligner_lib.run_folder.reader import RunFolder


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in Path(item.fspath).parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def lab(tmp_path_factory):
    with Lab(tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    if chromium() is None:
        pytest.skip("no Chromium on the PATH: install the system's package `chromium`")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--enable-precise-memory-info", "--js-flags=--expose-gc"]
        instance = playwright.chromium.launch(executable_path=chromium(), args=options)
        yield instance
        instance.close()


@pytest.fixture(scope="session")
def tabs() -> list[Page]:
    """The tab that the tests take turns in; none before the first, and after one that failed."""
    return []


@pytest.fixture
def page(request, lab, browser, tabs):
    failed = request.session.testsfailed
    if not tabs:
        context = browser.new_context()
        context.set_default_timeout(1000 * BOUND_S)
        tabs.append(Page(context.new_page(), lab))
    (notebook,) = tabs
    notebook.page.set_viewport_size({"width": 1280, "height": 1000})
    yield notebook
    try:
        notebook.close()
    finally:
        if request.session.testsfailed > failed or not notebook.is_clean():
            tabs.pop().page.context.close()


@pytest.fixture
def show(browser):
    """Shows widgets in a page without JupyterLab, one below the other: show(*widgets, width=…, theme=…) gives the Desk."""
    desks = []

    def make(*widgets, **options) -> Desk:
        desks.append(Desk(browser, **options))
        for widget in widgets:
            desks[-1].show(widget)
        return desks[-1]

    yield make
    for desk in desks:
        desk.close()
        assert desk.errors == []


@pytest.fixture(scope="session")
def healthy(tmp_path_factory):
    """The folder of a PPO run that went well: 120 steps, validated every 10."""
    path = tmp_path_factory.mktemp("runs") / "healthy"
    fake_trainer.train(path, "ppo", steps=120, validate=10)
    return path


@pytest.fixture(scope="session")
def gaming(tmp_path_factory):
    """The folder of a PPO run that games its reward model, and so sets off alarms."""
    path = tmp_path_factory.mktemp("runs") / "gaming"
    fake_trainer.train(path, "ppo", steps=60, kl_coef=0.0, seed=1)
    return path


@pytest.fixture
def trainer(tmp_path):
    """Starts fake trainers in processes of their own: trainer("run", steps=…, seconds=…) gives the RunFolder."""
    processes = []

    def start(name: str, **options) -> RunFolder:
        arguments = [f"--{key.replace('_', '-')}={value}" for key, value in options.items()]
        command = [sys.executable, fake_trainer.__file__, str(tmp_path / name), *arguments]
        processes.append(subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}))
        run = RunFolder(tmp_path / name)
        wait_for(lambda: run.metrics(), "the fake trainer wrote nothing")
        return run

    yield start
    for process in processes:
        process.kill()
        process.wait()
