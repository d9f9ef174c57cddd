"""No message has the plural of one: found in the source, where a count of one would print it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import tracelens

PACKAGE = Path(tracelens.__file__).parent
WORDS = (
    "calls|events|files|numbers|constraints|unknowns|runs|kernels|steps|checks|findings|problems|traces|records|"
    "repetitions|annotations|dispatches|combines|pipelines"
)
# `{outside} calls`, but not `{timed} of {all} calls` of which there are several
NAKED = re.compile(rf"(?<!of )\{{[^{{}}]+\}} ({WORDS})\b")
SEVERAL = {("cli/annotate.py", "traces")}
"""(file, word) of counts that are never one."""


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_count_goes_with_its_word_by_plural_or_noun(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    found = [
        f"{name}:{number}: {line.strip()}"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in NAKED.finditer(line)
        if (name, match[1]) not in SEVERAL and not line.lstrip().startswith(("#", '"""'))
    ]
    assert found == []
