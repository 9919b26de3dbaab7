"""Renders chat templates in the environment for which they are written: transformers' sandboxed Jinja with its extras."""

from __future__ import annotations

import json
import re
from datetime import date, datetime, time
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2

DATE_FUNCTION = "strftime_now"  # the function with which templates write the date
CALL_FOR_DATE = re.compile(rf"""{DATE_FUNCTION}\(\s*(["'])([^"'\\]*)\1\s*\)""")


def rendered(template: str, day: date | None, **variables: object) -> str:
    """The text of a template. day: the date that `strftime_now` writes; None: now. Raises jinja2.TemplateError."""
    now = datetime.now() if day is None else datetime.combine(day, time())
    return _compiled(template).render(**{DATE_FUNCTION: now.strftime} | variables)


def dated(template: str, day: date | None) -> str:
    """The template with a date, if given, in place of its calls of `strftime_now`. A call whose format is no literal stays."""
    if day is None:
        return template
    return CALL_FOR_DATE.sub(lambda call: json.dumps(day.strftime(call[2]), ensure_ascii=False), template)


@cache
def _compiled(template: str) -> jinja2.Template:
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str):
        raise TemplateError(message)

    class GenerationTag(Extension):
        """{% generation %} … {% endgeneration %}, around the assistant's text. The tag is ignored and its content is written.

        transformers uses the tag to mark the tokens for the loss. The marked text includes the turn's head, which a policy
        reads and never writes. Here, rendering turn by turn finds the tokens for the loss, for templates with and without the
        tag.
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
