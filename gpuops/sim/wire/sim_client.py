"""The client of a simulated vCenter in another process: ready file, interface below /gpuops-sim, start and end.

The ready file says how to reach a running simulated vCenter. Only its owner can read it.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import select
import signal
import ssl
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from gpuops import clock
from gpuops.errors import GpuopsError, LoginRefused, ProtocolError, TargetError, UsageError, VcenterUnreachable
from gpuops.files.file import NOT_PARSED, is_missing, parse_json, read_text
from gpuops.files.private_file import write_private
from gpuops.sim.fault_injection.rule import Rule

if TYPE_CHECKING:
    from gpuops.sim.server import SimServer


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """How to reach a running simulated vCenter; over plain HTTP `ca_file` is None."""

    url: str
    username: str
    password: str = field(repr=False)
    ca_file: str | None
    pid: int
    broker: dict[str, str] | None = None
    """url, username and domain of the simulated Connection Server, if one is served; its password is the vCenter's."""


def of(server: SimServer) -> ReadyFile:
    """Return the content of the ready file for this server."""
    return ReadyFile(server.url, server.username, server.password, server.ca_file, server.pid, server.broker)


def write(path: Path, ready: ReadyFile) -> None:
    """Put the file there in one step, mode 0600: a reader sees all of it or nothing. Raises UsageError."""
    fields = {key: value for key, value in asdict(ready).items() if key != "broker" or value is not None}
    write_private(path, json.dumps(fields, indent=2) + "\n")


def read(path: Path) -> ReadyFile:
    """Return the content of a ready file. Raises TargetError if the file is missing or is not a ready file."""
    try:
        text = read_text(path, error=TargetError)
    except TargetError as error:
        if not is_missing(error):
            raise
        raise TargetError(
            f"there is no ready file {path}: no simulated vCenter has written it",
            hint=f"start one with: gpuops sim serve --ready-file {path}",
        ) from None
    try:
        return _check_types(ReadyFile(**parse_json(text)))
    except NOT_PARSED as error:
        raise TargetError(
            f"{path} is not a ready file of a simulated vCenter: {error}",
            hint=f"start one with: gpuops sim serve --ready-file {path}",
        ) from error


def _check_types(ready: ReadyFile) -> ReadyFile:
    """Return the ready file. Raises ValueError for wrong values: os.kill for process -1 would end all processes."""
    texts = (ready.url, ready.username, ready.password, ready.ca_file or "")
    if not all(isinstance(text, str) for text in texts) or not ready.url.startswith(("http://", "https://")):
        raise ValueError("it has no url, username and password")
    if type(ready.pid) is not int or not 1 < ready.pid < 2**31:
        raise ValueError("it has no process id")
    return ready


PREFIX: Final = "/gpuops-sim"
TIMEOUT_S: Final = 60.0


