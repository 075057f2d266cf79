"""The file of a pool: where the programs are that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.extras.lending.pool_file import load_pool

POOL = "version: 1\nname: lab\nnetwork: VM Network\nservers: [gpu-01]\n"


@pytest.mark.parametrize("named", ["./mine.yaml", "mine.yaml", "../programs/mine.yaml"])
def test_a_program_is_found_from_wherever_the_next_call_comes(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pool.yaml").write_text(f"{POOL}program: {named}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    program = load_pool(Path("pool.yaml")).pool.program
    assert program is not None
    assert program == str(tmp_path / named)


def test_a_program_that_comes_with_gpuops_keeps_its_name_and_a_whole_path_is_one(tmp_path: Path) -> None:
    for named in ("lupine", "/etc/gpuops/mine.yaml"):
        (tmp_path / "pool.yaml").write_text(f"{POOL}program: {named}\n", encoding="utf-8")
        assert load_pool(tmp_path / "pool.yaml").pool.program == named
