"""Through an HTTP proxy: every connection tunnels, and TLS is still verified end to end."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gpuops.errors import NotTrusted, VcenterUnreachable
from gpuops.model.vcenter.target import Target
from gpuops.vsphere.connection import Connection


class _Tunnel(BaseHTTPRequestHandler):
    """Answers CONNECT, and passes on what comes."""

    server: Proxy

    def do_CONNECT(self) -> None:
        self.server.asked.append(self.path)
        if self.server.refuse:
            self.send_error(407, "Proxy Authentication Required")
            return
        host, _, port = self.path.rpartition(":")
        with socket.create_connection((host, int(port))) as upstream:
            self.send_response(200)
            self.end_headers()
            back = threading.Thread(target=_copy, args=(upstream, self.connection))
            back.start()
            _copy(self.connection, upstream)
            back.join()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


class Proxy(ThreadingHTTPServer):
    """A proxy on loopback that remembers where it was asked to go."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.asked: list[str] = []
        self.refuse = False

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.long
def test_calls_bulk_reads_and_tags_all_go_through_it(proxy: Proxy, lab_target: Target) -> None:
    with Connection(replace(lab_target, proxy=proxy.address)) as connection:
        inventory = connection.with_tags(connection.inventory())
        connection.read(connection.instance.CurrentTime)
    assert inventory.find_vm("ml-07").tags == ()
    assert len(proxy.asked) == 3  # bulk reads, tags, pyVmomi
    assert set(proxy.asked) == {lab_target.address}


def test_a_proxy_does_not_loosen_trust(proxy: Proxy, lab_target: Target) -> None:
    with pytest.raises(NotTrusted, match="issuer that is not trusted"):
        Connection(replace(lab_target, proxy=proxy.address, ca_files=()))


def test_a_proxy_that_refuses_is_named_as_unreachable(proxy: Proxy, lab_target: Target) -> None:
    proxy.refuse = True
    with pytest.raises(VcenterUnreachable, match="407"):
        Connection(replace(lab_target, proxy=proxy.address))


def test_a_proxy_that_is_not_there_is_named(lab_target: Target) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(VcenterUnreachable, match=f"through the proxy 127.0.0.1:{port}"):
        Connection(replace(lab_target, proxy=f"127.0.0.1:{port}"))


def test_a_proxy_without_an_address_is_named(lab_target: Target) -> None:
    with pytest.raises(VcenterUnreachable, match=r"no address for the proxy no-such-proxy\.invalid"):
        Connection(replace(lab_target, proxy="no-such-proxy.invalid:3128"))
