"""Options are checked once, by name, before anything is asked of a daemon."""

from __future__ import annotations

import pickle

import pytest

from topics.spark.options import AsOf, Bound, OptionError, ReadOptions, WriteOptions
from topics.spark.schema import COLUMNS, GAP_COLUMNS

URL = "http://127.0.0.1:4000"
LEAST = {"url": URL, "topic": "orders"}


def parsed(**options: str) -> ReadOptions:
    return ReadOptions.parsed(LEAST | options)


def refused(**options: str) -> str:
    with pytest.raises(OptionError) as failure:
        ReadOptions.parsed({name: text for name, text in (LEAST | options).items() if text != "-"})
    return str(failure.value)


def test_with_a_url_and_a_topic_everything_of_it_is_read() -> None:
    options = parsed()
    assert options.topics == ("orders",)
    assert options.daemon is not None
    assert options.daemon.url == URL
    assert (options.starting, options.ending) == (Bound("earliest"), Bound("latest"))
    assert (options.records_per_partition, options.max_records_per_trigger) == (100_000, None)
    assert (options.fail_on_data_loss, options.tombstones, options.pushdown) == (True, False, False)
    assert options.columns == COLUMNS
    assert options.nodes == ()


def test_names_of_options_ignore_case_as_sparks_do() -> None:
    assert ReadOptions.parsed({"URL": URL, "topicprefix": "ord", "STARTINGSEQ": "7"}).starting == Bound(7)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"statringSeq": "1"}, "statringSeq: is no option of topics here; there are url, token"),
        ({"jobId": "x"}, "jobId: is no option of topics here"),
        ({"url": "-"}, "url: is missing"),
        ({"url": "here:4000"}, "url: is not like http://host:4000"),
        ({"url": "http://user:secret@host"}, "url: holds a password"),
        ({"path": "/data"}, "path: is read without a daemon, so it excludes `url`"),
        ({"url": "-", "path": "/data", "tokenEnv": "KEY"}, "tokenEnv: is of use with `url` only"),
        ({"coldPath": "/cold"}, "coldPath: is of use with `path` only"),
        ({"token": "k", "tokenEnv": "KEY"}, "token: excludes `tokenEnv`"),
        ({"tokenEnv": "k-7f3a"}, "tokenEnv: takes the name of an environment variable"),
        ({"topics": "a,b"}, "topic: give exactly one of `topic`, `topics`"),
        ({"topic": "-"}, "topic: give exactly one of"),
        ({"topic": "-", "topics": "a, b c"}, "topics: 'b c' is no name of a topic"),
        ({"topic": "-", "topicPrefix": "/"}, "topicPrefix: no topic begins with '/'"),
        ({"topic": " "}, "topic: is empty"),
        ({"startingSeq": "0"}, "startingSeq: takes a seq from 1 on, `earliest`, `latest`, or JSON"),
        ({"startingSeq": "soon"}, "startingSeq: takes a seq"),
        ({"startingSeq": '{"orders": true}'}, "startingSeq: takes a seq"),
        ({"startingSeq": '{"orders": 3'}, "startingSeq: takes a seq"),
        ({"startingSeq": '{"other": 3}'}, "startingSeq: names 'other', which is not read"),
        ({"endingSeq": "earliest"}, "endingSeq: takes a seq from 1 on, `latest`, or JSON"),
        ({"recordsPerPartition": "0"}, "recordsPerPartition: takes a whole number from 1 on"),
        ({"maxRecordsPerTrigger": "1e6"}, "maxRecordsPerTrigger: takes a whole number from 1 on"),
        ({"maxRecordsPerTrigger": "9" * 30}, "maxRecordsPerTrigger: takes a whole number from 1 on"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss: takes true or false"),
        ({"columns": "seq,value"}, "columns: 'value' is none; it takes some of topic, seq"),
        ({"columns": "seq,seq"}, "columns: names one twice"),
        ({"columns": "seq,reason"}, "columns: 'reason' is none"),
        ({"columns": "seq,tag", "tombstones": "true"}, "columns: with `tombstones` it needs one of gap_from"),
        ({"node": "[]"}, "node: takes the name of a writer"),
        ({"filter": '["tag","Eq",5]'}, "filter: [2]: must be a string"),
        ({"filter": "tag = eu"}, "filter: at character 7 ('eu'): expected a string"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, str], said: str) -> None:
    assert refused(**options).startswith(said)


BUCKET = {"path": "s3://archive/main", "topic": "orders"}


