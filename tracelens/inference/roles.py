"""What each process group of a rank is used for, told from what it carries: primitives, sizes, counts, places.

A *use* is one role of one group. A group may have several: the same ranks may average gradients and dispatch tokens.
"""

from __future__ import annotations

from tracelens.inference.exchanges import find_all_to_alls, find_messages, find_tables, looks_up_tables
from tracelens.inference.expert_parts import find_expert_tensor, without_calls
from tracelens.inference.gathers import find_gathers_and_scatters
from tracelens.inference.observations import RankView
from tracelens.inference.reductions import find_all_reduces, find_broadcasts
from tracelens.inference.uses import Use


def find_uses(view: RankView) -> list[Use]:
    """All uses of the groups of a rank."""
    uses: list[Use] = []
    many = [g for g in view.by_group if view.groups[g].size != 1]
    if looks_up_tables(view):
        return [use for group in many for use in find_tables(view, group)]
    for group in many:
        uses += find_messages(view, group)
        uses += find_all_to_alls(view, group)
    parts = find_expert_tensor(view, uses)
    uses += parts
    rest = without_calls(view, parts)
    for group in many:
        uses += find_gathers_and_scatters(rest, group)
    for group in many:
        uses += find_all_reduces(rest, group, uses)
        uses += find_broadcasts(rest, group)
    return uses
