"""Settings from file, environment and arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncommit.config import Settings, definitions, load
from oncommit.errors import ConfigError

A, B, C, D = (f"postgresql://user:geheim@{host}/db" for host in "abcd")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_arguments_before_environment_before_file(elsewhere: Path) -> None:
    (elsewhere / "oncommit.toml").write_text(f'database = "{A}"\nschema = "from_file"\n')
    assert load(environment={}) == Settings(database=A, schema="from_file")
    environment = {"DATABASE_URL": B}
    assert load(environment=environment) == Settings(database=B, schema="from_file")
    environment["ONCOMMIT_DATABASE"] = C
    assert load(environment=environment).database == C
    assert load(environment=environment, database=D, schema=None) == Settings(database=D, schema="from_file")
    assert load(environment={"ONCOMMIT_SCHEMA": "e"}, schema="a").schema == "a"


def test_a_file_by_name(elsewhere: Path) -> None:
    (elsewhere / "other.toml").write_text('schema = "other"\n')
    assert load(file=elsewhere / "other.toml", environment={}).schema == "other"
    assert load(environment={"ONCOMMIT_CONFIG": "other.toml"}).schema == "other"
    with pytest.raises(ConfigError, match=r"missing\.toml is not there"):
        load(environment={"ONCOMMIT_CONFIG": "missing.toml"})


def test_nothing_given() -> None:
    settings = load(environment={"DATABASE_URL": "", "ONCOMMIT_SCHEMA": ""})
    assert settings == Settings()
    with pytest.raises(ConfigError, match=r"--database URL, set ONCOMMIT_DATABASE .* oncommit.toml"):
        settings.require_database()


def test_libpq_counts_where_nothing_else_is_given() -> None:
    assert load(environment={"PGHOST": "db"}).database == "postgresql://"
    assert load(environment={"PGDATABASE": "shop"}).database == "postgresql://"
    assert load(environment={"PGHOST": "db", "DATABASE_URL": A}).database == A
    assert load(environment={"PGUSER": "root"}).database is None


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("databse = 'x'", r"unknown setting in oncommit.toml: 'databse'; did you mean database\?"),
        ("zzz = 1", r"'zzz'; there are: database, schema"),
        ("schema = 5", r"schema in oncommit.toml must be text, not int"),
        ("schema = 'a b'", r"schema in oncommit.toml: schema name 'a b' cannot be used"),
        ("[database]\nurl = 'x'", r"database in oncommit.toml must be text, not dict"),
        ("schema = ", r"oncommit.toml cannot be read"),
        (f"database = '{A[10:]}'", r"database in oncommit.toml: must be a URL"),
    ],
)
def test_files_that_cannot_be(elsewhere: Path, content: str, told: str) -> None:
    (elsewhere / "oncommit.toml").write_text(content)
    with pytest.raises(ConfigError, match=told) as refused:
        load(environment={})
    assert "geheim" not in str(refused.value)


def test_a_folder_is_no_file(elsewhere: Path) -> None:
    (elsewhere / "oncommit.toml").mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        load(environment={})


def test_slips_in_the_environment() -> None:
    with pytest.raises(ConfigError, match="ONCOMMIT_DATABSE, which is no setting; did you mean ONCOMMIT_DATABASE"):
        load(environment={"ONCOMMIT_DATABSE": A})
    # Not ours: Kubernetes writes these where a Service is called oncommit, and the test kit has names of its own.
    foreign = {"ONCOMMIT_SERVICE_HOST": "10.0.0.1", "ONCOMMIT_PORT": "tcp://", "ONCOMMIT_TEST_POSTGRES18_DSN": A}
    assert load(environment=foreign) == Settings()


def test_values_that_cannot_be_name_where_they_came_from() -> None:
    with pytest.raises(ConfigError, match="DATABASE_URL: must be a URL"):
        load(environment={"DATABASE_URL": "mysql://user:geheim@h/d"})
    with pytest.raises(ConfigError, match="--schema: schema name"):
        load(environment={}, schema='x"; drop')
    with pytest.raises(ConfigError, match="unknown argument: 'shema'; did you mean schema"):
        load(environment={}, shema="x")


def test_secrets_stay_out_of_what_is_printed() -> None:
    assert "geheim" not in repr(load(environment={"DATABASE_URL": A}))
    assert [entry.name for entry in definitions() if entry.secret] == ["database"]


def test_every_setting_is_described_and_has_its_variable() -> None:
    for entry in definitions():
        assert entry.help.endswith(".")
        assert entry.variables[0] == f"ONCOMMIT_{entry.name.upper()}"
