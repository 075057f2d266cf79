"""Tells systemd that a run has begun and that it goes on, for `WatchdogSec=` of its unit.

systemd kills a service that is silent for so long, and starts what `OnFailure=` names. A word is sent where a run gives
its sign of life, so that a process that is frozen, or that waits for nothing for ever, sends none. Without a unit of
`Type=notify` there is no socket, and nothing is sent.

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
    """Sends it without waiting; a run never depends on whether anybody hears it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sending:
        sending.setblocking(False)
        sending.sendto(word.encode("ascii"), f"\0{address[1:]}" if address.startswith("@") else address)
