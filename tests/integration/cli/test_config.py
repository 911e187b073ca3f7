"""Settings from file, environment and arguments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from oncommit.config import Found, Settings, definitions, load, load_all
from oncommit.config.definition import ANY
from oncommit.config.page import refresh
from oncommit.config.presets import PRESETS
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
        ("zzz = 1", r"'zzz'; there are: database, schema, preset, relay, retry, sinks"),
        ("schema = 5", r"schema in oncommit.toml: must be text, not int"),
        ("schema = 'a b'", r"schema in oncommit.toml: schema name 'a b' cannot be used"),
        ("[database]\nurl = 'x'", r"database in oncommit.toml: must be text, not dict"),
        ("relay = 3", r"relay is a table, \[relay\]"),
        ("[relay]\nlaese = 3", r"'relay.laese'; did you mean relay.lease\?"),
        ("[relay]\nlease = true", r"relay.lease in oncommit.toml: must be a duration"),
        ("[relay]\nlease = '0s'", r"relay.lease in oncommit.toml: must be a duration above zero"),
        ("[relay]\nlease = inf", r"relay.lease in oncommit.toml: must be a duration above zero"),
        ("[relay]\nbatch_bytes = '8 apples'", r"relay.batch_bytes in oncommit.toml: must be a number of bytes"),
        ("[retry]\nmax_atempts = 3", r"did you mean retry.max_attempts\?"),
        ("[retry.'a.*']\nbase = '2h'", r'retry."a.\*": a back-off .*\(retry."a.\*".base is from'),
        ("[sinks.Main]\nbroker = 'x'", r"sink name 'Main' cannot be used"),
        ("[sinks.main]\nbroker = ['geheim']", r"sinks.main.broker in oncommit.toml: must be text, not list"),
        ("[sinks.main]\ntopic = '{payload}'", r"sinks.main.topic in oncommit.toml: .* there can be only"),
        ("[sinks.main.topics]\n'a' = ''", r"sinks.main.topics.a in oncommit.toml: .* is empty"),
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
    foreign = {
        "ONCOMMIT_SERVICE_HOST": "10.0.0.1",
        "ONCOMMIT_PORT": "tcp://",
        "ONCOMMIT_RELAY_SERVICE_PORT": "1",
        "ONCOMMIT_RELAY_PORT_8000_TCP_ADDR": "10.0.0.1",
        "ONCOMMIT_TEST_POSTGRES18_DSN": A,
    }
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
    assert "geheim" not in repr(load(environment={"ONCOMMIT_SINKS": "audit=nats://u:geheim@h"}))
    program = load(environment={"ONCOMMIT_RELAY_WAKE_REDIS": "redis://u:geheim@h", "ONCOMMIT_RELAY_LISTEN_DATABASE": A})
    assert "geheim" not in repr(program) + repr(program.program)
    secret = ["database", "relay.listen_database", "relay.wake_redis", "sinks.*.broker"]
    assert [entry.name for entry in definitions() if entry.secret] == secret


def test_every_setting_is_described_and_has_its_variable() -> None:
    for entry in definitions():
        assert entry.help.endswith(".")
        assert ANY in entry.path or entry.variables[0] == f"ONCOMMIT_{'_'.join(entry.path).upper()}"


# ── Of a relay ────────────────────────────────────────────────────────────────────────────────────


def test_a_setting_of_a_relay_comes_from_each_place_in_its_turn(elsewhere: Path) -> None:
    environment = {"ONCOMMIT_PRESET": "dev"}
    assert load(environment=environment).relay.poll_idle == 0.1
    (elsewhere / "oncommit.toml").write_text("[relay]\npoll_idle = '200ms'\n")
    assert load(environment=environment).relay.poll_idle == 0.2
    environment["ONCOMMIT_SETTINGS"] = "[relay]\npoll_idle = 0.3"
    assert load(environment=environment).relay.poll_idle == 0.3
    environment["ONCOMMIT_RELAY_POLL_IDLE"] = "400ms"
    assert load(environment=environment).relay.poll_idle == 0.4
    assigned = load_all(environment=environment, assignments=["relay.poll_idle=500ms"])
    assert assigned.settings.relay.poll_idle == 0.5
    given = {("relay", "poll_idle"): Found("600ms", "--poll-idle")}
    loaded = load_all(environment=environment, assignments=["relay.poll_idle=500ms"], given=given)
    assert loaded.settings.relay.poll_idle == 0.6
    assert loaded.found[("relay", "poll_idle")].origin == "--poll-idle"


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_holds_together_and_changes_something(preset: str) -> None:
    settings = load(environment={"ONCOMMIT_PRESET": preset})
    assert settings.preset == preset
    assert preset == "prod" or settings.relay != Settings().relay


def test_clashes_name_both_settings_and_their_places(elsewhere: Path) -> None:
    (elsewhere / "oncommit.toml").write_text("[relay]\nlease = '4s'\n")
    told = r"relay: statement_timeout \(5s\) must be shorter .* is from relay.lease in oncommit.toml, .* is the default"
    with pytest.raises(ConfigError, match=told):
        load(environment={})
    told = r"poll_busy \(2s\).*relay.poll_busy is from ONCOMMIT_RELAY_POLL_BUSY, relay.poll_idle is from preset dev"
    environment = {"ONCOMMIT_RELAY_POLL_BUSY": "2s", "ONCOMMIT_PRESET": "dev", "ONCOMMIT_RELAY_LEASE": "10s"}
    with pytest.raises(ConfigError, match=told):
        load(environment=environment)


def test_policies_of_types_take_from_the_general_one_what_they_leave_out(elsewhere: Path) -> None:
    (elsewhere / "oncommit.toml").write_text(
        """
        [retry]
        max_attempts = 7
        base = "3s"
        [retry."order.*"]
        max_attempts = 2
        [retry."order.placed"]
        cap = "1m"
        [retry."*.late"]
        base = "9s"
        """
    )
    relay = load(environment={}).relay
    found = {
        kind: (rules.max_attempts, rules.backoff.base, rules.backoff.cap)
        for kind in ("other", "order.sent", "order.placed", "order.late", "orders")
        for rules in [relay.policy(kind)]
    }
    assert found == {
        "other": (7, 3.0, 3600.0),
        "order.sent": (2, 3.0, 3600.0),
        "order.placed": (7, 3.0, 60.0),
        "order.late": (2, 3.0, 3600.0),  # the longer pattern
        "orders": (7, 3.0, 3600.0),
    }


def test_sinks_and_which_are_served(elsewhere: Path) -> None:
    (elsewhere / "oncommit.toml").write_text(
        """
        [relay]
        sinks = ["audit"]
        [sinks.main]
        broker = "nats://main"
        [sinks.audit]
        topic = "a.{type}"
        [sinks.audit.topics]
        "order.placed" = "orders"
        """
    )
    with pytest.raises(ConfigError, match="the sink audit has no broker"):
        load(environment={}).served()
    environment = {"ONCOMMIT_SINKS": "audit=nats://audit?a=b"}
    (served,) = load(environment=environment).served().items()
    assert served[0] == "audit"
    assert (served[1].broker, served[1].topic, dict(served[1].topics)) == (
        "nats://audit?a=b", "a.{type}", {"order.placed": "orders"},
    )  # fmt: skip
    environment["ONCOMMIT_RELAY_SINKS"] = "main audit"
    assert list(load(environment=environment).served()) == ["main", "audit"]


def test_kafka_of_the_environment_counts_where_no_sink_is_named() -> None:
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "a:9092,b:9092"}
    assert load(environment=environment).sinks["main"].broker == "kafka://a:9092,b:9092"
    environment["ONCOMMIT_SINKS"] = "audit=nats://h"
    assert list(load(environment=environment).sinks) == ["audit"]


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("relay.lease", "--set is KEY=VALUE"),
        ("=3", "--set is KEY=VALUE"),
        ("relay..lease=3", "--set has a key that cannot be read"),
        ("relay.lease=[1", "--set: must be a duration"),
        ("sinks.main.broker=3", "sinks.main.broker in --set: must be text"),
    ],
)
def test_assignments_that_cannot_be(assignment: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load_all(environment={}, assignments=[assignment])


# ── The page ──────────────────────────────────────────────────────────────────────────────────────

PAGES = Path(__file__).parents[3] / "docs"


def test_the_page_on_settings_is_up_to_date() -> None:
    page = (PAGES / "reference/settings.md").read_text(encoding="utf-8")
    assert page == refresh(page), "run: python -m oncommit.config docs/reference/settings.md"


@pytest.mark.parametrize("page", ["reference/settings.md", "guides/relay.md"])
def test_every_example_of_a_file_can_be_read(page: str, elsewhere: Path) -> None:
    examples = re.findall(r"^```toml\n(.*?)^```$", (PAGES / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert examples
    for example in examples:
        (elsewhere / "oncommit.toml").write_text(example)
        assert load(environment={}) != Settings()
