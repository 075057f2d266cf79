"""Sends notices with apprise to all receivers in parallel and within a bounded time.

Third-party code runs in a separate process for each receiver (`main`), which is killed after the time limit.
"""

from __future__ import annotations

import email
import hashlib
import json
import logging
import os
import re
import resource
import smtplib
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from functools import partial
from importlib.util import find_spec
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING, Any, Final

from gpuops.config.vcenter.targets import receiver_label, url_of
from gpuops.distribution import install_extra
from gpuops.errors import GpuopsError, StateDamaged, UsageError
from gpuops.execute.site.site import NoticeWay
from gpuops.extras.notify.outbox import Outbox
from gpuops.files.file import parse_json
from gpuops.model.notice import NoticeText, Receipt
from gpuops.model.vcenter.target import Secret

if TYPE_CHECKING:
    from apprise.plugins.email.base import NotifyEmail

CONNECT_S: Final = 6.0
READ_S: Final = 8.0
"""The longest time to connect, and to wait for data, unless the URL has a shorter timeout."""
MEMORY_BYTES: Final = 1 << 30
"""The address space of a sending process. apprise itself needs 250 MB; a larger reply of a server is an error."""
_APP: Final = "gpuops"


@dataclass(frozen=True, slots=True)
class MailProgress:
    """Tells which mail addresses accepted a notice already, and notes a further one."""

    has_accepted: Callable[[str], bool]
    note_acceptance: Callable[[str], None]


NO_MAIL_ACCEPTED: Final = MailProgress(lambda address: False, lambda address: None)


def deliver(url: str, notice: NoticeText, mails: MailProgress = NO_MAIL_ACCEPTED) -> str:
    """Send a notice to the receiver with this URL. Return why the receiver did not accept it; '' = it did.

    The reason repeats no part of the URL, which may contain a password. Redirects are not followed: a notice goes only
    to the address that the admin wrote. `mails`: which addresses of a mail receiver accepted it in an earlier attempt.
    """
    from apprise import Apprise, AppriseAsset, NotifyFormat, PersistentStoreMode

    asset = AppriseAsset(app_id=_APP, storage_mode=PersistentStoreMode.MEMORY, async_mode=False, http_redirects=False)
    try:
        plugin: Any = Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if plugin is None:
            return "apprise does not support this type of URL"
        plugin.redirects = False  # also where the URL asks for them
        plugin.socket_connect_timeout = min(plugin.socket_connect_timeout, CONNECT_S)
        plugin.socket_read_timeout = min(plugin.socket_read_timeout, READ_S)
        if _is_mail(plugin):
            return _send_mails(plugin, notice, mails)
        if isinstance(getattr(plugin, "headers", None), dict):
            plugin.headers["Idempotency-Key"] = notice.key
        sender = Apprise(asset=asset)
        sender.add(plugin)
        is_accepted = sender.notify(body=notice.body, title=notice.subject, body_format=NotifyFormat.TEXT)
    except Exception as error:  # third-party code; a failed notice must not end the run
        return f"sending failed with {type(error).__name__}"
    return "" if is_accepted else "the receiver did not accept it"


def _is_mail(plugin: Any) -> bool:
    from apprise.plugins.email.base import NotifyEmail

    return isinstance(plugin, NotifyEmail)


def _send_mails(plugin: NotifyEmail, notice: NoticeText, mail_progress: MailProgress) -> str:
    """Send the mails of a notice; return why a mail was not accepted, or '' if all were.

    The plugin's own `send` is not used, because it gives a mail a new Message-ID in each attempt.
    """
    from apprise import NotifyFormat
    from apprise.plugins.email.base import NotifyEmail
    from apprise.plugins.email.smtp import AppriseSMTPController

    mails = NotifyEmail.prepare_emails(
        subject=notice.subject,
        body=notice.body,
        notify_format=NotifyFormat.TEXT,
        from_addr=plugin.from_addr,
        to=plugin.targets,
        cc=plugin.cc,
        bcc=plugin.bcc,
        reply_to=plugin.reply_to,
        smtp_host=plugin.smtp_host,
        headers={"X-Application": _APP, "Auto-Submitted": "auto-generated", **plugin.headers},
        names=plugin.names,
        pgp=plugin.pgp,
        pgp_mode=plugin.pgp_mode,
        tzinfo=plugin.tzinfo,
    )
    is_refused = False
    try:
        with AppriseSMTPController(
            host=plugin.smtp_host,
            port=plugin.port,
            secure_mode=plugin.secure_mode,
            user=plugin.user,
            password=plugin.password,
            verify_certificate=plugin.verify_certificate,
            socket_connect_timeout=plugin.socket_connect_timeout,
        ) as server:
            for mail in mails:
                if mail_progress.has_accepted(mail.recipient):  # in an earlier attempt
                    continue
                if server.sendmail(plugin.from_addr[1], mail.to_addrs, _with_message_id(mail.body, notice.key)):
                    mail_progress.note_acceptance(mail.recipient)
                else:
                    is_refused = True
    except (OSError, smtplib.SMTPException) as error:
        return f"the mail server did not accept it: {type(error).__name__}"
    return "the mail server refused it" if is_refused else ""


