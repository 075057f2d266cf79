"""Ending: how a reply comes to the client, whole or not."""

from __future__ import annotations

from enum import StrEnum


class Ending(StrEnum):
    """What the wire does with a reply."""

    WHOLE = "whole"
    RESET = "reset"
    """Nothing is sent, the connection is reset."""
    CUT = "cut"
    """Half of it is sent, then the connection is reset."""
    EOF = "eof"
    """Half of it is sent, then the connection ends without TLS's goodbye."""
    TRUNCATED = "truncated"
    """Half of the XML is sent as if it were all of it."""
    STALE = "stale"
    """It is sent whole; the connection, which the client keeps for its next request, ends behind its back."""
    HANG = "hang"
    """Nothing is sent, and the connection stays open until the client gives up."""
    DRIP = "drip"
    """It is sent a byte at a time."""
