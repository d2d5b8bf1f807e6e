"""Leases: an owner stops before anybody may take the prefix, also if answers are lost or late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bucket.simulated_objects import SimFault, SimObjects, given_faults
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_format import Owner, SeenOwner, decode_owner, encode_owner
from topics.bucket.ownership.owner_watch import OwnerWatch, TakeReason
from topics.errors import ApiError

LEASE_MS = 12_000

FAULTS = [None, *(fault for fault in SimFault if not fault.value.startswith("hang"))]


def an_owner(**changes: object) -> Owner:
    fields: dict[str, object] = {
        "epoch": 3,
        "node": "a",
        "dir": "d1",
        "state": "held",
        "nonce": "n1",
        "url": "http://a",
        "lease_ms": LEASE_MS,
        "round": 7,
    }
    return Owner(**{**fields, **changes})  # type: ignore[arg-type]


class Machine:
    """A clock that a test sets, and an owner with a lease."""

    def __init__(self, objects: SimObjects, owner: Owner | None = None) -> None:
        self.objects = objects
        self.now = 1_000_000
        owner = owner or an_owner()
        self.lease = Lease(owner.lease_ms, self.now, lambda: self.now)
        held = SeenOwner(owner, objects.put_new("owner", encode_owner(owner)))
        self.keeper = LeaseKeeper(objects, self.lease, held, lambda: self.now)

    @property
    def there(self) -> Owner:
        return decode_owner(self.objects.objects["owner"])


def seen_in(objects: SimObjects) -> SeenOwner:
    found = objects.get("owner", 1 << 20)
    return SeenOwner(decode_owner(found.data), found.etag)


def test_an_owner_stops_at_five_sixths_of_the_lease_and_never_begins_again() -> None:
    machine = Machine(SimObjects())
    machine.now += LEASE_MS * 5 // 6 - 1
    machine.lease.check()
    assert machine.lease.left_ms == 1
    machine.now += 1
    with pytest.raises(ApiError, match="not_owner"):
        machine.lease.check()
    machine.now -= LEASE_MS
    machine.lease.renewed(machine.now)
    assert not machine.lease.is_held
    assert machine.lease.left_ms == 0


def test_a_renewal_counts_from_before_it_was_sent() -> None:
    machine = Machine(SimObjects())
    sent = machine.now + 4000
    machine.now = sent

    def slow(op: str, name: str) -> SimFault | None:
        machine.now += 3000  # the call takes so long
        return None

    machine.objects.faults = slow
    pause = machine.keeper.step()
    assert machine.lease.until_ms == sent + LEASE_MS * 5 // 6
    assert pause == 1000  # the third of the lease has begun when it was sent
    assert machine.there.renewals == 1


def test_a_renewal_whose_answer_was_lost_counts_from_its_first_attempt_and_is_not_made_anew() -> None:
    machine = Machine(SimObjects())
    machine.objects.faults = given_faults([SimFault.AFTER, SimFault.BEFORE])
    first = machine.now
    machine.keeper.step()  # it was put; neither that nor what is there is known
    assert machine.lease.until_ms == first + LEASE_MS * 5 // 6
    machine.now += 2000
    machine.keeper.round = 9
    machine.keeper.step()  # the same bytes: the ETag has changed, and they are there
    assert (machine.there.renewals, machine.there.round) == (1, 7)
    assert machine.lease.until_ms == first + LEASE_MS * 5 // 6
    machine.keeper.step()
    assert (machine.there.renewals, machine.there.round) == (2, 9)
    assert machine.lease.until_ms == machine.now + LEASE_MS * 5 // 6


@pytest.mark.parametrize("other", [an_owner(epoch=4, node="b", dir="d2", nonce="n2", url="http://b"), None])
def test_an_owner_that_was_replaced_or_deleted_is_none_at_once(other: Owner | None) -> None:
    machine = Machine(SimObjects())
    if other is None:
        machine.objects.delete(["owner"])
    else:
        machine.objects.put_if("owner", encode_owner(other), seen_in(machine.objects).etag)
    machine.keeper.step()
    assert not machine.lease.is_held
    with pytest.raises(ApiError) as refused:
        machine.lease.check()
    assert refused.value.detail == {"owner": "http://b" if other is not None else None, "refused": False}


def test_the_prefix_is_taken_at_once_if_it_is_absent_given_up_or_ours() -> None:
    watch = OwnerWatch("d2")
    assert watch.claim(0) is None  # nobody has looked
    watch.note(None, 0)
    assert watch.claim(0) is TakeReason.ABSENT
    watch.note(SeenOwner(an_owner(state="free"), "1"), 0)
    assert watch.claim(0) is TakeReason.FREE
    watch.note(SeenOwner(an_owner(dir="d2"), "2"), 0)
    assert watch.claim(0) is TakeReason.OWN
    watch.note(SeenOwner(an_owner(), "3"), 0)
    assert watch.claim(0) is None


def test_an_owner_that_somebody_has_removed_is_waited_for_like_one_that_does_not_renew() -> None:
    watch = OwnerWatch("d2")
    watch.note(SeenOwner(an_owner(lease_ms=500), "1"), 100)
    watch.note(None, 300)
    assert watch.claim(799) is None, "it may not know yet"
    assert watch.claim(800) is TakeReason.ABSENT


def test_the_lease_in_the_object_counts_and_0_is_for_ever() -> None:
    watch = OwnerWatch("d2")
    watch.note(SeenOwner(an_owner(lease_ms=500), "1"), 100)
    watch.note(SeenOwner(an_owner(lease_ms=500), "another ETag of the same bytes"), 300)
    assert (watch.claim(599), watch.left_ms(599)) == (None, 1)
    assert watch.claim(600) is TakeReason.LAPSED
    watch.note(SeenOwner(an_owner(lease_ms=500, renewals=1), "2"), 600)
    assert watch.claim(1099) is None
    watch.note(SeenOwner(an_owner(lease_ms=0), "3"), 600)
    assert watch.claim(1 << 60) is None
    assert watch.left_ms(1 << 60) is None


@given(
    st.lists(st.tuples(st.integers(0, 9000), st.sampled_from(FAULTS)), max_size=20),
    st.lists(st.integers(1, 3000), min_size=1, max_size=60),
    st.sampled_from([0.86, 0.95, 1.0, 1.05, 1.16]),
)
def test_nobody_takes_the_prefix_while_its_owner_acts(
    steps: list[tuple[int, SimFault | None]], looks: list[int], rate: float
) -> None:
    """The owner renews at any times, with any faults, and its clock runs up to a sixth faster or slower than that of
    the taker, who looks at any times."""
    objects = SimObjects()
    machine = Machine(objects)
    watch = OwnerWatch("d2")
    renewals = []
    at = 0
    for pause, fault in steps:
        at += pause
        renewals.append((at, fault))
    events = [(at, 0, fault) for at, fault in renewals]
    at = 0
    for pause in looks:
        at += pause
        events.append((at, 1, None))
    began = machine.now
    for true_ms, who, fault in sorted(events, key=lambda event: event[:2]):
        machine.now = began + int(true_ms * rate)
        objects.faults = given_faults([fault] if who == 0 else [])
        if who == 0 and machine.lease.is_held:
            machine.keeper.step()
        elif who == 1:
            watch.note(seen_in(objects), true_ms)
            if watch.claim(true_ms) is TakeReason.LAPSED:
                assert not machine.lease.is_held
                return
