"""`docs/article.md` computes its own numbers: its code is run, and its output compared."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "article.md"


def test_every_number_of_the_page_is_what_its_code_prints() -> None:
    failed, attempted = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)

    assert attempted > 50
    assert failed == 0


def test_the_page_numbers_its_differences_without_a_gap() -> None:
    numbers = re.findall(r"^\*\*(\d+)\.", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)

    assert [int(number) for number in numbers] == list(range(1, 27))
