"""What several ranks tell: who waits for whom, what a link gives, what overlap costs, how even the experts are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from tracelens.many_ranks import Cause, Clock, Dilation, LinkUse, Routing, Skew
from tracelens.report.lines import PLAIN, Line, left_out, limit, note, titled_table
from tracelens.report.table import Column
from tracelens.topology import format_ranks
from tracelens.units import UNKNOWN, format_bytes, format_percent, format_rate, format_time, plural

_MOST_ROWS = 8

_SKEW_COLUMNS = [
    Column("group", is_name=True),
    Column("primitive", is_name=True),
    Column("ranks", is_name=True),
    Column("calls"),
    Column("transfer"),
    Column("waiting"),
    Column("busbw"),
    Column("last: rank", is_name=True),
]
_SHORT = {Cause.communication: "comm"}
_LINK_COLUMNS = [
    Column("group", is_name=True),
    Column("primitive", is_name=True),
    Column("groups"),
    Column("payload from"),
    Column("calls"),
    Column("transfer"),
    Column("algbw"),
    Column("busbw"),
    Column("of link"),
]


def skew_table(
    skew: Sequence[Skew] | None, clocks: Sequence[Clock] | None, owners: Mapping[str, str], *, every_row: bool
) -> list[Line]:
    """Transfer and waiting per group and primitive, those that wait longest first."""
    if not skew:
        return []
    ordered = sorted(skew, key=lambda row: -(row.wait_ns or 0))
    shown = ordered[: limit(_MOST_ROWS, every_row=every_row)]
    rows = [
        [
            _label(row.group, owners),
            row.primitive,
            _members(row),
            f"{row.matched_calls + row.partly_matched_calls:,}",
            format_time(row.transfer_ns),
            format_time(row.wait_ns),
            format_rate(row.busbw_bytes_per_s),
            _last(row),
        ]
        for row in shown
    ]
    title = "Transfer and waiting, all paired calls: sums, waiting as the mean of the ranks"
    table = titled_table(title, _SKEW_COLUMNS, rows)
    return [*table, *left_out(len(ordered) - len(shown), "row"), *_unpaired(skew), *_clocks(clocks)]


def _label(group: str | None, owners: Mapping[str, str]) -> str:
    return "unattributed" if group is None else owners.get(group, group)


def _members(row: Skew) -> str:
    ranks = format_ranks(row.ranks)
    return ranks if row.complete else f"{ranks} of {UNKNOWN if row.size is None else row.size}"


def _last(row: Skew) -> str:
    last = row.last
    if last is None:
        return "nobody"
    often = f"{last.rank} ({last.calls} of {last.of})"
    if not last.systematic:
        return f"{often} {why_no_habit(row)}"
    more = "" if last.cause_ns is None else f" +{format_time(last.cause_ns)}"
    return f"{often} {_SHORT.get(last.cause, last.cause.value)}{more}"


def why_no_habit(row: Skew) -> str:
    """Why no rank is called late: messages are late as the schedule has it, now for one rank and now for another."""
    if row.last is not None and row.last.too_few:
        return "too few"
    return "no one rank" if row.primitive == "p2p" else "by chance"


def _unpaired(skew: Sequence[Skew]) -> list[Line]:
    counts = {
        "on one rank only": sum(row.unmatched_calls for row in skew),
        "of unequal size": sum(row.conflicting_calls for row in skew),
        "before the last rank recorded": sum(row.late_profiler_calls for row in skew),
    }
    told = [f"{count:,} {what}" for what, count in counts.items() if count]
    return note(f"calls not used: {', '.join(told)}") if told else []


def _clocks(clocks: Sequence[Clock] | None) -> list[Line]:
    if not clocks or len(clocks) < 2:
        return []
    offsets = [clock.offset_ns for clock in clocks]
    apart = format_time(max(offsets) - min(offsets))
    spreads = [clock.spread_ns for clock in clocks if clock.spread_ns is not None]
    known = f"known to {format_time(max(spreads))}" if len(spreads) == len(clocks) else "of a single call for some"
    return [Line(f"  clocks of {plural(len(clocks), 'rank')} aligned: up to {apart} apart, {known}")]


def link_table(links: Sequence[LinkUse] | None, owners: Mapping[str, str], *, every_row: bool) -> list[Line]:
    """Bandwidth by size of the call, the sizes that move most first; what to beware of stands below.

    Groups of a kind stand together: calls are their sum, the rest is the median of the groups.
    """
    if not links:
        return []
    kin: dict[tuple[str, str, int], list[LinkUse]] = {}
    for link in links:
        kin.setdefault((_label(link.group, owners), link.primitive, link.from_bytes), []).append(link)
    ordered = sorted(kin.items(), key=lambda item: -item[0][2] * sum(link.calls for link in item[1]))
    shown = ordered[: limit(_MOST_ROWS, every_row=every_row)]
    rows = [
        [
            label,
            primitive,
            str(len(alike)),
            format_bytes(size),
            f"{sum(link.calls for link in alike):,}",
            format_time(median(link.transfer_ns for link in alike)),
            format_rate(_median([link.algbw_bytes_per_s for link in alike])),
            format_rate(_median([link.busbw_bytes_per_s for link in alike])),
            format_percent(_median([link.link_fraction for link in alike])),
        ]
        for (label, primitive, size), alike in shown
    ]
    table = titled_table("Bandwidth of the transfer by size of the call", _LINK_COLUMNS, rows)
    caveats = dict.fromkeys(caveat for _, alike in shown for link in alike for caveat in link.caveats)
    remarks = [line for caveat in caveats for line in note(caveat)]
    return [*table, *left_out(len(ordered) - len(shown), "row"), *remarks]


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def routing_lines(routing: Routing | None) -> list[Line]:
    """How evenly tokens are spread over experts."""
    if routing is None:
        return []
    # equal all-to-alls in pairs may be of another kind: only inference can tell
    text = f"All-to-all in pairs, as experts have it: out {routing.dispatches:,} times, back {routing.combines:,} times"
    if routing.imbalance_median is not None:
        text += f"; most received over mean {routing.imbalance_median:.2f}"
    if routing.imbalance_max is not None:
        text += f" (median), {routing.imbalance_max:.2f} (worst)"
    if routing.busiest is not None:
        text += f"; busiest rank {routing.busiest}"
    if routing.combine_wait_ns is not None:
        text += f"; {format_time(routing.combine_wait_ns)} waiting in combines"
    if routing.explained_wait_fraction is not None:
        text += f", {format_percent(routing.explained_wait_fraction)} of it explained by unequal loads"
    return note(text, indent="", style=PLAIN)


def dilation_lines(dilation: Dilation | None) -> list[Line]:
    """What compute pays for the communication that it hides."""
    if dilation is None:
        return []
    where = f", rank{'s' if len(dilation.ranks) > 1 else ''} {format_ranks(dilation.ranks)}" if dilation.ranks else ""
    change = format_time(abs(dilation.cost_ns)) + (" longer" if dilation.cost_ns >= 0 else " less")
    text = (
        f"Overlap, whole recording{where}: matrix products take {dilation.ratio:.2f} times as long under "
        f"communication; {dilation.kernels_under:,} of {dilation.all_kernels_under:,} under it ran alone too, and "
        f"took, by their medians, {change} than the {format_time(dilation.alone_ns)} that they take alone"
    )
    return note(text, indent="", style=PLAIN)
