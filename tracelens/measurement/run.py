"""What is told of the job itself: files, ranks, devices, coverage, problems."""

from __future__ import annotations

from collections.abc import Sequence

from tracelens.errors import Problem, Severity
from tracelens.results import Coverage, Run, Skipped, TraceFile
from tracelens.summary import RankSummary

DEFAULT_GPUS_PER_NODE = 8


def find_node_size(ranks: Sequence[RankSummary], given: int | None) -> tuple[int | None, list[Problem]]:
    """GPUs per node: as given, else as many ranks as a host name has, else 8 and said so where it matters."""
    if given is not None:
        return given, []
    by_host: dict[str, set[int]] = {}
    for summary in ranks:
        if summary.head.host and summary.rank is not None:
            by_host.setdefault(summary.head.host, set()).add(summary.rank)
    world = ranks[0].head.world_size
    if len(by_host) > 1 and world == sum(map(len, by_host.values())):
        return max(map(len, by_host.values())), []
    communicates = any(len(summary.calls) or len(summary.kernels) for summary in ranks)
    if not communicates or (world is not None and world <= DEFAULT_GPUS_PER_NODE):
        return DEFAULT_GPUS_PER_NODE, []
    message = f"{DEFAULT_GPUS_PER_NODE} GPUs per node are assumed; the traces do not tell (--gpus-per-node)"
    return DEFAULT_GPUS_PER_NODE, [Problem(code="nodes-assumed", severity=Severity.info, message=message)]


def describe_run(
    ranks: Sequence[RankSummary],
    chosen: Sequence[Sequence[int]],
    gpus_per_node: int | None,
    skipped: tuple[Skipped, ...],
    problems: tuple[Problem, ...],
) -> Run:
    """Put together what the heads of all ranks say.

    Args:
        ranks: the summaries.
        chosen: the steps used of each.
        gpus_per_node: ranks that share a node.
        skipped: files left out.
        problems: those met beside the ranks' own.
    """
    heads = [summary.head for summary in ranks]
    worlds = {head.world_size for head in heads if head.world_size is not None}
    numbers = {
        number
        for head, use in zip(heads, chosen, strict=True)
        for i in use
        if (number := head.steps[i].number) is not None
    }
    return Run(
        world_size=max(worlds) if worlds else None,
        ranks=tuple(sorted({head.rank for head in heads if head.rank is not None})),
        files=tuple(_describe_file(summary, window) for summary, window in zip(ranks, _windows(ranks), strict=True)),
        steps=tuple(sorted(numbers)),
        backend=next((head.backend for head in heads if head.backend), None),
        devices=tuple(dict.fromkeys(device for head in heads for device in head.devices)),
        gpus_per_node=gpus_per_node,
        coverage=_coverage(ranks),
        skipped=skipped,
        problems=tuple(problem for head in heads for problem in head.problems) + problems,
    )


def _windows(ranks: Sequence[RankSummary]) -> list[int]:
    """The number of each summary among those of its rank, by time."""
    seen: dict[int | None, int] = {}
    windows = []
    for summary in ranks:
        windows.append(seen.get(summary.rank, 0) if summary.rank is not None else 0)
        seen[summary.rank] = seen.get(summary.rank, 0) + 1
    return windows


def _describe_file(summary: RankSummary, window: int) -> TraceFile:
    head = summary.head
    return TraceFile(path=head.path, rank=head.rank, window=window, bytes=head.bytes, events=head.events)


def _coverage(ranks: Sequence[RankSummary]) -> Coverage:
    counts = [_count(summary) for summary in ranks]
    return Coverage(**{name: sum(count[name] for count in counts) for name in counts[0]})


def _count(summary: RankSummary) -> dict[str, int]:
    """The coverage of one rank; each frame is unpacked once."""
    calls, kernels, links = summary.calls, summary.kernels, summary.links
    is_sized = calls["wire_bytes"].is_not_null()
    # `call` is the number of its row
    sized_kernels = links["kernel"].filter(is_sized.gather(links["call"])).n_unique()
    return {
        "calls": len(calls),
        "calls_with_bytes": int(is_sized.sum()),
        "calls_with_kernel": int((calls["kernels"] > 0).sum()),
        "kernels": len(kernels),
        "kernels_with_call": len(kernels) - kernels["owner"].null_count(),
        "unsized_kernels": len(kernels) - sized_kernels,
    }
