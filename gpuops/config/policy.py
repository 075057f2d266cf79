"""Reads a rotation policy from its YAML file, checks it, and returns it as `gpuops.model.nights.rotation.Policy`.

`templates/policy.yaml` is the commented example; every key it shows is described there.
"""

from __future__ import annotations

import hashlib
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from gpuops.config.decoding import UNKNOWN_KEY, WrongContent, decode, keys_at
from gpuops.config.policy_file import PolicyFile
from gpuops.errors import PolicyError
from gpuops.files.yaml_file import parse_yaml, read_text
from gpuops.model.nights.rotation import Policy

_HINT: Final = "templates/policy.yaml shows every key, with comments"


def load_policy(path: Path) -> Policy:
    """Return the policy in this file. Raises PolicyError with file, key, reason and the next step."""
    return parse_policy(read_text(path), str(path))


def said_policy(path: Path | None) -> Policy | PolicyError | None:
    """Return the policy in this file, or the error: a return brings back what the journal knows without the policy.

    None = no file was named.
    """
    try:
        return load_policy(path) if path is not None else None
    except PolicyError as unreadable:
        return unreadable


def parse_policy(text: str, name: str, *, accepted_before: bool = False) -> Policy:
    """Return the policy of a YAML text; errors call it `name`. Raises PolicyError.

    `accepted_before`: it is from the journal, so an older gpuops, which required fewer keys, may have accepted it.
    """
    content = parse_yaml(text, name)
    if not isinstance(content, dict):
        raise PolicyError(
            f"{name}: {'is empty' if content in (None, '') else 'is not a policy: it must consist of keys and values'}",
            hint=_HINT,
        )
    if "lending" in content:
        if not accepted_before:
            hint = "leave `lending` out; `gpuops pool reclaim --server NAME` drains a server before a night"
            raise PolicyError(f"{name}: lending: nights no longer take or give servers of pools", hint=hint)
        content = {key: section for key, section in content.items() if key != "lending"}
    try:
        policy_file = decode(PolicyFile, content, was_accepted=accepted_before)
    except WrongContent as error:
        message, hint = _most_telling(error)
        raise PolicyError(f"{name}: {message}", hint=hint) from error
    return Policy(
        name=policy_file.name,
        pools=policy_file.all_pools(),
        ml=policy_file.queue(),
        ml_stop=policy_file.ml.stop,
        jobs=policy_file.ml.jobs,
        windows=policy_file.all_windows(),
        any_time=policy_file.any_time,
        opt_out=policy_file.opt_out,
        marker=policy_file.marker,
        lock_vm=policy_file.lock_vm,
        limits=policy_file.limits,
        morning=policy_file.morning.order,
        mode=policy_file.mode,
        spare=policy_file.spare,
        broker=policy_file.broker,
        drs_override=policy_file.drs_override,
        user_wins=policy_file.user_wins,
        fair_share=policy_file.fair_share,
        digest=hashlib.sha256(text.encode()).hexdigest(),
        text=text,
    )


def _most_telling(error: WrongContent) -> tuple[str, str]:
    """Return the mistake to show, as key and reason, and the next move."""
    mistake = error.most_telling
    hint = mistake.hint or _HINT
    if mistake.reason == UNKNOWN_KEY:
        near = get_close_matches(str(mistake.place[-1]), keys_at(PolicyFile, mistake.place[:-1]), n=1)
        hint = f"did you mean `{near[0]}`? {_HINT}" if near else _HINT
    return error.describe(mistake, "the file"), hint
