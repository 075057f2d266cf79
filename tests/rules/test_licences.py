"""What we bring with us may be brought: every package of the lock file tells its licence."""

from __future__ import annotations

from tests.rules.licences import ABSENT, UNTOLD, licences


def test_every_package_tells_its_licence() -> None:
    found = list(licences())
    assert len([each for each in found if each[2] != ABSENT]) > 20
    assert [each for each in found if each[2] == UNTOLD] == []


def test_none_forbids_its_use() -> None:
    for name, _, licence in licences():
        assert not any(word in licence.lower() for word in ("agpl", "affero", "commercial", "proprietary")), name
