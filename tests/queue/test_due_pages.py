"""When pages have to be examined, against a dict that is searched through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.queue.due_pages import DuePages

PAGES = st.integers(0, 40)
TIMES = st.integers(0, 8)
CHANGES = st.one_of(
    st.tuples(st.just("put"), PAGES, st.none() | TIMES),
    st.tuples(st.just("lower"), PAGES, TIMES),
    st.tuples(st.just("remove"), PAGES, st.none()),
    st.tuples(st.just("remove_all"), PAGES, st.none()),
    st.tuples(st.just("later"), PAGES, TIMES),
)


@given(st.lists(CHANGES, max_size=400))
def test_the_first_page_is_the_one_with_the_lowest_bound(changes: list[tuple[str, int, int | None]]) -> None:
    pages, model = DuePages(), dict[int, int]()
    for what, number, due_ms in changes:
        if what == "remove_all":
            pages.remove_all(range(number))
            model = {one: bound for one, bound in model.items() if one >= number}
        elif what == "lower" and due_ms is not None:
            pages.lower(number, due_ms)
            model[number] = min(due_ms, model.get(number, due_ms))
        elif what == "later":  # as a sweep does: the first page gets another bound
            first = pages.first()
            if first is not None:
                pages.put(first[1], first[0] + number)
                model[first[1]] = first[0] + number
        elif what == "put" and due_ms is not None:
            pages.put(number, due_ms)
            model[number] = due_ms
        else:
            pages.put(number, None) if what == "put" else pages.remove(number)
            model.pop(number, None)
        assert pages.bounds() == model
        assert pages.first() == min(((bound, one) for one, bound in model.items()), default=None)


def test_a_bound_that_changes_all_the_time_takes_no_more_room() -> None:
    pages = DuePages()
    pages.put(1, 0)
    for ms in range(10_000, 0, -1):
        pages.put(2, ms)
    assert pages.bounds() == {1: 0, 2: 1}
    assert len(pages._heap) < 100
