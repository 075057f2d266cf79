"""The URL of a journal in PostgreSQL: where it may be written down, and what it may ask for."""

from __future__ import annotations

import pytest

from gpuops.config.journal_url import holds_password, parsed
from gpuops.errors import UsageError

pytest.importorskip("psycopg", reason="needs psycopg: make setup")

SECRET = "Cn4ry"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "HOSTADDR", "SERVICE", "SERVICEFILE", "SSLMODE"):
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
@pytest.mark.parametrize("rest", ["db.example.com/j?", "localhost/j?", "127.0.0.1,db/j?", "/j?service=x&"])
def test_a_weaker_mode_is_refused(rest: str, mode: str) -> None:
    with pytest.raises(UsageError, match=f"says sslmode={mode}, which is weaker than verify-full") as refused:
        parsed(f"postgresql://u:{SECRET}@{rest}sslmode={mode}")
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


@pytest.mark.parametrize("rest", ["127.0.0.1/j", "127.8.9.10/j", "[::1]/j", "/j", "/j?host=/run/postgresql",
                                  "/j?host=127.0.0.1,/run", "/j?host=@gpuops"])  # fmt: skip
def test_on_this_machine_the_mode_is_ones_own(rest: str) -> None:
    sign = "&" if "?" in rest else "?"
    assert parsed(f"postgresql://u@{rest}{sign}sslmode=disable").query["sslmode"] == "disable"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://u:{SECRET}@db/j", "none of a PostgreSQL database"),
        (f"postgresql://u:{SECRET}@db", "none of a PostgreSQL database"),
        (f"postgresql://u:{SECRET}@db1:5432,db2:5432/j", "none of a PostgreSQL database"),
        (f"postgresql://u:a@{SECRET}@db/j", "more than one @"),
        (f"postgresql://u:a@db/{SECRET}@db/j", "more than one @"),
        (f"postgresql://u:{SECRET}@db/j?sslmode=verify-full&sslmode=disable", "says 'sslmode' more than once"),
        (f"postgresql://u:{SECRET}@db/j?autocommit=1", "a parameter that libpq does not know"),
        (f"postgresql://u@db/j?colour={SECRET}", "a parameter that libpq does not know"),
        (f"postgresql://u:{SECRET}@/j?host=db1:1&host=db2:2&port=3", "cannot be read"),
        (f"postgresql://u:{SECRET}@/j?host=db1&port=x", "cannot be read"),
    ],
)
def test_what_no_journal_can_be_opened_by_is_one_line(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        parsed(url)
    told = f"{refused.value.message} {refused.value.hint}"
    assert SECRET not in told
    assert "\n" not in told
    assert refused.value.__cause__ is None
