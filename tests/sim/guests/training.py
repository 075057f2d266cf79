"""The scenario `training` whose guests run real processes: for tests alone, as `gpuops help simulator` says."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def training_with_real_guests(folder: Path) -> str:
    """The name of the scenario: hosts, networks and templates of `training`; programs in its guests really run."""
    text = files("gpuops.sim").joinpath("scenarios", "training.yaml").read_text(encoding="utf-8")
    declared, separator, later_text = text.partition("    boot_s: 30\n")
    assert separator, "training.yaml has a guest that boots for 30 s"
    _, programs, text_after = later_text.partition("    programs:\n")
    assert programs, "its guest has programs that answer"
    login = later_text[: later_text.index(programs)]
    path = folder / "training-real.yaml"
    path.write_text(
        f"{declared}    processes: real\n{login}{text_after[text_after.index('datastores:') :]}", encoding="utf-8"
    )
    return str(path)
