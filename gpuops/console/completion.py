"""Completion of names on the command line, from what an earlier command read; it never connects.

Every command that reads an inventory stores the names it saw, per vCenter, readable by this user alone. Names older
than ten minutes are not offered: a wrong name is worse than none.

Bash breaks a word at `:`, `=` and `@` (COMP_WORDBREAKS). For `--vcenter sim:la` it passes `--vcenter`, `sim`, `:`,
`la`, and it replaces `la` by the answer. So the pieces are joined before gpuops reads them, and the prefix that bash
keeps is removed from the answers. If COMP_WORDBREAKS has no colon, or the cursor is inside quotes, bash breaks nothing,
and nothing is joined.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from gpuops import clock
from gpuops.config.user_paths import cache_dir, config_file
from gpuops.errors import GpuopsError
from gpuops.files.file import NOT_PARSED, parse_json, parse_toml, read_bytes, read_text

if TYPE_CHECKING:
    from gpuops.model.vcenter.inventory import Inventory

MAX_AGE_S: Final = 600
_LARGEST_BYTES: Final = 64 * 1024 * 1024
MOST_FILES: Final = 32
"""Names of this many vCenters are stored: a script that starts a simulated one per run must not fill the disk."""


def remember(name: str, inventory: Inventory) -> None:
    """Store the names of one vCenter for the shell; errors of writing are ignored."""
    from gpuops.files.private_file import write_private

    names = {
        "vms": sorted({vm.name for vm in inventory.vms.values()}),
        "clusters": sorted({cluster.name for cluster in inventory.clusters.values()}),
        "hosts": sorted({host.name for host in inventory.hosts.values()}),
        "profiles": list(inventory.offered_profiles),
        "devices": sorted({str(gpu.address) for host in inventory.hosts.values() for gpu in host.devices}),
        "labels": sorted(_labels(inventory)),
    }
    path = _file(name)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(path, json.dumps(names))
        _prune(path.parent)
    except (OSError, GpuopsError):
        return


def _labels(inventory: Inventory) -> Iterator[str]:
    """Yield hardware labels of GPUs, and those that a host offers for Dynamic DirectPath I/O."""
    for host in inventory.hosts.values():
        labels = [gpu.passthrough.label for gpu in host.devices if gpu.passthrough is not None]
        offered = [offer.label for offer in host.config_target.dynamic] if host.config_target is not None else []
        yield from (label for label in {*labels, *offered} if label)


def _prune(folder: Path) -> None:
    """Remove files that are too old, incomplete files of killed runs, and all but the newest `MOST_FILES` files."""
    oldest = clock.machine_time().timestamp() - MAX_AGE_S
    files = [path for pattern in ("names-*.json", ".names-*.json.*") for path in folder.glob(pattern)]
    files.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for number, path in enumerate(files):
        if number >= MOST_FILES or path.stat().st_mtime < oldest:
            path.unlink(missing_ok=True)


def vms(context: typer.Context, incomplete: str) -> list[str]:
    return _names_from_cache(context, "vms", incomplete)


def hosts(context: typer.Context, incomplete: str) -> list[str]:
    return _names_from_cache(context, "hosts", incomplete)


def clusters(context: typer.Context, incomplete: str) -> list[str]:
    return _names_from_cache(context, "clusters", incomplete)


def devices(context: typer.Context, incomplete: str) -> list[str]:
    return _names_from_cache(context, "devices", incomplete)


def labels(context: typer.Context, incomplete: str) -> list[str]:
    return _names_from_cache(context, "labels", incomplete)


def profiles(context: typer.Context, incomplete: str) -> list[str]:
    """Return the offered names, also without `grid_` or `nvidia_` if the word does not begin with it."""
    names = _names_from_cache(context, "profiles", "")
    short = [name.partition("_")[2] for name in names]
    return _matching_names([*names, *short], incomplete)


def targets(context: typer.Context, incomplete: str) -> list[str]:
    """Return targets of the configuration file, and the simulated vCenters that come with gpuops."""
    return _matching_names([*configured_targets(), *(f"sim:{name}" for name in _scenarios())], incomplete)


def sites(incomplete: str) -> list[str]:
    """Return what --site takes: targets of the configuration file, and all of them."""
    return _matching_names([*configured_targets(), "all"], incomplete)


def configured_targets() -> list[str]:
    """Return names of the targets in the configuration file."""
    targets_table = _configuration().get("targets", {})
    return list(targets_table) if isinstance(targets_table, dict) else []


def scenarios(incomplete: str) -> list[str]:
    return _matching_names(_scenarios(), incomplete)


def _scenarios() -> list[str]:
    """Return scenarios by their files: the simulator is not imported for a completion."""
    folder = Path(__file__).parents[1] / "sim" / "scenarios"
    return sorted(path.stem for path in folder.glob("*.yaml") if not path.stem.endswith("-policy"))


def key(flag: str | None) -> str | None:
    """Return the key of the stored names of the selected vCenter; None = none is configured."""
    from gpuops.config.vcenter.sources import label

    return label(flag, os.environ, _configuration().get("default"))


def _names_from_cache(context: typer.Context, kind: str, incomplete: str) -> list[str]:
    """Return the cached names that fit; none if the vCenter is unknown or its cache too old or unreadable."""
    flag = context.params.get("vcenter") or context.find_root().params.get("vcenter")
    name = key(flag)
    if name is None:
        return []

    path = _file(name)
    try:
        if clock.machine_time().timestamp() - path.stat().st_mtime > MAX_AGE_S:
            return []
        names: Sequence[str] = parse_json(read_bytes(path, largest=_LARGEST_BYTES))[kind]
        return _matching_names(names, incomplete)
    except (OSError, GpuopsError, AttributeError, *NOT_PARSED):
        return []


def _matching_names(names: Iterable[str], incomplete: str) -> list[str]:
    # A name with a control character would be typed into the user's shell.
    return [name for name in names if name.startswith(incomplete) and name.isprintable()]


def _configuration() -> dict[str, Any]:
    """Return the configuration file unchecked: importing its classes would take longer than the completion."""
    try:
        return parse_toml(read_text(config_file(os.environ)))
    except (GpuopsError, ValueError):
        return {}


def _file(name: str) -> Path:
    import hashlib

    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return cache_dir(os.environ) / f"names-{digest}.json"


_VARIABLE: Final = "_GPUOPS_COMPLETE"
_BREAKS: Final = frozenset(":=@")


@contextmanager
def completing() -> Iterator[None]:
    """If the shell asks for a completion, adjust the words that the block prints for bash.

    Errors are dropped: they would appear in the middle of the typed line.
    """
    if not os.environ.get(_VARIABLE, "").startswith("complete_"):
        yield
        return
    prefix = joined_words(os.environ) if os.environ[_VARIABLE] == "complete_bash" else ""
    answer = io.StringIO()
    try:
        with redirect_stderr(io.StringIO()), redirect_stdout(answer):
            yield
    finally:
        sys.stdout.write("\n".join(line.removeprefix(prefix) for line in answer.getvalue().split("\n")))


def joined_words(environ: MutableMapping[str, str]) -> str:
    """Join the words in COMP_WORDS, which bash splits at `:`, `=` and `@` too, and correct COMP_CWORD.

    Return the part of the current value that bash has on the line already, so that an answer must not repeat it.
    """
    pieces = environ.get("COMP_WORDS", "").split("\n")
    cursor = environ.get("COMP_CWORD", "")
    # bash writes one piece a line; other shells write all words into one line
    if len(pieces) == 1 or not cursor.isascii() or not cursor.isdigit() or int(cursor) >= len(pieces):
        return ""
    words = join_pieces(pieces[: int(cursor) + 1])
    environ["COMP_WORDS"] = "\n".join(words)
    environ["COMP_CWORD"] = str(len(words) - 1)
    last = pieces[int(cursor)]
    prefix = words[-1] if _is_break(last) else words[-1].removesuffix(last)
    # for an option with its value, `--vcenter=sim:`, only the value is answered
    return prefix.partition("=")[2] if prefix.startswith("-") else prefix


def join_pieces(pieces: Sequence[str]) -> list[str]:
    """Return the words that bash split into these pieces; an empty piece is a new, empty word."""
    words: list[str] = []
    after_break = False
    for piece in pieces:
        if words and piece and (after_break or _is_break(piece)):
            words[-1] += piece
        else:
            words.append(piece)
        after_break = _is_break(piece)
    return words


def _is_break(piece: str) -> bool:
    return bool(piece) and _BREAKS.issuperset(piece)
