"""The URL of a journal in PostgreSQL: where it may be written down, and what it may ask for."""

from __future__ import annotations

import pytest

from gpuops.config.vcenter.journal_url import holds_password, parsed
from gpuops.errors import UsageError

pytest.importorskip("psycopg", reason="needs psycopg: make setup")

SECRET = "Cn4ry"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "HOSTADDR", "PORT", "SERVICE", "SERVICEFILE", "SSLMODE"):
        monkeypatch.delenv(f"PG{name}", raising=False)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@db/j",
        f"postgresql://u:a/{SECRET}@db/j",
        f"postgresql://u:a#{SECRET}@db/j",
        f"postgresql://u:a?{SECRET}@db/j",
        f"postgresql://u:a@{SECRET}@db/j",
        f"postgresql://db/j?password={SECRET}",
        f"postgresql://db/j?pass%77ord={SECRET}",
        f"postgresql://db/j?sslkey=k&sslpassword={SECRET}",
        f"postgresql://db/j?oauth_client_secret={SECRET}",
        f"postgresql://u:{SECRET}@db1:5432,db2:5432/j",
        f"host=db password={SECRET}",
        f"postgres:u:{SECRET}@db",
    ],
)
def test_a_password_is_seen(url: str) -> None:
    assert holds_password(url)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://db/j",
        "postgresql://u@db/j?passfile=/etc/gpuops/pgpass&sslrootcert=/etc/ssl/ca.pem",
        "postgresql://u:@[::1]:5432/j",
        "postgresql://u@db1:5432,db2:5432/j",
        "postgresql://db1:5432,[::1]:5433,db3/j?sslrootcert=/ca.pem",
        "/var/lib/gpuops",
    ],
)
def test_where_there_is_none_none_is_seen(url: str) -> None:
    assert not holds_password(url)


def test_every_secret_that_libpq_knows_is_seen() -> None:
    from psycopg.pq import Conninfo

    hidden = [option.keyword.decode() for option in Conninfo.get_defaults() if option.dispchar == b"*"]
    assert set(hidden) >= {"password", "sslpassword"}
    assert [name for name in hidden if not holds_password(f"postgresql://db/j?{name}=x")] == []


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca"])
@pytest.mark.parametrize("url_rest", ["db.example.com/j?", "localhost/j?", "127.0.0.1,db/j?", "/j?service=x&"])
def test_a_weaker_mode_is_refused(url_rest: str, mode: str) -> None:
    with pytest.raises(UsageError, match=f"sets sslmode={mode}, which is weaker than verify-full") as refused:
        parsed(f"postgresql://u:{SECRET}@{url_rest}sslmode={mode}")
    assert refused.value.exit_code == 2
    assert SECRET not in f"{refused.value.message} {refused.value.hint}"


def test_a_weaker_mode_of_the_environment_is_refused_unless_the_url_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PGSSLMODE", "require")
    with pytest.raises(UsageError, match="PGSSLMODE=require, which is weaker"):
        parsed("postgresql://u@db/j")
    assert parsed("postgresql://u@db/j?sslmode=verify-full").query["sslmode"] == "verify-full"
    assert "sslmode" not in parsed("postgresql://u@127.0.0.1/j").query


@pytest.mark.parametrize("url_rest", ["127.0.0.1/j", "127.8.9.10/j", "[::1]/j", "/j", "/j?host=/run/postgresql",
                                  "/j?host=127.0.0.1,/run", "/j?host=@gpuops"])  # fmt: skip
