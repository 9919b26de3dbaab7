"""A page of docs/ with a part that a program makes from the sources, between two marks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
END = "<!-- until here -->"


@dataclass(frozen=True)
class GeneratedPage:
    """A page, and the program that makes a part of the page. Both are paths in the repository."""

    path: str
    maker: str

    def text(self) -> str:
        """The page as it is now."""
        return (ROOT / self.path).read_text(encoding="utf-8")

    def text_with(self, made: str) -> str:
        """The page's text with this part between its marks."""
        begin = f"<!-- made by {self.maker}: -->"
        before, _, rest = self.text().partition(begin)
        _, _, after = rest.partition(END)
        return f"{before}{begin}\n\n{made}\n\n{END}{after}"

    def update(self, made: str) -> None:
        """Write the part into the page, and print the page's path if the page has changed."""
        text = self.text_with(made)
        if text == self.text():
            print("nothing changed")
            return
        (ROOT / self.path).write_text(text, encoding="utf-8")
        print(f"written: {self.path}")
