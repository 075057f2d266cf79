"""Sends what waits in the outbox, to all receivers at once and within a bounded time; and a test, to each.

What is not accepted in time stays in the outbox for the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Thread
from typing import Final

from gpuops.clock import passed_s
from gpuops.config.vcenter.notices import shown, url_of
from gpuops.errors import GpuopsError, StateDamaged
from gpuops.execute.site.notice_way import NoticeWay
from gpuops.model.notice import Receipt
from gpuops.model.vcenter.target import Secret
from gpuops.notify.delivery import MailParts, deliver, require_apprise
from gpuops.notify.outbox import Outbox
from gpuops.report.notice import NoticeText

LIMIT_S: Final = 20.0
"""So long sending may take, however many receivers hang."""
NO_ANSWER: Final = f"no answer within {LIMIT_S:.0f} s"


@dataclass(slots=True)
class Receiver:
    """One receiver, and how it went. `trouble` empty = it accepted all that there was."""

    entry: str
    called: str
    """Its scheme and host, for people."""
    url: Secret | None
    trouble: str = NO_ANSWER
    accepted: int = 0

    @property
    def id(self) -> str:
        """For the name of a file."""
        return _digest(self.entry)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.called, self.accepted, self.trouble)


def receivers_of(way: NoticeWay) -> tuple[Receiver, ...]:
    """The receivers that are configured; one whose URL cannot be read says why. Raises UsageError without apprise."""
    require_apprise()
    found = []
    for entry in way.settings.entries:
        try:
            url = url_of(entry, way.environ)
        except GpuopsError as error:
            found.append(Receiver(entry, shown(entry, None), None, error.line))
        else:
            found.append(Receiver(entry, shown(entry, url), url))
    return tuple(found)


def send_waiting(way: NoticeWay, outbox: Outbox) -> tuple[Receipt, ...]:
    """Sends what waits. Raises StateDamaged, UsageError without apprise; a receiver's trouble is in its own row."""
    outbox.forget(way.settings.vcenter, way.settings.entries, way.clock())
    if not outbox.waiting(way.settings.vcenter):
        return ()
    receivers = receivers_of(way)
    _at_once([partial(_all_to, receiver, way, outbox) for receiver in receivers if receiver.url is not None])
    return tuple(receiver.receipt for receiver in receivers)


def send_once(way: NoticeWay, notice: NoticeText) -> tuple[Receipt, ...]:
    """Sends this notice to each receiver, and keeps nothing of it. Raises UsageError without apprise."""
    receivers = receivers_of(way)
    _at_once([partial(_one_to, receiver, notice) for receiver in receivers if receiver.url is not None])
    return tuple(receiver.receipt for receiver in receivers)


def _at_once(tasks: list[Callable[[], None]]) -> None:
    """Returns when all have ended, or the time is up; one that hangs ends with the process."""
    threads = [Thread(target=task, daemon=True, name="gpuops-notice") for task in tasks]
    until = passed_s() + LIMIT_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - passed_s()))


def _one_to(receiver: Receiver, notice: NoticeText) -> None:
    assert receiver.url is not None, "asked for by the caller"
    receiver.trouble = deliver(receiver.url, notice)
    receiver.accepted = int(not receiver.trouble)


def _all_to(receiver: Receiver, way: NoticeWay, outbox: Outbox) -> None:
    """All that waits for this receiver, one after another, until it does not accept one."""
    assert receiver.url is not None, "asked for by the caller"
    try:
        with outbox.sending_to(receiver.id) as alone:
            if not alone:
                receiver.trouble = "another gpuops is sending to it"
                return
            for notice in outbox.waiting(way.settings.vcenter, receiver.entry):
                trouble = deliver(receiver.url, notice, _parts(receiver, notice, way, outbox))
                if trouble:
                    receiver.trouble = trouble
                    return
                outbox.accepted(notice.key, receiver.entry, way.clock())
                receiver.accepted += 1
            receiver.trouble = ""
    except StateDamaged as damaged:
        receiver.trouble = damaged.message


def _parts(receiver: Receiver, notice: NoticeText, way: NoticeWay, outbox: Outbox) -> MailParts:
    def row(address: str) -> str:
        return f"{receiver.entry}#{_digest(address)}"

    return MailParts(
        lambda address: outbox.has_accepted(notice.key, row(address)),
        lambda address: outbox.accepted(notice.key, row(address), way.clock()),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
