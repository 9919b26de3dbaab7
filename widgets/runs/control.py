"""Controls a run through files in the run folder, which notebooks, terminals and batch scripts can all write.

    control/stop         end after the current step, with a checkpoint
    control/checkpoint   save a checkpoint after the current step; the run then removes the file
    control/set.json     {"kl_coef": …, "lr": …}; the run applies the values at the next step and removes the file;
                         the metrics show the new values from then on

While the run carries out a request, the file has the name set.json.taken or checkpoint.taken
(aligner_lib/run_folder/control.py). run.json lists the requests that a run accepts under `controls`: stop, checkpoint,
kl_coef, lr. Every run accepts stop.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable

from aligner_lib.errors import UserError
from aligner_lib.run_folder.set_aside import last_change, undo_change, undone

# control → metrics with its value; each kind of run logs a single one of them
CONTROLS = {"kl_coef": ("train_rollouts/kl_coef",), "lr": ("train_optim/lr", "train/lr")}

UNUSUAL = 10.0  # a value above UNUSUAL × the current value needs a confirmation


class Steering:
    """Handles a run's buttons, and shows the expected effect of a request until the effect has occurred."""

    def __init__(self, run):
        self.run = run
        self._answer, self._holds = "", lambda: False
        self._values: dict[str, float | None] = {}  # control → the run's value at the last call of `view`
        self._question: tuple[str, float] | None = None  # (control, value) that waits for a confirmation

    def execute(self, content: dict) -> None:
        """Handle a button's message {kind: stop, checkpoint, undo or set, …}. Errors are shown in `view`, and not raised.

        The message of `undo` has the `step` of the change that the page shows.
        """
        try:
            self._answer, self._holds = self._execute(content)
        except (UserError, ValueError) as error:  # a button has no cell that could show the error
            self._answer, self._holds = str(error), lambda: True
        except OSError as error:
            self._answer, self._holds = not_written(self.run, error), lambda: True

    def _execute(self, content: dict) -> tuple[str, Callable[[], bool]]:
        run, kind = self.run, content["kind"]
        if kind == "stop":
            run.request_stop()
            return "It ends after this step, with a checkpoint.", lambda: not run.is_over
        if kind == "checkpoint":
            request_checkpoint(run)
            return (
                "It saves a checkpoint after this step.",
                lambda: not run.is_over and pending(run)["checkpoint"],
            )
        if kind == "undo":
            change = last_change(run)
            if (change and change.step) != content.get("step"):  # such as the second click of a double click
                newest = (
                    f"The newest change is now after step {change.step}: press the button again to undo it."
                    if change
                    else "The run has no change left to undo."
                )
                raise UserError(f"No further change was undone. {newest}")
            checkpoint, changes = undo_change(run)
            return f"{undone(run, checkpoint, changes)}.", lambda: run.is_over
        assert kind == "set", f"no control {kind!r}"
        name, value = str(content["name"]), float(content["value"])
        if question := self._doubt(name, value):
            return question, lambda: not run.is_over
        request_change(run, **{name: value})
        self._question = None
        sentence = f"It goes on with {name} = {value:g} from its next step."
        return sentence, lambda: not run.is_over and pending(run)["set"].get(name) == value

    def _doubt(self, name: str, value: float) -> str | None:
        """The question before an unusually large value is sent; None for other values, and after a confirmation."""
        now = self._values.get(name)
        if not now or value <= UNUSUAL * now or not math.isfinite(value) or self._question == (name, value):
            return None
        self._question = name, value
        return (
            f"Really {name} = {value:g}? That is {value / now:.3g} times today's {now:g}, which has not been changed. "
            f"Set the same value again to confirm it. `aligner undo RUN` takes a change back once the run is over."
        )

    def view(self, series) -> dict:
        """The state of the buttons: {obeys, pending, values, said, over, undo, undo_step}. series: the Series of the run.

        undo: the effect of the button *Undo the change*; "" if no change can be undone. undo_step: the last step before the change.
        """
        if not self._holds():
            self._answer = ""
        over = self.run.is_over
        change = last_change(self.run) if over else None
        self._values = {name: _latest(series, metrics) for name, metrics in CONTROLS.items()}
        return {
            "obeys": obeys(self.run),
            "pending": pending(self.run),
            "values": dict(self._values),
            "said": self._answer,
            "over": over,
            "undo": f"The run's next start goes on from {change.checkpoint.name}, before the change"
            if change
            else "",
            "undo_step": change and change.step,
        }


def not_written(run, error: OSError) -> str:
    """A message for the reader of a widget: why a request could not be written into the run folder, and the solution."""
    place = f"{run.path / 'control'}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM):
        cure = "The folder belongs to another account: ask its owner, who started the run."
    elif error.errno == errno.EROFS:
        cure = "The folder is mounted read-only here: use the machine on which the run was started."
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "The disk is full: free some space, and press the button again."
    else:
        cure = "Press the button again when the folder can be written."
    return f"The request was not written, and the run goes on as before ({place}). {cure}"


def _latest(series, metrics: tuple[str, ...]) -> float | None:
    return next((value for metric in metrics if (value := series.latest(metric)) is not None), None)


def obeys(run) -> list[str]:
    """The names of the requests that the run accepts."""
    return ["stop", *(name for name in run.info.get("controls", ()) if name != "stop")]


def request_checkpoint(run) -> None:
    """Ask the run for a checkpoint after the current step. Raises ValueError if the run does not accept the request."""
    _check_supported(run, "checkpoint")
    _folder(run).joinpath("checkpoint").touch()


def request_change(run, **changes: float) -> None:
    """Ask the run to continue with another KL coefficient (kl_coef) or learning rate (lr).

    This function accepts values of any size. Only the buttons ask for a confirmation of unusually large values. The run saves a
    checkpoint before it applies a change, and `aligner undo` goes back to the checkpoint. Raises ValueError for a value or a
    name that the run does not accept.
    """
    for name, value in changes.items():
        if name not in CONTROLS:
            raise ValueError(f"{name!r} is no control of a run; there are {', '.join(CONTROLS)}")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name}={value!r}: set a number of at least 0")
        _check_supported(run, name)
    tmp = _folder(run) / ".set.json"
    tmp.write_text(json.dumps(_requested_changes(run, "set.json") | changes))
    tmp.rename(tmp.with_name("set.json"))


def pending(run) -> dict:
    """The requests that the run has not carried out yet: {stop, checkpoint, set}."""
    control = run.path / "control"
    return {
        # os.path.exists, because Path.exists raises an error for a folder that belongs to another account
        "stop": os.path.exists(control / "stop"),
        "checkpoint": any(os.path.exists(control / name) for name in ("checkpoint", "checkpoint.taken")),
        "set": _requested_changes(run, "set.json.taken") | _requested_changes(run, "set.json"),
    }


def _requested_changes(run, name: str) -> dict:
    """The changes in a file of control/; {} without a readable file."""
    try:
        changes = json.loads((run.path / "control" / name).read_text())
    except (OSError, ValueError):
        return {}
    return changes if isinstance(changes, dict) else {}


def _folder(run):
    control = run.path / "control"
    control.mkdir(parents=True, exist_ok=True)
    return control


def _check_supported(run, what: str) -> None:
    if what not in obeys(run):
        raise ValueError(f"{run.name} does not take {what!r} while it runs; it obeys {', '.join(obeys(run))}")
