"""Finds the kinds of documents in `report`, `cli` and `extras`, which the decorator `printed` registers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parents[2] / "gpuops"


def registered_kinds() -> set[str]:
    nodes = (node for tree in _trees().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    calls = [call for node in nodes for call in node.decorator_list if isinstance(call, ast.Call)]
    return {ast.literal_eval(call.args[0]) for call in calls if ast.unparse(call.func) == "printed"}


def built_as_dicts() -> Iterator[str]:
    """Yield the places of dict displays with a schema_version and a kind."""
    for path, tree in _trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                if {"schema_version", "kind"} <= keys:
                    yield f"{path.relative_to(SOURCES)}:{node.lineno}"


@cache
def _trees() -> dict[Path, ast.Module]:
    paths = [path for folder in ("report", "cli", "extras") for path in sorted((SOURCES / folder).rglob("*.py"))]
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
