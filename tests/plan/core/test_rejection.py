"""Refusals that are alike are said once, with those that they are said of."""

from __future__ import annotations

from gpuops.plan.core.plan import Rejection, said_once, some_names


def lines(*rejections: Rejection) -> list[str]:
    return [rejection.line for rejection in said_once(rejections)]


def test_other_reasons_are_not_alike() -> None:
    assert len(lines(Rejection("esx-01", "vmk1 is not on dvs-a"), Rejection("esx-02", "vmk1 is not on dvs-b"))) == 2
    assert len(lines(Rejection("esx-01", "free", 1, 0, "GPUs"), Rejection("esx-01", "free", 1, 0, "slots"))) == 2


def test_names_are_all_there_as_long_as_they_are_few() -> None:
    assert some_names(["a", "b", "c"]) == "a, b, c"
    assert some_names(["a", "b", "c", "d"]) == "a, b, c and 1 more"
