"""What both clients do alike: where the daemon is, what goes out with a call, what an answer means.

Responsible for turning a `Call` into the arguments of httpx and httpx's answers and failures into results and errors.
It opens nothing and waits for nothing.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

import httpx
import msgspec

from topics.client.calls import Call
from topics.client.errors import ConnectionFailed, ProtocolError, TopicsError, error_of
from topics.client.retry import Attempts, Retry

T = TypeVar("T")

DEFAULT_URL: Final = "http://127.0.0.1:4000"
NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


@dataclass(frozen=True, slots=True)
class Connection:
    """How to get to a daemon. Durations in seconds."""

    url: str
    token: str | None = field(repr=False)
    timeout: float
    retry: Retry | None
    gzip: bool

    @classmethod
    def made(cls, url: str | None, token: str | None, *, timeout: float, retry: Retry | None, gzip: bool) -> Connection:
        """With what TOPICS_URL and TOPICS_TOKEN say where nothing is given. Raises ValueError for what is no url."""
        url = (url or os.environ.get("TOPICS_URL") or DEFAULT_URL).rstrip("/")
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
        token = token if token is not None else os.environ.get("TOPICS_TOKEN")
        if token is not None and (not token.isascii() or not token.isprintable()):
            raise ValueError("token: has characters that a header cannot hold")
        return cls(url.removesuffix("/v0"), token or None, timeout, retry, gzip)

    def options(self) -> dict[str, Any]:
        """The arguments of httpx's clients. Redirects are not followed: a key must not go to another host."""
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
            # Loading certificates takes 60 ms, and without redirects nothing but this url is ever asked.
            "verify": self.url.startswith("https:"),
            "limits": httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=30.0),
        }

    def request(self, call: Call[Any], silence: float | None = None) -> dict[str, Any]:
        """The arguments of one request. `silence`: seconds without a byte after which a stream counts as broken."""
        headers = {"Accept": call.accept, **call.headers}
        content = call.body if call.upload is None else call.upload
        if content is not None:
            headers["Content-Type"] = call.content_type
        reading = self.timeout + call.waits if silence is None else silence
        return {
            "method": call.method,
            "url": self.url + call.target,
            "content": content,
            "headers": headers,
            "timeout": httpx.Timeout(self.timeout, read=reading),
        }

    def attempts(self, call: Call[Any], *, now: float, rng: Random) -> Attempts:
        """The tries of a call."""
        return Attempts(None if call.probe else self.retry, repeatable=call.repeatable, now=now, rng=rng)

    def failure(self, error: httpx.HTTPError) -> TopicsError:
        """What a request that got no answer raises."""
        said = str(error) or type(error).__name__
        return ConnectionFailed(f"{self.url}: {said}", outcome_unknown=not isinstance(error, NOT_SENT))


def result(call: Call[T], status: int, headers: httpx.Headers, body: bytes) -> T:
    """The result of a call out of its answer. Raises what the answer is, if it is no success."""
    if not 200 <= status < 300:
        raise refusal(status, headers, body)
    if call.answer is None:
        return body  # type: ignore[return-value]  # T is bytes then
    try:
        found: T = _decoder(call.answer).decode(body)  # type: ignore[arg-type]  # a type is hashable
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolError(f"{call.method} {call.target.partition('?')[0]}: {error}") from None
    return found


def refusal(status: int, headers: httpx.Headers, body: bytes) -> TopicsError:
    """The error that an answer is."""
    return error_of(status, headers.get("Retry-After"), body)


def signed(method: Callable[..., Any], make: Callable[..., Any]) -> None:
    """Let a method that was made out of a function that makes a call show the parameters and words of that."""
    functools.update_wrapper(method, make)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    said = inspect.signature(make)
    vars(method)["__signature__"] = said.replace(parameters=[own, *said.parameters.values()])


@functools.cache
def _decoder(answer: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(answer)
