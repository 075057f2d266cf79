"""Receivers on loopback that are real servers of SMTP and HTTP, and an outbox of a state directory."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class MailServer:
    """An SMTP server that keeps what it takes; `refuses` = it takes no recipient."""

    listening: socket.socket
    mails: list[Message] = field(default_factory=list)
    refuses: bool = False

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.listening.getsockname()[1]}?from=gpuops@example.com&to=ops@example.com"

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                with connection, suppress(OSError):
                    self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        stream = connection.makefile("rwb")

        def say(line: bytes) -> None:
            stream.write(line + b"\r\n")
            stream.flush()

        say(b"220 mail.example.com")
        while line := stream.readline():
            verb = line[:4].upper()
            if verb == b"RCPT" and self.refuses:
                say(b"550 no")
            elif verb == b"DATA":
                say(b"354 go on")
                text = b""
                while (line := stream.readline()) not in (b".\r\n", b""):
                    text += line
                self.mails.append(message_from_bytes(text))
                say(b"250 taken")
            elif verb == b"QUIT":
                say(b"221 bye")
                return
            else:
                say(b"250 ok")


@dataclass
class Webhook:
    """An HTTP server that keeps what it takes and answers with `status`."""

    server: ThreadingHTTPServer
    calls: list[tuple[str, bytes]] = field(default_factory=list)
    """The Idempotency-Key and the body of each."""
    status: int = 200

    @property
    def url(self) -> str:
        return f"json://127.0.0.1:{self.server.server_port}/hook/s3cr3t-t0ken"

    @property
    def keys(self) -> list[str]:
        return [key for key, _ in self.calls]


@pytest.fixture
def mail_server() -> Iterator[MailServer]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        new_server = MailServer(listening)
        threading.Thread(target=new_server.serve, daemon=True).start()
        yield new_server
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            new_webhook.calls.append((self.headers["Idempotency-Key"] or "", body))
            self.send_response(new_webhook.status)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing on stderr."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        new_webhook = Webhook(server)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield new_webhook
        server.shutdown()
        thread.join()
