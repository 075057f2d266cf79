"""What is answered at each address over HTTP: pages, documents, events, and by which headers."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest

from gpuops.extras.web.http import web_server
from gpuops.extras.web.http.access import Access, PasswordLogin, ProxyLogin
from gpuops.model.vcenter.target import Secret
from tests.waiting import wait_until
from tests.web.conftest import Serve, Served, events

pytestmark = pytest.mark.long

PASSWORD = "correct horse battery"
SECRET = "a secret of the proxy"
ADDRESSES = ("/", "/page.js", "/page.css", "/metrics", "/healthz", "/api/report", "/api/inventory")


def test_page_script_style_and_documents_come_from_their_own_addresses(served: Served) -> None:
    answers = {address: served.get(address) for address in ADDRESSES}
    assert {answer.status_code for answer in answers.values()} == {200}
    assert {address: answer.headers["content-type"].partition(";")[0] for address, answer in answers.items()} == {
        "/": "text/html", "/page.js": "text/javascript", "/page.css": "text/css", "/metrics": "text/plain",
        "/healthz": "text/plain", "/api/report": "application/json", "/api/inventory": "application/json",
    }  # fmt: skip
    assert answers["/api/report"].json() == served.fleet.report
    page = answers["/"].text
    assert "<style" not in page and "style=" not in page and page.count("<script") == 2
    assert '<script type="application/json" id="report"></script>\n<script src="page.js"></script>' in page
    assert f'data-edition="{answers["/api/report"].headers["X-Gpuops-Edition"]}"' in page


def test_every_answer_holds_the_browser_to_what_the_page_needs(served: Served) -> None:
    answers = [served.get(address) for address in (*ADDRESSES, "/nowhere", "/api/idle")]
    answers += [served.get("/", "POST"), served.get("/", headers={"Host": "evil.test"})]
    for answer in answers:
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy.pop("img-src") == "data:"
        assert set(policy.values()) == {"'none'", "'self'"}, "nothing inline, nothing of other origins"
        assert policy["frame-ancestors"] == policy["default-src"] == policy["base-uri"] == "'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert not {"server", "access-control-allow-origin", "set-cookie"} & set(answer.headers)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"])
def test_other_methods_are_refused_everywhere(served: Served, method: str) -> None:
    for address in (*ADDRESSES, "/events", "/nowhere"):
        answer = served.get(address, method, content=b"x" if method != "TRACE" else None)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD"), address


def test_head_has_the_headers_and_no_body(served: Served) -> None:
    for address in (*ADDRESSES, "/events"):
        got, head = served.get(address) if address != "/events" else None, served.get(address, "HEAD")
        assert (head.status_code, head.content) == (200, b"")
        if got is not None:
            assert int(head.headers["content-length"]) == len(got.content)


@pytest.mark.parametrize(
    "path",
    ["/nowhere", "//", "//api/report", "/*", "/api", "/api/", "/api/report/", "/api/../healthz", "/..%2f",
     "/%2e%2e/etc/hosts", "/%00", "/page.js%00.html", "/api/report%0d%0aX: 1", "/api/rotate", "/page.html.j2",
     "/live.js", "/index.html"],
)  # fmt: skip
def test_an_address_that_there_is_not_is_none(served: Served, path: str) -> None:
    answer = served.raw(f"GET {path.replace(' ', '%20')} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 404 "), answer[:200]


def test_a_host_header_of_somebody_else_is_misdirected(serve: Serve) -> None:
    served = serve(Access(hosts=("gpus.example.com",)))
    served.look()
    assert served.get(headers={"Host": "gpus.example.com"}).status_code == 200
    assert served.get(headers={"Host": f"localhost:{served.port}"}).status_code == 200
    for host in ("evil.test", f"evil.test:{served.port}", "10.0.0.5", ""):
        for address in (*ADDRESSES, "/events"):
            assert served.get(address, headers={"Host": host}).status_code == 421, (host, address)
    assert served.raw(b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 421 "), "HTTP/1.0 needs none, and gets nothing"


def test_without_the_password_nothing_but_health_is_told(serve: Serve) -> None:
    served = serve(Access(PasswordLogin.parse(Secret(f"ann:{PASSWORD}"), "logins")))
    served.look()
    wrong = (None, ("ann", "wrong horse battery"), ("bob", PASSWORD))
    for auth in wrong:
        for address in (*ADDRESSES, "/events", "/nowhere"):
            answer = served.get(address, auth=auth)
            if address == "/healthz":
                assert (answer.status_code, answer.text) == (200, "ok\n")
                continue
            assert (answer.status_code, answer.text) == (401, "name and password are needed\n"), address
            assert answer.headers["www-authenticate"] == 'Basic realm="gpuops", charset="UTF-8"'
    for address in ADDRESSES:
        assert served.get(address, auth=("ann", PASSWORD)).status_code == 200
    assert served.said == [], "of who comes nothing is written"


def test_a_proxy_s_word_counts_from_its_address_with_its_secret(serve: Serve) -> None:
    headers = {"X-Remote-User": "ann", "X-Gpuops-Proxy-Secret": SECRET}
    at_loopback = serve(Access(proxy=ProxyLogin.parse("X-Remote-User", ["127.0.0.1"], Secret(SECRET))))
    elsewhere = serve(Access(proxy=ProxyLogin.parse("X-Remote-User", ["10.0.0.0/8"], Secret(SECRET))))
    at_loopback.look(), elsewhere.look()
    assert at_loopback.get(headers=headers).status_code == 200
    assert elsewhere.get(headers=headers).status_code == 403, "from a wrong address"
    assert (
        elsewhere.get(headers={**headers, "X-Forwarded-For": "10.0.0.5", "Forwarded": "for=10.0.0.5"}).status_code
        == 403
    )
    assert at_loopback.get(headers={**headers, "X-Gpuops-Proxy-Secret": "another secret of it"}).status_code == 403
    assert at_loopback.get(headers={"X-Remote-User": "ann"}).status_code == 403
    assert at_loopback.get().status_code == 403


def test_before_the_first_read_it_says_so(serve: Serve) -> None:
    served = serve()
    assert served.get("/healthz").status_code == 503
    assert served.get("/api/report").status_code == 503
    page = served.get("/")
    assert page.status_code == 200 and "vCenter has not been read yet" in page.text
    served.fleet.away = "vc.example.com:443 does not answer"
    assert not served.look()
    assert served.said == ["vc.example.com:443 does not answer"]
    served.fleet.away = ""
    assert served.look()
    wait_until(lambda: served.get("/healthz").status_code == 200)


def test_a_vcenter_that_is_away_leaves_the_last_page_and_its_age(served: Served) -> None:
    served.fleet.away = "vc.example.com:443 does not answer"
    with httpx.stream("GET", f"{served.url}/events", timeout=30) as response:
        received_events = events(response)
        first = next(received_events)
        assert (first["edition"], first["trouble"]) == ("1", None)
        for _ in range(3):
            assert not served.look()
        away_event = next(received_events)
        assert (away_event["edition"], away_event["trouble"]) == ("1", "vc.example.com:443 does not answer")
        assert away_event["age_s"] >= first["age_s"] >= 0
        assert served.get("/healthz").status_code == 503
        assert served.get("/api/report").json() == served.fleet.report
        served.fleet.away = ""
        assert served.look()
        back = next(received_events)
    assert (back["edition"], back["trouble"]) == ("1", None), "nothing had changed meanwhile"
    assert served.get("/healthz").status_code == 200
    assert served.said == ["vc.example.com:443 does not answer"], "a trouble is said once"


def test_an_edition_is_new_where_something_but_the_time_of_the_read_is(served: Served) -> None:
    def edition() -> tuple[str, Any]:
        answer = served.get("/api/report")
        return answer.headers["X-Gpuops-Edition"], answer.json()

    first = dict(served.fleet.report)
    served.fleet.report = {**first, "read_at": "2031-01-01T00:00:00+00:00"}
    served.look()
    assert edition() == ("1", served.fleet.report)
    served.fleet.report = {**first, "policy": "another"}
    served.look()
    assert edition() == ("2", served.fleet.report)
    assert 'data-edition="2"' in served.get("/").text


def test_documents_of_the_lab_are_made_once_and_metrics_stand_a_while(served: Served) -> None:
    assert served.get("/api/doctor").json() == {"kind": "doctor"}
    assert [served.get("/metrics").text for _ in range(3)] == ["gpuops_up 1\n"] * 3
    assert len(served.metrics) == 1
    served.look()
    served.get("/metrics")
    assert len(served.metrics) == 2, "of a new read"
    assert "gpuops serve --policy FILE" in served.get("/api/idle").text


def test_a_document_that_cannot_be_made_is_said_and_ends_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_arguments: Any) -> str:
        raise RuntimeError("no such template")

    monkeypatch.setattr("gpuops.extras.web.http.current.served_page", broken)
    assert served.get("/").status_code == 500
    assert served.said == ["'/' was not answered: RuntimeError: no such template"]
    assert served.get("/healthz").status_code == 200


def test_watchers_are_told_of_the_newest_alone(served: Served) -> None:
    """A watcher that does not read during a thousand editions gets the last one, and needs no queue."""
    with httpx.stream("GET", f"{served.url}/events", timeout=30) as response:
        received_events = events(response)
        assert next(received_events)["edition"] == "1"
        first = dict(served.fleet.report)
        for number in range(200):
            served.fleet.report = {**first, "policy": f"p{number}"}
            served.look()
        editions = [next(received_events)["edition"]]
        while editions[-1] != "201":
            editions.append(next(received_events)["edition"])
    assert editions == sorted(editions, key=int) and len(set(editions)) == len(editions)


def test_so_many_watch_and_no_more(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "MOST_WATCHERS", 2)
    with (
        httpx.stream("GET", f"{served.url}/events") as first,
        httpx.stream("GET", f"{served.url}/events") as second,
    ):
        streams = [events(first), events(second)]
        assert [next(stream)["edition"] for stream in streams] == ["1", "1"]
        refused = served.get("/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "60")
    wait_until(lambda: watches(served))


def watches(served: Served) -> bool:
    with httpx.stream("GET", f"{served.url}/events") as response:
        return response.status_code == 200


def test_a_watcher_hears_something_again_and_again(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_server, "HEARTBEAT_S", 0.05)
    with httpx.stream("GET", f"{served.url}/events", timeout=30) as response:
        received_events = events(response)
        ages = [next(received_events)["age_s"] for _ in range(5)]
    assert ages == sorted(ages)
    assert json.dumps(ages)


def test_credentials_in_the_wrong_form_are_no_login(serve: Serve) -> None:
    served = serve(Access(PasswordLogin.parse(Secret(f"ann:{PASSWORD}"), "logins")))
    right = base64.b64encode(f"ann:{PASSWORD}".encode())
    for value in (b"Basic " + right[:-4], b"basic", b"Digest " + right, b"Basic " + right + b", Basic " + right):
        text = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: " + value + b"\r\n\r\n"
        assert served.raw(text).startswith(b"HTTP/1.1 401 "), value
