"""Where a bucket is: `TOPICS_BUCKET`, checked, and the endpoint that the provider's own variables name.

A URL is `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix` or `file:///directory`. Credentials, region
and endpoint come from the variables of the provider, as the library reads them (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, web identity and container credentials;
`GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_APPLICATION_CREDENTIALS`; `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`;
and others). They are never part of a URL, so that a URL may be logged and pickled. The profiles of `~/.aws` are not
read.

Plain http is accepted for endpoints on loopback only: elsewhere everybody on the way could read and change the data.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from topics.bucket.object_store import ObjectStore

SETTING: Final = "TOPICS_BUCKET"

MAX_PREFIX: Final = 400
"""Characters of a prefix: with a name of 512 they are less than the 1,024 bytes that S3 and GCS allow."""

FORMS: Final = "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory"

ENDPOINTS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""The variables that name an endpoint, for each scheme, in the order of their precedence."""

_BUCKET: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}[A-Za-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=+-]*(/[A-Za-z0-9_][A-Za-z0-9_.=+-]*)*")


class BucketLocationError(ValueError):
    """A location that cannot be used. The message names the setting, and contains no credential."""


@dataclass(frozen=True, slots=True)
class BucketLocation:
    """A bucket and the prefix in it. `str` gives the URL, which has no credential in it; parsed, it is the same
    location."""

    scheme: str
    """`s3`, `gs`, `az` or `file`."""
    bucket: str
    """The name of the bucket or container; for `file` empty."""
    prefix: str
    """Without slashes at its ends; may be empty. For `file` the absolute path of the directory."""
    endpoint: str
    """The endpoint that a variable names, empty if none does; `allows_http` is derived from it."""

    def __str__(self) -> str:
        if self.scheme == "file":
            return "file://" + "".join(map(_quoted, self.prefix))
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    @property
    def allows_http(self) -> bool:
        """Return True if the endpoint is one on loopback without TLS."""
        return self.endpoint.lower().startswith("http://")


def parse_location(text: str, environ: Mapping[str, str], setting: str = SETTING) -> BucketLocation:
    """The location that `text` names. Raises BucketLocationError, whose message begins with `setting`, the name of what
    gave the text; or with the name of the variable that is wrong."""
    if not text.isprintable():  # `urlsplit` would leave line ends out
        raise BucketLocationError(f"{setting} must not contain control characters")
    try:
        url = urlsplit(text)
        port_or_user = url.username is not None or url.password is not None or url.port is not None
    except ValueError:
        raise BucketLocationError(f"{setting} is no URL: it must be {FORMS}") from None
    if url.scheme not in ("s3", "gs", "az", "file") or not text.startswith(f"{url.scheme}://"):
        raise BucketLocationError(f"{setting} must be {FORMS}")
    if port_or_user:
        raise BucketLocationError(
            f"{setting} must not contain a user, a password or a port: credentials and endpoint come from the "
            "variables of the provider, such as AWS_ACCESS_KEY_ID and AWS_ENDPOINT_URL"
        )
    if "?" in text or "#" in text:
        raise BucketLocationError(f"{setting} must not contain `?` or `#`")
    return _directory(url, setting) if url.scheme == "file" else _in_bucket(url, environ, setting)


def _quoted(character: str) -> str:
    """Return a character of a path as it is in a file URL: as people write it, if it can be."""
    return quote(character) if character in "%?#" or not character.isprintable() else character


def open_objects(location: BucketLocation, timeout_s: float) -> ObjectStore:
    """The store at a location. Nothing is asked of it yet. `timeout_s` is how long the library waits for a sign of
    life; the calls that `BoundedObjects` makes are given up sooner than that or at about the same time.

    Raises StoreError if the provider's variables do not make sense. The library is imported here, because a daemon
    without a bucket does not need it (`docs/design/starts.md`).
    """
    if location.scheme == "file":
        from topics.bucket.file_objects import FileObjects  # noqa: PLC0415

        return FileObjects(location.prefix)
    from topics.bucket.obstore_objects import ObstoreObjects  # noqa: PLC0415

    return ObstoreObjects(location, timeout_s)


def _directory(url: SplitResult, setting: str) -> BucketLocation:
    if url.netloc not in ("", "localhost"):
        raise BucketLocationError(f"{setting}: a file URL has three slashes and an absolute path: file:///directory")
    path = unquote(url.path).rstrip("/")
    if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
        raise BucketLocationError(f"{setting}: a file URL names a directory by its absolute path: file:///directory")
    return BucketLocation("file", "", path, "")


def _in_bucket(url: SplitResult, environ: Mapping[str, str], setting: str) -> BucketLocation:
    if _BUCKET.fullmatch(url.netloc) is None:
        raise BucketLocationError(
            f"{setting}: the name of a bucket has 3 to 223 letters, digits, dots, hyphens and underscores"
        )
    prefix = url.path.strip("/")
    if len(prefix) > MAX_PREFIX or (prefix and _PREFIX.fullmatch(prefix) is None):
        raise BucketLocationError(
            f"{setting}: the prefix has at most {MAX_PREFIX} ASCII letters, digits and `_.=+-`, in parts separated by "
            "single slashes, of which none begins with one of `.=+-`"
        )
    return BucketLocation(url.scheme, url.netloc, prefix, _endpoint(url.scheme, environ))


def _endpoint(scheme: str, environ: Mapping[str, str]) -> str:
    """The endpoint that the library will use, empty for the provider's own."""
    for name in ENDPOINTS[scheme]:
        if text := environ.get(name, ""):
            return _checked_endpoint(name, text)
    return ""


def _checked_endpoint(name: str, text: str) -> str:
    try:
        url = urlsplit(text)
        host, _ = url.hostname, url.port
    except ValueError:
        raise BucketLocationError(f"{name} is no URL") from None
    if url.scheme not in ("http", "https") or not host:
        raise BucketLocationError(f"{name} must be an http or https URL")
    if url.username is not None or url.password is not None or url.query or url.fragment:
        raise BucketLocationError(f"{name} must not contain a user, a password, `?` or `#`")
    if url.scheme == "http" and not _is_loopback(host):
        raise BucketLocationError(
            f"{name}: plain http is accepted on loopback only, because everybody on the way could read and change the "
            "data. Use https"
        )
    return text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
