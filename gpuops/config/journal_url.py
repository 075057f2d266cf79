"""The URL of a journal in PostgreSQL, as far as it concerns where it may be written down."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit


def holds_password(url: str) -> bool:
    """Whether there is a password in it, in one of the ways in which libpq takes one; also in what is no URL at all."""
    try:
        parts = urlsplit(url)
        return bool(parts.password) or "password" in parse_qs(parts.query)
    except ValueError:
        return "password" in url or url.count(":") > 1
