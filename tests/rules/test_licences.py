"""What we bring with us may be brought: every package of the lock file tells its licence."""

from __future__ import annotations

from pathlib import Path

from tests.rules.licences import ABSENT, ROOT, UNLOCKED, UNTOLD, licences, licences_of_extras


def test_every_package_tells_its_licence() -> None:
    packages = list(licences())
    assert len([package for package in packages if package[2] != ABSENT]) > 20
    assert [package for package in packages if package[2] == UNTOLD] == []


def test_none_forbids_its_use() -> None:
    for name, _, licence in licences():
        assert not any(word in licence.lower() for word in ("agpl", "affero", "commercial", "proprietary")), name


def test_every_extra_tells_its_licence_and_the_manual_says_the_same() -> None:
    licence_by_name = {name: licence for _, name, _, licence in licences_of_extras()}
    assert {name for name, licence in licence_by_name.items() if licence == UNLOCKED} == {"keyring"}
    assert licence_by_name["psycopg"] == licence_by_name["psycopg-binary"] == "LGPL-3.0-only"
    assert licence_by_name["asyncssh"] == "EPL-2.0 OR GPL-2.0-or-later"
    page = (ROOT / "gpuops" / "manual" / "install.md").read_text(encoding="utf-8")
    assert [name for name in licence_by_name if name not in page] == []


def test_what_runs_in_ansibles_own_process_has_ansibles_licence() -> None:
    """Ansible asks GPL-3.0-or-later of plugins that import its classes; modules import its `module_utils` alone."""
    plugins = ROOT / "gpuops" / "ansible_collections" / "gpuops" / "vsphere" / "plugins"
    wrong = [path.name for path in plugins.rglob("*.py") if _imports_ansible(path) != _is_gpl(path)]
    assert wrong == []
    assert "GPL-3.0-or-later" in (plugins.parent / "galaxy.yml").read_text(encoding="utf-8")
    assert "Version 3, 29 June 2007" in (plugins.parent / "COPYING").read_text(encoding="utf-8")


def _imports_ansible(path: Path) -> bool:
    lines = path.read_text(encoding="utf-8").splitlines()
    return any(line.startswith("from ansible.") and ".module_utils." not in line for line in lines)


def _is_gpl(path: Path) -> bool:
    return "SPDX-License-Identifier: GPL-3.0-or-later\n" in path.read_text(encoding="utf-8")[:400]
