"""Evidence over HTTP (`docs/spec/evidence.md` section 1). Another implementation of signed notes and of Merkle proofs
checks all of it, from the records as readers get them."""

from __future__ import annotations

import json
import signal
from base64 import b64decode
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tlog_scales.signing import Vkey
from tlog_scales.tlog import Checkpoint, ConsistencyProof, InclusionProof

from tests.conformance.client import JSON_TYPE, Client, Daemon, error_of, invalid, running

BLANK = sha256(b"\x00").digest()


def leaf_of(epoch: int, record: dict[str, Any]) -> bytes:
    """The leaf of a record, as the specification says it. The record was written without blanks in its JSON."""
    parts = [
        record.get("$node", "").encode(),
        record.get("$tag", "").encode(),
        dumped(record["meta"]) if record.get("meta") is not None else b"",
        dumped(record["data"]),
    ]
    head = b"\x00" + b"".join(number.to_bytes(8, "little") for number in (epoch, record["$seq"], record["$ts"]))
    return sha256(head + b"".join(len(part).to_bytes(4, "little") + part for part in parts)).digest()


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def key_of(client: Client) -> Vkey:
    answer = client.get("/v0/evidence/key")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain")
    return Vkey.from_string(answer.text.strip())


def checkpoint(client: Client, topic: str, key: Vkey) -> Checkpoint:
    """A checkpoint of a topic, verified; as text and as JSON it is the same."""
    text = client.get(f"/v0/topics/{topic}/evidence", headers={"accept": "*/*"})
    assert text.status_code == 200, text.text
    assert text.headers["content-type"] == "text/plain; charset=utf-8"
    found = Checkpoint.from_text(text.text)
    found.verify(key)
    answer = client.get(f"/v0/topics/{topic}/evidence", headers={"accept": JSON_TYPE}).json()
    epoch = client.state(topic)["epoch"]
    assert answer.keys() == {"topic", "epoch", "origin", "start_seq", "size", "root", "note"}
    assert (answer["topic"], answer["epoch"]) == (topic, epoch)
    tree = answer["origin"].split("/")[1]
    assert answer["origin"] == f"topics/{tree}/{topic}/{epoch}"
    other = Checkpoint.from_text(answer["note"])
    other.verify(key)
    assert (answer["origin"], answer["size"], b64decode(answer["root"])) == (other.origin, other.size, other.root_hash)
    if other.size == found.size:
        assert other.serialize() == found.serialize()
    return other


