"""Record traces that say what they hold, and see what code would send: the only code that imports PyTorch."""

from __future__ import annotations

from tracelens.errors import MissingExtraError

try:
    from tracelens.capture.dryrun import dry_run
    from tracelens.capture.profiling import profile
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise MissingExtraError.for_extra("torch", what="tracelens.capture") from error

__all__ = ["dry_run", "profile"]
