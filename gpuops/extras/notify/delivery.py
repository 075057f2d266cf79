"""Deliver notices to one receiver with apprise (mail, chats, webhooks), in a separate process.

The plugins of apprise are other people's code: they may wait without end, read a reply of any length or leave a thread
that Python joins at exit. So they run in a process that `sending.py` starts and ends:
`python -m gpuops.extras.notify.delivery`, which reads an order from stdin and writes one JSON line for each notice, and
for each mail address that accepted one.

Mails have a Message-ID and webhooks an `Idempotency-Key` derived from the notice, so a receiver can detect a duplicate.
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
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, Final

from gpuops.files.file import parse_json
from gpuops.model.notice import NoticeText

if TYPE_CHECKING:
    from apprise.plugins.email.base import NotifyEmail

CONNECT_S: Final = 6.0
READ_S: Final = 8.0
"""Seconds to connect, and to wait for data, at most; the shorter timeout of the URL counts."""
MEMORY_BYTES: Final = 1 << 30
"""Address space limit of the process. apprise itself needs 250 MB; more means a reply too large for a notice."""
_APP: Final = "gpuops"


@dataclass(frozen=True, slots=True)
class MailParts:
    """The addresses that accepted a mail before (`has`), and a function that notes one more."""

    has: Callable[[str], bool]
    note: Callable[[str], None]


NO_MAIL_ACCEPTED: Final = MailParts(lambda address: False, lambda address: None)


def deliver(url: str, notice: NoticeText, parts: MailParts = NO_MAIL_ACCEPTED) -> str:
    """Send a notice to the receiver with this URL. Return why the receiver did not accept it; '' = it did.

    The reason repeats no part of the URL, which may contain a password. Redirects are not followed: a notice goes only
    to the address that the admin wrote. `parts`: the mail addresses that accepted the notice in an earlier attempt.
    """
    from apprise import Apprise, AppriseAsset, NotifyFormat, PersistentStoreMode

    asset = AppriseAsset(app_id=_APP, storage_mode=PersistentStoreMode.MEMORY, async_mode=False, http_redirects=False)
    try:
        plugin: Any = Apprise.instantiate(url, asset=asset, suppress_exceptions=True)
        if plugin is None:
            return "apprise knows no receiver with this type of URL"
        plugin.redirects = False  # also where the URL asks for them
        plugin.socket_connect_timeout = min(plugin.socket_connect_timeout, CONNECT_S)
        plugin.socket_read_timeout = min(plugin.socket_read_timeout, READ_S)
        if _is_mail(plugin):
            return _send_mails(plugin, notice, parts)
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


def _send_mails(plugin: NotifyEmail, notice: NoticeText, parts: MailParts) -> str:
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
    refused = False
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
                if parts.has(mail.recipient):  # accepted in an earlier attempt
                    continue
                if server.sendmail(plugin.from_addr[1], mail.to_addrs, _with_id(mail.body, notice.key)):
                    parts.note(mail.recipient)
                else:
                    refused = True
    except (OSError, smtplib.SMTPException) as error:
        return f"the mail server did not take it: {type(error).__name__}"
    return "the mail server refused it" if refused else ""


def _with_id(text: str, key: str) -> str:
    """Return the mail with a Message-ID that is the same for each attempt."""
    mail: Message = email.message_from_string(text)
    host = re.sub(r"[^A-Za-z0-9.-]", "", str(mail.get("Message-ID", "")).rpartition("@")[2]) or _APP
    del mail["Message-ID"]
    mail["Message-ID"] = f"<{key}.gpuops@{host}>"
    return mail.as_string()


def deliver_ordered(order: dict[str, Any], answer: Callable[[dict[str, str]], None]) -> None:
    """Deliver the notices of an order in turn; stop at the first one that is not accepted.

    `order` holds `url` and `notices`: each has key, subject, body and `has`, the digests of the mail addresses that
    accepted it before. `answer` is called with key and address digest for each mail accepted, and then with key and
    trouble for the notice ('' = accepted).
    """
    for ordered_notice in order["notices"]:
        notice, accepted_digests = (
            NoticeText(ordered_notice["key"], ordered_notice["subject"], ordered_notice["body"]),
            frozenset(ordered_notice["has"]),
        )

        trouble = deliver(order["url"], notice, _mail_parts(notice.key, accepted_digests, answer))
        answer({"key": notice.key, "trouble": trouble})
        if trouble:  # the rest stays in the outbox for the next run
            return


def _mail_parts(key: str, has: frozenset[str], answer: Callable[[dict[str, str]], None]) -> MailParts:
    return MailParts(
        lambda address: digest(address) in has, lambda address: answer({"key": key, "address": digest(address)})
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
