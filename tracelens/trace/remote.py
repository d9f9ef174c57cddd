"""Files behind URLs (`s3://`, `gs://`, `http://`), through fsspec (extra `remote`)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import msgspec

from tracelens.errors import InputError, MissingExtraError
from tracelens.summary import RankSummary

_URL = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_GLOB = re.compile(r"[*?\[]")


class RemoteFile(msgspec.Struct, frozen=True):
    """A file behind a URL, with as much of `pathlib.Path` as reading needs."""

    url: str
    size: int | None = None

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        """The last part of the URL, without the query of a web address."""
        return _without_query(self.url).rstrip("/").rpartition("/")[2]

    def open(self, mode: str = "rb") -> BinaryIO:
        """The file, read from its beginning to its end; `mode` is there for likeness with `Path.open`.

        Raises:
            InputError: it can't be opened.
            MissingExtraError: fsspec, or its part for this kind of URL, is not installed.
        """
        system, path = _connect(self.url)
        # a block size of 0 streams where the server can't give parts of a file
        options = {"block_size": 0} if _is_web(self.url) else {}
        try:
            return cast(BinaryIO, io.BufferedReader(system.open(path, mode, **options)))
        except FileNotFoundError:
            raise InputError(f"no such file: `{self.url}`", hint="check the URL") from None
        except (OSError, ValueError) as error:
            raise InputError(f"can't read `{self.url}`: {error}", hint="check the URL and your access") from error

    def fingerprint(self) -> str:
        """What tells this content from another, as the store tells it: its checksum or version, size and time."""
        system, path = _connect(self.url)
        info = system.info(path)
        told = [info.get(key) for key in ("ETag", "etag", "md5Hash", "generation", "LastModified", "mtime", "size")]
        return repr((self.url, [str(value) for value in told if value is not None]))


Location: TypeAlias = Path | RemoteFile


def locate(path: str | Location) -> Location:
    """A path as the user wrote it, to where it leads."""
    if isinstance(path, RemoteFile):
        return path
    return RemoteFile(str(path)) if is_url(str(path)) else Path(path)


def load_summary(path: Location) -> RankSummary:
    """A saved summary, here or behind a URL.

    Raises:
        InputError: the file is no summary, is damaged, or of another version.
    """
    if isinstance(path, Path):
        return RankSummary.load(path)
    with path.open() as file:
        return RankSummary.from_bytes(file.read(), str(path))


def is_url(path: str) -> bool:
    """Whether a path is a URL."""
    return _URL.match(path) is not None


def size_of(path: Location) -> int:
    """Bytes of a file; 0 where a server does not tell."""
    return path.size or 0 if isinstance(path, RemoteFile) else path.stat().st_size


def list_files(url: str, *, is_file: re.Pattern[str]) -> Iterator[tuple[RemoteFile, bool]]:
    """The files behind a URL, and whether the user named each one: a file, a folder with all below it, or a glob.

    Args:
        url: what the user gave.
        is_file: names that are files without asking; an HTTP server can't tell a file from a folder.

    Raises:
        InputError: there is nothing, or it can't be reached.
        MissingExtraError: fsspec, or its part for this kind of URL, is not installed.
    """
    system, path = _connect(url)
    try:
        # a name may hold what a glob is made of: what is there under exactly that name goes first
        if _GLOB.search(_without_query(url)) and not system.exists(path):
            found, named = system.glob(path, detail=True), False
        elif is_file.search(_without_query(url)) or not system.isdir(path):
            found, named = {path: system.info(path)}, True
        else:
            found, named = system.find(path, detail=True), False
    except FileNotFoundError:
        raise InputError(f"no such file or folder: `{url}`", hint="check the URL") from None
    except OSError as error:
        raise InputError(f"can't reach `{url}`: {error}", hint="check the URL and your access") from error
    for name, info in found.items():
        if info.get("type") != "directory":
            yield RemoteFile(system.unstrip_protocol(name), info.get("size")), named


def _is_web(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _without_query(url: str) -> str:
    """A signed web address ends in a query; a `?` elsewhere is part of a name or of a glob."""
    return url.partition("?")[0] if _is_web(url) else url


def _connect(url: str) -> tuple[Any, str]:
    try:
        import fsspec
    except ImportError as error:
        raise MissingExtraError.for_extra("remote", what=f"reading `{url}`") from error
    try:
        return cast("tuple[Any, str]", fsspec.core.url_to_fs(url))
    except ImportError as error:
        raise MissingExtraError.for_extra("remote", what=f"reading `{url}`") from error
    except ValueError as error:
        raise InputError(f"can't read `{url}`: {error}", hint="give a path, or a URL of s3, gs or http") from error
