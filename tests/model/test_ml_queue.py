"""An entry of the queue means the same VM in the evening, when it starts, and in the morning, when it is stopped."""

from __future__ import annotations

import pytest

from gpuops.model.nights.ml_queue import QueuedVm, entry_of
from gpuops.model.vcenter.vm import Vm

VM = Vm("vm-7", "twin", instance_uuid="50ab", path="/dc/vm/a/twin")


@pytest.mark.parametrize("name", ["twin", "/dc/vm/a/twin", "a/twin", "moid:vm-7", "uuid:50AB", "tw*"])
def test_every_way_to_say_a_vm_means_it(name: str) -> None:
    assert entry_of((QueuedVm(name),), VM) is not None


@pytest.mark.parametrize("name", ["twins", "/dc/vm/b/other", "moid:vm-8", "uuid:50ac", "TWIN", "win*"])
def test_what_says_another_vm_does_not(name: str) -> None:
    assert entry_of((QueuedVm(name),), VM) is None


@pytest.mark.parametrize("name", ["was", "wa*", "/dc/vm/z/was"])
def test_one_that_was_renamed_or_moved_since_is_still_meant(name: str) -> None:
    assert entry_of((QueuedVm(name),), VM, "was") is not None


def test_who_names_it_counts_before_a_pattern_and_the_very_path_before_another() -> None:
    pattern, other_path, mine = QueuedVm("tw*", priority=9), QueuedVm("/dc/vm/b/twin"), QueuedVm("/dc/vm/a/twin")
    assert entry_of((pattern, other_path, mine), VM, "twin") is mine
    assert entry_of((QueuedVm("t*"), pattern), VM) is pattern
