"""Byte texts: what is mapped, what is drawn, what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.data import ByteText, batch, segments


def write(folder: Path, **splits: bytes) -> Path:
    for name, content in splits.items():
        (folder / f"{name}.bin").write_bytes(content)
    return folder


def test_splits_are_mapped_read_only(tmp_path: Path) -> None:
    text = ByteText(write(tmp_path, train=b"abc", validation=b"\x00\xff", test=b"z"))
    assert (bytes(text.train), bytes(text.validation), bytes(text.test)) == (b"abc", b"\x00\xff", b"z")
    with pytest.raises(ValueError, match="read-only"):
        text.train[0] = 1


def test_missing_and_empty_splits_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"train\.bin"):
        ByteText(tmp_path)
    with pytest.raises(ValueError, match=r"test\.bin is empty"):
        ByteText(write(tmp_path, train=b"a", validation=b"b", test=b""))


def test_batches_are_windows_and_repeat_with_their_generator() -> None:
    array = np.arange(200, dtype=np.uint8)
    first = batch(array, torch.Generator().manual_seed(3), 5, 16)
    assert first.shape == (5, 17)
    assert first.dtype == torch.int64
    assert bool((first.diff(dim=1) == 1).all())
    assert torch.equal(first, batch(array, torch.Generator().manual_seed(3), 5, 16))
    assert not torch.equal(first, batch(array, torch.Generator().manual_seed(4), 5, 16))


def test_every_start_is_reached() -> None:
    array = np.arange(7, dtype=np.uint8)
    starts = batch(array, torch.Generator().manual_seed(0), 200, 4)[:, 0]
    assert sorted(set(starts.tolist())) == [0, 1, 2]
    with pytest.raises(ValueError, match="shorter context"):
        batch(array, torch.Generator(), 1, 7)


@given(st.integers(1, 400), st.integers(1, 40), st.integers(1, 20))
def test_segments_never_overlap_and_reach_both_ends(size: int, length: int, count: int) -> None:
    array = (np.arange(size) % 251).astype(np.uint8)
    if count * length > size:
        with pytest.raises(ValueError, match="do not fit"):
            segments(array, length, count)
        return
    numbered = segments(np.arange(size, dtype=np.int64), length, count)  # type: ignore[arg-type]
    assert numbered.shape == (count, length)
    assert len(set(numbered.flatten().tolist())) == count * length
    if count > 1:
        assert (int(numbered[0, 0]), int(numbered[-1, -1])) == (0, size - 1)
