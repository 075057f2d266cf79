"""Core files: a crash of a C library must not write the password to a disk. Every entrance forbids it first."""

from __future__ import annotations

import resource


def forbid() -> None:
    """From here on no crash of this process leaves one, nor of the programs that it starts."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
