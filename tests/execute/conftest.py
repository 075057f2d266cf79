"""Where a night that is played hundreds of times keeps its journals."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory in memory where there is one: who is killed by an exception needs no disk, only its files.

    A sweep waits thousands of times for a disk's fsync, minutes beside others that write.
    """
    with TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as folder:
        yield Path(folder)
