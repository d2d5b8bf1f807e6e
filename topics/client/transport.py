"""The common part of both clients: the connection's settings, the request of a call, the meaning of an answer.

Responsible for turning a `ClientCall` into the arguments of httpx, and httpx's answers and failures into results and
errors. It opens no connection and waits for nothing: that is left to `topics.client.sync` and
`topics.client.concurrent`.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Self, TypeVar

import httpx
import msgspec

from topics.client.calls import ClientCall
from topics.client.daemon_choice import DaemonAttempt, DaemonChoice
from topics.client.errors import ConnectionFailed, ProtocolError, TopicsError, error_of
from topics.client.retry import Attempts, Retry

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:4000"
MOST_URLS: Final = 32
NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class DaemonEndpoint:
    """How a client reaches its daemon or daemons, and how it repeats calls."""

    urls: tuple[str, ...]
    """At least one; without a slash or `/v0` at their ends."""
    token: str | None = field(repr=False)
    timeout: float
    """Seconds to wait for a connection, or for the next byte on one."""
    retry: Retry | None
    """None: no call is repeated."""
    gzip: bool
    any: bool
    """Reads may go to each of the daemons."""

    @classmethod
    def made(
        cls,
        url: str | Sequence[str] | None,
        token: str | None,
        *,
        timeout: float,
        retry: Retry | None,
        gzip: bool,
        any: bool = False,
    ) -> DaemonEndpoint:
        """Check the settings of a client, and fill in TOPICS_URL and TOPICS_TOKEN where an argument is None. Raises
        ValueError for a url that is not `http(s)://host[:port]`, or several of them with commas between them, and for a
        token that no header can hold."""
        said = url or os.environ.get("TOPICS_URL") or DEFAULT_URL
        given = said.split(",") if isinstance(said, str) else list(said)
        urls = tuple(dict.fromkeys(_checked(one.strip()) for one in given))
        if len(urls) > MOST_URLS:
            raise ValueError(f"url: there are {len(urls)}, and at most {MOST_URLS} may be given")
        token = token if token is not None else os.environ.get("TOPICS_TOKEN")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise ValueError("token: has characters that a header cannot hold")
        return cls(urls, token or None, timeout, retry, gzip, any)

    def choice(self, rng: Random) -> DaemonChoice:
        """The choice among the daemons, for one client."""
        return DaemonChoice(self.urls, any=self.any, rng=rng)

    def options(self) -> dict[str, Any]:
        """The arguments of httpx's clients. Redirects are not followed: the API key must not go to another host."""
        headers = {
            "Accept-Encoding": "gzip" if self.gzip else "identity",
            "User-Agent": "topics-client",
            "Topics-Strict": "1",
        }
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        return {
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout),
            # Loading certificates takes 60 ms, and without redirects nothing but these urls is ever asked.
            "verify": not all(url.startswith("http:") for url in self.urls),
            "limits": httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30.0),
        }

    def request(self, call: ClientCall[Any], url: str, silence: float | None = None) -> dict[str, Any]:
        """The arguments of one request to the daemon at `url`. `silence` is how long a stream may bring no byte before
        it counts as broken, in seconds; None: the client's `timeout`, and on top of it the time for which the daemon
        may wait on purpose."""
        headers = {"Accept": call.accept, **call.headers}
        content = call.body if call.upload is None else call.upload
        if content is not None:
            headers["Content-Type"] = call.content_type
        reading = self.timeout + call.waits if silence is None else silence
        return {
            "method": call.method,
            "url": url + call.target,
            "content": content,
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout, read=reading),
        }

    def attempts(self, call: ClientCall[Any], *, now: float, rng: Random) -> Attempts:
        """The attempts at a call that begins at `now`. A probe gets one attempt at each daemon, an upload whose body is
        made while it is sent one at all."""
        retry = None if call.probe or call.upload is not None else self.retry
        daemons = 1 if call.upload is not None else len(self.urls)
        return Attempts(retry, repeatable=call.repeatable, now=now, rng=rng, daemons=daemons)


