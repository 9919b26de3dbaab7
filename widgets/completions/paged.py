"""Widgets that show one page of many records: the browser sends a query, the kernel sends the page."""

from __future__ import annotations

import threading

import traitlets

from widgets.frontend.table import Tabled
from widgets.frontend.widget import Widget
from widgets.frontend.wire import finite


class Paged(Tabled, Widget):
    """`query` is what the user wants to see, `page` the answer. Both are widget state, kept on a reload."""

    query = traitlets.Dict().tag(sync=True)
    page = traitlets.Dict().tag(sync=True)

    def __init__(self, **query):
        self._lock = threading.RLock()
        super().__init__(query=query)
        self.answer()
        self.observe(lambda _: self.answer(), "query")

    def find(self, query: dict) -> dict:
        """The page for a query from the browser; subclasses define it."""
        raise NotImplementedError

    def answer(self) -> None:
        """Compute the page for the current query again."""
        with self._lock:
            self.page = finite(self.find(self.query))

    def __repr__(self) -> str:
        return f"{type(self).__name__}: {self.page.get('total', 0)} of {self.page.get('all', 0)}"

    @property
    def caption(self) -> str:
        """Which of the found records the page shows: `1 to 8 of 24`."""
        start, rows = self.page["start"], self.page["rows"]
        counted = self.page.get("counted", "")
        return f"{counted}{start + 1} to {start + len(rows)} of {self.page['total']}" if rows else "none"


def of_query(query: dict, name: str, default, allowed=None):
    """A query's field; the default where it is missing or not allowed. Queries come from a browser."""
    value = query.get(name, default)
    return default if allowed is not None and value not in allowed else value


def window(records: list, query: dict, size: int) -> tuple[int, list]:
    """The (start, records) of the page that the query asks for, clipped to where there are records."""
    start = int(of_query(query, "start", 0) or 0)
    start = max(0, min(start, (len(records) - 1) // size * size if records else 0))
    return start, records[start : start + size]
