"""The .sql files and what is done to them before they run."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from oncommit.db.sql import in_schema, percent_style, query
from oncommit.errors import ConfigError

FOLDER = Path(str(files("oncommit.db")))
QUERIES = sorted(FOLDER.glob("queries/*/*.sql"))
MIGRATIONS = sorted(FOLDER.glob("migrations/*.sql"))
# Writers run these on the user's connection, which may be psycopg's or Django's. All others run on asyncpg.
ON_ANY_DRIVER = [path for path in QUERIES if path.parent.name == "outbox"]

COMMENT = re.compile(r"--.*$", re.MULTILINE)


def name(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


def parameters(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\$(\d+)", COMMENT.sub("", text))]


def test_there_are_some() -> None:
    assert len(ON_ANY_DRIVER) >= 5
    assert len(MIGRATIONS) >= 6


@pytest.mark.parametrize("path", ON_ANY_DRIVER, ids=name)
def test_parameters_are_used_once_and_in_order(path: Path) -> None:
    found = parameters(path.read_text(encoding="utf-8"))
    assert found == list(range(1, len(found) + 1)), "percent_style() drops the numbers, so they must be 1, 2, 3 …"


@pytest.mark.parametrize("path", QUERIES, ids=name)
def test_no_parameter_is_left_out(path: Path) -> None:
    found = set(parameters(path.read_text(encoding="utf-8")))
    assert found == set(range(1, len(found) + 1))


@pytest.mark.parametrize("path", ON_ANY_DRIVER, ids=name)
def test_percent_style_has_as_many_places(path: Path) -> None:
    text = query(name(path))
    styled = percent_style(text)
    assert "$" not in styled
    assert styled.replace("%%", "").count("%s") == len(parameters(text))
    values = tuple(f"${number}" for number in parameters(text))
    assert styled % values == text


def test_percent_signs_are_doubled() -> None:
    assert percent_style("SELECT 'a%b%s' LIKE $1") == "SELECT 'a%%b%%s' LIKE %s"
    assert percent_style("SELECT $1, $10") == "SELECT %s, %s"


@pytest.mark.parametrize("path", QUERIES, ids=name)
def test_a_query_is_one_statement_without_comments(path: Path) -> None:
    text = query(name(path))
    assert text
    assert "--" not in text
    assert ";" not in text
    assert path.read_text(encoding="utf-8").startswith("--"), "a query says at its head why it is safe"


@pytest.mark.parametrize("schema", ["shop", "on_commit2", "x" * 63, "oncommit_two"])
@pytest.mark.parametrize("path", [*QUERIES, *MIGRATIONS], ids=name)
def test_renaming_leaves_nothing_behind_and_renames_nothing_else(path: Path, schema: str) -> None:
    original = path.read_text(encoding="utf-8")
    moved = in_schema(original, schema)
    ours = re.compile(rf"\"{schema}\"|(?<=')({schema})(?!\w)")
    assert re.findall(r"\boncommit\b", COMMENT.sub("", ours.sub("", moved))) == []
    assert ours.sub("oncommit", moved) == original


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT * FROM oncommit.outbox", 'SELECT * FROM "shop".outbox'),
        ("CREATE SCHEMA oncommit;", 'CREATE SCHEMA "shop";'),
        ("SELECT format('%I.%I', 'oncommit', 'outbox')", "SELECT format('%I.%I', 'shop', 'outbox')"),
        ("SELECT 'oncommit:' || day", "SELECT 'shop:' || day"),
        ("SELECT oncommit_settings, my_oncommit, oncommits", "SELECT oncommit_settings, my_oncommit, oncommits"),
        (
            "SELECT t.outbox FROM oncommit.outbox AS t, oncommit.now()",
            'SELECT t.outbox FROM "shop".outbox AS t, "shop".now()',
        ),
        ("(oncommit.now())", '("shop".now())'),
    ],
)
def test_what_is_the_schema_and_what_is_not(text: str, expected: str) -> None:
    assert in_schema(text, "shop") == expected


def test_the_default_schema_is_quoted_too() -> None:
    assert in_schema("oncommit.outbox", "oncommit") == '"oncommit".outbox'


@pytest.mark.parametrize("schema", ['x"; drop', "", "Shop", "pg_catalog", "a.b", "x'; --"])
def test_a_hostile_schema_never_gets_near_a_statement(schema: str) -> None:
    with pytest.raises(ConfigError):
        in_schema("SELECT 1", schema)
    with pytest.raises(ConfigError):
        query("outbox/add_one", schema)


def test_a_word_that_postgresql_keeps_for_itself_is_quoted() -> None:
    assert in_schema("oncommit.outbox", "select") == '"select".outbox'
