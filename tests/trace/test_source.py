"""Bytes of a file, whatever compresses them: all of them, or all good ones and then the damage."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tracelens.errors import InputError
from tracelens.trace.source import CHUNK_BYTES, GZIP_FEED_BYTES, DamageError, read_chunks

TEXT = b"".join(b'{"ph": "X", "ts": %d},\n' % number for number in range(40_000))

Pack = Callable[[bytes], bytes]


def zstd_stream(data: bytes) -> bytes:
    """As a program writes it that does not know the size beforehand."""
    packer = zstandard.ZstdCompressor().compressobj()
    return packer.compress(data) + packer.flush()


PACKS: dict[str, Pack] = {"plain": bytes, "gzip": gzip.compress, "zstd": zstandard.compress, "zstd stream": zstd_stream}


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_content_tells_the_compression_not_the_suffix(tmp_path: Path, pack: Pack, suffix: str) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_bytes(pack(TEXT))
    assert b"".join(read_chunks(path)) == TEXT


@pytest.mark.parametrize("pack", PACKS.values(), ids=PACKS)
def test_a_file_may_be_compressed_in_parts(tmp_path: Path, pack: Pack) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(TEXT[:1000]) + pack(TEXT[1000:1001]) + pack(TEXT[1001:]))
    assert b"".join(read_chunks(path)) == TEXT


def test_zeros_behind_the_last_member_are_padding(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(TEXT) + bytes(10_240))
    assert b"".join(read_chunks(path)) == TEXT


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([gzip.compress, zstandard.compress]), st.data())
def test_a_cut_stream_gives_what_came_before_the_cut_and_then_the_damage(
    tmp_path_factory: pytest.TempPathFactory, pack: Pack, data: st.DataObject
) -> None:
    packed = pack(TEXT)
    path = tmp_path_factory.mktemp("cut") / "trace"
    path.write_bytes(packed[: data.draw(st.integers(4, len(packed) - 1))])
    got: list[bytes] = []
    with pytest.raises(DamageError):
        got.extend(read_chunks(path))
    assert TEXT.startswith(b"".join(got))


def test_a_flipped_byte_in_the_middle_of_gzip_is_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT))
    packed[-6] ^= 0xFF  # in the checksum, so that all bytes inflate
    path = tmp_path / "trace"
    path.write_bytes(packed)
    with pytest.raises(DamageError, match="broken near byte"):
        list(read_chunks(path))


def test_chunks_stay_small_even_where_much_comes_out_of_little(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(bytes(150_000_000), compresslevel=6))
    sizes = [len(chunk) for chunk in read_chunks(path)]
    assert sum(sizes) == 150_000_000
    assert max(sizes) < CHUNK_BYTES + 1100 * GZIP_FEED_BYTES  # deflate makes at most 1032 bytes of one


def test_progress_ends_at_the_size_of_the_file(tmp_path: Path) -> None:
    for pack in PACKS.values():
        path = tmp_path / "trace"
        path.write_bytes(pack(TEXT))
        told: list[int] = []
        list(read_chunks(path, told.append))
        assert told == sorted(told)
        assert told[-1] == path.stat().st_size


def test_a_folder_and_a_missing_file_are_errors_with_their_name(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(InputError, match=path.name):
            list(read_chunks(path))


def test_raw_deflate_without_a_header_is_not_taken_for_gzip(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    packed = zlib.compress(TEXT)
    path.write_bytes(packed)
    assert b"".join(read_chunks(path)) == packed
