"""What the library's exceptions mean, and the sentence about each that an operator is told.

The texts of these exceptions repeat answers of the store and URLs, in which there may be signatures, session tokens and
the keys of shared access (Azure). So no text of them is ever passed on: only the status and the error code of the
answer are taken out of it, and the exception itself is dropped.
"""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from topics.bucket.object_store import StoreError, StoreErrorKind

_STATUS: Final = re.compile(r"non-2xx status code: (\d{3})\b")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,64})</Code>|\"code\"\s*:\s*\"([A-Za-z]{1,64})\"")

_MISSING: Final = frozenset({"NoSuchKey", "NoSuchVersion", "BlobNotFound", "ResourceNotFound"})
_NO_BUCKET: Final = frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"})
_DENIED: Final = frozenset(
    {"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
     "XAdminUserNotFound", "AuthenticationFailed", "AuthorizationFailure", "RequestTimeTooSkewed"}
)  # fmt: skip
_FULL: Final = frozenset({"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"})
_THROTTLED: Final = frozenset({"SlowDown", "Throttling", "TooManyRequests", "ServerBusy", "RequestLimitExceeded"})
_CONFLICTS: Final = frozenset({"ConditionalRequestConflict", "OperationAborted"})


class Refusal(Enum):
    """An answer that is about the object: the store works."""

    EXISTS = "exists"
    CHANGED = "changed"
    MISSING = "missing"
    BEYOND_END = "beyond_end"
    """A range that begins at or after the end of the object."""


def meaning(error: Exception, url: str) -> Refusal | StoreError:
    """What an exception of the library means. `url` is the location, for the sentence."""
    text = str(error)
    kind = type(error).__name__
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    found = _CODE.search(text)
    code = (found[1] or found[2]) if found else ""
    if code in _NO_BUCKET:
        return StoreError(StoreErrorKind.NO_BUCKET, f"there is no bucket for {url}: make it, or correct the URL")
    if code in _DENIED or status in (401, 403) or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return StoreError(
            StoreErrorKind.DENIED,
            f"the store refuses access to {url}{_told(status, code)}: check the credentials, their rights to get, put, "
            "list and delete, the region, and the clock of this machine",
        )
    if code in _CONFLICTS or (status == 409 and kind != "AlreadyExistsError"):
        return StoreError(StoreErrorKind.CONFLICT, f"two changes of one object met in {url}{_told(status, code)}")
    if kind == "AlreadyExistsError":
        return Refusal.EXISTS
    if status == 404:
        # A proxy, or a service that gives credentials, may say the same about something else: that says nothing about
        # the object. An answer to HEAD has no code.
        if code not in _MISSING and "Error performing HEAD" not in text:
            return StoreError(
                StoreErrorKind.OTHER, f"what answers for {url} does not know the request{_told(status, code)}"
            )
        return Refusal.CHANGED if kind == "PreconditionError" else Refusal.MISSING
    if kind == "PreconditionError":
        return Refusal.CHANGED
    if status == 416:
        return Refusal.BEYOND_END
    return _failure(text, url, status, code)


def _failure(text: str, url: str, status: int, code: str) -> StoreError:
    told = _told(status, code)
    if code in _THROTTLED or status == 429 or (status == 503 and not code):
        return StoreError(StoreErrorKind.THROTTLED, f"the store throttles requests to {url}{told}")
    if code in _FULL or status in (413, 507):
        return StoreError(
            StoreErrorKind.FULL, f"the store takes no more data for {url}{told}: it is full, or a quota is"
        )
    if status >= 500:
        return StoreError(StoreErrorKind.UNAVAILABLE, f"the store of {url} fails{told}")
    if status:
        return StoreError(StoreErrorKind.OTHER, f"the store refuses a request to {url}{told}")
    if "/latest/api/token" in text or "/latest/meta-data" in text:
        return StoreError(
            StoreErrorKind.DENIED,
            f"there are no credentials for {url}: set the variables of the provider, such as AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY. This machine gives none either",
        )
    if "kind: Timeout" in text:
        return StoreError(StoreErrorKind.TIMEOUT, f"the store of {url} did not answer in time")
    if "InvalidCertificate" in text or "certificate" in text:
        return StoreError(StoreErrorKind.OTHER, f"the certificate of the store of {url} is not accepted")
    if "dns error" in text:
        return StoreError(StoreErrorKind.UNAVAILABLE, f"the host of the store of {url} is not known to the resolver")
    if "HTTP error" in text or "HttpError" in text:
        return StoreError(StoreErrorKind.UNAVAILABLE, f"the store of {url} cannot be reached, or broke off an answer")
    return StoreError(StoreErrorKind.OTHER, f"the library has failed with a request to {url}")


def _told(status: int, code: str) -> str:
    words = " ".join(str(word) for word in (status, code) if word)
    return f" ({words})" if words else ""
