"""The line that tells what PPO's critic is doing in its own job."""

import asyncio
import json

import IPython.display

from aligner_lib.run_folder.reader import RunFolder
from aligner_lib.run_folder.writer import RunWriter
from widgets.monitor.server import server_line, show_server

STATUS = {"updates": 7, "doing": "train", "checkpoints": [2, 4], "actor": "ppo#1", "actor_heard_s": 1.4}
STATUS["counts"] = {"values": 48, "rewards": 52, "train": 7}


class Display:
    """What a cell's line said, one text after another."""

    def __init__(self):
        self.shown = []

    def display(self, pretty, display_id):
        self.update(pretty)
        return self

    def update(self, pretty):
        self.shown.append(pretty.data)


def test_the_line_follows_a_server_until_its_job_is_over(tmp_path, monkeypatch):
    screen = Display()
    monkeypatch.setattr(IPython.display, "display", screen.display)
    monkeypatch.setattr("widgets.monitor.server.EVERY_S", 0.01)
    assert server_line(RunFolder(tmp_path / "critic")) == "critic: waiting, not serving yet"

    async def follow(critic):
        task = show_server(critic.folder)
        (critic.path / "status.json").write_text(json.dumps(STATUS))
        assert server_line(critic.folder) == (
            "critic: train · 7 train steps · values for 48 and rewards for 52 responses · checkpoints after 2, 4 · "
            "actor heard 1 s ago"
        )
        (critic.path / "status.json").write_text(json.dumps(STATUS | {"actor": None}))
        assert server_line(critic.folder).endswith("2, 4 · no actor yet")
        critic.finish("finished")
        await asyncio.wait_for(task, timeout=30)

    with RunWriter(tmp_path / "critic", kind="critic", config={}, seed=0, hashes={}, max_steps=0) as critic:
        critic.start(0)
        asyncio.run(follow(critic))
    assert screen.shown[0] == "critic: running, not serving yet"
    assert screen.shown[-1].startswith("critic: finished · 7 train steps")
