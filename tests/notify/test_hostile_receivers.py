"""Receivers that never finish their reply, reply without end, or send the notice on to another address."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

import pytest

from gpuops.extras.notify import sending
from gpuops.extras.notify.run_watch import send_test
from gpuops.extras.notify.view import notice_text
from gpuops.model.notice import Notice, NoticeKind
from tests.notify.conftest import MailServer, Webhook
from tests.notify.test_watch import HOSTILE, NOW, Told, state

__all__ = ["state"]
EXPECTED_HEADERS = {
    "auto-submitted", "content-transfer-encoding", "content-type", "date", "from", "message-id", "mime-version",
    "subject", "to", "x-application",
}  # fmt: skip
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 3000000000\r\n\r\n"


@contextmanager
def receiver(reply: Callable[[socket.socket], None]) -> Iterator[str]:
    """Give the URL of a webhook that takes one request and replies by this function."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    reply(connection)

        threading.Thread(target=serve, daemon=True).start()
        yield f"json://127.0.0.1:{listening.getsockname()[1]}/x"


def drip(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(b"x")
        sleep(0.5)


def flood(connection: socket.socket) -> None:
    connection.sendall(HEAD)
    while True:
        connection.sendall(bytes(1 << 20))


@pytest.mark.parametrize(("asks", "status"), [("", 307), ("?redirect=yes", 302)])
def test_a_notice_is_not_sent_on_to_another_address(asks: str, status: int, state: Path, webhook: Webhook) -> None:
    elsewhere = webhook.url.replace("json://", "http://")
    line = f"HTTP/1.1 {status} Elsewhere\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\n\r\n".encode()
    with receiver(lambda connection: connection.sendall(line)) as url:
        (receipt,) = send_test(Told(state, url + asks).way)
    assert (receipt.trouble, webhook.calls) == ("the receiver did not accept it", [])


@pytest.mark.long
@pytest.mark.parametrize(
    ("reply", "trouble"),
    [(drip, "no answer within 20 s"), (flood, "the receiver did not accept it")],
    ids=["drip", "flood"],
)
def test_a_reply_without_end_ends_with_the_time_or_the_memory_that_it_has(
    reply: Callable[[socket.socket], None], trouble: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LIMIT_S", 15.0)
    began = monotonic()
    with receiver(reply) as url:
        (receipt,) = send_test(Told(state, url).way)
    assert monotonic() - began < 60
    assert receipt.trouble in {trouble, "sending failed with MemoryError"}
    assert [thread.name for thread in threading.enumerate() if thread.name == "gpuops-notice"] == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    "hostile",
    [HOSTILE, "x\r\n\r\nbody", "x\r\n.\r\nQUIT\r\n", "x" * 5000 + "\nBcc: a@b", "\u2028Bcc: a@b"],
    ids=["header", "body", "end", "long", "separator"],
)
def test_no_name_writes_a_header_a_recipient_or_a_mail_of_its_own(mail_server: MailServer, hostile: str) -> None:
    notice = Notice(NoticeKind.ALARM, hostile, (hostile,), NOW, hostile, (hostile,), hostile)
    receivers = Told(Path(), mail_server.url)
    assert [receipt.trouble for receipt in sending.send_once(receivers.way, notice_text(notice))] == [""]
    (mail,) = mail_server.mails
    assert mail["Bcc"] is None and mail["To"] == "ops@example.com"
    assert len(mail.get_all("Subject", [])) == 1
    assert {*map(str.lower, mail.keys())} <= EXPECTED_HEADERS