def _with_message_id(text: str, key: str) -> str:
    """Return the mail with a Message-ID that is the same in each attempt, so that mail programs show it once."""
    mail: Message = email.message_from_string(text)
    host = re.sub(r"[^A-Za-z0-9.-]", "", str(mail.get("Message-ID", "")).rpartition("@")[2]) or _APP
    del mail["Message-ID"]
    mail["Message-ID"] = f"<{key}.gpuops@{host}>"
    return mail.as_string()


def deliver_ordered(order: dict[str, Any], answer: Callable[[dict[str, str]], None]) -> None:
    """Deliver the notices of an order one after the other; stop at the first one that is not accepted.

    `order` holds `url` and `notices`: each has key, subject, body and `has`, the digests of the mail addresses that
    accepted it before. `answer` is called with key and address digest for each mail accepted, and then with key and
    trouble for the notice ('' = accepted).
    """
    for ordered_notice in order["notices"]:
        notice = NoticeText(ordered_notice["key"], ordered_notice["subject"], ordered_notice["body"])
        mails = _mail_progress(notice.key, frozenset(ordered_notice["has"]), answer)
        trouble = deliver(order["url"], notice, mails)
        answer({"key": notice.key, "trouble": trouble})
        if trouble:  # this notice and the following ones stay in the outbox for the next run
            return


def _mail_progress(
    key: str, accepted_digests: frozenset[str], answer: Callable[[dict[str, str]], None]
) -> MailProgress:
    return MailProgress(
        lambda address: digest(address) in accepted_digests,
        lambda address: answer({"key": key, "address": digest(address)}),
    )


