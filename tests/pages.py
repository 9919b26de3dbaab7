"""What HTML pages need from elsewhere."""

from html.parser import HTMLParser


def external_references(page: str) -> list[str]:
    """What a browser would fetch from elsewhere to show a page: the addresses in its scripts, styles and pictures."""
    finder = _ReferenceFinder()
    finder.feed(page)
    return finder.found


_LOADING = {"link": "href"} | dict.fromkeys(
    ("script", "img", "iframe", "video", "audio", "source", "embed"), "src"
)


class _ReferenceFinder(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get(_LOADING.get(tag, ""))
        if address and not address.startswith(("data:", "#")):
            self.found.append(address)
