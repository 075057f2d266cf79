"""Text and documents of `gpuops profiles`: the GPU models, or the vGPU profiles of one and which may run together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Self

from gpuops.advise.gpu_profiles import GpuProfiles, MigSets, MixedSize
from gpuops.model.devices.catalog import Board, Generation
from gpuops.model.devices.vgpu import ProfileKind, Series, Verified, VgpuProfile
from gpuops.report.document import DocumentRecord, PrintedDocument, printed
from gpuops.report.layout import Column, Shown, Text, TextTable, table_of
from gpuops.report.monitoring.inventory_view import figure, without_series
from gpuops.report.text import optional_figure, size

_MOST_STARTS = 8
"""Number of starts of a size that are printed; of more, the first ones and the last."""


def models_text(boards: Sequence[Board]) -> Shown:
    """Return one line for each GPU model."""
    table = table_of(
        boards,
        Column("model", lambda board: board.key),
        Column("name", lambda board: board.name),
        Column("memory", lambda board: size(board.framebuffer_mib), right=True),
        Column("profiles", lambda board: str(len(board.profiles) + len(board.nameless)), right=True),
        Column("modes", _modes),
    )
    return (table, Text("gpuops profiles MODEL shows the profiles of one, and which may run together", "dim"))


def _modes(board: Board) -> str:
    mixed = {True: "mixed size", None: "mixed size (not known)", False: ""}[board.mixed_size_mode]
    return ", ".join(filter(None, ("same size", mixed, "MIG" if board.mig is not None else "")))


def profiles_text(gpu_profiles: GpuProfiles) -> Iterator[Shown]:
    """Yield the profiles of a GPU model and, for each of its modes, which of them run together."""
    board = gpu_profiles.board
    heading = f"{board.name}  {board.generation}, {size(board.framebuffer_mib)}, model {board.key}"
    yield Text(heading, "bold")
    rows = (
        (
            profile,
            size(profile.framebuffer_mib),
            str(profile.max_per_gpu),
            optional_figure(profile.max_per_gpu_mixed, unknown="-"),
            optional_figure(board.most_in_one_vm(profile)),
        )
        for profile in gpu_profiles.time_sliced
    )
    headers = ("profile", "memory", "same size", "mixed size", "in one VM")
    yield TextTable(*headers, right=(1, 2, 3), rows=_fold_series(rows))
    yield "same-size mode: profiles of one memory size run together, of any series"
    yield from _mixed_size_lines(gpu_profiles)
    yield from _mig_lines(gpu_profiles)
    yield Text("in one VM: the limit of NVIDIA's driver; the vSphere release may allow fewer", "dim")


def _fold_series(rows: Iterable[tuple[VgpuProfile, *tuple[str, ...]]]) -> Iterator[tuple[str, ...]]:
    """Yield one row for profiles that differ in the letter of their series only: `nvidia_a40-8c|q`."""
    series: dict[tuple[str, ...], list[str]] = {}
    for profile, *figures in rows:
        name = profile.name or profile.short_name
        stem = without_series(name)
        series.setdefault((stem, *figures), []).append(name[len(stem) :])
    for (stem, *figures), letters in series.items():
        yield (f"{stem}{'|'.join(sorted(letters))}", *figures)


def _mixed_size_lines(gpu_profiles: GpuProfiles) -> Iterator[Shown]:
    sizes = gpu_profiles.mixed_sizes
    if not sizes:
        is_unknown = gpu_profiles.board.mixed_size_mode is None
        yield "mixed-size mode: not known, NVIDIA's documents disagree" if is_unknown else "mixed-size mode: none"
        return
    yield "mixed-size mode: how many vGPUs of the column's size fit next to one vGPU of the row's size"
    headers = [size(column.memory_mib) for column in sizes]
    rows = ((size(row.memory_mib), *map(figure, row.next_to_one), _starts_text(row.starts_gib)) for row in sizes)
    yield TextTable("", *headers, "may start at (GiB)", right=range(len(sizes) + 1), rows=rows)


def _starts_text(starts: Sequence[int]) -> str:
    if not starts:
        return "?"
    if len(starts) <= _MOST_STARTS:
        return ", ".join(map(str, starts))
    return f"{', '.join(map(str, starts[: _MOST_STARTS - 1]))}, ... {starts[-1]}"


def _mig_lines(gpu_profiles: GpuProfiles) -> Iterator[Shown]:
    """Yield the MIG profiles and the sets of GPU instances that fill a GPU; nothing for a model without MIG."""
    sets = gpu_profiles.mig
    if sets is None:
        return
    yield "MIG mode: each profile runs in GPU instances of one kind"
    headers = ("profile", "memory", "GPU instance", "in an instance", "on a GPU", "in one VM")
    rows = (
        (
            profile,
            size(profile.framebuffer_mib),
            profile.mig_profile or "?",
            str(profile.max_per_gpu_instance or 1),
            str(profile.max_per_gpu),
            optional_figure(gpu_profiles.board.most_in_one_vm(profile)),
        )
        for profile in gpu_profiles.mig_backed
    )
    yield TextTable(*headers, right=(1, 3, 4), rows=_fold_series(rows))
    yield "GPU instances that fit together: all of a row, or some of them"
    set_rows = ([str(number) if number else "" for number in counts] for counts in sets.fullest)
    yield TextTable(*(kind.name for kind in sets.kinds), right=range(len(sets.kinds) - 1), rows=set_rows)
    if sets.media_twins:
        twins = ", ".join(f"{media.name} for {plain.name}" for plain, media in sets.media_twins)
        yield f"one instance of a row may own the media engines: {twins}"
    yield "hosts choose where instances start: some of a row may start where the others no longer fit (gpuops help mig)"
    if sets.verified is not Verified.DOC:
        yield "where they start is copied from a similar GPU model: NVIDIA has not published it for this one"


class GpuModelRecord(DocumentRecord, frozen=True):
    """A GPU model of the catalogue."""

    model: Annotated[str, "as options take it, `a100`"]
    name: str
    generation: Generation
    memory_mib: int
    mixed_size_mode: Annotated[bool | None, "null = not known"]
    mig_mode: bool

    @classmethod
    def made_of(cls, board: Board) -> Self:
        return cls.from_attributes(board, **_board_fields(board))


class ListedModelRecord(GpuModelRecord, frozen=True):
    """A GPU model of the catalogue."""

    profiles: Annotated[int, "how many"]
    sources: Annotated[dict[str, str], "titles of documents, by what they say"]

    @classmethod
    def made_of(cls, board: Board) -> Self:
        profiles = len(board.profiles) + len(board.nameless)
        return cls.from_attributes(board, profiles=profiles, sources=dict(board.sources), **_board_fields(board))


@printed("profiles-models", by="gpuops profiles")
class ProfilesModelsDocument(PrintedDocument, frozen=True):
    """The GPU models with vGPU profiles."""

    models: list[ListedModelRecord]


class GpuProfileRecord(DocumentRecord, frozen=True):
    """A vGPU profile."""

    name: Annotated[str | None, "as hosts offer it; null = not known"]
    short_name: Annotated[str, "NVIDIA's, without the brand"]
    series: Series
    sharing: ProfileKind
    memory_mib: int
    most_on_gpu: Annotated[int, "in same-size mode, or in MIG mode"]
    most_mixed_size: Annotated[int | None, "null = it has no mixed-size mode, or not known"]
    starts_gib: Annotated[list[int], "where it may start in mixed-size mode"]
    gpu_instance: Annotated[str | None, "that it runs in; null = it is time-sliced"]
    most_in_gpu_instance: int | None
    most_in_one_vm: Annotated[int | None, "by NVIDIA's driver; null = not known"]
    verified: Verified
    verified_mixed_size: Verified | None
    verified_starts: Verified | None


class SizeRoomRecord(DocumentRecord, frozen=True):
    """Room for vGPUs of a size."""

    memory_mib: int
    at_least: int
    at_most: int | None
    because: str


class MixedSizeRecord(DocumentRecord, frozen=True):
    """vGPUs of one size in mixed-size mode."""

    memory_mib: int
    most: Annotated[int, "of this size alone"]
    starts_gib: Annotated[list[int], "empty = not published"]
    next_to_one: Annotated[list[SizeRoomRecord], "how many of each size fit next to one of this size"]


class InstanceKindRecord(DocumentRecord, frozen=True):
    """A kind of GPU instance."""

    name: str
    compute_slices: int
    memory_slices: int
    starts: Annotated[list[int], "memory slices"]
    most: Annotated[int, "of this kind alone"]
    profiles: Annotated[list[str], "that run in it"]


class MigSetsRecord(DocumentRecord, frozen=True):
    """Which GPU instances fit together on one GPU."""

    verified: Verified
    gpu_instances: Annotated[list[InstanceKindRecord], "those that vGPUs run in"]
    sets: Annotated[
        list[dict[str, int]], "GPU instances by name; no instance can be added to a set, and some of it fit too"
    ]
    one_may_be: Annotated[dict[str, str], "one instance of the first kind in a set may be of the second"]


@printed("profiles", by="gpuops profiles MODEL")
class ProfilesDocument(PrintedDocument, frozen=True):
    """The vGPU profiles of a GPU model, and which may run on one GPU together."""

    model: GpuModelRecord
    profiles: list[GpuProfileRecord]
    mixed_sizes: Annotated[list[MixedSizeRecord], "empty = no mixed-size mode, or nothing is published about it"]
    mig: Annotated[MigSetsRecord | None, "null = no MIG mode"]


def profiles_document(gpu_profiles: GpuProfiles) -> ProfilesDocument:
    """Return the profiles as a document, with every start and every profile by itself."""
    board = gpu_profiles.board
    return ProfilesDocument.from_attributes(
        model=board,
        profiles=[_profile(board, profile) for profile in (*gpu_profiles.time_sliced, *gpu_profiles.mig_backed)],
        mixed_sizes=[_mixed_size(row, gpu_profiles.mixed_sizes) for row in gpu_profiles.mixed_sizes],
        mig=_mig_sets(gpu_profiles.mig, gpu_profiles.mig_backed) if gpu_profiles.mig is not None else None,
    )


def _board_fields(board: Board) -> dict[str, Any]:
    return {"model": board.key, "memory_mib": board.framebuffer_mib, "mig_mode": board.mig is not None}


def _profile(board: Board, profile: VgpuProfile) -> GpuProfileRecord:
    return GpuProfileRecord.from_attributes(
        profile,
        name=profile.name or None,
        sharing=profile.kind,
        memory_mib=profile.framebuffer_mib,
        most_on_gpu=profile.max_per_gpu,
        most_mixed_size=profile.max_per_gpu_mixed,
        starts_gib=profile.placement_ids_mixed,
        gpu_instance=profile.mig_profile,
        most_in_gpu_instance=profile.max_per_gpu_instance,
        most_in_one_vm=board.most_in_one_vm(profile),
        verified_mixed_size=profile.verified_mixed,
        verified_starts=profile.verified_placement,
    )


def _mixed_size(row: MixedSize, sizes: Sequence[MixedSize]) -> MixedSizeRecord:
    rooms = zip(sizes, row.next_to_one, strict=True)
    next_to_one = [SizeRoomRecord.from_attributes(room, memory_mib=column.memory_mib) for column, room in rooms]
    return MixedSizeRecord.from_attributes(row, next_to_one=next_to_one)


def _mig_sets(sets: MigSets, profiles: Iterable[VgpuProfile]) -> MigSetsRecord:
    profile_names: dict[str | None, list[str]] = {}
    for profile in profiles:
        profile_names.setdefault(profile.mig_profile, []).append(profile.name or profile.short_name)
    media_kinds = [kind for _, kind in sets.media_twins]
    return MigSetsRecord.from_attributes(
        sets,
        gpu_instances=[
            InstanceKindRecord.from_attributes(kind, most=kind.max_count, profiles=profile_names.get(kind.name, []))
            for kind in (*sets.kinds, *media_kinds)
        ],
        sets=[
            {kind.name: number for kind, number in zip(sets.kinds, counts, strict=True) if number}
            for counts in sets.fullest
        ],
        one_may_be={plain.name: kind.name for plain, kind in sets.media_twins},
    )
