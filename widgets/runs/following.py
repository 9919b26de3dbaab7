"""A widget that follows runs in the background."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from widgets.frontend.widget import Widget


class Following(Widget):
    """A widget that follows runs, or a folder of runs, in a background thread until the widget is closed."""

    def follow(self, seconds: float, look: Callable[[], object]) -> None:
        """Call `look` every so many seconds from now on."""
        self._closed = threading.Event()
        arguments = (self._closed, seconds, look)
        threading.Thread(target=keep_looking, args=arguments, name=type(self).__name__, daemon=True).start()

    def close(self) -> None:
        """Stop following. The runs continue."""
        self._closed.set()
        super().close()


def keep_looking(closed: threading.Event, seconds: float, look: Callable[[], object]) -> None:
    """Call `look` every `seconds` until `closed` is set.

    An error is logged once, and the calls continue, because folders on a shared file system may be unavailable for a short
    time.
    """
    last_error = None
    while not closed.wait(seconds):
        try:
            look()
            last_error = None
        except Exception as error:
            if last_error != str(error):
                logging.getLogger(__name__).warning("can't read: %s: %s", type(error).__name__, error)
            last_error = str(error)
