"""Widgets that show a page of many records. The browser sends a query, and the kernel sends the page."""

from __future__ import annotations

import threading

import traitlets

from widgets.frontend.table import Tabled
from widgets.frontend.widget import Widget
from widgets.frontend.wire import finite


class Paged(Tabled, Widget):
    """A widget with a `query` from the user and a `page` as the answer. Both are widget state, which survives a reload."""

    query = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)

    def __init__(self, **query):
        self._lock = threading.RLock()
        super().__init__(query=query)
        self.answer()
        self.observe(lambda _: self.answer(), "query")

    def find(self, query: dict) -> dict:
        """The page for a query from the browser. Subclasses override this method."""
        raise NotImplementedError

    def answer(self) -> None:
        """Compute the page for the current query."""
        with self._lock:
            self.page = finite(self.find(self.query))

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.page.get('total', 0)} of {self.page.get('all', 0)}"

    @property
    def caption(self) -> str:
        """The range of matching records on the page, such as `1 to 8 of 24`."""
        start, rows = self.page["start"], self.page["rows"]
        counted = self.page.get("counted", "")
        return f"{counted}{start + 1} to {start + len(rows)} of {self.page['total']}" if rows else "none"


def of_query(query: dict, name: str, default, allowed=None):
    """A field of a query, or the default if the field is missing or not allowed. Queries come from a browser."""
    value = query.get(name, default)
    return default if allowed is not None and value not in allowed else value


def window(records: list, query: dict, size: int) -> tuple[int, list]:
    """(start, records) of the requested page. `start` is clipped to the range of the records."""
    start = int(of_query(query, "start", 0) or 0)
    start = max(0, min(start, (len(records) - 1) // size * size if records else 0))
    return start, records[start : start + size]