def _checked(url: str) -> str:
    """One url without a slash or `/v0` at its end. Raises ValueError."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise ValueError(f"url: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError("url: is not like http://host:4000")
    if parsed.userinfo:
        raise ValueError("url: holds a password; a key goes into `token` or TOPICS_TOKEN")
    if parsed.query or parsed.fragment:
        raise ValueError("url: has a query")
    return url.rstrip("/").removesuffix("/v0")


def unanswered(attempt: DaemonAttempt, error: httpx.HTTPError) -> TopicsError:
    """The error for a request that got no answer, or whose answer was cut off."""
    said = str(error) or type(error).__name__
    failure = ConnectionFailed(f"{attempt.url}: {said}", outcome_unknown=not isinstance(error, NOT_SENT))
    return attempt.failure(failure)


def answered(call: ClientCall[T], attempt: DaemonAttempt, status: int, headers: httpx.Headers, body: bytes) -> T:
    """The result of a call out of the answer of a daemon. Raises as `result`, and a TopicsError for an answer that does
    not count among several daemons (`topics.client.daemon_choice`)."""
    error = None if 200 <= status < 300 else refusal(status, headers, body)
    attempt.judge(headers, error)
    return result(call, status, headers, body)


def is_about(error: httpx.HTTPError, answer: httpx.Response) -> bool:
    """Return True if an error may be about the request of this answer, and not about another one."""
    try:
        return error.request is answer.request
    except RuntimeError:  # it does not say which
        return True


class BaseClient:
    """The settings of a client of one daemon, or of an owner and its standbys; `Client` and `AsyncClient` add the
    connections and the waiting."""

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry: Retry | None = Retry(),  # noqa: B008 - immutable
        gzip: bool = False,
        any: bool = False,
    ) -> None:
        """Opens no connection yet. Raises ValueError for a url that is not `http(s)://host[:port]`, and for a token
        that no header can hold.

        `url` is the daemon's address; None: TOPICS_URL, or `http://127.0.0.1:4000`. Several daemons with the same data,
        an owner and its standbys, are given as a list, or with commas between them: the client finds the owner, and
        finds it again when another daemon has taken over. With `any` reads, tails and watches go to any of them; what a
        standby answers may be a few seconds old (`docs/replication.md`). `token` is an API key; None: TOPICS_TOKEN, or
        no key. It is sent to the given addresses only.

        `timeout` is how long to wait for a connection, or for the next byte on one, in seconds. `retry` says how long
        calls are repeated; None: never, but each of several daemons is tried. With `gzip` the daemon is asked to
        compress its answers, which pays where the network is slower than the daemon's processor.
        """
        self._set_up(DaemonEndpoint.made(url, token, timeout=timeout, retry=retry, gzip=gzip, any=any))

    @classmethod
    def over(cls, connection: DaemonEndpoint) -> Self:
        """A client with the settings of another one, and connections of its own."""
        client = cls.__new__(cls)
        client._set_up(connection)
        return client

    def _set_up(self, connection: DaemonEndpoint) -> None:
        self.connection = connection
        self._rng = Random()
        self._daemons = connection.choice(self._rng)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({','.join(self.connection.urls)!r})"

    @property
    def url(self) -> str:
        """The daemon's address, without a slash at its end; of several, the one that gets the next change."""
        return self._daemons.url


def result(call: ClientCall[T], status: int, headers: httpx.Headers, body: bytes) -> T:
    """The result of a call out of its answer. Raises the ApiError that an answer without success stands for, and
    ProtocolError for a body that is not what the call is answered with."""
    if not 200 <= status < 300:
        raise refusal(status, headers, body)
    if call.answer is None:
        return body  # type: ignore[return-value]  # T is bytes then
    try:
        if call.answer is str:
            return body.decode()  # type: ignore[return-value]  # T is str
        found: T = _decoder(call.answer).decode(body)  # type: ignore[arg-type]  # a type is hashable
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{call.method} {call.target.partition('?')[0]}: {error}") from None
    return found


def refusal(status: int, headers: httpx.Headers, body: bytes) -> TopicsError:
    """The error that an answer without success stands for."""
    return error_of(status, headers.get("Retry-After"), body)


def signed(method: Callable[..., Any], make: Callable[..., Any]) -> None:
    """Give `method`, which passes its arguments on to the function `make`, the name, docstring and parameters of
    `make`, so that help() and editors show them."""
    functools.update_wrapper(method, make)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    said = inspect.signature(make)
    vars(method)["__signature__"] = said.replace(parameters=[own, *said.parameters.values()])


@functools.cache
def _decoder(answer: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(answer)
