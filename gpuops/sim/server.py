"""Starts a simulated vCenter that listens on a loopback address, over HTTPS or HTTP."""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import socketserver
import ssl
import sys
import tempfile
import threading
from collections.abc import Sequence
from http.server import ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from gpuops.errors import UsageError
from gpuops.sim.core.sim_clock import ClockMode
from gpuops.sim.scenario.saved_state import StateFile
from gpuops.sim.wire import certificates
from gpuops.sim.wire.endpoint import Endpoint
from gpuops.sim.wire.handler import Handler

if TYPE_CHECKING:
    from gpuops.sim.core.ledger import Entry
    from gpuops.sim.fault_injection.rule import Rule
    from gpuops.sim.horizon_server import HorizonEndpoint
    from gpuops.sim.world import World

USERNAME: Final = "administrator@vsphere.local"


def start(
    scenario: str | World = "lab",
    *,
    port: int = 0,
    tls: bool = True,
    clock: str = "virtual",
    seed: int = 0,
    api_version: str | None = None,
    state: Path | None = None,
    rules: Sequence[Rule] = (),
    deviations: Sequence[str] = (),
    host: str = "127.0.0.1",
    username: str = USERNAME,
    password: str | None = None,
) -> SimServer:
    """Start and return a simulated vCenter of a scenario (`lab`, `fleet:hosts=20`, a YAML file, a bundle) or a world.

    `clock` is `virtual`, `real` or `stepped` (`core/sim_clock.py`; a World has its own). `rules` are fault rules,
    `deviations` ids of the table of assumptions. `api_version` is a vSphere API version (9.0.0.0), None = the
    scenario's own. With `state` the world is restored from that file if it exists, and saved to it when the server
    closes.
    Raises PolicyError for an unknown or malformed scenario, StateDamaged for a state file that cannot be used,
    UsageError for an unknown clock, an address that is not loopback or a port in use.
    """
    if isinstance(scenario, str):
        from gpuops.sim.scenario.build import build

        world = build(scenario, seed=seed, clock=_clock_mode(clock), api_version=api_version)
    else:
        world = scenario
    state_file = StateFile(state, world) if state is not None else None
    with world.lock:
        for rule in rules:
            world.injector.add(rule)
        if deviations:
            from gpuops.sim.scenario.deviations import deviate

            deviate(world, deviations)
    return SimServer(world, host=host, port=port, tls=tls, username=username, password=password, state_file=state_file)


def _clock_mode(clock: str) -> ClockMode:
    if clock not in list(ClockMode):
        raise UsageError(f"there is no clock {clock!r}", hint=f"use one of: {', '.join(ClockMode)}")
    return ClockMode(clock)


