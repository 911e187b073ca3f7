"""The .sql files of the package: read them, and put them into the schema that the user chose.

The files are written for the schema ``oncommit`` and can be pasted into psql as they are. In them the bare word
``oncommit`` is always that schema: as an identifier it becomes the quoted name, and where it begins a literal
(``'oncommit'``), the name itself.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

from oncommit.identifiers import DEFAULT_SCHEMA, check_schema

_SCHEMA_WORD: Final = re.compile(rf"(?<![\w\"])(?P<literal>')?{DEFAULT_SCHEMA}\b(?![\w\"])")
_COMMENT_LINE: Final = re.compile(r"^\s*--.*\n", re.MULTILINE)


def in_schema(text: str, schema: str) -> str:
    """The SQL text, moved from the schema ``oncommit`` into another."""
    check_schema(schema)

    def name(match: re.Match[str]) -> str:
        return f"'{schema}" if match["literal"] else f'"{schema}"'

    return _SCHEMA_WORD.sub(name, text)


@cache
def query(name: str, schema: str = DEFAULT_SCHEMA) -> str:
    """One statement of ``queries/``, by its path without the ending, with its comment lines left at home."""
    text = files("oncommit.db").joinpath("queries", f"{name}.sql").read_text(encoding="utf-8")
    return in_schema(_COMMENT_LINE.sub("", text).strip().removesuffix(";"), schema)


@cache
def percent_style(text: str) -> str:
    """``$1`` parameters as psycopg's ``%s``.

    The parameters of our files are each used once and in order, so positions can be dropped; a test holds them to it.
    """
    return re.sub(r"\$\d+", "%s", text.replace("%", "%%"))
