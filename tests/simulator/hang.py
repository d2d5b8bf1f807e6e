"""A run that does not end, and how it is told."""

from __future__ import annotations


class Hang(BaseException):
    """A run has taken too long. Not an `Exception`, and above all no `TimeoutError`, which is an `OSError`: the daemon
    waits out what its disk and its store raise."""


def leaves_of(error: BaseException) -> list[BaseException]:
    """The exceptions in a group, and in groups in it."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves_of(one)]
    return [error]


def told_hang(error: BaseException) -> BaseException:
    """Return what to tell of a run that has failed: that it hangs, if it does. Raises the error if somebody ends the
    process."""
    leaves = leaves_of(error)
    causes = [cause for leaf in leaves for cause in (leaf, leaf.__cause__, leaf.__context__) if cause is not None]
    # If it comes while Trio itself is at work, it is the cause of another error.
    hang = next((one for cause in causes for one in leaves_of(cause) if isinstance(one, Hang)), None)
    if hang is not None:
        return hang
    if any(isinstance(leaf, (KeyboardInterrupt, SystemExit)) for leaf in leaves):
        raise error
    return error