def of_bucket(**options: str) -> ReadOptions:
    return ReadOptions.parsed(BUCKET | options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"path": "s3://user:s3cret@archive/main"}, "path must not contain a user, a password or a port"),
        ({"path": "s3://a"}, "path: the name of a bucket has 3 to 223"),
        ({"path": "file://host/x"}, "path: a file URL has three slashes"),
        ({"path": "s3://archive/main?x=1"}, "path must not contain `?` or `#`"),
        ({"coldPath": "/cold"}, "coldPath: is of use with a data directory only"),
        ({"asOf": "yesterday"}, "asOf: takes the number of a round, or a time like 2026-11-24T09:59:00Z"),
        ({"asOf": "2026-11-24T09:59:00"}, "asOf: takes the number of a round, or a time"),
        ({"asOf": "2026-11-24"}, "asOf: takes the number of a round, or a time"),
        ({"asOf": "-1"}, "asOf: takes the number of a round, or a time"),
        ({"pinMs": "59999"}, "pinMs: takes 60000 to 604800000 milliseconds, or 0 for no pin"),
        ({"pinMs": "604800001"}, "pinMs: takes 60000 to 604800000 milliseconds"),
        ({"pinMs": "1h"}, "pinMs: takes 60000 to 604800000 milliseconds"),
    ],
)
def test_what_a_bucket_cannot_be_is_refused_by_name(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as refusal:
        of_bucket(**options)
    assert str(refusal.value).startswith(said)
    assert "s3cret" not in str(refusal.value)


def test_a_base_is_named_by_a_round_or_a_time() -> None:
    moment = 1_795_514_340_000
    assert of_bucket().as_of is None
    assert of_bucket(asOf="17").as_of == AsOf("round", 17)
    for text in (str(moment), "2026-11-24T09:59:00Z", "2026-11-24T10:59:00+01:00", "2026-11-24T09:59:00.000999Z"):
        assert of_bucket(asOf=text).as_of == AsOf("time", moment)
    assert of_bucket(pinMs="0").pin_ms == 0
    assert of_bucket(pinMs="60000").pin_ms == 60_000


def test_only_a_bucket_has_bases_and_pins() -> None:
    for options in ({"asOf": "3"}, {"pinMs": "0"}):
        (name,) = options
        assert refused(**options) == f"{name}: is of use with the `path` of a bucket only"


def test_no_refusal_repeats_what_may_be_a_key() -> None:
    assert "s3cret" not in refused(tokenEnv="s3cret-1")
    assert "s3cret" not in refused(token="s3cret\x01")
    assert "s3cret" not in refused(token="s3cret", tokenFile="/run/key")


def test_a_list_of_topics_has_each_once_and_in_its_order() -> None:
    assert ReadOptions.parsed({"url": URL, "topics": "b, a,b"}).topics == ("b", "a")


def test_an_empty_prefix_is_that_of_every_topic() -> None:
    assert ReadOptions.parsed({"url": URL, "topicPrefix": ""}).prefix == ""


def test_seqs_can_be_given_for_each_topic() -> None:
    options = ReadOptions.parsed({"url": URL, "topics": "a,b,c", "startingSeq": '{"a": 5, "b": "latest"}'})
    assert [options.starting.of(topic) for topic in "abc"] == [5, "latest", "earliest"]


def test_whoever_wants_gaps_as_rows_goes_on_over_them_unless_told_otherwise() -> None:
    options = parsed(tombstones="true")
    assert not options.fail_on_data_loss
    assert options.columns == COLUMNS + GAP_COLUMNS
    assert parsed(tombstones="true", failOnDataLoss="true").fail_on_data_loss


def test_columns_come_in_the_order_in_which_they_are_named() -> None:
    assert parsed(columns="tag, seq").columns == ("tag", "seq")


def test_writers_to_leave_out_are_one_or_a_list() -> None:
    assert parsed(node="a, b").nodes == ("a, b",)
    assert parsed(node='["a", "b"]').nodes == ("a", "b")


def test_a_filter_is_json_or_text() -> None:
    assert parsed().filter is None
    as_json = '["And",["tag","Glob","eu:*"],["data","/total","Ge",10.0]]'
    assert parsed(filter=f" {as_json.replace(',', ', ')} ").filter == as_json
    assert parsed(filter='tag ~ "eu:*" and data./total >= 10.0').filter == as_json
    assert ReadOptions.parsed({"path": "/data", "topic": "orders", "filter": as_json}).filter == as_json
    parsed(filter=as_json).check_streaming()


def test_a_filter_has_to_fit_into_a_url() -> None:
    long = " or ".join(f'tag = "{number}{"ü" * 400}"' for number in range(20))
    assert refused(filter=long).startswith("filter: has 48")


def test_a_stream_has_no_end_no_files_and_no_pushdown() -> None:
    for options in (
        parsed(endingSeq="9"),
        parsed(pushdown="true"),
        ReadOptions.parsed({"path": "/data", "topic": "orders"}),
        of_bucket(),
    ):
        with pytest.raises(OptionError):
            options.check_streaming()
    parsed(startingSeq="latest").check_streaming()


def test_a_batch_does_not_begin_with_what_is_still_to_come() -> None:
    with pytest.raises(OptionError, match="startingSeq: `latest` is what comes after the query begins"):
        parsed(startingSeq="latest").check_batch()


def test_options_survive_a_pickle() -> None:
    options = parsed(startingSeq='{"orders": 3}', tokenEnv="KEY", node="me", filter='tag = "eu"')
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_write_needs_a_daemon_and_takes_what_spark_adds() -> None:
    options = WriteOptions.parsed({"url": URL, "topic": "orders", "checkpointLocation": "/tmp/c"})
    assert options.topic == "orders"
    with pytest.raises(OptionError, match="url: is missing"):
        WriteOptions.parsed({"topic": "orders"})
    with pytest.raises(OptionError, match="startingSeq: is no option"):
        WriteOptions.parsed(LEAST | {"startingSeq": "1"})
