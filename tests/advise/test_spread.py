"""Room beside things whose places are not known, against trying every place."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from gpuops.advise.capacity import Shape, Spread, spread

# A100/H100 class, in memory slices.
ONE, DOUBLE, TWO = Shape(1, tuple(range(7))), Shape(2, (0, 2, 4, 6)), Shape(2, (0, 2, 4))
THREE, FOUR, SEVEN = Shape(4, (0, 4)), Shape(4, (0,)), Shape(8, (0,))
MIG = (ONE, DOUBLE, TWO, THREE, FOUR, SEVEN)
# A 24 GB board in mixed-size mode, in GB.
MIXED = (
    Shape(24, (0,)),
    Shape(12, (0, 12)),
    Shape(8, (0, 16)),
    Shape(6, (0, 6, 12, 18)),
    Shape(4, (0, 8, 12, 20)),
)


def test_what_cannot_be_there_together_leaves_no_answer() -> None:
    assert spread(ONE, (FOUR, FOUR)) is None
    assert spread(ONE, (SEVEN, ONE)) is None


def test_too_many_ways_leave_no_answer() -> None:
    several = tuple(Shape(1, tuple(range(offset, 64, 8))) for offset in range(8))
    assert spread(Shape(8, (0, 8)), several * 3) is None


def by_trying(new_shape: Shape, placed: list[Shape]) -> Spread | None:
    rooms = []
    for starts in product(*(shape.starts for shape in placed)):
        spans = sorted((start, start + shape.size) for start, shape in zip(starts, placed, strict=True))
        if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
            continue
        rooms.append(
            sum(
                all(begin >= end or begin + new_shape.size <= start for start, end in spans)
                for begin in new_shape.starts
            )
        )
    return Spread(min(rooms), max(rooms)) if rooms else None


@given(
    st.sampled_from([MIG, MIXED]).flatmap(
        lambda shapes: st.tuples(st.sampled_from(shapes), st.lists(st.sampled_from(shapes), max_size=4))
    )
)
def test_it_is_what_trying_every_place_finds(case: tuple[Shape, list[Shape]]) -> None:
    shape, placed = case
    assert spread(shape, tuple(placed)) == by_trying(shape, placed)
