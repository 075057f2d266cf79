"""Refusals that are alike are said once, with those that they are said of."""

from __future__ import annotations

import pytest

from gpuops.plan.core.plan import Rejection, said_once, some_names


def lines(*rejections: Rejection) -> list[str]:
    return [rejection.line for rejection in said_once(rejections)]


def test_the_same_reason_is_said_once_with_the_first_names_and_the_next_move() -> None:
    every = [Rejection(f"esx-{n:02}", "has no link", hint="check its cable") for n in range(1, 101)]
    assert lines(*every) == ["esx-01, esx-02, esx-03 and 97 more: has no link (next: check its cable)"]
    assert lines(every[0], every[0]) == ["esx-01: has no link (next: check its cable)"]


def test_what_is_said_of_most_comes_first_and_else_the_order_is_kept() -> None:
    first, second = Rejection("a", "one"), Rejection("a", "other")
    assert lines(first, second) == ["a: one", "a: other"]
    assert lines(first, second, Rejection("b", "other")) == ["a, b: other", "a: one"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("needs 4 slots, 0 there", "needs 4 slots, 3 there"),
        ("0000:3b:00.0: locked; held by ml-01: needs 1", "0000:d8:00.0: locked; held by vdi-02, vdi-03: needs 1"),
        ("is registered on esx-01", "is registered on esx-02"),
    ],
    ids=["numbers", "GPUs and their holders", "its own name"],
)
def test_reasons_that_differ_in_what_is_of_each_are_alike(first: str, second: str) -> None:
    rejection_lines = lines(Rejection("esx-01", first), Rejection("esx-02", second))
    assert rejection_lines == [f"esx-01: {first} (also esx-02)"]


def test_other_reasons_are_not_alike() -> None:
    assert len(lines(Rejection("esx-01", "vmk1 is not on dvs-a"), Rejection("esx-02", "vmk1 is not on dvs-b"))) == 2
    assert len(lines(Rejection("esx-01", "free", 1, 0, "GPUs"), Rejection("esx-01", "free", 1, 0, "slots"))) == 2


def test_names_are_all_there_as_long_as_they_are_few() -> None:
    assert some_names(["a", "b", "c"]) == "a, b, c"
    assert some_names(["a", "b", "c", "d"]) == "a, b, c and 1 more"
