"""The logins of clients, and the objects that belong to each login."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

from gpuops.sim.core.managed_object import ManagedObject
from gpuops.sim.core.registry import Registry

IDLE_TIMEOUT: Final = timedelta(minutes=30)
"""vCenter's default for idle sessions."""


class ClientSession:
    """One login: its property collectors, views and history collectors live and end with it."""

    def __init__(self, sessions: Sessions, key: str, cookie: str, user: str, locale: str) -> None:
        self._sessions = sessions
        self.key = key
        self.cookie = cookie
        self.user = user
        self.locale = locale
        self.login_at: datetime = sessions.now()
        self.active_at: datetime = self.login_at
        self.address = "127.0.0.1"
        self.user_agent = ""
        self.calls = 0
        self.objects = Registry()

    def add(self, managed_object: ManagedObject) -> None:
        """Make an object reachable in this session only."""
        self.objects.add(managed_object)

    def remove(self, managed_object: ManagedObject) -> None:
        """Forget an object of this session; filters that selected it report that it left."""
        if self.objects.find(managed_object.moid) is managed_object:
            self.objects.remove(managed_object)
            self._sessions.registry.notify_removed(managed_object)

    def unique_moid(self) -> str:
        """A moid for an object of this session, in vCenter's form."""
        return f"session[{self.key}]{self._sessions.unique_id()}"


class Sessions:
    """The logins of a world, by cookie."""

    def __init__(
        self, now: Callable[[], datetime], rng: random.Random, registry: Registry, changed: threading.Condition
    ) -> None:
        self.now = now
        self.registry = registry
        """The objects that all sessions see."""
        self.idle_timeout = IDLE_TIMEOUT
        self._rng = rng
        self._changed = changed
        self.passwords: dict[str, str] = {}
        """User name to password; the server fills it."""
        self._by_cookie: dict[str, ClientSession] = {}

    def __iter__(self) -> Any:
        return iter(tuple(self._by_cookie.values()))

    def accepts(self, user: str, password: str) -> bool:
        return password != "" and self.passwords.get(user) == password

    def open(self, user: str, locale: str = "en") -> ClientSession:
        session = ClientSession(self, self.unique_id(), self.unique_id(), user, locale or "en")
        self._by_cookie[session.cookie] = session
        return session

    def find(self, cookie: str) -> ClientSession | None:
        """The login of a cookie; an idle one has ended."""
        session = self._by_cookie.get(cookie)
        if session is None:
            return None
        if self.now() - session.active_at > self.idle_timeout:
            self.close(session)
            return None
        return session

    def keep_alive(self, passed: timedelta) -> None:
        """Count this time as active in every session, so that a jump of virtual time ends no session as idle."""
        for session in self._by_cookie.values():
            session.active_at += passed

    def by_key(self, key: str) -> ClientSession | None:
        """The login with this UserSession.key."""
        return next((session for session in self._by_cookie.values() if session.key == key), None)

    def close(self, session: ClientSession) -> None:
        """End a login and everything that belongs to it."""
        self._by_cookie.pop(session.cookie, None)
        for managed_object in session.objects:
            discard = getattr(managed_object, "discard", None)
            if discard is not None:
                discard()
        self._changed.notify_all()

    def unique_id(self) -> str:
        """An id such as 52a1b2c3-..., drawn from the world's seed."""
        digits = f"{self._rng.getrandbits(128):032x}"
        return f"52{digits[2:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
