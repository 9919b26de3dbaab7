"""A JupyterLab server of its own and a Chromium, for tests: nothing of the user's, nothing from outside."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path

import nbformat

from cluster.rendezvous import free_port

ROOT = Path(__file__).resolve().parents[2]
BOUND_S = 300  # nothing takes so long, except on a machine that is busy with something else
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/docmanager-extension:plugin": {"autosave": False},
}
# it opens a tab of its own a moment after the last one was closed, which is then in front of the next test's notebook
DISABLED = {"@jupyterlab/launcher-extension:plugin": True}


def chromium() -> str | None:
    """The path of an installed Chromium; None without."""
    return next(filter(None, map(shutil.which, CHROMIUM)), None)


class Lab:
    """JupyterLab on a port of 127.0.0.1, with HOME and all settings in `folder`. A context."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True)
        self.log = folder / "server.log"
        self.token = secrets.token_hex(8)
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Lab:
        settings = self.folder / "settings"
        settings.mkdir()
        (settings / "overrides.json").write_text(json.dumps(QUIET))
        (settings / "page_config.json").write_text(json.dumps({"disabledExtensions": DISABLED}))
        root = f"--ServerApp.root_dir={self.notebooks}"
        return self.start(
            "jupyterlab", root, f"--LabApp.app_settings_dir={settings}", "--LabApp.extension_manager=readonly"
        )

    def start(self, module: str, *more: str) -> Lab:
        """Start the server with `python -m module`, and wait until it answers."""
        options = [
            f"--ServerApp.port={self.port}",
            "--ServerApp.port_retries=0",
            f"--IdentityProvider.token={self.token}",
            "--LabApp.expose_app_in_browser=True",
            "--ServerApp.allow_root=True",
            "--no-browser",
        ]
        command = [sys.executable, "-m", *module.split(), *more, *options]
        with self.log.open("w") as file:
            streams = {"stdout": file, "stderr": file}
            self.process = subprocess.Popen(command, env=self.environment(), cwd=ROOT, **streams)
        try:
            wait_for(self._answers, f"JupyterLab did not come up; see {self.log}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def environment(self) -> dict[str, str]:
        """Nothing of the user's Jupyter, and this checkout importable."""
        keep = {key: value for key, value in os.environ.items() if not key.startswith("JUPYTER")}
        folders = {
            f"JUPYTER_{name}_DIR": str(self.folder / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")
        }
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        own = {"HOME": str(self.folder), "PYTHONPATH": paths}
        return keep | folders | own | {"JUPYTER_CONFIG_PATH": str(ROOT / "widgets" / "jupyter")}

    def write(self, name: str, *cells: str) -> Path:
        """A notebook of code cells."""
        path = self.notebooks / name
        nbformat.write(notebook(*cells), path)
        return path

    def _answers(self) -> bool:
        assert self.process.poll() is None, f"JupyterLab ended; see {self.log}"
        try:
            with urllib.request.urlopen(f"{self.url}/api?token={self.token}", timeout=2):
                return True
        except OSError:
            return False


class Points:
    """What a page's monitors have drawn; `page` is Playwright's."""

    def points(self, line: str = "0/0/0", monitor: int = 0) -> list[float]:
        """The x of a line's points, as the browser has them."""
        return self.page.evaluate(
            """([line, monitor]) => {
                const store = document.querySelectorAll('.lab-monitor')[monitor]?.lab.store;
                return store?.lines.get(line)?.x ?? [];
            }""",
            [line, monitor],
        )

    def wait_for_points(self, count: int, line: str = "0/0/0") -> None:
        wait_for(lambda: len(self.points(line)) >= count, f"the chart never had {count} points")


class Page(Points):
    """JupyterLab in a browser tab, with one notebook at a time: loading JupyterLab takes longer than most tests."""

    def __init__(self, page, lab: Lab):
        self.page, self.lab = page, lab
        self.requests: list[str] = []
        self.reloaded = False
        page.on("request", lambda request: self.requests.append(request.url))
        # A workspace of its own: JupyterLab opens again what was open in the last one.
        page.goto(f"{lab.url}/lab/workspaces/{uuid.uuid4().hex}?token={lab.token}")
        page.wait_for_function("() => window.jupyterapp?.restored.then(() => true)")

    def open(self, notebook: str) -> Page:
        self.notebook = notebook
        self.page.evaluate(
            "path => { window.jupyterapp.commands.execute('docmanager:open', {path}); }", notebook
        )
        return self.ready()

    def ready(self) -> Page:
        """Until the notebook's kernel is connected and idle."""
        self.page.wait_for_function(
            """notebook => {
                const app = window.jupyterapp, panel = app?.shell?.currentWidget;
                if (panel?.context?.path !== notebook || !panel.sessionContext?.isReady) return false;
                const kernel = panel.sessionContext.session?.kernel;
                return kernel?.connectionStatus === 'connected' && kernel?.status === 'idle';
            }""",
            arg=self.notebook,
        )
        return self

    def show(self, name: str, *cells: str) -> Page:
        """Write a notebook, open it, and run it until its monitor is there."""
        self.lab.write(name, *cells)
        self.open(name).run_all()
        self.page.wait_for_selector(".lab-widget")
        return self

    def beyond(self) -> list[str]:
        """What the page asked of anybody but the notebook's server."""
        here = (f"http://127.0.0.1:{self.lab.port}/", f"ws://127.0.0.1:{self.lab.port}/", "data:", "blob:")
        return [url for url in self.requests if not url.startswith(here)]

    def note_arrivals(self) -> None:
        """From now on the page keeps when each point of the first line came."""
        self.page.evaluate(
            """() => {
                const lines = document.querySelector('.lab-monitor').lab.store.lines;
                window.seen = {};
                setInterval(() => lines.get('0/0/0').x.forEach(x => { window.seen[x] ??= Date.now() / 1000; }), 20);
            }"""
        )

    def delays(self, run, steps) -> list[float]:
        """Seconds from a record's being written to its coming here."""
        self.page.wait_for_function("(step) => step in window.seen", arg=max(steps))
        seen = self.page.evaluate("() => window.seen")
        written = {record["step"]: record["time"] for record in run.metrics()}
        return [seen[str(step)] - written[step] for step in steps]

    def close(self) -> None:
        """The notebook, without asking whether to save it, and its kernel, which would go on following its run."""
        self.page.evaluate(
            """() => {
                [...window.jupyterapp.shell.widgets('main')].forEach(panel => panel.dispose());
                return window.jupyterapp.serviceManager.sessions.shutdownAll();
            }"""
        )

    def is_clean(self) -> bool:
        """Whether the next test can have this tab. Not with a dialog open, such as JupyterLab's word that a kernel has
        died; and not after a reload, which opens the notebook a second time at a moment of its own choice, in front of
        whatever is open by then."""
        return not self.reloaded and self.page.locator(".jp-Dialog").count() == 0

    def run_all(self) -> None:
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")

    def restart_kernel(self) -> None:
        self.page.evaluate("() => { window.jupyterapp.commands.execute('kernelmenu:restart'); }")
        self.page.locator(".jp-Dialog button.jp-mod-accept").click()
        self.ready()

    def save(self) -> None:
        self.page.evaluate("() => window.jupyterapp.commands.execute('docmanager:save')")

    def reload(self) -> None:
        self.reloaded = True
        self.page.reload()
        self.ready()

    def theme(self, name: str) -> None:
        self.page.evaluate(
            "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})", name
        )
        light = "false" if "Dark" in name else "true"
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")


def notebook(*cells: str):
    """A notebook document of code cells for the kernel `python3`."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return book


def wait_for(condition, message: str = "it did not happen"):
    """What the condition gives, as soon as it gives something true. Raises TimeoutError."""
    deadline = time.monotonic() + BOUND_S
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(message)
        time.sleep(0.05)
    return value
