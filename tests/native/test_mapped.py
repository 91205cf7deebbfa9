"""Advice to the system about memory-mapped arrays never changes their contents."""

from pathlib import Path

import pytest
import torch

from siafu import native
from siafu.training.spill import spill_to


@pytest.mark.parametrize("width", [1, 700, 3000])
def test_rows_that_were_told_of_are_read_as_they_are(width: int, tmp_path: Path) -> None:
    rows = spill_to(tmp_path)(5000, width)
    rows[:] = torch.arange(5000.0)[:, None]
    for index in (
        torch.tensor([4999, 0, 1, 2, 2, 800]),
        torch.arange(5000),
        torch.empty(0, dtype=torch.int64),
    ):
        for mapped in (rows, rows[3:]):
            wanted = index[index < mapped.shape[0]]
            native.prefetch_rows(mapped, wanted)
            assert torch.equal(native.gather(mapped, wanted), mapped[wanted])
    native.restore_readahead(rows)
    assert torch.equal(rows[:, 0], torch.arange(5000.0))


@pytest.mark.skipif(not native.compiled(), reason="only the compiled core tells the system")
def test_rows_outside_of_the_array_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IndexError, match=r"index\[\d+\] is 5000; expected 0 to 4999"):
        native.prefetch_rows(spill_to(tmp_path)(5000, 1000), torch.tensor([0, 5000]))
