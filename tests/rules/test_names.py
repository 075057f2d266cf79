"""Names in gpuops that a newcomer can search for: every class name exists once."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

DEFINED = re.compile(r"^ *class (\w+)[(:]", re.MULTILINE)
"""As ruff lays it out; a line of a text that begins so would be taken for one."""
ROOT = Path(__file__).parents[2]

SAME_FOR_ALL = frozenset({"ModuleDocFragment"})
"""Ansible looks a documentation fragment up by this name in its file."""


def test_every_class_name_exists_once() -> None:
    files = defaultdict(list)
    for path in sorted((ROOT / "gpuops").rglob("*.py")):
        for name in DEFINED.findall(path.read_text(encoding="utf-8")):
            files[name].append(path.relative_to(ROOT).as_posix())
    assert len(files) > 500
    assert {name: where for name, where in files.items() if len(where) > 1 and name not in SAME_FOR_ALL} == {}
