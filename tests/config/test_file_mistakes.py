"""Files with one mistake are refused in one line that names the file, the place and the reason."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

import pytest
import yaml

from gpuops.errors import PolicyError

KINDS: Final[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "cases" / "file-mistakes.yaml").read_text())
MISTAKES: Final = [
    pytest.param(kind["read_by"], kind["right"], mistake, kind.get("next", ""), id=f"{name}: {mistake['says']}")
    for name, kind in KINDS.items()
    for mistake in kind["mistakes"]
]


@pytest.mark.parametrize(("read_by", "right", "mistake", "next_move"), MISTAKES)
def test_a_mistake_is_one_line(read_by: str, right: str, mistake: dict[str, str], next_move: str) -> None:
    replaced = mistake.get("replace", right)
    assert replaced in right
    with pytest.raises(PolicyError) as refused:
        resolve_name(read_by)(right.replace(replaced, mistake["by"]), "mine")
    assert refused.value.message.startswith(f"mine: {mistake['says']}")
    assert "\n" not in refused.value.line
    assert next_move in (refused.value.hint or "")


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_without_the_mistake_it_is_read(kind: dict[str, Any]) -> None:
    assert resolve_name(kind["read_by"])(kind["right"], "mine")
