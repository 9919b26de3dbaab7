"""Chat templates in the environment that they are written for: transformers' sandboxed Jinja, with its extras."""

from __future__ import annotations

import json
from datetime import date, datetime, time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

DATE_FUNCTION = "strftime_now"  # what templates write the day with


def rendered(template: str, day: date | None, **variables: object) -> str:
    """A template's text. day: what `strftime_now` writes; None: this moment. Raises jinja2.TemplateError."""
    now = datetime.now() if day is None else datetime.combine(day, time())
    return _compiled(template).render(**{DATE_FUNCTION: now.strftime} | variables)


@cache
def _compiled(template: str) -> jinja2.Template:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(words: str):
        raise TemplateError(words)

    class GenerationTag(Extension):
        """{% generation %} … {% endgeneration %}, around what an assistant writes: its text as it is.

        transformers marks tokens by it, the turn's head included, which a policy reads and does not write; so what is learnt
        is found here by rendering turn by turn, as for templates without the tag.
        """

        tags = frozenset({"generation"})

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(
                parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
            )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = refuse
    return environment.from_string(template)