def inclusion(client: Client, topic: str, seq: int, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/v0/topics/{topic}/evidence/inclusion", params={"seq": seq, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def check_record(client: Client, topic: str, record: dict[str, Any], head: Checkpoint) -> None:
    """A record is in the tree of a checkpoint, and is what it was."""
    proof = inclusion(client, topic, record["$seq"], size=head.size)
    leaf = leaf_of(client.state(topic)["epoch"], record)
    assert b64decode(proof["leaf"]) == leaf
    hashes = [b64decode(one) for one in proof["hashes"]]
    InclusionProof(proof["index"], head.size, hashes).check(leaf, head.root_hash)


def check_growth(client: Client, topic: str, first: Checkpoint, second: Checkpoint) -> None:
    """The tree of one checkpoint is the beginning of that of another."""
    assert first.origin == second.origin
    query = {"from": first.size, "to": second.size}
    answer = client.get(f"/v0/topics/{topic}/evidence/consistency", params=query).json()
    assert (answer["from"], answer["to"]) == (first.size, second.size)
    hashes = [b64decode(one) for one in answer["hashes"]]
    ConsistencyProof(first.size, second.size, hashes).check(first.root_hash, second.root_hash)


def full_records(count: int) -> list[dict[str, Any]]:
    """Records with every part that a record can have, in turn."""
    made: list[dict[str, Any]] = []
    for i in range(count):
        record: dict[str, Any] = {"data": {"n": i, "text": "ä" * i}}
        if i % 2:
            record["tag"] = f"tag-{i % 3}"
        if i % 3:
            record["node"] = "eü"
        if i % 4 == 1:
            record["meta"] = {"m": str(i)}
        made.append(record)
    return made


def test_every_record_is_proved_and_every_checkpoint_is_a_beginning_of_the_next(client: Client, topic: str) -> None:
    key = key_of(client)
    client.put_topic(topic, durability="fsync", evidence=True)
    empty = checkpoint(client, topic, key)
    assert (empty.size, empty.root_hash) == (0, sha256().digest())
    heads = []
    for count in (1, 2, 30, 5):
        client.append(topic, records=full_records(count))
        heads.append(checkpoint(client, topic, key))
    assert [head.size for head in heads] == [1, 3, 33, 38]
    for head in heads:
        for record in client.read(topic, include_tags=True)["records"][: head.size]:
            check_record(client, topic, record, head)
        check_growth(client, topic, head, heads[-1])


def test_content_that_goes_leaves_the_proofs_of_all_others_good(client: Client, topic: str) -> None:
    key = key_of(client)
    client.put_topic(topic, durability="fsync", evidence=True, keep_per_tag=1, cap_records=6)
    client.tagged(topic, "a", "b", "c", "d", "e", "f")
    before = checkpoint(client, topic, key)
    gone = inclusion(client, topic, 2)
    client.tagged(topic, "a", "a")  # takes 1 and 7 away
    client.delete_records(topic, match="b")
    client.append(topic, 1, 2, 3, 4)
    after = checkpoint(client, topic, key)
    assert after.size == 12
    check_growth(client, topic, before, after)
    left = client.read(topic, include_tags=True)["records"]
    assert 1 < len(left) <= 6
    for record in left:
        check_record(client, topic, record, after)
    hashes = [b64decode(one) for one in inclusion(client, topic, 2)["hashes"]]
    InclusionProof(1, after.size, hashes).check(b64decode(gone["leaf"]), after.root_hash)


def test_evidence_can_begin_later(client: Client, topic: str) -> None:
    key = key_of(client)
    client.append(topic, 1, 2, config={"durability": "disk"})
    error_of(client.get(f"/v0/topics/{topic}/evidence"), 409, "no_evidence")
    client.put_topic(topic, durability="fsync", evidence=True)
    client.append(topic, 3)
    answer = client.get(f"/v0/topics/{topic}/evidence", headers={"accept": JSON_TYPE}).json()
    assert (answer["start_seq"], answer["size"]) == (3, 1)
    check_record(client, topic, client.read(topic, from_seq=2)["records"][0], checkpoint(client, topic, key))
    error_of(client.get(f"/v0/topics/{topic}/evidence/inclusion?seq=2"), 404, "record_not_found")
    assert client.put(f"/v0/topics/{topic}", json={"evidence": True}).status_code == 200


def test_only_records_that_are_on_disk_have_evidence(client: Client, topic: str) -> None:
    for durability in ("ephemeral", "memory", "disk"):
        config = {"durability": durability, "evidence": True}
        invalid(client.put(f"/v0/topics/{topic}", json=config), "durability")
    client.put_topic(topic, durability="fsync", evidence=True)
    assert client.state(topic)["config"]["evidence"] is True
    invalid(client.put(f"/v0/topics/{topic}", json={"evidence": False}), "evidence")
    invalid(client.put(f"/v0/topics/{topic}", json={"durability": "memory"}), "durability")
    invalid(client.put(f"/v0/topics/{topic}", json={"evidence": "yes"}), "evidence")


@pytest.mark.parametrize(
    ("call", "field"),
    [
        ("inclusion", "seq"),
        ("inclusion?seq=x", "seq"),
        ("inclusion?seq=1&size=0", "size"),
        ("inclusion?seq=1&size=4", "size"),
        ("inclusion?seq=1&size=-1", "size"),
        ("consistency", "from"),
        ("consistency?from=0&to=1", "from"),
        ("consistency?from=3&to=2", "from"),
        ("consistency?from=1&to=4", "to"),
        ("consistency?from=1&to=0", "to"),
        ("consistency?from=99999999999999999999999", "from"),
    ],
)
def test_what_cannot_be_proved_is_refused(client: Client, call: str, field: str) -> None:
    client.put_topic("refusals", durability="fsync", evidence=True)
    if not client.state("refusals")["head_seq"]:
        client.append("refusals", 1, 2, 3)
    invalid(client.get(f"/v0/topics/refusals/evidence/{call}"), field)


def test_a_seq_outside_the_tree_is_no_record(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, config={"durability": "fsync", "evidence": True})
    for query in ("seq=0", "seq=3", "seq=2&size=1", f"seq={1 << 63}"):
        error_of(client.get(f"/v0/topics/{topic}/evidence/inclusion?{query}"), 404, "record_not_found")
    for call in ("evidence", "evidence/inclusion?seq=1", "evidence/consistency?from=1"):
        error_of(client.get(f"/v0/topics/none-{topic}/{call}"), 404, "topic_not_found")


def test_records_that_came_otherwise_have_leaves_too(client: Client, topic: str) -> None:
    """Copies of a router, stages, transactions, raw bytes, and records with a schedule's or a queue's hand in them."""
    key = key_of(client)
    source, queue = f"source-{topic}", f"queue-{topic}"
    client.put_topic(topic, durability="fsync", evidence=True)
    client.put_topic(queue, type="queue", durability="fsync", evidence=True)
    client.append(source, records=full_records(5), config={"durability": "disk"})
    router = {"source": source, "dest": topic, "from": "earliest"}
    assert client.put(f"/v0/routers/{topic}", json=router).status_code in (200, 201)
    staged = client.post(f"/v0/topics/{topic}?stage=s", json={"records": full_records(4)})
    assert staged.status_code in (200, 201), staged.text
    client.read(topic)  # forwards first
    commit = client.post(f"/v0/topics/{topic}/commit", json={"stages": ["s"], "idempotency_key": "k"})
    assert commit.status_code in (200, 201), commit.text
    appends = [{"topic": name, "records": full_records(3)} for name in (topic, queue)]
    assert client.post("/v0/transactions", json={"appends": appends, "idempotency_key": "k"}).status_code in (200, 201)
    client.append_raw(topic, b'{"n":1}')
    for name in (topic, queue):
        head = checkpoint(client, name, key)
        records = client.read(name, include_tags=True, include_meta=True)["records"]
        assert len(records) == head.size >= 3
        for record in records:
            check_record(client, name, record, head)


def test_checkpoints_hold_over_restarts(tmp_path: Path) -> None:
    """Records, deletions, segments, and a kill at the end: the same tree goes on, signed by the same key."""
    settings = {"segment_max_events": 20, "checkpoint_ms": 100}
    with running(tmp_path, **settings) as client:
        key = key_of(client)
        client.put_topic("t", durability="fsync", evidence=True)
        for i in range(5):
            client.append("t", records=full_records(15))
            client.delete_records("t", before_seq=5 * i)
            client.post("/v0/admin/checkpoint")
        first = checkpoint(client, "t", key)
        daemon: Daemon = client.daemon
        with closing(daemon.restart(signal.SIGKILL)) as again:
            assert str(key_of(again)) == str(key)
            assert checkpoint(again, "t", key).serialize() == first.serialize()
            again.append("t", 1)
            second = checkpoint(again, "t", key)
            check_growth(again, "t", first, second)
        with closing(daemon.restart(signal.SIGTERM)) as again:
            for record in again.read("t", include_tags=True, include_meta=True)["records"]:
                check_record(again, "t", record, second)
            check_growth(again, "t", first, second)
    key_file = tmp_path / "data" / "meta" / "evidence-key.pem"
    assert key_file.stat().st_mode & 0o777 == 0o600