class SimServer:
    """A running simulated vCenter; leaving its `with` block stops it.

    `url` is the SDK's address, `ca_file` the authority to trust (None over HTTP), `world` what it simulates.
    """

    def __init__(
        self,
        world: World,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: bool = True,
        username: str = USERNAME,
        password: str | None = None,
        server_certificates: certificates.Certificates | None = None,
        state_file: StateFile | None = None,
    ) -> None:
        """Start to listen. Raises UsageError for an address that is not loopback, or a port in use."""
        require_loopback(host)
        self.world = world
        self._state_file = state_file
        self.username = username
        self.password = password or secrets.token_urlsafe(12)
        self.pid = os.getpid()
        world.sessions.passwords[username] = self.password
        world.change_certificate = self._change_certificate
        self._directory = (
            tempfile.TemporaryDirectory(prefix="gpuops-sim-") if tls and server_certificates is None else None
        )
        if self._directory is not None:
            server_certificates = certificates.create(Path(self._directory.name))
        self.ca_file = str(server_certificates.ca_file) if tls and server_certificates else None
        context = server_certificates.server_context() if tls and server_certificates else None
        try:
            self._http = _Listener((host, port), Endpoint(world), context)
        except OSError as error:
            self._remove_certificates()
            raise UsageError(
                f"the simulated vCenter cannot listen on {host} port {port}: {error.strerror}",
                hint="choose another port, or --port 0 for any free one",
            ) from error
        self._context = context
        world.guests.transfers.base = f"{'https' if context else 'http'}://*:{self.port}"
        self._horizon: HorizonListener | None = None
        self._thread = threading.Thread(target=self._http.take_connections, name="gpuops-sim", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def host(self) -> str:
        """The address it listens on, as a URL writes it."""
        address = str(self._http.server_address[0])
        return f"[{address}]" if ":" in address else address

    @property
    def url(self) -> str:
        """`https://127.0.0.1:PORT/sdk`."""
        return f"{'https' if self.ca_file else 'http'}://{self.host}:{self.port}/sdk"

    @property
    def broker(self) -> dict[str, str] | None:
        """The URL, user name and domain of its simulated Connection Server; None = none is served."""
        horizon = self._horizon
        return {"url": horizon.url, "username": horizon.username, "domain": horizon.domain} if horizon else None

    def serve_horizon(self, port: int = 0) -> HorizonListener:
        """Start a simulated Horizon Connection Server for this vCenter, with the same user, password and certificate.

        Its users log in from now on. A second call returns the same server. Raises UsageError for a scenario without
        desktop pools, or a port in use.
        """
        if self._horizon is None:
            if not self.world.desktop_pools:
                raise UsageError(
                    "this scenario has no desktop pools, so no connection broker is served",
                    hint="use the scenario vdi, or declare `desktop_pools` in your scenario file",
                )
            self._horizon = HorizonListener(self, port, self._context)
        return self._horizon

    @property
    def login(self) -> dict[str, Any]:
        """The arguments with which pyVim's SmartConnect logs in here."""
        login_json = {"host": self.host, "port": self.port, "user": self.username, "pwd": self.password}
        if self.ca_file is None:
            return login_json | {"protocol": "http"}
        return login_json | {"sslContext": ssl.create_default_context(cafile=self.ca_file)}

    @property
    def ledger(self) -> tuple[Entry, ...]:
        """Every effect that was applied so far, in order."""
        with self.world.lock:
            return tuple(self.world.ledger)

    def close(self) -> None:
        """Stop listening, end connections and guest processes, remove the certificates and save the state file."""
        with self.world.changed:  # wake the requests that wait for changes; `_http.stop` would wait for them
            self.world.closing = True
            self.world.changed.notify_all()
        if self._horizon is not None:
            self._horizon.close()
        self._http.stop()
        self._thread.join()
        self._http.server_close()
        self._remove_certificates()
        self.world.guests.close()
        if self._state_file is not None:
            self._state_file.save()

    def drop_connections(self) -> None:
        """End all open connections, as a server ends idle ones; new connections are accepted."""
        self._http.end_connections()

    def _change_certificate(self) -> None:
        """Use a certificate of another authority from now on; `ca_file` stays the authority that clients trust."""
        if self.ca_file is not None:
            with tempfile.TemporaryDirectory(prefix="gpuops-sim-") as directory:
                self._http.use_certificates(certificates.create(Path(directory)).server_context())

    def _remove_certificates(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> SimServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def require_loopback(host: str) -> None:
    """Raises UsageError unless `host` is a loopback address: the simulated vCenter is for this machine alone."""
    try:
        loopback = host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise UsageError(
            f"the simulated vCenter listens on loopback only, not on {host}", hint="use 127.0.0.1, ::1 or localhost"
        )


class _Listener(ThreadingHTTPServer):
    """One thread per connection; the TLS handshake happens in it, so a stuck client delays no other one."""

    daemon_threads = True
    request_queue_size = 128
    timeout = 0
    """Do not wait if a client has closed its connection before it was accepted."""

    def __init__(
        self, address: tuple[str, int], endpoint: Endpoint | HorizonEndpoint, context: ssl.SSLContext | None
    ) -> None:
        self.endpoint = endpoint
        self.stopping = threading.Event()
        self._wake_sender, self._wake_receiver = socket.socketpair()
        self._context = context
        self._open_connections: set[socket.socket] = set()
        self._open_lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Handler)

    def use_certificates(self, context: ssl.SSLContext) -> None:
        """Use these certificates for new connections, and end all others."""
        self._context = context
        self.end_connections()

    def end_connections(self) -> None:
        with self._open_lock:
            for connection in self._open_connections:
                _sever(connection)

    def server_bind(self) -> None:
        # HTTPServer's own method would ask the name service for this machine's name
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", int(self.server_address[1])

    def take_connections(self) -> None:
        """Accept connections until `stop`; it sleeps in between, where `serve_forever` would wake up regularly."""
        with selectors.DefaultSelector() as selector:
            for resource in (self.socket, self._wake_receiver):
                selector.register(resource, selectors.EVENT_READ)
            while not self.stopping.is_set():
                selector.select()
                self.handle_request()

    def stop(self) -> None:
        if not self.stopping.is_set():
            self.stopping.set()
            self._wake_sender.send(b".")

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Do the TLS handshake and serve the connection until it ends."""
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = request
        try:
            if self._context is not None:
                connection = self._context.wrap_socket(request, server_side=True)
            with self._open_lock:
                self._open_connections.add(connection)
            super().finish_request(connection, client_address)
        except OSError:
            return  # the client closed the connection or does not trust the certificate, and has an error of its own
        finally:
            with self._open_lock:
                self._open_connections.discard(connection)
            connection.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        bug = sys.exc_info()[1]
        if bug is not None:
            self.endpoint.world.record_bug(bug)

    def server_close(self) -> None:
        self.end_connections()
        super().server_close()
        self._wake_sender.close()
        self._wake_receiver.close()


class HorizonListener:
    """A simulated Horizon Connection Server that listens until its vCenter is closed."""

    def __init__(self, server: SimServer, port: int, context: ssl.SSLContext | None) -> None:
        from gpuops.sim.horizon_server import DOMAIN, HorizonEndpoint, Pod

        with server.world.lock:
            self.pod = Pod(server.world)
        self.endpoint = HorizonEndpoint(server.world, self.pod, _account(server.username), server.password)
        host = server.host.strip("[]")
        try:
            self._http = _Listener((host, port), self.endpoint, context)
        except OSError as error:
            raise UsageError(
                f"the simulated Connection Server cannot listen on {host} port {port}: {error.strerror}",
                hint="choose another port, or --horizon-port 0 for any free one",
            ) from error
        self.port = int(self._http.server_address[1])
        self.url = f"{'https' if context else 'http'}://{server.host}:{self.port}"
        self.username, self.domain = _account(server.username), DOMAIN
        self._thread = threading.Thread(target=self._http.take_connections, name="gpuops-sim-horizon", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._http.stop()
        self._thread.join()
        self._http.server_close()


def _account(username: str) -> str:
    return username.partition("@")[0]


def _sever(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the connection has ended already
