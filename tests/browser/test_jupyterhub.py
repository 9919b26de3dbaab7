"""Three accounts on a real JupyterHub with the documented configuration, through its proxy: widgets, training, the classroom.

The hub has the machine to itself, as docs/jupyterhub.md describes it: clone and cache in /srv, read-only, and homes that
only their owners and the instructors enter. Accounts, mounts and processes are those of a namespace; nobody else sees
them, and they end with it. Needs root on Linux, `jupyterhub` in this environment (`./lab test` installs it), and
`configurable-http-proxy` in build/ or on the PATH (docs/testing.md).
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from lab import ROOT, notebook, wait_for
from playwright.sync_api import TimeoutError

from aligner_lib.models.fetch import fetch
from aligner_lib.run_folder.reader import RunFolder
from cluster.rendezvous import free_port

# name → uid, and gid of a group of their own
USERS = {f"user{number}": 58_000 + number for number in range(1, 4)}
INSTRUCTOR, INSTRUCTORS = "user1", 58_000  # and their group's gid
PLACES = os.pathsep.join([str(ROOT / "build/node_modules/.bin"), os.environ["PATH"]])
PROXY = shutil.which("configurable-http-proxy", path=PLACES)
NAMESPACE = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def _missing() -> str | None:
    """What this test lacks here."""
    if importlib.util.find_spec("jupyterhub") is None:
        return "no jupyterhub in this environment: ./lab test installs it"
    if PROXY is None:
        return "no configurable-http-proxy: npm install --prefix build configurable-http-proxy@5.3.0"
    if not shutil.which("unshare") or subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode:
        return "no namespaces: they take root on Linux"
    return None


MISSING = _missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TRIAL = """
import os
exec(compile(open(os.environ["LAB_DOCUMENTED"]).read(), os.environ["LAB_DOCUMENTED"], "exec"))
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.hub_port = int(os.environ["LAB_HUB_PORT"])
c.Authenticator.allow_all = True
c.ConfigurableHTTPProxy.command = [os.environ["LAB_PROXY"]]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:" + os.environ["LAB_PROXY_API"]
c.Spawner.args += ["--LabApp.expose_app_in_browser=True"]
c.Spawner.environment |= {key: os.environ[key] for key in ("PYTHONPATH", "LAB_PYTHON")}
"""
CELLS = (
    "from widgets import Monitor, Recording\nMonitor(Recording('healthy', speed=200))",
    "import os\n"
    "from aligner_lib.errors import UserError\n"
    "from aligner_lib.models import fetch\n"
    "homes = sorted(os.listdir('/srv/homes'))\n"
    "print('closed to me:', [name for name in homes if not os.access(f'/srv/homes/{name}', os.R_OK | os.X_OK)])\n"
    "places = {'code': '/srv/aligner-lab', 'cache': os.environ['ALIGNER_CACHE'], 'homes': '/srv/homes', 'mine': '.'}\n"
    "print('I may write:', [name for name, place in places.items() if os.access(place, os.W_OK)])\n"
    "try:\n    fetch('smollm2-135m')\nexcept UserError as error:\n    print(error)",
    "from aligner_lib.tutorial import Workspace\n"
    "lab = Workspace('../runs/tutorial', 'smoke')\n"
    "job = lab.submit('sft', **{'trainer.sft.max_steps': 40})\nmonitor = Monitor(lab.run('sft'), job=job)\nmonitor",
    "await monitor\nprint('trained', lab.run('sft').status)",
)
# the tabs of a page, the tab of a notebook, and its kernel
STATE_OF = """path => {
    const panels = [...(window.jupyterapp?.shell?.widgets('main') ?? [])];
    const panel = panels.find(panel => panel.context?.path === path);
    return { panels, panel, kernel: panel?.sessionContext?.session?.kernel };
}"""
POINTS = "n => document.querySelectorAll('.lab-monitor')[n]?.lab.store.lines.get('0/0/0')?.x.length ?? 0"


def as_documented(folder: Path) -> str:
    """A shell script that gives its namespace the machine of docs/jupyterhub.md, and starts the hub there."""
    # Accounts cannot enter a closed folder such as /root: an empty one takes its place, and has these in it.
    own = list(dict.fromkeys(map(Path, (ROOT, sys.prefix, sys.base_prefix))))
    closed = {_closed(path) for path in own} - {None}
    mounts = [f"mkdir {folder}/own{n}; mount -o bind,ro {path} {folder}/own{n}" for n, path in enumerate(own)]
    mounts += [f"mount -t tmpfs -o mode=755 trial {path}" for path in closed]
    mounts += [f"mkdir -p {path}; mount --move {folder}/own{n} {path}" for n, path in enumerate(own)]
    names = "".join(f"mount --bind {folder}/{name} /etc/{name}\n" for name in ("passwd", "group"))
    return (
        "\n".join(["set -eu", *mounts])
        + f"""
