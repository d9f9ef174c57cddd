"""How well layouts are inferred: right, undetermined with the truth among the values left, silent, wrong.

    python -m benchmarks.inference [--shared ../shared/traces] [--layouts FOLDER] [--notes]

Suites: traces beside the checkout that have a truth file; the exercises' traces and the generated ones in fixtures/;
schedules written from their sources; layouts of real PyTorch code by dry run, where torch is installed (their
summaries are kept in FOLDER), those that rules were written on, those held out and random ones apart; the layouts
under noise; and with groups that are described as what they are not.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.inference_megatron import written
from benchmarks.inference_noise import KINDS, LIES, Noise
from benchmarks.inference_scoring import Score, fields_table, table
from tracelens.errors import TraceLensError
from tracelens.inference.infer import infer
from tracelens.summary import RankSummary
from tracelens.trace.summarize import summarize

CHECKOUT = Path(__file__).resolve().parents[1]
Case = tuple[str, Sequence[RankSummary], Mapping[str, Any]]


def shared_cases(folder: Path) -> Iterator[Case]:
    """Traces with a truth.json beside them."""
    for path in sorted(folder.rglob("truth.json")):
        stated = json.loads(path.read_text(encoding="utf-8"))
        truth = stated["config"] | _tokens(stated.get("micro_batch"), stated.get("seq"))
        yield path.parent.name, _summaries(path.parent), truth


def _tokens(micro_batch: int | None, seq_len: int | None) -> dict[str, int]:
    """Sizes of a micro-batch where they are stated."""
    if micro_batch is None or seq_len is None:
        return {}
    return {"micro_batch": micro_batch, "seq_len": seq_len, "tokens_per_microbatch": micro_batch * seq_len}


def fixture_cases() -> Iterator[Case]:
    """The exercises' traces, and those that the project's generator wrote."""
    for path in sorted((CHECKOUT / "fixtures").rglob("truth.toml")):
        stated = tomllib.loads(path.read_text(encoding="utf-8"))
        truth = stated.get("config") or _layout_truth(stated)
        if truth:
            truth |= _tokens(truth.get("micro_batch"), truth.get("seq_len"))
            yield path.parent.name, _summaries(path.parent), truth


def _layout_truth(stated: Mapping[str, Any]) -> dict[str, Any]:
    layout = dict(stated.get("layout", {}))
    if not layout:
        return {}
    if "microbatches" in layout:
        layout["num_microbatches"] = layout["microbatches"]
    if "zero" in layout:
        layout["sharding"] = "none" if layout["zero"] == 0 else f"zero{layout['zero']}"
    return layout | {"world_size": stated.get("world_size")}


def _summaries(folder: Path) -> list[RankSummary]:
    found = []
    for path in sorted(folder.glob("*.json*")):
        if path.name == "truth.json":
            continue
        try:
            found.append(summarize(path))
        except TraceLensError:
            continue
    return found


DRY_RUNS = ("rules", "held out", "sampled")


def layout_cases(folder: Path | None, suite: str) -> Iterator[Case]:
    """Layouts of real PyTorch code by dry run; none without torch unless their summaries are in the folder."""
    if folder is not None and (folder / "truths.json").exists():
        for name, kept in json.loads((folder / "truths.json").read_text(encoding="utf-8")).items():
            if kept["suite"] == suite:
                yield name, [RankSummary.load(folder / file) for file in kept["files"]], kept["truth"]
        return
    if importlib.util.find_spec("torch") is None:
        return
    from benchmarks.inference_catalog import held_out, rules, sampled
    from benchmarks.inference_dryrun import run_layout

    layouts = sampled(60, seed=11) if suite == "sampled" else rules() if suite == "rules" else held_out()
    for layout in layouts:
        try:
            yield layout.name, run_layout(layout), layout.truth()
        except (RuntimeError, ValueError) as error:  # some random products are none that torch accepts
            print(f"left out: {layout.name}: {str(error).splitlines()[0][:100]}")


def keep_layouts(folder: Path) -> None:
    """Run the layouts once and keep their summaries."""
    folder.mkdir(parents=True, exist_ok=True)
    index: dict[str, Any] = {}
    for suite in DRY_RUNS:
        for name, summaries, truth in layout_cases(None, suite):
            files = []
            for summary in summaries:
                files.append(f"{name.replace(' ', '_').replace(',', '')}-{summary.rank}.tracelens")
                summary.save(folder / files[-1])
            index[name] = {"suite": suite, "files": files, "truth": truth}
    (folder / "truths.json").write_text(json.dumps(index), encoding="utf-8")


def score(cases: Sequence[Case], *, blind: bool, one_rank: bool) -> Score:
    """Judge every case: from each rank alone, or from all ranks together."""
    result = Score()
    for name, summaries, truth in cases:
        for ranks in [[s] for s in summaries] if one_rank else [summaries]:
            result.add(f"{name}, rank {ranks[0].rank}" if one_rank else name, truth, infer(ranks, blind=blind))
    return result


def suites(arguments: argparse.Namespace) -> dict[str, list[Case]]:
    """The cases of each suite."""
    shared: Path = arguments.shared
    found: dict[str, list[Case]] = {
        "shared traces": list(shared_cases(shared)) if shared.is_dir() else [],
        "fixtures": list(fixture_cases()),
        "written schedules": [(name, summaries, truth) for name, (summaries, truth) in written().items()],
    }
    for suite in DRY_RUNS:
        found[f"dry runs, {suite}"] = list(layout_cases(arguments.layouts, suite))
    return {name: cases for name, cases in found.items() if cases}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=CHECKOUT.parent / "shared" / "traces")
    parser.add_argument("--layouts", type=Path, help="folder with the summaries of the dry runs; filled when empty")
    parser.add_argument("--notes", action="store_true", help="list every field that is not right")
    arguments = parser.parse_args()
    if arguments.layouts and not (arguments.layouts / "truths.json").exists():
        keep_layouts(arguments.layouts)
    scores: dict[str, Score] = {}
    everything = suites(arguments)
    for blind in (False, True):
        for one_rank in (True, False):
            for name, cases in everything.items():
                title = f"{name}, {'blind' if blind else 'named'}, {'one rank' if one_rank else 'all ranks'}"
                scores[title] = score(cases, blind=blind, one_rank=one_rank)
    noisy = {kind: _noisy(everything, noise, blind=True) for kind, noise in KINDS.items()}
    lied = {kind: _noisy(everything, noise, blind=False) for kind, noise in LIES.items()}
    print(table(scores), "", "Under noise, blind:", table(noisy), "", "Under false names:", table(lied), sep="\n")
    print("", fields_table(scores.values()), sep="\n")
    sure = sum((s.sure for s in (*scores.values(), *noisy.values(), *lied.values())), Counter[bool]())
    print(f"\nnon-trivial fields at 0.9 and more: {sure[True]} right, {sure[False]} wrong")
    if arguments.notes:
        for title, result in (scores | noisy | lied).items():
            print(f"\n{title}", *result.notes, sep="\n  ")


def _noisy(everything: Mapping[str, Sequence[Case]], noise: Noise, *, blind: bool) -> Score:
    result = Score()
    for suite in (*(f"dry runs, {suite}" for suite in DRY_RUNS), "written schedules"):
        for name, summaries, truth in everything.get(suite, ()):
            result.add(name, truth, infer(noise(summaries, random.Random(name)), blind=blind))
    return result


if __name__ == "__main__":
    main()
