"""Numbers by a seed, the same on every machine and in every release of Python."""

from __future__ import annotations

from hashlib import blake2b


def drawn(seed: int, of: str, below: int) -> int:
    """A number from 0 up to `below` (excluded), evenly spread over seeds and over what it is drawn of."""
    digest = blake2b(f"{seed}/{of}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below