mount -t tmpfs -o mode=755 trial /srv
cd /srv; mkdir aligner-lab aligner-cache homes
mount -o bind,ro {ROOT} aligner-lab
mount -o bind,ro {folder}/cache aligner-cache
mount --bind {folder}/homes homes
{names}cd {folder}; exec {sys.executable} -m jupyterhub -f {folder}/config.py"""
    )


def _closed(path: Path) -> Path | None:
    """The outermost folder above a path that other accounts may not enter."""
    return next((folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001), None)


def make_accounts(folder: Path) -> None:
    """The machine's and those of USERS, with homes that only their owner and the instructors enter."""
    people = Path("/etc/passwd").read_text()
    groups = Path("/etc/group").read_text() + f"instructors:x:{INSTRUCTORS}:{INSTRUCTOR}\n"
    for user, uid in USERS.items():
        people += f"{user}:x:{uid}:{uid}::/srv/homes/{user}:/bin/sh\n"
        groups += f"{user}:x:{uid}:\n"
        home = folder / "homes" / user
        home.mkdir(parents=True)
        os.chown(home, uid, INSTRUCTORS)
        home.chmod(0o750)
    (folder / "passwd").write_text(people)
    (folder / "group").write_text(groups)


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """The hub's address, the folder of homes, its log and its process."""
    folder = tmp_path_factory.mktemp("hub")
    make_accounts(folder)
    fetch("smoke", folder / "cache")
    port, hub_port, proxy_port = free_port(), free_port(), free_port()
    (folder / "config.py").write_text(TRIAL)
    environment = os.environ | {
        "LAB_DOCUMENTED": "/srv/aligner-lab/docs/jupyterhub/jupyterhub_config.py",
        "LAB_URL": f"http://127.0.0.1:{port}/course/",  # a prefix, as behind another server
        "LAB_HUB_PORT": str(hub_port),
        "LAB_PROXY_API": str(proxy_port),
        "LAB_PROXY": PROXY,
        "LAB_PYTHON": sys.executable,
        "PYTHONPATH": "/srv/aligner-lab",
    }
    log = folder / "hub.log"
    with log.open("w") as file:
        command = [*NAMESPACE, "sh", "-c", as_documented(folder)]
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            yield f"http://127.0.0.1:{port}/course", folder / "homes", log, process
        finally:
            process.kill()  # and with it all processes of its namespace; it heeds no other signal
            process.wait(60)


@pytest.fixture(scope="module")
def pages(hub, browser):
    """Each user's page, in which their notebook runs; and what all pages asked anybody for."""
    url, homes, log, process = hub
    pages, asked = {}, []
    for user in USERS:
        page = browser.new_context(viewport={"width": 1280, "height": 1000}).new_page()
        page.set_default_timeout(400_000)
        page.on("request", lambda request: asked.append(request.url))

        def answers(page=page) -> bool:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                return page.goto(f"{url}/hub/login").ok
            except Exception:
                return False

        wait_for(answers, "the hub does not answer")
        page.fill("#username_input", user)
        page.fill("#password_input", "any")
        page.click("#login_submit")
        pages[user] = page
    for user, page in pages.items():
        ready(page, "00_start_here.ipynb")
        run(page, homes, user, "trial.ipynb", *CELLS)
    yield pages, asked
    for page in pages.values():
        page.context.close()


