"""Which logins, proxies and Host headers are accepted."""

from __future__ import annotations

import base64
import doctest
import hmac
from hmac import compare_digest

import pytest

from gpuops.errors import UsageError
from gpuops.extras.web.http import access
from gpuops.extras.web.http.access import SECRET_HEADER, Access, PasswordLogin, ProxyLogin
from gpuops.model.vcenter.target import Secret

PASSWORD, SECRET = "correct horse battery", "a secret of the proxy"
PASSWORDS = PasswordLogin.parse(Secret(f"ann:{PASSWORD}\n\nbén:häßlich: with colons\n"), "logins")
PROXY = ProxyLogin.parse("X-Remote-User", ["10.0.0.5", "192.168.7.0/24", "fd00::/64"], Secret(SECRET))


def basic(credentials: str | bytes, scheme: str = "Basic") -> list[tuple[bytes, bytes]]:
    text = credentials.encode() if isinstance(credentials, str) else credentials
    return [(b"authorization", f"{scheme} ".encode() + base64.b64encode(text))]


def by_proxy(user: str = "ann", secret: str = SECRET) -> list[tuple[bytes, bytes]]:
    return [(b"x-remote-user", user.encode()), (SECRET_HEADER.lower().encode(), secret.encode())]


def test_the_examples_of_its_docstrings_hold() -> None:
    assert doctest.testmod(access).failed == 0


@pytest.mark.parametrize("headers", [basic(f"ann:{PASSWORD}"), basic("bén:häßlich: with colons", "bAsIc")])
def test_a_name_with_its_password_is_let_in(headers: list[tuple[bytes, bytes]]) -> None:
    assert PASSWORDS.lets_in(headers, "203.0.113.9")


@pytest.mark.parametrize(
    "headers",
    [
        [],
        basic(f"ann:{PASSWORD} "),
        basic(f"ann:{PASSWORD[:-1]}"),
        basic("ann:häßlich: with colons"),
        basic(f"Ann:{PASSWORD}"),
        basic("ann:"),
        basic(":"),
        basic(b"\xff\xfe:\x00"),
        basic(f"ann:{PASSWORD}", "Bearer"),
        basic(f"ann:{PASSWORD}") * 2,
        [(b"authorization", b"Basic")],
        [(b"authorization", b"Basic ====")],
        [(b"authorization", b"\xff\xff\xff")],
        [(b"authorization", f"Basic ann:{PASSWORD}".encode())],
    ],
)
def test_anything_else_is_not(headers: list[tuple[bytes, bytes]]) -> None:
    assert not PASSWORDS.lets_in(headers, "127.0.0.1")


@pytest.mark.parametrize("peer", ["10.0.0.5", "192.168.7.200", "fd00::1", "::ffff:10.0.0.5"])
def test_a_proxy_is_believed_at_its_own_addresses(peer: str) -> None:
    assert PROXY.lets_in(by_proxy(), peer)


@pytest.mark.parametrize(
    ("headers", "peer"),
    [
        (by_proxy(), "10.0.0.6"),
        (by_proxy(), "127.0.0.1"),
        (by_proxy(), ""),
        (by_proxy(), "10.0.0.5.example.com"),
        (by_proxy(secret="another secret of it"), "10.0.0.5"),
        (by_proxy(secret=""), "10.0.0.5"),
        (by_proxy(user=""), "10.0.0.5"),
        (by_proxy()[:1], "10.0.0.5"),
        (by_proxy()[1:], "10.0.0.5"),
        ([*by_proxy(), (b"x-remote-user", b"root")], "10.0.0.5"),
        ([*by_proxy(), by_proxy()[1]], "10.0.0.5"),
    ],
)
def test_and_nobody_else_who_sends_the_header(headers: list[tuple[bytes, bytes]], peer: str) -> None:
    assert not PROXY.lets_in(headers, peer)


