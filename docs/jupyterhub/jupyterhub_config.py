"""JupyterHub for a workshop: one read-only environment and one read-only model cache for all users. See docs/jupyterhub.md.

tests/browser/test_jupyterhub.py starts a hub with this file, with a spawner and an authenticator for a trial.
"""

import os

CLONE = os.environ.get("LAB_CLONE", "/srv/aligner-lab")  # ./lab setup has been run here; users only read it
CACHE = os.environ.get("LAB_CACHE", "/srv/aligner-cache")  # ALIGNER_CACHE of that set-up; users only read it

c = get_config()  # noqa: F821 - JupyterHub's
# only this machine: passwords are not encrypted on their way to the hub, so a proxy with TLS stands before it
c.JupyterHub.bind_url = os.environ.get("LAB_URL", "http://127.0.0.1:8000")
c.Spawner.cmd = [
    f"{CLONE}/docs/jupyterhub/start-server"
]  # copies the notebooks to ~/notebooks at the first start
c.Spawner.args = [  # an environment that nobody changes, and a page that asks nobody outside
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=None",
    "--LanguageServerManager.autodetect=False",  # nor npm where language servers might be: there are none
    # no login shell, which would take the PATH of /etc/profile, without `aligner`
    '--ServerApp.terminado_settings={"shell_command": ["/bin/bash"]}',
]
c.Spawner.default_url = "/lab/tree/notebooks/00_start_here.ipynb"
c.Spawner.start_timeout = c.Spawner.http_timeout = (
    300  # a start takes 4 s of a core, thirty at once two minutes of one
)
c.Spawner.environment = {
    "ALIGNER_CACHE": CACHE,
    "OMP_NUM_THREADS": "1",  # thirty kernels on one machine: a thread each
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONDONTWRITEBYTECODE": "1",  # the packages were compiled at set-up, and nobody may write beside them
    # labconfig: no page starts Node to ask whether to build JupyterLab, and widgets hear their pages after a reload
    "JUPYTER_CONFIG_PATH": f"{CLONE}/docs/jupyterhub:{CLONE}/widgets/jupyter",
    "GIT_CONFIG_COUNT": "1",  # git reads a clone that belongs to somebody else only where it is told to:
    "GIT_CONFIG_KEY_0": "safe.directory",  # runs note the clone's commit
    "GIT_CONFIG_VALUE_0": CLONE,
}