class SimClient:
    """A running simulated vCenter, as its ready file names it."""

    def __init__(self, ready: ReadyFile) -> None:
        self._ready = ready

    def ledger(self, *, after_sequence: int = 0) -> list[dict[str, Any]]:
        """The applied effects later than `after_sequence`, oldest first."""
        return self._call("GET", f"/ledger?after={after_sequence}")["entries"]

    def bugs(self) -> list[str]:
        """Tracebacks of the simulator's own bugs; empty when all is well."""
        return self._call("GET", "/bugs")["bugs"]

    def clock(self) -> dict[str, Any]:
        """`{mode, now}`."""
        return self._call("GET", "/clock")

    def advance(self, seconds: float) -> dict[str, Any]:
        """Move time forward; `{mode, now}` afterwards."""
        return self._call("POST", "/clock", {"advance_s": seconds})

    def state(self) -> Any:
        """The world's state as JSON."""
        return self._call("GET", "/state")

    def restore(self, state: Any) -> None:
        """Put a saved state in place of the present one."""
        self._call("PUT", "/state", state)

    def inject(self, rule: Rule) -> None:
        self._call("POST", "/inject", rule.to_json())

    def clear_injected(self) -> None:
        self._call("DELETE", "/inject")

    def _call(self, verb: str, path: str, document: Any = None) -> Any:
        url = urlsplit(self._ready.url)
        login = base64.b64encode(f"{self._ready.username}:{self._ready.password}".encode()).decode()
        body = None if document is None else json.dumps(document)
        try:
            with closing(self._connection(url.scheme, url.hostname or "127.0.0.1", url.port or 443)) as connection:
                connection.request(verb, PREFIX + path, body, {"Authorization": f"Basic {login}"})
                reply = connection.getresponse()
                return _check_status(reply.status, reply.read())
        except (OSError, http.client.HTTPException) as error:
            raise VcenterUnreachable(
                f"no simulated vCenter answers at {self._ready.url}: {error}",
                hint="start it again with: gpuops sim serve --ready-file FILE",
            ) from error

    def _connection(self, scheme: str, host: str, port: int) -> http.client.HTTPConnection:
        if scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=self._ready.ca_file)
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def _check_status(status: int, content: bytes) -> Any:
    """Return the JSON of a reply. Raises an error for a status of 400 or more, and for a reply that is not JSON."""
    try:
        document = parse_json(content) if content else None
    except ValueError as error:
        raise ProtocolError(f"the reply of the simulated vCenter is not JSON: {error}") from error
    if status == 401:
        raise LoginRefused(
            "the simulated vCenter refuses the user and password of its ready file",
            hint="start it again with gpuops sim serve --ready-file FILE, which writes a new ready file",
        )
    if status >= 400:
        raise UsageError((document or {}).get("error", f"the simulated vCenter replied with HTTP status {status}"))
    return document


START_TIMEOUT_S: Final = 120.0
"""How long `start` waits; the largest fleet is built in less."""
STOP_TIMEOUT_S: Final = 60.0
_SECRET_PREFIXES: Final = ("GPUOPS_", "VMWARE_", "GOVC_", "PG")
"""Prefixes of variables that may hold passwords: of gpuops, Ansible's collections, govc and PostgreSQL's clients."""


def running_server(path: Path) -> ReadyFile | None:
    """Return the simulated vCenter of this ready file, if it answers; None = no ready file, or no answer.

    Raises TargetError if the file exists but is not a ready file.
    """
    if not path.exists():
        return None
    ready_file = read(path)
    try:
        SimClient(ready_file).clock()
    except GpuopsError:
        return None  # it was killed, and another process may have its port
    return ready_file


def start(path: Path, options: list[str]) -> ReadyFile:
    """Start `gpuops sim serve` in a session of its own and return its ready file; it keeps running after this process.

    Raises UsageError with the first line that it logged if it does not start.
    """
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        log = path.with_name(f"{path.name}.log").open("w+", encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{path.parent} cannot be used: {error.strerror}", hint="name a file in a directory that you own"
        ) from error
    command = [sys.executable, "-m", "gpuops", "sim", "serve", "--ready-file", str(path), *options]
    with log:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
            # without the passwords of real vCenters and journals, which a simulated vCenter does not need
            env={name: value for name, value in os.environ.items() if not name.startswith(_SECRET_PREFIXES)},
        )
        assert process.stdout is not None
        # it prints its first line when it listens, after the ready file is written; without a line it has ended
        with process.stdout:
            readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
            has_started = bool(readable and process.stdout.readline())
        if has_started:
            return read(path)
        process.kill()
        process.wait()
        log.seek(0)
        log_lines = log.read().strip().splitlines()
    reason = log_lines[0] if log_lines else "it wrote no error message"
    raise UsageError(f"the simulated vCenter did not start: {reason}", hint=f"read its log {path}.log")


def stop(path: Path, ready_file: ReadyFile) -> None:
    """End the process and wait until it has saved its state. Raises VcenterUnreachable if it does not end."""
    try:
        os.kill(ready_file.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    for _ in clock.rounds((0.05,), STOP_TIMEOUT_S):
        if not _is_running(ready_file.pid):
            return
    raise VcenterUnreachable(
        f"the simulated vCenter of {path} (process {ready_file.pid}) did not end within {STOP_TIMEOUT_S:.0f} s",
        hint=f"end it with: kill -9 {ready_file.pid}",
    )


def _is_running(pid: int) -> bool:
    """Whether the process runs; one that has ended and is not yet reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or ") Z " not in status.read_text(encoding="ascii", errors="replace")
