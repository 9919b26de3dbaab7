"""Adapts the links of Markdown texts to the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection

LINK = re.compile(r"(?<!!)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
FIRST = "index.md"
"""The site's first page, which contains the project's README."""
ELSEWHERE = ("http://", "https://", "mailto:", "#")


def within_site(markdown: str, place: str, pages: Collection[str]) -> str:
    """Replace the links to project files in a Markdown text by links to pages of the site.

    A link to an unsolved notebook becomes a link to the solved notebook. A link to a file without a page becomes plain text.
    place: the path of the text, such as docs/data.md. pages: the paths of all pages.
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