def test_on_this_machine_the_mode_is_ones_own(url_rest: str) -> None:
    sign = "&" if "?" in url_rest else "?"
    assert parsed(f"postgresql://u@{url_rest}{sign}sslmode=disable").query["sslmode"] == "disable"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://u:{SECRET}@db/j", "not the URL of a PostgreSQL database"),
        (f"postgresql://u:{SECRET}@db", "not the URL of a PostgreSQL database"),
        (f"postgresql://u:{SECRET}@db1:5432,db2:{SECRET}/j", "not the URL of a PostgreSQL database"),
        (f"postgresql://u:a@{SECRET}@db1:5432,db2:5432/j", "not the URL of a PostgreSQL database"),
        ("postgresql://db1:5432,db2:5432/j?host=db3", "hosts or ports"),
        (f"postgresql://u:a@{SECRET}@db/j", "more than one @"),
        (f"postgresql://u:a@db/{SECRET}@db/j", "more than one @"),
        (f"postgresql://u:{SECRET}@db/j?sslmode=verify-full&sslmode=disable", "has the parameter 'sslmode' twice"),
        (f"postgresql://u:{SECRET}@db/j?autocommit=1", "a parameter that libpq does not know"),
        (f"postgresql://u@db/j?colour={SECRET}", "a parameter that libpq does not know"),
        (f"postgresql://u:{SECRET}@/j?host=db1:1&host=db2:2&port=3", "hosts or ports"),
        (f"postgresql://u:{SECRET}@/j?host=db1&port=x", "hosts or ports"),
    ],
)
def test_what_no_journal_can_be_opened_by_is_one_line(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        parsed(url)
    message = f"{refused.value.message} {refused.value.hint}"
    assert SECRET not in message
    assert "\n" not in message
    assert refused.value.__cause__ is None


HERE, ELSEWHERE = None, "verify-full"


@pytest.mark.parametrize(
    ("url_rest", "environment", "mode"),
    [
        ("/j", {}, HERE),
        ("/j?host=/run/postgresql", {}, HERE),
        ("%2Frun%2Fpostgresql/j", {}, HERE),
        ("%2Frun%2Fpostgresql:5433/j", {}, HERE),
        ("127.0.0.1/j", {}, HERE),
        ("127.8.9.10:5433/j", {}, HERE),
        ("[::1]/j", {}, HERE),
        ("[::1]:5433/j", {}, HERE),
        ("/j?host=127.0.0.1,::1,/run", {}, HERE),
        ("/j?hostaddr=127.0.0.1", {}, HERE),
        ("db/j?hostaddr=127.0.0.1", {}, HERE),
        ("/j", {"PGHOST": "/run"}, HERE),
        ("/j", {"PGHOST": "::1"}, HERE),
        ("127.0.0.1/j", {"PGHOST": "db"}, HERE),
        ("db/j", {}, ELSEWHERE),
        ("%64b/j", {}, ELSEWHERE),
        ("localhost/j", {}, ELSEWHERE),
        ("127.0.0.1.example.com/j", {}, ELSEWHERE),
        ("127.1/j", {}, ELSEWHERE),
        ("2130706433/j", {}, ELSEWHERE),
        ("127.0.0.1%2Cdb/j", {}, ELSEWHERE),
        ("127.0.0.1%2Eexample.com/j", {}, ELSEWHERE),
        ("[fe80::1]/j", {}, ELSEWHERE),
        ("db1,db2/j", {}, ELSEWHERE),
        ("db1:5432,db2:5433/j", {}, ELSEWHERE),
        ("127.0.0.1:5432,db2:5433/j", {}, ELSEWHERE),
        ("127.0.0.1:5432,[::1]:5433/j", {}, HERE),
        ("/j?host=db1,db2&port=5432,5433", {}, ELSEWHERE),
        ("/j?host=db1:5432&host=db2:5433", {}, ELSEWHERE),
        ("/j?host=127.0.0.1,db", {}, ELSEWHERE),
        ("/j?host=/run,db", {}, ELSEWHERE),
        ("/j?host=,db", {}, ELSEWHERE),
        ("/j?hostaddr=10.0.0.1", {}, ELSEWHERE),
        ("127.0.0.1/j?hostaddr=10.0.0.1", {}, ELSEWHERE),
        ("/j?host=/run&hostaddr=10.0.0.1", {}, ELSEWHERE),
        ("/j?host=/run,/run&hostaddr=127.0.0.1,10.0.0.1", {}, ELSEWHERE),
        ("/j?service=prod", {}, ELSEWHERE),
        ("127.0.0.1/j?service=prod", {}, ELSEWHERE),
        ("/j", {"PGHOST": "db"}, ELSEWHERE),
        ("/j", {"PGHOST": "127.0.0.1,db"}, ELSEWHERE),
        ("/j", {"PGHOSTADDR": "10.0.0.1"}, ELSEWHERE),
        ("127.0.0.1/j", {"PGHOSTADDR": "10.0.0.1"}, ELSEWHERE),
        ("/j", {"PGSERVICE": "prod"}, ELSEWHERE),
        ("127.0.0.1/j", {"PGSERVICE": "prod"}, ELSEWHERE),
    ],
)
def test_every_way_but_a_socket_and_a_loopback_address_is_verified(
    monkeypatch: pytest.MonkeyPatch, url_rest: str, environment: dict[str, str], mode: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parsed(f"postgresql://u@{url_rest}").query.get("sslmode") == mode


def test_a_directory_of_sockets_in_the_place_of_the_host_is_what_the_driver_is_told() -> None:
    url = parsed(f"postgresql://u:{SECRET}@%2Frun%2Fpg:5433/j?application_name=x")
    _, arguments = url.get_dialect()().create_connect_args(url)
    assert (arguments["host"], arguments["port"], arguments["user"], arguments["password"]) == (
        "/run/pg",
        "5433",
        "u",
        SECRET,
    )
    assert arguments["application_name"] == "x"
    for wrong in ("%2Frun%00", "%ff", "db%0Aname"):
        with pytest.raises(UsageError, match="not the URL of a PostgreSQL database"):
            parsed(f"postgresql://u@{wrong}/j")


@pytest.mark.parametrize(
    ("url_rest", "host", "port"),
    [
        ("db1:5432,db2:5433/j", "db1,db2", "5432,5433"),
        ("db1:5432,db2/j", "db1,db2", "5432,"),
        ("[::1]:1,127.0.0.1:2/j?application_name=x", "::1,127.0.0.1", "1,2"),
    ],
)
def test_several_hosts_have_their_ports(url_rest: str, host: str, port: str) -> None:
    url = parsed(f"postgresql://u:{SECRET}@{url_rest}")
    _, arguments = url.get_dialect()().create_connect_args(url)
    assert (arguments["host"], arguments["port"], arguments["user"], arguments["password"]) == (host, port, "u", SECRET)
    assert arguments["dbname"] == "j"
