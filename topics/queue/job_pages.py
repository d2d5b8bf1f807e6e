"""The jobs of a queue in memory: pages of columns, a page for a run of seqs, and their form in a dump.

A *page* has a slot for each of `PAGE` seqs: page `n` those from `n * PAGE` on. A slot has a state, the number of
deliveries, the time at which it becomes free, a lease id and a holder, which is an index into the node names of the
page. A slot without a job has the state `ABSENT`; a page of such slots only is dropped (see `job_table`).

Values that a state does not need are zero: `due_ms` unless the job is leased, delayed or later, or has become free
after being later; the lease id and the holder unless leased; everything if absent. A kept job that is reserved (see
`leases`) has the flag `RESERVED` in its state code, so that a search for a state finds only jobs that may be changed.
A free job that waits for its key (`key_limit`) has it too, because claims must not find it.
Dumps are without the flag. The upper half of a state code is the *lane* of the job, which stands for its priority. It
is zero for the default priority, so a search for a state alone finds the jobs of that priority.

The form of a dump
------------------

A dump (`Leases.dump`, `FrozenLeases.dump`) is a map:

    cursor         every live seq up to it was leased once, and its job is in `pages` (see `leases`)
    dead_lettered  how many ever were
    to_epoch_ms    the window clock minus the monotonic one, when the dump was made
    page           PAGE; a dump with pages of another size is refused
    errors         pairs of a seq and the last error of its job, the oldest first; missing if there are none
    paused_until   epoch ms, or 0 for no end; missing if the queue is not paused
    results        a seq, a node and the bytes of a result each, the oldest ack first; missing if none waits
    pages          a list of pages, ascending by number, each of them a list:

    [number, states, deliveries, due_ms, lease_ids, holders, nodes]

    number      of the page
    states      PAGE bytes: 0 not kept, 1 free, 2 leased, 3 delayed, 4 parked, 5 later, 6 condemned, 7 completing; but
                for 0 plus 16 * (priority ^ 5), which is 0 for the default priority
    deliveries  u32 each
    due_ms      i64 each: leased, one past the deadline; delayed, its end; on the monotonic clock of the dumping
                process. Later, and free after it: the time of the job, in epoch ms of the wall clock
    lease_ids   u64 each
    holders     u16 each, an index into `nodes`
    nodes       strings: the holders, in the order of their first slots

`deliveries` to `holders` are bytes, little-endian, with one item for every kept job, in the order of the slots; a
column of zeros only is left empty. So the page of a single job is a little more than `PAGE` bytes, that of a full one,
leased by one node, 21 bytes a job.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from itertools import compress, count, islice
from typing import Any, Final

from topics.log.dumped_values import from_little_endian, little_endian

# Slots of a page. A page costs 800 bytes besides its slots, which is 3 for each of 256 jobs; a single job costs a whole
# page, 6.7 KB. With 128 slots it would be 6 bytes and 3.7 KB, but calls that visit all pages would visit twice as many.
# It takes 60 us to load a page, 15 us to find the job that is due next, and 1 us to copy a page.
PAGE = 256

ABSENT: Final = 0
FREE: Final = 1
LEASED: Final = 2
DELAYED: Final = 3
PARKED: Final = 4
LATER: Final = 5
CONDEMNED: Final = 6
COMPLETING: Final = 7
"""The states of slots, as dumps have them."""
STATES: Final = 8

PLAIN: Final = 0x07
RESERVED: Final = 0x08
LANE: Final = 0xF0
"""The parts of a state code: the state, a flag, and the lane."""

DEFAULT_PRIORITY: Final = 5
MOST_PRIORITY: Final = 9
LANES: Final = tuple((priority ^ DEFAULT_PRIORITY) << 4 for priority in range(MOST_PRIORITY + 1))
"""The lane of each priority."""
OTHER_LANES: Final = tuple(lane for lane in LANES if lane)
"""The lanes of all priorities but the default one."""


def mask_of(states: Iterable[int]) -> bytes:
    """Return the table that `bytes.translate` makes a mask with: which state codes are in one of `states`, reserved or
    not."""
    wanted = frozenset(states)
    return bytes(code & PLAIN in wanted for code in range(256))


@lru_cache(maxsize=16)
def without_fresh(mask: bytes) -> bytes:
    """Return a mask without `ABSENT`: only kept jobs have its states."""
    return bytes(mask[code] and code & PLAIN != ABSENT for code in range(256)) if mask[ABSENT] else mask


def priority_of(code: int) -> int:
    """Return the priority of a job with this state code."""
    return (code >> 4) ^ DEFAULT_PRIORITY


# Times are cut to this many ms from the origin of the clock, in both directions, so that they fit into 64-bit columns.
FAR_MS: Final = 1 << 62

# Where deliveries are unlimited, counting stops here.
_MOST_DELIVERIES: Final = (1 << 32) - 1

_MOST_SEQ: Final = (1 << 64) - 1
_TO_PLAIN: Final = bytes(code & PLAIN for code in range(256))
WITHOUT_FLAG: Final = bytes(code & ~RESERVED for code in range(256))
"""Translates state codes to those without the flag, as dumps have them."""
_IF_DUE: Final = bytes(code & ~LANE in (LEASED, DELAYED) for code in range(256))
_IF_LATER: Final = bytes(code & ~LANE == LATER for code in range(256))
_IF_UNTIMED: Final = bytes(code & PLAIN in (ABSENT, PARKED, CONDEMNED, COMPLETING) for code in range(256))
_IF_NOT_LEASED: Final = bytes(code & PLAIN != LEASED for code in range(256))
_IF_CLAIMED: Final = bytes(code & PLAIN in (LEASED, PARKED) for code in range(256))
_IF_STATE: Final = [bytes(code & PLAIN == state for code in range(256)) for state in range(STATES)]
_KNOWN_STATES: Final = bytes([ABSENT, *(lane | state for lane in LANES for state in range(FREE, STATES))])


class JobPage:
    """The jobs of `PAGE` neighbouring seqs, in columns.

    `born` is the generation of the table that may change this page (`job_table`). `counts` has the number of slots in
    each state, reserved or not. `mixed` is False if all jobs have the default priority. Some of `nodes` may no longer
    be used by any slot. While no job of the page was claimed (`claimed`), the columns of claims are zeros that all such
    pages share: a job that only waits for its time takes 9 bytes.
    """

    __slots__ = (
        "born",
        "claimed",
        "counts",
        "deliveries",
        "due_ms",
        "holders",
        "lease_ids",
        "mixed",
        "nodes",
        "states",
    )

    def __init__(self, born: int) -> None:
        self.born = born
        self.counts = [PAGE, *[0] * (STATES - 1)]
        self.states = bytearray(PAGE)
        self.due_ms = array("q", bytes(8 * PAGE))
        self.claimed = False
        # Zeros may be written to these, and nothing else: see `lease`.
        self.deliveries = _zeros("I", PAGE)
        self.lease_ids = _zeros("Q", PAGE)
        self.holders = _zeros("H", PAGE)
        self.nodes: tuple[str, ...] = ()
        self.mixed = False

    def copy(self, born: int) -> JobPage:
        """Return a copy for generation `born` that can be changed independently."""
        page = JobPage.__new__(JobPage)
        page.born = born
        page.counts = self.counts[:]
        page.states = self.states[:]
        page.deliveries = self.deliveries
        page.due_ms = self.due_ms[:]
        page.lease_ids = self.lease_ids
        page.holders = self.holders
        page.claimed = False
        if self.claimed:
            page._own_claims()
        page.nodes = self.nodes
        page.mixed = self.mixed
        return page

    # -- as it is ----------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Return True if no job is kept."""
        return self.counts[ABSENT] == len(self.states)

    def seqs(self, number: int) -> array[int]:
        """Return the kept seqs, ascending, given that this is page `number`."""
        return array("Q", compress(count(number * len(self.states)), self.states))

    def seqs_in(self, number: int, state: int) -> array[int]:
        """Return the seqs in `state`, reserved or not, ascending."""
        return array("Q", compress(count(number * len(self.states)), self.states.translate(_IF_STATE[state])))

    def seqs_among(self, number: int, mask: bytes, first: int, last: int) -> array[int]:
        """Return the seqs of page `number` from `first` to `last` whose states `mask` (`mask_of`) has, ascending."""
        base = number * len(self.states)
        a, b = max(first - base, 0), min(last - base + 1, len(self.states))
        return array("Q", compress(count(base + a), self.states[a:b].translate(mask)))

    def next_due(self) -> int | None:
        """Return when time frees the first job that is not reserved (monotonic ms), None if it frees none."""
        return min(compress(self.due_ms, self.states.translate(_IF_DUE)), default=None)

    def over(self, now_ms: int) -> tuple[list[int], int | None]:
        """Return the slots whose lease or delay has ended by `now_ms`, without reserved ones, and when time frees the
        first of the others, None if it frees none."""
        timed = self.states.translate(_IF_DUE)
        times = list(compress(self.due_ms, timed))
        first = min(times, default=None)
        if first is None or first > now_ms:
            return [], first
        left = [due_ms for due_ms in times if due_ms > now_ms]
        if len(times) - len(left) == 1:  # so it is where times are spread over many pages
            return [next(islice(compress(count(), timed), times.index(first), None))], min(left, default=None)
        over = [slot for slot, due_ms in zip(compress(count(), timed), times, strict=True) if due_ms <= now_ms]
        return over, min(left, default=None)

    def next_later(self) -> int | None:
        """Return the time of the first job that is later (epoch ms), None if there is none."""
        return min(compress(self.due_ms, self.states.translate(_IF_LATER)), default=None)

    def later_slots(self) -> bytes:
        """Return the slots of the jobs that are later, in the order of their times."""
        later = compress(range(len(self.states)), self.states.translate(_IF_LATER))
        return bytes(sorted(later, key=self.due_ms.__getitem__))

    def priority(self, slot: int) -> int:
        """Return the priority of the job in `slot`; the default one if there is none."""
        return priority_of(self.states[slot])

    def holder(self, slot: int) -> str | None:
        """Return the node that holds the job in `slot`, None unless it is leased."""
        return self.nodes[self.holders[slot]] if self.states[slot] & PLAIN == LEASED else None

    # -- changes -----------------------------------------------------------------------------------------------------

    def reserve(self, slot: int) -> None:
        """Flag the job in `slot` as reserved. There must be one."""
        self.states[slot] |= RESERVED

    def unreserve(self, slot: int) -> int:
        """Remove the flag. Returns the state."""
        code = self.states[slot]
        self.states[slot] = code & ~RESERVED
        return code & PLAIN

    def lease(self, slot: int, holder: int, lease_id: int, due_ms: int) -> None:
        """Lease the job, from any state, and count a delivery. `holder` comes from `index_of`."""
        if not self.claimed:
            self._own_claims()
        counts = self.counts
        code = self.states[slot]
        counts[code & PLAIN] -= 1
        counts[LEASED] += 1
        self.states[slot] = code & LANE | LEASED
        if self.deliveries[slot] < _MOST_DELIVERIES:
            self.deliveries[slot] += 1
        self.due_ms[slot] = due_ms
        self.lease_ids[slot] = lease_id
        self.holders[slot] = holder

    def _own_claims(self) -> None:
        """Make the columns of claims its own: they may be those of other pages."""
        self.deliveries, self.lease_ids, self.holders = self.deliveries[:], self.lease_ids[:], self.holders[:]
        self.claimed = True

    def move(self, slot: int, state: int, due_ms: int = 0) -> None:
        """Set a state other than leased. `due_ms` is for `DELAYED` and `LATER`."""
        counts = self.counts
        code = self.states[slot]
        counts[code & PLAIN] -= 1
        counts[state] += 1
        self.states[slot] = code & LANE | state if state else ABSENT
        self.due_ms[slot] = due_ms
        self.lease_ids[slot] = 0
        self.holders[slot] = 0

    def prioritize(self, slot: int, priority: int) -> None:
        """Set the priority of the job in `slot`, which is not reserved. There must be one."""
        self.states[slot] = self.states[slot] & PLAIN | LANES[priority]
        self.mixed |= priority != DEFAULT_PRIORITY

    def uncount(self, slot: int) -> None:
        """Take back the delivery that was counted last."""
        if 0 < self.deliveries[slot] < _MOST_DELIVERIES:
            self.deliveries[slot] -= 1

    def free(self, slots: Sequence[int]) -> None:
        """Make many leased or delayed jobs free."""
        states, due_ms, lease_ids, holders = self.states, self.due_ms, self.lease_ids, self.holders
        leased = 0
        for slot in slots:
            code = states[slot]
            leased += code & PLAIN == LEASED
            states[slot] = code & LANE | FREE
            due_ms[slot] = lease_ids[slot] = holders[slot] = 0
        self.counts[FREE] += len(slots)
        self.counts[LEASED] -= leased
        self.counts[DELAYED] -= len(slots) - leased

    def free_later(self, slots: Sequence[int]) -> None:
        """Make many jobs free that were later. They keep their times."""
        for slot in slots:
            self.states[slot] = self.states[slot] & LANE | FREE
        self.counts[FREE] += len(slots)
        self.counts[LATER] -= len(slots)

    def forget(self, slot: int) -> int:
        """Remove the job from `slot`. Returns the state it was in."""
        state = self.states[slot] & PLAIN
        if state != ABSENT:
            self.move(slot, ABSENT)
            self.deliveries[slot] = 0
        return state

    def index_of(self, node: str) -> int:
        """Return the index that stands for `node`, adding the name if it is new."""
        if node not in self.nodes:
            if len(self.nodes) >= 2 * len(self.states):
                # At least half of the names are out of use.
                self.nodes, self.holders = self._packed_nodes()
            self.nodes = (*self.nodes, sys.intern(node))
        return self.nodes.index(node)

    def _packed_nodes(self) -> tuple[tuple[str, ...], array[int]]:
        """Return the node names in use, in the order of their first slots, and the holders renumbered to fit."""
        if len(self.nodes) == 1 or not self.counts[LEASED]:
            return self.nodes[: self.counts[LEASED]], self.holders
        leased = self.states.translate(_IF_STATE[LEASED])
        used = {holder: i for i, holder in enumerate(dict.fromkeys(compress(self.holders, leased)))}
        if all(old == new for old, new in used.items()):
            return self.nodes[: len(used)], self.holders
        holders = array("H", [used[holder] if here else 0 for holder, here in zip(self.holders, leased, strict=True)])
        return tuple(self.nodes[holder] for holder in used), holders

    # -- dumps -------------------------------------------------------------------------------------------------------

    def dump(self, number: int) -> list[Any]:
        """Return page `number` in the form described above. Changes nothing, so it may run in another thread."""
        states = bytes(self.states.translate(WITHOUT_FLAG))
        nodes, holders = self._packed_nodes()
        columns = (self.deliveries, self.due_ms, self.lease_ids, holders)
        return [number, states, *(_packed(column, states) for column in columns), list(nodes)]

    @classmethod
    def load(cls, value: object, shift_ms: int, latest_ms: int) -> tuple[int, JobPage, int | None]:
        """Return number, page and `next_due` of a dumped page. Times become `shift_ms` later, but no deadline and no
        end of a delay is after `latest_ms`.

        Raises ValueError if `value` is not what `dump` returns.
        """
        if not isinstance(value, list | tuple) or len(value) != 7:
            raise ValueError("lease dump: a page is not seven items")
        number, states, *columns, nodes = value
        if type(number) is not int or not 0 <= number <= _MOST_SEQ // PAGE:
            raise ValueError("lease dump: bad page number")
        if type(states) is not bytes or len(states) != PAGE or states.translate(None, _KNOWN_STATES):
            raise ValueError("lease dump: bad states")
        page = cls.__new__(cls)
        page.born = 0
        page.states = bytearray(states)
        plain = states.translate(_TO_PLAIN)
        page.counts = [plain.count(state) for state in range(STATES)]
        page.mixed = plain != states
        if page.is_empty or (number == 0 and states[0] != ABSENT):
            raise ValueError("lease dump: a page of nothing, or a job 0")
        page.deliveries, page.due_ms, page.lease_ids, page.holders = (
            _unpacked(typecode, column, page) for typecode, column in zip("IqQH", columns, strict=True)
        )
        page.claimed = False
        if columns[0] or columns[2] or columns[3]:
            page._own_claims()
        page.nodes = _nodes_of(nodes)
        page._check_loaded()
        return number, page, page._shift(shift_ms, latest_ms)

    def _check_loaded(self) -> None:
        """Raise ValueError if a column has a value that a slot of that state cannot have."""
        states = self.states
        if not all(self.deliveries) and not all(compress(self.deliveries, states.translate(_IF_CLAIMED))):
            raise ValueError("lease dump: a leased or parked job that was never claimed")
        if self.counts[LEASED] < PAGE and (
            any(compress(self.due_ms, states.translate(_IF_UNTIMED)))
            or any(compress(self.lease_ids, states.translate(_IF_NOT_LEASED)))
            or any(compress(self.holders, states.translate(_IF_NOT_LEASED)))
        ):
            raise ValueError("lease dump: the time or the holder of a job that has none")
        # Most pages have one node, and all holders are zero.
        used: Iterable[int] = range(bool(self.counts[LEASED]))
        if any(self.holders):
            used = dict.fromkeys(compress(self.holders, states.translate(_IF_STATE[LEASED])))
        if list(used) != list(range(len(self.nodes))):
            raise ValueError("lease dump: holders that are not those of the page")

    def _shift(self, shift_ms: int, latest_ms: int) -> int | None:
        timed = self.states.translate(_IF_DUE)
        times = self.due_ms.tolist() if all(timed) else list(compress(self.due_ms, timed))
        if not times:
            return None
        different = set(times)
        first, last = min(different) + shift_ms, max(different) + shift_ms
        if len(times) == len(timed) and -FAR_MS <= first <= last <= latest_ms:
            self.due_ms = array("q", [due_ms + shift_ms for due_ms in times])
            return first
        for slot in compress(count(), timed):
            latest = latest_ms + (self.states[slot] & PLAIN == LEASED)
            self.due_ms[slot] = max(-FAR_MS, min(self.due_ms[slot] + shift_ms, latest))
        return self.next_due()

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert the invariants of a page."""
        n = len(self.states)
        plain = self.states.translate(_TO_PLAIN)
        assert n == len(self.deliveries) == len(self.due_ms) == len(self.lease_ids) == len(self.holders)
        assert self.counts == [plain.count(state) for state in range(STATES)], self.counts
        assert RESERVED not in self.states
        assert not self.states.translate(None, _KNOWN_STATES + bytes(code | RESERVED for code in _KNOWN_STATES))
        assert self.mixed or not any(code & LANE for code in self.states)
        assert len(self.nodes) == len(set(self.nodes)) <= 2 * n, self.nodes
        for slot, state in enumerate(plain):
            assert self.deliveries[slot] > 0 or state not in (LEASED, PARKED), slot
            assert self.deliveries[slot] == 0 or state != ABSENT, slot
            assert state in (LEASED, DELAYED, LATER, FREE) or self.due_ms[slot] == 0, slot
            assert state == LEASED or self.lease_ids[slot] == self.holders[slot] == 0, slot
            assert state != LEASED or self.holders[slot] < len(self.nodes), slot


@cache
def _zeros(typecode: str, n: int) -> array[int]:
    """The column of all pages that have only zeros in it."""
    return array(typecode, (0,)) * n


def _packed(column: array[int], states: bytes) -> bytes:
    if not any(column):
        return b""
    return little_endian(array(column.typecode, compress(column, states)) if ABSENT in states else column)


def _unpacked(typecode: str, column: object, page: JobPage) -> array[int]:
    values = from_little_endian(typecode, column)
    kept = PAGE - page.counts[ABSENT]
    if len(values) == kept == PAGE:
        return values
    if not values:
        return _zeros(typecode, PAGE) if typecode != "q" else array(typecode, bytes(values.itemsize * PAGE))
    out = array(typecode, bytes(values.itemsize * PAGE))
    if len(values) != kept:
        raise ValueError(f"lease dump: {len(values)} items for {kept} jobs")
    for slot, item in zip(compress(count(), page.states), values, strict=True):
        out[slot] = item
    return out


def _nodes_of(value: object) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > PAGE or not all(type(node) is str for node in value):
        raise ValueError("lease dump: bad node names")
    if len(set(value)) != len(value):
        raise ValueError("lease dump: a node name twice")
    return tuple(map(sys.intern, value))