def digest(text: str) -> str:
    """Return 16 hexadecimal digits that identify a text without revealing it."""
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def main() -> None:
    """Deliver the order on stdin; write one JSON answer per line to stdout."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answers, sys.stdout = sys.stdout, sys.stderr  # stdout is for answers only
    logging.disable(logging.CRITICAL)  # log lines of plugins may contain secrets
    warnings.simplefilter("ignore")  # from modules that apprise tries to import

    def answer(line: dict[str, str]) -> None:
        answers.write(f"{json.dumps(line)}\n")
        answers.flush()

    deliver_ordered(parse_json(sys.stdin.read()), answer)
    os._exit(0)  # do not wait for threads that a plugin left behind


if __name__ == "__main__":
    main()


LIMIT_S: Final = 20.0
"""The time limit for sending to all receivers: they are sent to in parallel."""
NO_ANSWER: Final = f"no answer within {LIMIT_S:.0f} s"
_PROGRAM: Final = "gpuops.extras.notify.sending"
"""The module that the sending process runs: this one."""


@dataclass(slots=True)
class Receiver:
    """One receiver, and the outcome of sending to it. `trouble` empty = it accepted every notice."""

    entry: str
    shown_name: str
    """Its scheme and host, for messages: its URL may contain a password."""
    url: Secret | None
    trouble: str = NO_ANSWER
    accepted: int = 0

    @property
    def id(self) -> str:
        """Return the id for the name of its lock file."""
        return digest(self.entry)

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.shown_name, self.accepted, self.trouble)

    @property
    def address_prefix(self) -> str:
        """Return the begin of the outbox rows for mail addresses of this receiver; an address digest follows."""
        return f"{self.entry}#"


def receivers_of(way: NoticeWay) -> tuple[Receiver, ...]:
    """Return the configured receivers; `trouble` is set if a URL cannot be read. Raises UsageError without apprise."""
    if find_spec("apprise") is None:
        raise UsageError("notices need apprise, and it is not installed", hint=install_extra("notify"))
    receivers = []
    for setting in way.settings.entries:
        try:
            url = url_of(setting, way.environ)
        except GpuopsError as error:
            receivers.append(Receiver(setting, receiver_label(setting, None), None, error.line))
        else:
            receivers.append(Receiver(setting, receiver_label(setting, url), url))
    return tuple(receivers)


def send_waiting(way: NoticeWay, outbox: Outbox) -> tuple[Receipt, ...]:
    """Send the waiting notices, and return the receipt of each receiver, which has its error if there is one.

    Raises StateDamaged, and UsageError without apprise.
    """
    outbox.remove_old(way.settings.vcenter, way.settings.entries, way.clock())
    if not outbox.waiting(way.settings.vcenter):
        return ()
    receivers = receivers_of(way)
    _run_in_parallel(
        [partial(_send_waiting_to, receiver, way, outbox) for receiver in receivers if receiver.url is not None]
    )
    return tuple(receiver.receipt for receiver in receivers)


def send_once(way: NoticeWay, notice: NoticeText) -> tuple[Receipt, ...]:
    """Send this notice to each receiver, without the outbox. Raises UsageError without apprise."""
    receivers = receivers_of(way)
    _run_in_parallel([partial(_send_one_to, receiver, notice) for receiver in receivers if receiver.url is not None])
    return tuple(receiver.receipt for receiver in receivers)


def deliver_all(url: Secret, notices: Sequence[Mapping[str, Any]], limit_s: float) -> Iterator[Mapping[str, str]]:
    """Start a process that delivers these notices, and yield its answers (`deliver_ordered`).

    The process is killed after `limit_s` seconds, or when the caller stops iterating. There are then no more answers.
    """
    with subprocess.Popen(  # noqa: S603 (gpuops itself)
        [sys.executable, "-m", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        is_late = Event()

        def kill_late_process() -> None:
            is_late.set()
            process.kill()

        timer = Timer(limit_s, kill_late_process)
        timer.daemon = True
        timer.start()
        try:
            with suppress(BrokenPipeError), process.stdin:  # the process may end before it has read the order
                json.dump({"url": url.reveal(), "notices": notices}, process.stdin)
            for line in process.stdout:
                yield parse_json(line)
            if process.wait() != 0 and not is_late.is_set():
                yield {"key": "", "trouble": f"the sending process ended with exit code {process.returncode}"}
        finally:
            timer.cancel()
            process.kill()


def _run_in_parallel(tasks: list[Callable[[], None]]) -> None:
    """Run the tasks in threads and return when all have ended; each task is limited to `LIMIT_S`."""
    threads = [Thread(target=task, name="gpuops-notice") for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _send_one_to(receiver: Receiver, notice: NoticeText) -> None:
    """Send a notice to this receiver, without the outbox."""
    _send(receiver, [(notice, ())], lambda key, row: None)


def _send_waiting_to(receiver: Receiver, way: NoticeWay, outbox: Outbox) -> None:
    """Send the waiting notices to this receiver one by one; stop at the first one that it does not accept."""
    try:
        with outbox.sending_to(receiver.id) as has_lock:
            if not has_lock:
                receiver.trouble = "another gpuops process is sending to it now"
                return
            waiting = outbox.waiting(way.settings.vcenter, receiver.entry)
            prefix = receiver.address_prefix
            # with each notice the digests of the receiver's mail addresses that accepted it before
            notices = [
                (notice, [row.removeprefix(prefix) for row in outbox.accepted_by(notice.key) if row.startswith(prefix)])
                for notice in waiting
            ]
            _send(receiver, notices, lambda key, row: outbox.note_acceptance(key, row, way.clock()))
    except StateDamaged as damaged:
        receiver.trouble = damaged.message


def _send(
    receiver: Receiver, notices: Sequence[tuple[NoticeText, Sequence[str]]], note_accepted: Callable[[str, str], None]
) -> None:
    """Deliver notices, and set `trouble` and `accepted` of the receiver.

    Each notice comes with the digests of the mail addresses that accepted it before. `note_accepted` is called with the
    key of a notice and the outbox row of the receiver, or of the mail address, that accepted it.
    """
    assert receiver.url is not None, "callers skip receivers without a URL"
    ordered_notices = [
        {"key": notice.key, "subject": notice.subject, "body": notice.body, "has": digests}
        for notice, digests in notices
    ]
    trouble = ""
    for answer in deliver_all(receiver.url, ordered_notices, LIMIT_S):
        if "address" in answer:
            note_accepted(answer["key"], f"{receiver.address_prefix}{answer['address']}")
            continue
        trouble = answer["trouble"]
        if not trouble:
            note_accepted(answer["key"], receiver.entry)
            receiver.accepted += 1
    # fewer answers than notices: the process was killed because it took too long
    receiver.trouble = trouble or ("" if receiver.accepted == len(notices) else NO_ANSWER)
