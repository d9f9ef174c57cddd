"""Whole-text comparison with a file that a person has read.

`TRACELENS_UPDATE_GOLDEN=1 pytest tests/report` rewrites the files; read the difference before committing it.
"""

from __future__ import annotations

import os
from pathlib import Path

UPDATE = "TRACELENS_UPDATE_GOLDEN"


def assert_golden(text: str, path: Path) -> None:
    """Compare a text with its golden file, or write the file when the update is asked for."""
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden file {path.name}; {UPDATE}=1 writes it"
    assert text == path.read_text(encoding="utf-8")
