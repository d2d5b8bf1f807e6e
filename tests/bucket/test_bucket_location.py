"""`TOPICS_BUCKET`: what is accepted, and what an operator is told otherwise."""

from __future__ import annotations

import pickle

import pytest

from topics.bucket.bucket_location import BucketLocation, BucketLocationError, parse_location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket/prefix", BucketLocation("s3", "bucket", "prefix", "")),
        ("s3://bucket", BucketLocation("s3", "bucket", "", "")),
        ("s3://bucket/", BucketLocation("s3", "bucket", "", "")),
        ("gs://bucket.example/a/b_c/", BucketLocation("gs", "bucket.example", "a/b_c", "")),
        ("az://container/prefix", BucketLocation("az", "container", "prefix", "")),
        ("file:///mnt/disk/topics", BucketLocation("file", "", "/mnt/disk/topics", "")),
        ("file:///mnt/a%20disk/", BucketLocation("file", "", "/mnt/a disk", "")),
        ("file:///mnt/a%2541%23%3f/ü%0a", BucketLocation("file", "", "/mnt/a%41#?/ü\n", "")),
    ],
)
def test_locations(text: str, expected: BucketLocation) -> None:
    assert parse_location(text, {}) == expected
    assert parse_location(str(expected), {}) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "TOPICS_BUCKET must be s3://bucket/prefix, gs://"),
        ("bucket", "TOPICS_BUCKET must be s3://bucket/prefix, gs://"),
        ("s3://bucket/prefix\nx", "TOPICS_BUCKET must not contain control characters"),
        ("http://bucket/prefix", "TOPICS_BUCKET must be s3://"),
        ("s3:/bucket/prefix", "TOPICS_BUCKET must be s3://"),
        ("s3://[", "TOPICS_BUCKET is no URL"),
        ("s3:///prefix", "TOPICS_BUCKET: the name of a bucket has"),
        ("s3://b/prefix", "TOPICS_BUCKET: the name of a bucket has"),
        ("s3://me:hidden@bucket/prefix", "TOPICS_BUCKET must not contain a user, a password or a port"),
        ("s3://bucket:hidden/prefix", "TOPICS_BUCKET is no URL"),
        ("az://container/prefix?sig=hidden", "TOPICS_BUCKET must not contain `\\?`"),
        ("s3://bucket/prefix#hidden", "TOPICS_BUCKET must not contain `\\?` or `#`"),
        ("s3://bucket/a//b", "TOPICS_BUCKET: the prefix has at most 400"),
        ("s3://bucket/../b", "TOPICS_BUCKET: the prefix has"),
        ("s3://bucket/a b", "TOPICS_BUCKET: the prefix has"),
        ("s3://bucket/" + "a" * 401, "TOPICS_BUCKET: the prefix has"),
        ("file://host/mnt", "TOPICS_BUCKET: a file URL has three slashes"),
        ("file://mnt", "TOPICS_BUCKET: a file URL has three slashes"),
        ("file:///", "TOPICS_BUCKET: a file URL names a directory"),
        ("file:///a/../b", "TOPICS_BUCKET: a file URL names a directory"),
    ],
)
def test_what_is_wrong_is_said_without_what_may_be_a_credential(text: str, message: str) -> None:
    with pytest.raises(BucketLocationError, match=f"^{message}") as failure:
        parse_location(text, {})
    assert "hidden" not in str(failure.value)
    assert failure.value.__suppress_context__ or failure.value.__context__ is None


def test_another_origin_of_the_url_is_named() -> None:
    with pytest.raises(BucketLocationError, match=r"^URL must be s3://"):
        parse_location("bucket", {}, "URL")


@pytest.mark.parametrize(
    "endpoint", ["http://127.0.0.1:9000", "http://localhost:9000", "http://[::1]:9000", "HTTP://127.7.7.7"]
)
def test_plain_http_is_accepted_on_loopback(endpoint: str) -> None:
    location = parse_location("s3://bucket/prefix", {"AWS_ENDPOINT_URL": endpoint})
    assert location.allows_http


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("s3://bucket", "AWS_ENDPOINT_URL"),
        ("s3://bucket", "AWS_ENDPOINT_URL_S3"),
        ("s3://bucket", "AWS_ENDPOINT"),
        ("gs://bucket", "GOOGLE_BASE_URL"),
        ("az://container", "AZURE_STORAGE_ENDPOINT"),
    ],
)
def test_plain_http_is_refused_elsewhere(url: str, variable: str) -> None:
    for host in ("10.0.0.1:9000", "store.example", "localhost.example", "0.0.0.0"):
        with pytest.raises(BucketLocationError, match=f"^{variable}: plain http is accepted on loopback only"):
            parse_location(url, {variable: f"http://{host}"})
    location = parse_location(url, {variable: "https://store.example"})
    assert not location.allows_http


def test_the_endpoint_that_the_library_takes_is_the_one_that_is_checked() -> None:
    variables = {"AWS_ENDPOINT_URL_S3": "https://store.example", "AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}
    assert not parse_location("s3://bucket", variables).allows_http
    assert not parse_location("gs://bucket", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}).allows_http


@pytest.mark.parametrize(
    "endpoint", ["store.example", "ftp://store.example", "http://", "https://me:hidden@store.example", "http://["]
)
def test_an_endpoint_that_makes_no_sense_is_named(endpoint: str) -> None:
    with pytest.raises(BucketLocationError, match=r"^AWS_ENDPOINT_URL ") as failure:
        parse_location("s3://bucket", {"AWS_ENDPOINT_URL": endpoint})
    assert "hidden" not in str(failure.value)


def test_nothing_of_the_credentials_is_in_a_location() -> None:
    location = parse_location("s3://bucket", {"AWS_SECRET_ACCESS_KEY": "hidden", "AWS_SESSION_TOKEN": "hidden"})
    assert b"hidden" not in pickle.dumps(location)
    assert "hidden" not in repr(location)
