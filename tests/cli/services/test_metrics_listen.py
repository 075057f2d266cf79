"""`gpuops metrics --listen` as a service: what it answers, one read for many, a vCenter that is away, and its end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Final

import pytest

from gpuops.clock import passed_s
from gpuops.execute.state import http_listener
from gpuops.execute.state.http_listener import GetHandler, ListenOption, listening
from gpuops.extras.web import metrics_source
from gpuops.extras.web.metrics_source import RequestedPage, page_lifetime_s
from gpuops.sim.fault_injection.rule import Effect, Rule
from gpuops.sim.outside_events.vm_events import power_off
from gpuops.sim.scenario.build import build
from gpuops.sim.server import SimServer
from gpuops.sim.wire import sim_client
from gpuops.sim.world import World
from tests.ports import free_port, listens
from tests.prometheus import Found, needs_promtool, only, require_taken, samples
from tests.waiting import wait_until

LONGEST_S: Final = 250.0
pytestmark = pytest.mark.timeout(300)  # an answer stands for fifty times what it took: long on a busy machine
OPTION: Final = ListenOption("--listen", 9188)


def fetch(port: int, method: str = "GET", path: str = "/metrics") -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read().decode()
    finally:
        connection.close()


@contextmanager
def service(port: int, *options: str) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "gpuops", "metrics", "--listen", str(port), "--every", "1", *options]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=os.environ
    ) as run:
        try:
            wait_until(lambda: run.poll() is not None or listens(port))
            yield run
        finally:
            run.kill()


def scrape(port: int) -> Found:
    status, _, text = fetch(port)
    assert status == 200
    return samples(text)


@pytest.mark.long
@needs_promtool
def test_it_answers_get_alone_reads_alone_and_ends_when_it_is_told(clean: Path, tmp_path: Path) -> None:
    with SimServer(build("lab")) as server:
        ready, port = tmp_path / "ready.json", free_port()
        sim_client.write(ready, sim_client.of(server))
        with service(port, "--vcenter", f"sim@{ready}") as run:
            status, headers, text = fetch(port)
            assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
            assert int(headers["Content-Length"]) == len(text.encode())
            require_taken(text)
            assert (fetch(port, "HEAD")[0], fetch(port, "HEAD")[2]) == (200, "")
            assert fetch(port, path="/metrics?a=b")[0] == 200
            assert {fetch(port, path=path)[0] for path in ("/", "/metrics/", "/../metrics", "/etc/passwd")} == {404}
            for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
                status, headers, _ = fetch(port, method)
                assert (method, status, headers["Allow"]) == (method, 405, "GET, HEAD")
            assert fetch(port, "BREW")[0] == 501

            with server.world.lock:
                deleted = next(vm for vm in server.world.by_type("VirtualMachine") if vm.state.seats)
            assert deleted.moid in on_gpus(port)
            with server.world.lock:
                power_off(deleted, Rule(Effect.HAPPEN))
                effects_before = len(server.world.ledger)
            wait_until(lambda: deleted.moid not in on_gpus(port))
            run.send_signal(signal.SIGTERM)
            _, errors = run.communicate(timeout=LONGEST_S)
        assert run.returncode == 143 and "Traceback" not in errors
        assert f"are at port {port} of 127.0.0.1, path /metrics" in errors
        assert len(server.world.ledger) == effects_before, "the service changed nothing"
        assert list(server.world.sessions) == [], "it logged out"
        assert server.world.bugs == []


def on_gpus(port: int) -> set[str]:
    return {dict(labels)["vm_id"] for labels in scrape(port)["gpuops_gpu_vgpu_info"]}


@pytest.mark.long
def test_a_vcenter_that_goes_away_and_comes_back_ends_nothing(clean: Path, tmp_path: Path) -> None:
    """It does not answer at the start, then it restarts twice: it forgets sessions and filters, and takes a while."""
    with SimServer(build("lab")) as server:
        ready, port, world = tmp_path / "ready.json", free_port(), server.world
        sim_client.write(ready, sim_client.of(server))
        is_down(world, down=True)
        with service(port, "--vcenter", f"sim@{ready}") as run:
            figures = scrape(port)
            assert only(figures, "gpuops_up") == 0, "away from the start"
            assert set(figures) == {"gpuops_up", "gpuops_build_info"}
            for _ in range(2):
                is_down(world, down=False)
                wait_until(lambda: only(scrape(port), "gpuops_up") == 1)
                assert scrape(port)["gpuops_vgpu_slots_free"]
                is_down(world, down=True)
                wait_until(lambda: only(scrape(port), "gpuops_up") == 0)
                assert "gpuops_vgpu_slots_free" not in scrape(port)
            assert run.poll() is None
            is_down(world, down=False)
            run.send_signal(signal.SIGTERM)
            _, errors = run.communicate(timeout=LONGEST_S)
    assert run.returncode == 143 and "Traceback" not in errors
    assert 0 < errors.count("warning: ") < 8, "a trouble is said once, not at each scrape"


def is_down(world: World, *, down: bool) -> None:
    with world.lock:
        world.down_until = world.clock.now() + timedelta(hours=1 if down else -1)
        for session in [*world.sessions] if down else ():
            world.sessions.close(session)


@pytest.mark.long
def test_a_vcenter_that_is_away_at_the_start_is_tried_at_each_scrape(clean: Path, tmp_path: Path) -> None:
    with SimServer(build("lab")) as server:
        ready, port = tmp_path / "ready.json", free_port()
        sim_client.write(ready, sim_client.of(server))
        is_down(server.world, down=True)
        with service(port, "--vcenter", f"sim@{ready}") as run:
            figures = scrape(port)
            assert (only(figures, "gpuops_up"), set(figures)) == (0, {"gpuops_up", "gpuops_build_info"})
            is_down(server.world, down=False)
            wait_until(lambda: only(scrape(port), "gpuops_up") == 1)
            run.send_signal(signal.SIGTERM)
            _, errors = run.communicate(timeout=LONGEST_S)
    assert (run.returncode, errors.count("warning: ")) == (143, 1), "a trouble is said once, not at each scrape"


@pytest.mark.long
def test_a_refused_login_ends_it_at_once(clean: Path, tmp_path: Path) -> None:
    with SimServer(build("lab")) as server:
        ready, port = tmp_path / "ready.json", free_port()
        sim_client.write(ready, sim_client.of(server))
        connection = json.loads(ready.read_text(encoding="utf-8"))
        ready.write_text(json.dumps(connection | {"password": "another"}), encoding="utf-8")
        with service(port, "--vcenter", f"sim@{ready}") as run:
            _, errors = run.communicate(timeout=LONGEST_S)
    assert run.returncode == 5 and errors.startswith("error: ")


def test_many_that_ask_at_once_cost_one_page() -> None:
    page, pages, stop = RequestedPage(), [0], Event()

    def make() -> None:
        while not stop.is_set():
            page.wait_until_asked()
            if not stop.is_set():
                pages[0] += 1
                page.publish(f"page {pages[0]}".encode(), LONGEST_S)

    thread = Thread(target=make)
    thread.start()
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(lambda _: page.ask(), range(200)))
    assert (set(answers), pages) == ({b"page 1"}, [1])
    stop.set()
    page.publish(b"", 0.0)
    Thread(target=page.ask).start()
    thread.join(LONGEST_S)


def test_who_asks_while_a_page_takes_long_gets_the_last_one_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("gpuops.extras.web.metrics_source.clock.passed_s", lambda: now[0])
    monkeypatch.setattr(metrics_source, "PATIENCE_S", 0.01)
    page = RequestedPage()
    page.publish(b"old", 30.0)
    now[0] += 29
    assert page.ask() == b"old", "it stands"
    now[0] += 60
    assert page.ask() == b"old", "no new page is made"
    now[0] += 1
    assert page.ask() is None


def test_a_large_vcenter_is_read_less_often() -> None:
    assert [page_lifetime_s(30.0, took) for took in (0.0, 0.5, 2.0, 100.0)] == [30.0, 30.0, 100.0, 300.0]
    assert page_lifetime_s(600.0, 100.0) == 600.0


class Hello(GetHandler):
    def page(self, path: str) -> tuple[int, str, bytes]:
        return 200, "text/plain", b"hello"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sent", [b"", b"GET /metrics HT"])
def test_clients_that_send_no_request_shut_nobody_out(sent: bytes) -> None:
    with listening(OPTION, ("127.0.0.1", 0), Hello) as port, ExitStack() as stack:
        silent = []
        for _ in range(http_listener.MOST_AT_ONCE + 4):
            silent.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)))
            silent[-1].sendall(sent)
        assert fetch(port)[2] == "hello"
        assert [client.recv(1) for client in silent[:5]] == [b""] * 5, "the oldest gave way"


def test_a_client_that_sends_no_request_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hello, "timeout", 0.5)
    with listening(OPTION, ("127.0.0.1", 0), Hello) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as silent:
            assert silent.recv(1) == b""
        assert fetch(port)[2] == "hello"


class Large(GetHandler):
    def page(self, path: str) -> tuple[int, str, bytes]:
        return 200, "text/plain", b"x" * 10_000_000


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("sent", [b"GET /metrics HTTP/1.1\r\n\r\n" * 500, b"GET / HTTP/1.1\r\nX: " + b"y" * 60_000])
def test_clients_that_take_no_answer_or_end_no_request_shut_nobody_out(sent: bytes) -> None:
    with listening(OPTION, ("127.0.0.1", 0), Large) as port, ExitStack() as stack:
        for _ in range(http_listener.MOST_AT_ONCE + 4):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10)).sendall(sent)
        began_s = passed_s()
        assert len(fetch(port)[2]) == 10_000_000
        assert passed_s() - began_s < http_listener.SILENT_S / 2


def test_requests_that_are_none_end_nothing() -> None:
    with listening(OPTION, ("127.0.0.1", 0), Hello) as port:
        for nonsense in (b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01" * 50, b"GET / HTTP/9.9\r\n\r\n", b"G" * 70_000):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
                client.sendall(nonsense)
                client.shutdown(socket.SHUT_WR)
                try:
                    while client.recv(4096):
                        pass
                except ConnectionResetError:
                    continue
        assert fetch(port)[2] == "hello"
