"""Pipeline schedules: the bubble, and the micro-batches that wait for their backward.

Sources: GPipe (arXiv 1811.06965); 1F1B and interleaved 1F1B, Narayanan et al. 2021 (arXiv 2104.04473, section
2.2); zero bubble, Qi et al. 2023 (arXiv 2401.10241, table 2) and ZB-V (arXiv 2405.15362); DualPipe, DeepSeek-V3
(arXiv 2412.19437, table 2). They tell the bubble of many micro-batches; that of few is the longest way through the
order of torch's `distributed/pipelining/schedules.py`. Forward, input gradient and weight gradient count as equally
long, and a step lasts from the first rank's start to the last rank's end: ZB-V's and ZB-H2's bubble of zero leaves
out the p-1 chunks of filling, which an optimizer hides that waits for no other rank.
"""

from __future__ import annotations

from tracelens.ledger.layout import Layout, Schedule

_IN_FLIGHT = {Schedule.zero_bubble: 0.0, Schedule.zbv: 0.0, Schedule.dualpipe: 1.0, Schedule.dualpipev: 0.5}
"""Micro-batches beyond p that every rank keeps at the most, until their weight gradient is computed."""


def bubble_over_ideal(schedule: Schedule | None, p: int, m: int, v: int = 1) -> float:
    """Idle time of a rank over its useful time: (p-1)/(v·m) for 1F1B with v chunks."""
    return idle_microbatches(schedule, p, m, v) / m


def bubble_fraction(schedule: Schedule | None, p: int, m: int, v: int = 1) -> float:
    """Idle time of a rank over the whole step: ((p-1)/v) / (m + (p-1)/v) for 1F1B with v chunks."""
    idle = idle_microbatches(schedule, p, m, v)
    return idle / (m + idle)


def idle_microbatches(schedule: Schedule | None, p: int, m: int, v: int = 1) -> float:
    """Idle time of a rank in units of one micro-batch's forward and backward on that rank.

    Args:
        schedule: None is no pipeline.
        p: pipeline ranks.
        m: micro-batches of a step.
        v: chunks of a rank; the V-shaped schedules have two whatever is said here.
    """
    if schedule is None or p <= 1:
        return 0.0
    if schedule is Schedule.zero_bubble:
        return _idle_passes_zero_bubble(p, m, v) / (3 * v)
    if schedule is Schedule.zbv:
        # the first rank waits for the first chunk's way there and back, 4(p-1) passes, and has 2 to do in between
        # for every further micro-batch
        return max(p - 1, 4 * (p - 1) - 2 * (m - 1)) / 6
    if schedule is Schedule.dualpipe:
        # (p/2 - 1)(F&B + B_full - 3W), F&B taking 3 and B_full 2 of the 3 passes of a micro-batch
        return max(0.0, (p / 2 - 1) * 2 / 3)
    if schedule is Schedule.dualpipev:
        # the same of 2p stages, of which each takes half of a rank's micro-batch
        return (p - 1) * 2 / 6
    # a round of fewer than p micro-batches waits between its chunks
    return (p - 1) / v + max(0, p - m) * (v - 1) / v


def _idle_passes_zero_bubble(p: int, m: int, v: int) -> int:
    """ZB-H1: (p-1)(F + B - W) where micro-batches fill the pipeline; passes of a chunk, of which F, B, W are one each.

    With fewer, the last backward of the first chunk has a longer way: v more passes for every one that lacks, and no
    less than there and back, the first weight gradient, and two passes for each further micro-batch.
    """
    there_and_back = 2 * v * p + 1 + 2 * (m - 1)
    return max(p - 1, p - 1 + v * (p - m), there_and_back - 3 * v * m)


def microbatches_in_flight(layout: Layout, rank: int) -> float:
    """Micro-batches whose activations pipeline rank `rank` holds at the worst moment.

    Counted in whole micro-batches of all its layers, so a chunk of v counts 1/v.
    """
    schedule, p, m, v = layout.kind_of_schedule, layout.pp, layout.num_microbatches, layout.vp
    if schedule is None:
        return 1.0
    if schedule in (Schedule.gpipe, Schedule.looped_bfs):
        return float(m)
    if schedule in _IN_FLIGHT:
        return min(float(m), p + _IN_FLIGHT[schedule])
    if v == 1:
        return float(min(m, p - rank))
    chunks = 2 * (p - rank - 1) + (v - 1) * p + 1
    return min(m * v, chunks) / v