def test_either_way_lets_in_and_without_ways_all_are() -> None:
    with_both = Access(PASSWORDS, PROXY)
    assert with_both.lets_in(basic(f"ann:{PASSWORD}"), "127.0.0.1") and with_both.lets_in(by_proxy(), "10.0.0.5")
    assert not with_both.lets_in(by_proxy(), "127.0.0.1")
    assert Access().lets_in([], "203.0.113.9") and Access().open and not with_both.open


def test_no_password_can_be_seen_in_what_is_kept() -> None:
    representation = repr(Access(PASSWORDS, PROXY))
    assert PASSWORD not in representation and SECRET not in representation and "digest" not in representation.lower()
    assert PASSWORD.encode() not in b"".join(PASSWORDS.digests) and SECRET.encode() not in PROXY.secret


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no logins"),
        ("\n\n", "contains no logins"),
        ("ann\n", "line 1, is not NAME:PASSWORD"),
        (f"ann:{PASSWORD}\n:{PASSWORD}\n", "line 2, is not NAME:PASSWORD"),
        (f"ann:{PASSWORD}\tx\n", "line 1, is not NAME:PASSWORD"),
        ("ann:short\n", "has 5 characters, and needs at least 12"),
    ],
)
def test_a_file_that_holds_no_logins_is_refused_and_not_shown(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        PasswordLogin.parse(Secret(text), "logins")
    assert message in caught.value.message and "short" not in caught.value.line and PASSWORD not in caught.value.line


@pytest.mark.parametrize(
    ("header", "address", "secret", "message"),
    [
        ("X Remote", "10.0.0.5", SECRET, "is not a valid header name"),
        ("", "10.0.0.5", SECRET, "is not a valid header name"),
        ("Ünicode", "10.0.0.5", SECRET, "is not a valid header name"),
        ("X-User", "10.0.0.300", SECRET, "--proxy-from"),
        ("X-User", "10.0.0.5/24", SECRET, "--proxy-from"),
        ("X-User", "proxy.example.com", SECRET, "--proxy-from"),
        ("X-User", "10.0.0.5", "short", "has 5 characters"),
    ],
)
def test_a_proxy_that_is_none_is_refused(header: str, address: str, secret: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ProxyLogin.parse(header, [address], Secret(secret))
    assert message in caught.value.message


@pytest.mark.parametrize(
    ("host", "reached", "answered"),
    [
        ("127.0.0.1:9189", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("localhost:9189", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("localhost", "10.0.0.5", False),
        ("[::1]:9189", "::1", True),
        ("[::ffff:127.0.0.1]", "127.0.0.1", True),
        ("10.0.0.5:80", "10.0.0.5", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("gpus.example.com", "10.0.0.5", True),
        ("GPUS.example.com.:443", "127.0.0.1", True),
        ("gpus.example.com.evil.test", "127.0.0.1", False),
        ("evil.test", "127.0.0.1", False),
        ("127.0.0.1.evil.test", "127.0.0.1", False),
        ("127.0.0.1@evil.test", "127.0.0.1", False),
        ("gpus.example.com:x", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("2130706433", "127.0.0.1", False),
        ("\xff", "127.0.0.1", False),
    ],
)
def test_a_host_header_names_the_address_or_a_name_of_the_service(host: str, reached: str, answered: bool) -> None:
    named = Access(hosts=("gpus.example.com",))
    assert named.answers_to([(b"host", host.encode("latin-1"))], reached) is answered
    assert not named.answers_to([(b"host", host.encode("latin-1"))] * 2, reached), "said twice"
    assert not named.answers_to([], reached)


@pytest.mark.parametrize("credentials", ["", "ann", f"ann:{PASSWORD}", f"ann:{PASSWORD[:-1]}", "nobody:" + "x" * 5000])
def test_a_password_is_compared_with_all_in_constant_time(credentials: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For every login, digests of one length are compared in full, one after another: no answer comes sooner."""
    compared: list[tuple[int, int]] = []

    def compare(first: bytes, second: bytes) -> bool:
        compared.append((len(first), len(second)))
        return compare_digest(first, second)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    PASSWORDS.lets_in(basic(credentials), "127.0.0.1")
    assert compared == [(64, 64)] * len(PASSWORDS.digests)
