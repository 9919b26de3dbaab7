"""Live status of PPO's critic server: a line below a cell that is updated while the critic's job runs."""

from __future__ import annotations

import asyncio

from aligner_lib.run_folder.reader import RunFolder

EVERY_S = 1.0


def server_line(run: RunFolder) -> str:
    """The server's status as a line of text."""
    status = run.server_status
    if not status:
        return f"{run.name}: {run.status}, not serving yet"
    counts = status["counts"]
    actor = "no actor yet" if status["actor"] is None else f"actor heard {status['actor_heard_s']:.0f} s ago"
    doing = status["doing"] if run.status == "running" else run.status
    return (
        f"{run.name}: {doing} · {status['updates']} train steps · values for {counts['values']} and rewards for "
        f"{counts['rewards']} responses · checkpoints after {', '.join(map(str, status['checkpoints'])) or 'none'} · {actor}"
    )


def show_server(run: RunFolder) -> asyncio.Task:
    """Show the status line, and update the line until the job is over.

    Returns immediately. Needs a running event loop.
    """
    from IPython.display import Pretty, display

    handle = display(Pretty(server_line(run)), display_id=True)

    async def follow() -> None:
        over = False
        while not over:
            await asyncio.sleep(EVERY_S)
            over = run.is_over  # read before the update, so that the final status is shown, too
            handle.update(Pretty(server_line(run)))

    return asyncio.get_running_loop().create_task(follow())
