"""Links of Markdown texts, so that they lead within the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FIRST = "index.md"
"""The site's first page, which is made of the project's README."""
ELSEWHERE = ("http://", "https://", "mailto:", "#")


def within_site(markdown: str, place: str, pages: Collection[str]) -> str:
    """The text with links that lead to pages of the site; a link to another file of the project becomes plain text.

    place: the text's own page, such as docs/data.md; pages: all of them, by their paths. A link to an unsolved notebook leads to
    the solved one.
    """
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda link: _led(link, place, pages), part) for part in parts[::2]]
    return "".join(parts)


def _led(link: re.Match, place: str, pages: Collection[str]) -> str:
    target, _, heading = link["target"].partition("#")
    if link["target"].startswith(ELSEWHERE):
        return link[0]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), target))
    path = re.sub(r"^notebooks/(?!solved/)", "notebooks/solved/", path)
    if path not in pages:
        return link["text"]
    path = FIRST if path == "README.md" else path
    relative = posixpath.relpath(path, posixpath.dirname(place) or ".")
    return f"[{link['text']}]({relative}{'#' if heading else ''}{heading})"
