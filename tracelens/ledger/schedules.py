"""Pipeline schedules: the bubble, and the micro-batches that wait for their backward.

Sources: GPipe (arXiv 1811.06965); 1F1B and interleaved 1F1B, Narayanan et al. 2021 (arXiv 2104.04473, section
2.2); zero bubble, Qi et al. 2023 (arXiv 2401.10241, table 2) and ZB-V (arXiv 2405.15362); DualPipe, DeepSeek-V3
(arXiv 2412.19437, table 2). Forward, input gradient and weight gradient count as equally long.
"""

from __future__ import annotations

from tracelens.ledger.layout import Layout, Schedule

_TWO_CHUNKS = (Schedule.zbv, Schedule.dualpipe, Schedule.dualpipev)


def bubble_over_ideal(schedule: Schedule | None, p: int, m: int, v: int = 1) -> float:
    """Idle time of a rank over its useful time: (p-1)/(v·m) for 1F1B with v chunks."""
    return idle_microbatches(schedule, p, v) / m


def bubble_fraction(schedule: Schedule | None, p: int, m: int, v: int = 1) -> float:
    """Idle time of a rank over the whole step: ((p-1)/v) / (m + (p-1)/v) for 1F1B with v chunks."""
    idle = idle_microbatches(schedule, p, v)
    return idle / (m + idle)


def idle_microbatches(schedule: Schedule | None, p: int, v: int = 1) -> float:
    """Idle time of a rank in units of one micro-batch's forward and backward on that rank."""
    if schedule is None or p <= 1:
        return 0.0
    if schedule is Schedule.zero_bubble:
        # ZB-H1: (p-1)(F + B - 2W) of the (p-1)(F + B + W) of 1F1B
        return (p - 1) / 3 / v
    if schedule is Schedule.zbv:
        return 0.0
    if schedule in (Schedule.dualpipe, Schedule.dualpipev):
        # (p/2 - 1)(F&B + B_full - 3W), F&B taking 3 and B_full 2 of the 3 units of a micro-batch
        return max(0.0, (p / 2 - 1) * 2 / 3)
    return (p - 1) / v


def microbatches_in_flight(layout: Layout, rank: int) -> float:
    """Micro-batches whose activations pipeline rank `rank` holds at the worst moment.

    Counted in whole micro-batches of all its layers, so a chunk of v counts 1/v.
    """
    schedule, p, m, v = layout.kind_of_schedule, layout.pp, layout.num_microbatches, layout.vp
    if schedule is None:
        return 1.0
    if schedule in (Schedule.gpipe, Schedule.looped_bfs):
        return float(m)
    if schedule in _TWO_CHUNKS:
        return float(min(m, p if schedule is Schedule.zbv else p + 1))
    if v == 1:
        return float(min(m, p - rank))
    chunks = 2 * (p - rank - 1) + (v - 1) * p + 1
    return min(m * v, chunks) / v
