"""Hands one notice to one receiver by apprise, which knows mail, chats and webhooks.

A mail has a Message-ID, a webhook an `Idempotency-Key` that is the notice's own: whoever gets it twice can tell.
"""

from __future__ import annotations

import email
import logging
import re
import smtplib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, Final

from gpuops.distribution import install_extra
from gpuops.errors import UsageError
from gpuops.model.vcenter.target import Secret
from gpuops.report.notice import NoticeText

if TYPE_CHECKING:
    from apprise.plugins.email.base import NotifyEmail

CONNECT_S: Final = 6.0
READ_S: Final = 8.0
"""So long a receiver may be silent."""
_APP: Final = "gpuops"


@dataclass(frozen=True, slots=True)
class MailParts:
    """Which addresses of a mail have it already, and how one more is noted."""

    has: Callable[[str], bool]
    note: Callable[[str], None]


NOBODY_YET: Final = MailParts(lambda address: False, lambda address: None)


def require_apprise() -> None:
    """Loads it with all its plugins, which takes a second. Raises UsageError where the extra is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of modules that it tries to import
        try:
            from apprise import Apprise
        except ImportError as error:
            raise UsageError("notices need apprise, and it is not installed", hint=install_extra("notify")) from error
        logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # its lines may name what is secret
        Apprise.instantiate("json://localhost")


def deliver(url: Secret, notice: NoticeText, parts: MailParts = NOBODY_YET) -> str:
    """Why the receiver did not accept it; '' = it did. Never repeats anything of the URL."""
    from apprise import Apprise, AppriseAsset, NotifyFormat, PersistentStoreMode

    asset = AppriseAsset(app_id=_APP, storage_mode=PersistentStoreMode.MEMORY, async_mode=False)
    try:
        plugin: Any = Apprise.instantiate(url.reveal(), asset=asset, suppress_exceptions=True)
        if plugin is None:
            return "it is not the URL of a receiver that apprise knows"
        plugin.socket_connect_timeout = min(plugin.socket_connect_timeout, CONNECT_S)
        plugin.socket_read_timeout = min(plugin.socket_read_timeout, READ_S)
        if _is_mail(plugin):
            return _mailed(plugin, notice, parts)
        if isinstance(getattr(plugin, "headers", None), dict):
            plugin.headers["Idempotency-Key"] = notice.key
        sender = Apprise(asset=asset)
        sender.add(plugin)
        taken = sender.notify(body=notice.body, title=notice.subject, body_format=NotifyFormat.TEXT)
    except Exception as error:  # a plugin is somebody else's code, and a notice never ends a run
        return f"it ended in {type(error).__name__}"
    return "" if taken else "it did not accept it"


def _is_mail(plugin: Any) -> bool:
    from apprise.plugins.email.base import NotifyEmail

    return isinstance(plugin, NotifyEmail)


def _mailed(plugin: NotifyEmail, notice: NoticeText, parts: MailParts) -> str:
    """As the plugin's own `send`, which gives each mail another Message-ID."""
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
                if parts.has(mail.recipient):
                    continue
                if server.sendmail(plugin.from_addr[1], mail.to_addrs, _with_id(mail.body, notice.key)):
                    parts.note(mail.recipient)
                else:
                    refused = True
    except (OSError, smtplib.SMTPException) as error:
        return f"the mail server did not take it: {type(error).__name__}"
    return "the mail server refused it" if refused else ""


def _with_id(text: str, key: str) -> str:
    """The mail with a Message-ID that is the same each time."""
    mail: Message = email.message_from_string(text)
    host = re.sub(r"[^A-Za-z0-9.-]", "", str(mail.get("Message-ID", "")).rpartition("@")[2]) or _APP
    del mail["Message-ID"]
    mail["Message-ID"] = f"<{key}.gpuops@{host}>"
    return mail.as_string()
