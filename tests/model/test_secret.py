"""A secret is only shown by `reveal`."""

from __future__ import annotations

import copy
import json
import pickle
import traceback
from collections.abc import Callable
from dataclasses import asdict

import pytest

from gpuops.model.vcenter.target import GuestLogin, Secret, Target

CANARY = "Cn4ry&<é\"'>"
SECRET = Secret(CANARY)
TARGET = Target("vc", "me", SECRET, guest=GuestLogin("ml", SECRET))


@pytest.mark.parametrize(
    "show",
    [
        repr,
        str,
        "{}".format,
        "{:>40}".format,
        "{!r}".format,
        lambda secret: f"{secret}{secret!s}{secret!r}",
        lambda secret: "%s %r" % (secret, secret),  # noqa: UP031
        lambda secret: str([secret, {"password": secret}]),
        lambda secret: repr(asdict(TARGET)),
        lambda secret: repr(TARGET),
    ],
)
def test_it_is_not_shown(show: Callable[[Secret], str]) -> None:
    assert "Secret(…)" in show(SECRET)
    assert "Cn4ry" not in show(SECRET)


@pytest.mark.parametrize("dump", [pickle.dumps, json.dumps, lambda secret: pickle.dumps(TARGET)])
def test_it_is_not_written_down(dump: Callable[[Secret], object]) -> None:
    with pytest.raises(TypeError) as caught:
        dump(SECRET)
    assert "Cn4ry" not in "".join(traceback.format_exception(caught.value))


def test_nor_told_apart_by_its_length_or_its_hash() -> None:
    assert repr(Secret("a")) == repr(SECRET)
    with pytest.raises(TypeError):
        hash(SECRET)
    assert not hasattr(SECRET, "__dict__")


def test_whoever_asks_gets_it() -> None:
    assert SECRET.reveal() == CANARY
    assert copy.deepcopy(SECRET) is SECRET
    assert (Secret(CANARY) == SECRET, Secret("other") == SECRET, SECRET == CANARY) == (True, False, False)
    assert (bool(SECRET), bool(Secret(""))) == (True, False)
    assert Secret("\ud800") == Secret("\ud800"), "half a character, as a terminal may give it"
