"""What an operator is told when a store in S3 refuses or fails; and that it contains no credential."""

from __future__ import annotations

import http.server
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.bucket.servers import ACCESS, SECRET, TOKEN, S3Server, fresh_prefix, opened
from topics.bucket.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StoreError,
    StoreErrorKind,
)
from topics.bucket.proof import StoreUnfit, prove_store

FAST_S = 0.3


class AnsweringServer(http.server.ThreadingHTTPServer):
    """Answers every request alike, or not at all, and counts them."""

    daemon_threads = True

    def __init__(self, status: int | None, body: str) -> None:
        super().__init__(("127.0.0.1", 0), AnsweringHandler)
        self.status = status
        self.body = body.encode()
        self.requests = 0
        self.done = threading.Event()


class AnsweringHandler(http.server.BaseHTTPRequestHandler):
    server: AnsweringServer

    def answer(self) -> None:
        self.server.requests += 1
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.server.status is None:
            self.server.done.wait(60)
            self.close_connection = True
            return
        # Some stores repeat the request, with everything in it.
        body = self.server.body + str(self.headers).encode() if self.server.body else b""
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def answering(status: int | None, body: str = "") -> Iterator[tuple[AnsweringServer, ObjectStore]]:
    server = AnsweringServer(status, body)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        yield server, S3Server(endpoint).objects("prefix", FAST_S, AWS_SESSION_TOKEN=TOKEN)
    finally:
        server.done.set()
        server.shutdown()
        thread.join()
        server.server_close()


def told(store: ObjectStore, call: Callable[[], object]) -> StoreError:
    """The error of a call, in which there is no credential, however it is looked at."""
    with pytest.raises(StoreError) as failure:
        call()
    error = failure.value
    shown = "".join(traceback.format_exception(error)) + repr(error) + repr(store) + repr(error.__context__)
    shown += repr(error.__cause__) + repr(pickle.dumps(str(error)))
    for secret in (ACCESS, SECRET, TOKEN, "Signature"):
        assert secret not in shown.replace("SignatureDoesNotMatch", "")
    assert error.sentence == str(error)
    return error


def calls_of(store: ObjectStore) -> list[Callable[[], object]]:
    return [
        lambda: store.put_new("a", b"x"),
        lambda: store.put_if("a", b"x", '"etag"'),
        lambda: store.get("a", 10),
        lambda: store.get_range("a", 0, 1),
        lambda: store.delete(["a"]),
        lambda: store.list("a/"),
        lambda: store.head("a"),
    ]


def code(name: str) -> str:
    return f"<Error><Code>{name}</Code><Message>No.</Message></Error>"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (403, code("AccessDenied"), StoreErrorKind.DENIED, "the store refuses access to s3://bucket/prefix .403"),
        (403, code("SignatureDoesNotMatch"), StoreErrorKind.DENIED, "check the credentials, their rights"),
        (401, "", StoreErrorKind.DENIED, "the store refuses access to s3://bucket/prefix .401"),
        (503, code("SlowDown"), StoreErrorKind.THROTTLED, "the store throttles requests to s3://bucket/prefix .503"),
        (429, "", StoreErrorKind.THROTTLED, "the store throttles requests to s3://bucket/prefix .429"),
        (507, code("XMinioStorageFull"), StoreErrorKind.FULL, "takes no more data for s3://bucket/prefix .507"),
        (500, code("InternalError"), StoreErrorKind.UNAVAILABLE, "the store of s3://bucket/prefix fails .500 Internal"),
        (502, "", StoreErrorKind.UNAVAILABLE, "the store of s3://bucket/prefix fails .502"),
        (400, code("InvalidArgument"), StoreErrorKind.OTHER, "refuses a request to s3://bucket/prefix .400 Invalid"),
    ],
)
def test_answers_of_a_store_that_fails(status: int, body: str, kind: StoreErrorKind, message: str) -> None:
    with answering(status, body) as (server, store):
        for call in calls_of(store):
            before = server.requests
            error = told(store, call)
            assert server.requests == before + 1, "the library repeats nothing"
            assert error.kind is kind
        error = told(store, calls_of(store)[0])
        assert error.kind is kind
        assert error.is_transient is (kind in (StoreErrorKind.THROTTLED, StoreErrorKind.UNAVAILABLE))
        with pytest.raises(StoreError, match=message):
            store.put_new("a", b"x")


@pytest.mark.parametrize("body", ["", "<html>Not Found</html>", code("NoSuchUpload")])
def test_somebody_elses_404_does_not_say_that_an_object_is_missing(body: str) -> None:
    with answering(404, body) as (_, store):
        for call in calls_of(store)[:-1]:
            assert told(store, call).kind is StoreErrorKind.OTHER


