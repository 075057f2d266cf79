"""Notify systemd that a run has begun and that it is alive, for `WatchdogSec=` of its unit.

systemd kills a service that sends nothing for that time, and starts the unit of `OnFailure=`. A message is sent with
each sign of life of a run, so a frozen process sends no message. Without a unit of `Type=notify` there is no socket,
and nothing is sent.

Source: sd_notify(3), "Notes": `NOTIFY_SOCKET` names a socket of AF_UNIX and SOCK_DGRAM, an abstract one after `@`.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Final

BEGUN: Final = "READY=1"
GOES_ON: Final = "WATCHDOG=1"


def tell_systemd(word: str) -> None:
    """Send the word without waiting, and ignore errors: a run does not depend on systemd."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.setblocking(False)
        sending.sendto(word.encode("ascii"), f"\0{address[1:]}" if address.startswith("@") else address)
