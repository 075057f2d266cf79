"""Names in gpuops that a newcomer can search for: every class name exists once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

SAME_FOR_ALL = frozenset({"ModuleDocFragment"})
"""Ansible looks a documentation fragment up by this name in its file."""


def test_every_class_name_exists_once() -> None:
    files = defaultdict(list)
    for path in sorted((ROOT / "gpuops").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                files[node.name].append(path.relative_to(ROOT).as_posix())
    assert len(files) > 500
    assert {name: where for name, where in files.items() if len(where) > 1 and name not in SAME_FOR_ALL} == {}