def test_a_conflict_is_no_answer_about_the_object() -> None:
    with answering(409, code("ConditionalRequestConflict")) as (_, store):
        assert told(store, lambda: store.put_if("a", b"x", '"etag"')).kind is StoreErrorKind.CONFLICT
        assert told(store, lambda: store.put_new("a", b"x")).kind is StoreErrorKind.CONFLICT


def test_a_missing_bucket_is_told(moto: S3Server) -> None:
    store = opened("s3://there-is-none/prefix", moto.variables())
    for call in calls_of(store)[:-1]:
        error = told(store, call)
        assert error.kind is StoreErrorKind.NO_BUCKET
        assert "there is no bucket for s3://there-is-none/prefix" in error.sentence
    with pytest.raises(ObjectMissing):
        store.head("a")  # the answer says no more


def test_a_store_that_cannot_be_reached_is_told() -> None:
    store = S3Server("http://127.0.0.1:1").objects("prefix", FAST_S)
    for call in calls_of(store):
        error = told(store, call)
        assert error.kind is StoreErrorKind.UNAVAILABLE
        assert "cannot be reached" in error.sentence


def test_missing_credentials_are_told() -> None:
    """The library asks the machine for them, which is not one of a cloud."""
    with answering(200) as (server, _):
        variables = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
        }
        store = opened("s3://bucket/prefix", variables, FAST_S)
        error = told(store, calls_of(store)[0])
        assert (error.kind, server.requests) == (StoreErrorKind.DENIED, 0)
        assert "AWS_ACCESS_KEY_ID" in error.sentence


def test_a_host_that_is_not_known_is_told() -> None:
    store = S3Server("https://store.invalid").objects("prefix", FAST_S)
    error = told(store, calls_of(store)[0])
    assert error.kind is StoreErrorKind.UNAVAILABLE


def test_a_store_that_does_not_answer_is_told() -> None:
    with answering(None) as (_, store):
        error = told(store, calls_of(store)[0])
        assert error.kind is StoreErrorKind.TIMEOUT
        assert error.is_transient


def test_what_is_put_by_condition_is_put_whole_and_with_the_conditions_of_http() -> None:
    """Variables of the library do not change that."""
    with answering(412, code("PreconditionFailed")) as (server, _):
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = S3Server(endpoint).objects("prefix", FAST_S, AWS_CONDITIONAL_PUT="disabled")
        with pytest.raises(ObjectExists):
            store.put_new("a", bytes(16 << 20))
        with pytest.raises(ObjectChanged):
            store.put_if("a", bytes(16 << 20), '"etag"')
        assert server.requests == 2


def test_wrong_variables_are_told() -> None:
    with pytest.raises(StoreError) as failure:
        opened("gs://bucket/prefix", {"GOOGLE_SERVICE_ACCOUNT_KEY": SECRET})
    assert SECRET not in str(failure.value)


def test_a_store_that_ignores_the_conditions_is_refused() -> None:
    """Every request is answered as if all were well."""
    with answering(200, "") as (_, store), pytest.raises((StoreUnfit, StoreError)):
        prove_store(store, "nonce")


def test_prefixes_do_not_see_each_other(moto: S3Server) -> None:
    prefix = fresh_prefix()
    one, other, whole = moto.objects(prefix), moto.objects(f"{prefix}-b"), moto.objects(f"{prefix}/deeper")
    one.put_new("a", b"x")
    other.put_new("b", b"x")
    whole.put_new("c", b"x")
    assert [facts.name for facts in one.list("")] == ["a", "deeper/c"]
    assert [facts.name for facts in other.list("")] == ["b"]
    assert [facts.name for facts in whole.list("")] == ["c"]


def test_a_store_is_not_pickled_because_it_holds_credentials() -> None:
    store = S3Server("http://127.0.0.1:1").objects("prefix")
    with pytest.raises(TypeError, match="holds credentials, and is not pickled"):
        pickle.dumps(store)


@pytest.mark.parametrize(
    ("url", "variables"),
    [
        ("gs://bucket/prefix", {"GOOGLE_BASE_URL": "ENDPOINT", "GOOGLE_BEARER_TOKEN": "a-token"}),
        (
            "az://container/prefix",
            {
                "AZURE_STORAGE_ENDPOINT": "ENDPOINT",
                "AZURE_STORAGE_ACCOUNT_NAME": "account",
                "AZURE_STORAGE_ACCOUNT_KEY": "c2VjcmV0",
            },
        ),
    ],
)
def test_other_providers_are_asked_where_their_variables_say(url: str, variables: dict[str, str]) -> None:
    """There is no server for them here: that they are asked, and that what they answer is understood, is all."""
    with answering(503) as (server, _):
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        store = opened(url, {name: endpoint if value == "ENDPOINT" else value for name, value in variables.items()})
        for call in calls_of(store):
            before = server.requests
            assert told(store, call).kind is StoreErrorKind.THROTTLED
            assert server.requests > before
