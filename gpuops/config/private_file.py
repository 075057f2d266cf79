"""Files of our own: written whole or not at all, and readable by nobody else."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from gpuops.errors import UsageError


def write_private(path: Path, text: str) -> None:
    """Replaces the file in one step, mode 0600, on disk before it returns. Raises UsageError.

    A reader sees the old file or the new one, never a part; a symbolic link at `path` is replaced, not followed.
    A device, a pipe or a directory is refused: root could put a file in the place of /dev/null.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} cannot be written: it is not a file", hint="name a file of yours")
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            Path(name).replace(path)
        except BaseException:
            with suppress(FileNotFoundError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint="name a file of yours") from error
