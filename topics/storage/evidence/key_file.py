"""The key that signs checkpoints, and its file (`docs/spec/evidence.md` section 1).

Without `TOPICS_EVIDENCE_KEY_FILE` it is in `meta/` of the data directory, made when it is first needed. It is not among
the files that a copy or a bucket takes. A file that the setting names is never made: daemons that share a bucket share
the key, and none of them may replace it by one of its own.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from topics.errors import ApiError, invalid
from topics.evidence.signed_note import BadSignedNote, NoteSigner
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, write_atomic
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SALTS: Final = 4
"""So many random numbers of 64 bits are a key."""

MAX_KEY_BYTES: Final = 64 << 10
"""A longer file is none of a key; one in PEM has 119 bytes."""

MOST_LOGGED: Final = 10
"""Hashes of keys in a line of the log."""


class EvidenceKey:
    """The key of one daemon. Read, or made, when it is first asked for, and then kept."""

    def __init__(self, fs: Fs, datadir: DataDir, key_file: Path | None, *, has_bucket: bool) -> None:
        self._fs = fs
        self._key_file = str(key_file) if key_file is not None else None
        self._path = self._key_file or datadir.evidence_key_path
        self.has_bucket = has_bucket
        """True if the log is written to a bucket, or will be when that is open."""
        self._signer: NoteSigner | None = None
        self._lock = trio.Lock()
        """Two tasks that make the key at the same time would make two, of which the disk keeps one."""
        self._logged = ""
        """The last problem that was logged: readers may ask for the key again and again."""

    def check_may_begin(self) -> None:
        """Raise `400 invalid_request` if no topic may have evidence: the daemons of a bucket have to share a key."""
        if self._lacks_setting:
            raise invalid(
                "evidence",
                "with a bucket it needs TOPICS_EVIDENCE_KEY_FILE, the key that all daemons of the bucket share",
            )

    async def signer(self, offload: Offload) -> NoteSigner:
        """Return the key. Raises `503 not_ready` if its file cannot be read or made. Cancelling leaves nothing
        behind."""
        if self._signer is not None:
            return self._signer
        async with self._lock:
            try:
                return await offload.run(Pool.FILES, self.load)
            except (OSError, BadSignedNote) as error:
                self.log_problem(error)
                needs = ": with a bucket TOPICS_EVIDENCE_KEY_FILE has to name it" if self._lacks_setting else ""
                raise ApiError(
                    "not_ready", f"the key that signs checkpoints cannot be used{needs} (the daemon's log says why)"
                ) from error

    def log_problem(self, error: OSError | BadSignedNote) -> None:
        """Log why the key cannot be used, once for each reason. Readers are not told where the file is."""
        if str(error) != self._logged:
            self._logged = str(error)
            log.error("evidence_key_unusable", problem=self._logged, setting="TOPICS_EVIDENCE_KEY_FILE")

    def compare(self, known: Mapping[str, int]) -> None:
        """Log it if topics know another key than the one that is here, or if theirs is gone. `known` has the number of
        topics for each hash of a key. Makes no key. Blocking; one caller at a time."""
        if not known:
            return
        present, problem = None, "the key here is another one"
        try:
            present = self._read().hash
        except FileNotFoundError:
            unset = "TOPICS_EVIDENCE_KEY_FILE is not set"
            problem = unset if self._lacks_setting else f"{self._path} is missing"
        except (OSError, BadSignedNote) as error:
            self.log_problem(error)
            return
        others = {one: topics for one, topics in known.items() if one != present}
        if others:
            log.warning(
                "evidence_key_differs",
                topics=sum(others.values()),
                keys=sorted(others)[:MOST_LOGGED],
                present_key=present,
                problem=problem,
                consequence="the checkpoints of these topics are 503 until their key is in its file again",
            )

    def load(self) -> NoteSigner:
        """Return the key, and keep it. Blocking; one caller at a time. Raises OSError, BadSignedNote."""
        if self._signer is None:
            try:
                self._signer = self._read()
            except FileNotFoundError:
                if self._key_file is not None or self.has_bucket:
                    raise
                self._signer = self._make()
        return self._signer

    @property
    def _lacks_setting(self) -> bool:
        """True if the daemons of a bucket cannot share a key."""
        return self.has_bucket and self._key_file is None

    def _read(self) -> NoteSigner:
        """Return the key in the file. Raises OSError, BadSignedNote."""
        try:
            return NoteSigner.from_pem(self._pem())
        except BadSignedNote as error:
            raise BadSignedNote(f"{self._path}: {error}") from error

    def _pem(self) -> bytes:
        """Return the content of the file, of which no more is read than a key may have: the setting may name any
        file."""
        with self._fs.open(self._path, read_only=True) as file:
            pem = file.pread(MAX_KEY_BYTES + 1, 0)
        if len(pem) > MAX_KEY_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_KEY_BYTES} bytes, and is no key", self._path)
        return pem

    def _make(self) -> NoteSigner:
        seed = b"".join(self._fs.salt().to_bytes(8, "little") for _ in range(SALTS))
        signer = NoteSigner(Ed25519PrivateKey.from_private_bytes(seed))
        write_atomic(self._fs, self._path, signer.to_pem())
        log.info("evidence_key_made", path=self._path, key=signer.hash)
        return signer


def new_tree_id(fs: Fs) -> str:
    """Return a uuid for a tree: version 4, as 32 hex digits."""
    number = fs.salt() << 64 | fs.salt()
    number = number & ~(0xF << 76) | 4 << 76
    return f"{number & ~(0x3 << 62) | 2 << 62:032x}"
