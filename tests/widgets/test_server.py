"""The line that tells what PPO's critic is doing in its own job."""

import asyncio
import json

import IPython.display
import pytest

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from widgets.monitor.server import server_line, show_server

STATUS = {
    "updates": 7,
    "doing": "train",
    "checkpoints": [2, 4],
    "actor_heard_s": 1.4,
    "counts": {"values": 48, "rewards": 52, "train": 7},
}


@pytest.fixture
def critic(tmp_path):
    """A critic's run that is going on."""
    with RunWriter(tmp_path / "critic", kind="critic", config={}, seed=0, hashes={}, max_steps=0) as run:
        run.start(0)
        yield run


def test_a_server_that_has_said_nothing_yet(tmp_path):
    assert server_line(RunFolder(tmp_path / "critic")) == "critic: waiting, not serving yet"


def test_what_it_says_is_told(critic):
    (critic.path / "status.json").write_text(json.dumps(STATUS))
    assert server_line(critic.folder) == (
        "critic: train · 7 train steps · values for 48 and rewards for 52 responses · checkpoints after 2, 4 · "
        "actor heard 1 s ago"
    )


def test_the_line_follows_until_the_job_is_over(critic, monkeypatch):
    shown = []
    handle = type("Handle", (), {"update": lambda self, pretty: shown.append(pretty.data)})()
    monkeypatch.setattr(
        IPython.display, "display", lambda pretty, display_id: (shown.append(pretty.data), handle)[1]
    )
    monkeypatch.setattr("widgets.monitor.server.EVERY_S", 0.01)

    async def follow():
        task = show_server(critic.folder)
        (critic.path / "status.json").write_text(json.dumps(STATUS))
        critic.finish("finished")
        await asyncio.wait_for(task, timeout=30)

    asyncio.run(follow())
    assert shown[0] == "critic: running, not serving yet"
    assert shown[-1].startswith("critic: finished · 7 train steps")