def run(page, homes: Path, user: str, name: str, *cells: str) -> None:
    """Write a user's notebook, open it in their JupyterLab, and run it."""
    path = homes / user / "notebooks" / name
    nbformat.write(notebook(*cells), path)
    os.chown(path, USERS[user], USERS[user])
    page.evaluate(
        "path => { window.jupyterapp.commands.execute('docmanager:open', {path}); }", f"notebooks/{name}"
    )
    ready(page, name)
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")


def ready(page, name: str) -> None:
    """Bring a notebook to the front, and wait until its kernel is idle.

    JupyterLab restores its layout while it opens what the address names: a launcher or an earlier tab may end in front.
    """
    try:
        page.wait_for_function(
            f"""path => {{
                const {{ panel, kernel }} = ({STATE_OF})(path);
                if (!panel) return false;
                if (window.jupyterapp.shell.currentWidget !== panel) {{
                    window.jupyterapp.shell.activateById(panel.id);
                    return false;
                }}
                return kernel?.connectionStatus === 'connected' && kernel.status === 'idle';
            }}""",
            arg=f"notebooks/{name}",
            polling=500,
        )
    except TimeoutError as error:
        seen = page.evaluate(
            f"""path => {{
                const {{ panels, kernel }} = ({STATE_OF})(path);
                return [panels.map(panel => panel.title.label), kernel?.connectionStatus, kernel?.status];
            }}""",
            f"notebooks/{name}",
        )
        raise AssertionError(
            f"{name} is not ready at {page.url}: tabs, connection and kernel are {seen}"
        ) from error


def test_a_monitor_plays_through_the_proxy_for_everybody(hub, pages):
    url = hub[0]
    pages, asked = pages
    for page in pages.values():
        wait_for(lambda page=page: page.evaluate(POINTS, 0) >= 4, "the chart has no points")
    here = url.rpartition("/")[0]
    own = (here, here.replace("http", "ws"), "data:", "blob:")
    assert [address for address in asked if not address.startswith(own)] == []


def test_everybody_has_notebooks_of_their_own_and_nobody_elses(hub, pages):
    homes = hub[1]
    sources = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    for user, page in pages[0].items():
        copied = [path for path in (homes / user / "notebooks").glob("*.ipynb") if path.name != "trial.ipynb"]
        assert {path.name for path in copied} == sources
        assert {path.stat().st_uid for path in copied} == {USERS[user]}
        others = [] if user == INSTRUCTOR else sorted(USERS.keys() - {user})
        page.get_by_text(f"closed to me: {others}").wait_for(state="attached")
        page.get_by_text("I may write: ['mine']").wait_for(state="attached")
        page.get_by_text("ask the cache's owner to run `aligner model fetch smollm2-135m`").wait_for(
            state="attached"
        )


def test_everybody_trains_at_once(hub, pages):
    _, homes, log, _ = hub
    for page in pages[0].values():
        page.get_by_text("trained finished").wait_for(state="attached")
    for user, page in pages[0].items():
        run = RunFolder(homes / user / "runs" / "tutorial" / "runs" / "sft")
        assert run.status == "finished" and run.path.stat().st_uid == USERS[user]
        wait_for(lambda page=page: page.evaluate(POINTS, 1) >= 4, "the chart of their own run has no points")
    assert "Read-only file system" not in log.read_text()


def test_the_instructor_sees_them(hub, pages):
    page = pages[0][INSTRUCTOR]
    cell = "from widgets import Classroom\nClassroom('/srv/homes', '*/runs/tutorial')"
    run(page, hub[1], INSTRUCTOR, "classroom.ipynb", cell)
    page.get_by_text(f"{len(USERS)} seats. All is well.").wait_for()
    assert page.locator(".lab-classroom tbody tr").count() == len(USERS)
    assert not any(user in page.locator(".lab-classroom").inner_text() for user in USERS)
