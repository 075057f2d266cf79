"""The question every reader is asked: which vCenter, which properties, pages of what size."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Question:
    """What to read; `paths` maps a managed object type to its property paths."""

    url: str
    username: str
    password: str
    ca_file: str
    paths: dict[str, list[str]]
    page: int
    vi_json: bool = False
    """Whether gpuops reads over VI/JSON."""

    def write(self, file: Path) -> Path:
        """Write the question for a child process; the password stays off its command line."""
        file.write_text(json.dumps(asdict(self)), encoding="utf-8")
        return file


def read_question() -> Question:
    """The question in the file named by the first argument."""
    return Question(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
