"""Roles created and corrected over the wire from the command line; only the state decides, and a login without the
privilege is refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.api import roles
from gpuops.config.role_file import load_roles
from gpuops.errors import NoPermission, PolicyError
from gpuops.model.vcenter.login import IMPLIED, RoleState, RoleWish
from gpuops.sim.server import SimServer
from gpuops.sim.vcenter.authority import READ_ONLY
from tests.wire.roles.test_least_privilege import TEMPLATES, site_of

NIGHT = load_roles(TEMPLATES / "roles" / "night.yaml")


def brought(server: SimServer, state_dir: Path, *, apply: bool) -> tuple[RoleState, ...]:
    with site_of(server, state_dir) as site:
        return roles(NIGHT, site, apply=apply)


def privileges_by_role(server: SimServer) -> dict[str, frozenset[str] | None]:
    return {role.name: role.privileges for role in server.world.authority.roles.values() if not role.system}


@pytest.mark.long
def test_what_is_missing_is_made_once(lab: SimServer, tmp_path: Path) -> None:
    dry_run = brought(lab, tmp_path, apply=False)
    assert [state.there for state in dry_run] == [None] * len(NIGHT)
    assert privileges_by_role(lab) == {}
    assert all(state.written for state in brought(lab, tmp_path, apply=True))
    assert privileges_by_role(lab) == {wish.name: wish.privileges | IMPLIED for wish in NIGHT}
    second_run = brought(lab, tmp_path, apply=True)
    assert all(state.right and not state.written for state in second_run)


@pytest.mark.long
def test_what_is_unlike_is_named_and_mended_where_it_was_given(lab: SimServer, tmp_path: Path) -> None:
    wish = NIGHT[0]
    less = wish.privileges - {"VirtualMachine.Interact.PowerOn"}
    role = lab.world.authority.add_role(wish.name, {*less, "VirtualMachine.Inventory.Delete"})
    state = brought(lab, tmp_path, apply=False)[0]
    assert set(state.missing) == {"VirtualMachine.Interact.PowerOn"}
    assert set(state.surplus) == {"VirtualMachine.Inventory.Delete"}
    brought(lab, tmp_path, apply=True)
    assert lab.world.authority.roles[role.id].privileges == wish.privileges | IMPLIED


def test_who_may_not_is_told_and_nothing_is_made(lab: SimServer, tmp_path: Path) -> None:
    lab.world.authority.permit(lab.username, READ_ONLY)
    with pytest.raises(NoPermission) as raised:
        brought(lab, tmp_path, apply=True)
    assert "Authorization.ModifyRoles" in raised.value.hint
    assert "(" not in raised.value.message, "vCenter's own advice is replaced by ours"
    assert privileges_by_role(lab) == {}


@pytest.mark.long
def test_a_privilege_that_vcenter_has_not_is_named_before_anything(lab: SimServer, tmp_path: Path) -> None:
    wishes = [*NIGHT, RoleWish("another", "nowhere", frozenset({"VirtualMachine.Interact.Fly"}))]
    with (
        site_of(lab, tmp_path) as site,
        pytest.raises(PolicyError, match=r"no privilege VirtualMachine\.Interact\.Fly"),
    ):
        roles(wishes, site, apply=True)
    assert privileges_by_role(lab) == {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version: 1\nroles: []", "should not be an empty list"),
        ("version: 1\nroles: [{name: a, where: b, privileges: [x]}]", "does not have the form"),
        ("version: 1\nroles: [{name: a, where: b, privileges: [X.Y], admin: true}]", "unknown key"),
        (
            "version: 1\nroles: [{name: a, where: b, privileges: [X.Y]}, {name: a, where: b, privileges: [X.Y]}]",
            "two roles are called 'a'",
        ),
        ("roles: !!python/object/apply:os.system ['true']", "gpuops accepts no tags"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "roles.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match=reason) as raised:
        load_roles(path)
    assert "\n" not in raised.value.message
