"""Steps and phases, on recordings whose program is known."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from tracelens.results import Phase
from tracelens.trace.columns import Collector, Events
from tracelens.trace.schema import Args, Event
from tracelens.trace.steps import add_phases, cut_gpu_time, find_steps, step_index
from tracelens.trace.summarize import summarize

FSDP_TP = Path(__file__).resolve().parents[2] / "fixtures" / "fsdp2_tp2"

MAIN, AUTOGRAD = (1, 1), (1, 2)


def annotation(name: str, start_us: float, end_us: float, thread: tuple[int, int] = MAIN) -> Event:
    return Event(name=name, cat="user_annotation", pid=thread[0], tid=thread[1], ts=start_us, dur=end_us - start_us)


def operator(name: str, start_us: float, end_us: float, thread: tuple[int, int] = MAIN) -> Event:
    return Event(name=name, cat="cpu_op", pid=thread[0], tid=thread[1], ts=start_us, dur=end_us - start_us, args=Args())


def thread_name(thread: tuple[int, int], name: str) -> Event:
    return Event(name="thread_name", pid=thread[0], tid=thread[1], args=Args(name=name))


def collect(*events: Event) -> Events:
    collector = Collector()
    collector.add(list(events))
    return collector.finish()


def phases(events: Events, *issues: tuple[float, tuple[int, int], str]) -> list[str | None]:
    """The phase of calls issued at a time (µs) on a thread with a primitive."""
    threads = [events.threads.index(thread) for _, thread, _ in issues]
    calls = pl.DataFrame(
        {
            "call": range(len(issues)),
            "issue_ns": [int(us * 1000) for us, _, _ in issues],
            "thread": threads,
            "primitive": [primitive for _, _, primitive in issues],
        },
        schema={"call": pl.UInt32, "issue_ns": pl.Int64, "thread": pl.Int32, "primitive": pl.String},
    )
    return add_phases(calls, events, find_steps(events))["phase"].to_list()


TRAINING = (
    annotation("ProfilerStep#4", 0, 100),
    operator("autograd::engine::evaluate_function: MmBackward0", 40, 60, AUTOGRAD),
    annotation("Optimizer.step#AdamW.step", 70, 90),
    thread_name(AUTOGRAD, "thread 2 (pt_autograd_0)"),
)


def test_phases_follow_thread_position_and_annotation() -> None:
    found = phases(
        collect(*TRAINING),
        (10, MAIN, "all_gather"),
        (50, AUTOGRAD, "reduce_scatter"),
        (65, MAIN, "all_reduce"),  # after the last backward: the gradient norm
        (75, MAIN, "all_gather"),
    )
    assert found == [Phase.forward, Phase.backward, Phase.optimizer, Phase.optimizer]


def test_sends_between_backwards_may_be_either_way() -> None:
    events = collect(*TRAINING, operator("autograd::engine::evaluate_function: X", 62, 64, AUTOGRAD))
    found = phases(events, (10, MAIN, "send"), (61, MAIN, "send"), (61, MAIN, "all_gather"))
    assert found == [Phase.forward, None, Phase.forward]


def test_a_trace_without_backward_has_no_forward_either() -> None:
    assert phases(collect(annotation("ProfilerStep#4", 0, 100)), (10, MAIN, "all_reduce")) == [None]


def test_backward_on_the_main_thread_is_what_autograd_evaluates() -> None:
    events = collect(
        annotation("ProfilerStep#4", 0, 100), operator("autograd::engine::evaluate_function: X", 40, 60, MAIN)
    )
    found = phases(events, (10, MAIN, "all_reduce"), (50, MAIN, "all_reduce"), (80, MAIN, "all_reduce"))
    assert found == [Phase.forward, Phase.backward, Phase.optimizer]


def test_what_the_engine_calls_at_its_end_is_backward_too() -> None:
    # as FSDP2 on a CPU reduces its first unit
    events = collect(
        annotation("ProfilerStep#4", 0, 100),
        operator("autograd::engine::evaluate_function: X", 40, 60, MAIN),
        annotation("FSDP::root_post_backward_callback", 62, 70),
    )
    found = phases(events, (50, MAIN, "reduce_scatter"), (65, MAIN, "reduce_scatter"), (80, MAIN, "all_reduce"))
    assert found == [Phase.backward, Phase.backward, Phase.optimizer]


def test_steps_are_half_open_and_leave_gaps() -> None:
    events = collect(annotation("ProfilerStep#1", 0, 10), annotation("ProfilerStep#2", 20, 30))
    times = pl.DataFrame({"t": [-1, 0, 9_999, 10_000, 20_000, 30_000]}, schema={"t": pl.Int64})
    index = times.select(step_index("t", find_steps(events)))["t"].to_list()
    assert index == [None, 0, 0, None, 1, None]


def test_an_annotation_that_comes_again_and_again_marks_steps_where_the_profiler_did_not() -> None:
    rounds = [annotation(f"train_step {n}", 10 * n, 10 * n + 8) for n in range(3)]
    inner = [annotation("forward", 10 * n, 10 * n + 3) for n in range(3)]
    steps = find_steps(collect(*rounds, *inner))
    assert [(step.number, step.cpu_start_ns, step.cpu_end_ns) for step in steps] == [
        (0, 0, 8_000),
        (1, 10_000, 18_000),
        (2, 20_000, 28_000),
    ]


def test_gpu_time_is_cut_at_the_first_kernel_of_each_step() -> None:
    steps = find_steps(collect(annotation("ProfilerStep#1", 0, 10), annotation("ProfilerStep#2", 10, 20)))
    gpu = pl.DataFrame(
        {"work": [0, 0, 1, 0], "start_ns": [5, 50, 80, 90], "end_ns": [45, 70, 85, 140], "step": [0, 0, 1, 1]},
        schema={"work": pl.UInt8, "start_ns": pl.Int64, "end_ns": pl.Int64, "step": pl.Int32},
    )
    cut = cut_gpu_time(steps, gpu)
    assert [(step.gpu_start_ns, step.gpu_end_ns) for step in cut] == [(5, 90), (90, 140)]


def test_the_phases_of_a_sharded_model_are_those_of_its_program() -> None:
    # five units: gathered once in forward and again in backward but for the last, reduced once in backward
    calls = summarize(FSDP_TP / "rank0_trace.json.gz").calls.filter(pl.col("step") == 1)
    group = calls.filter(pl.col("primitive") == "reduce_scatter", pl.col("dtype") == "fp32")["group"][0]
    sharded = calls.filter(pl.col("group") == group, pl.col("payload_bytes") > 1000)
    counted = sharded.group_by("primitive", "phase").len().iter_rows()
    found = {(primitive, phase): count for primitive, phase, count in counted}
    assert found == {("all_gather", "forward"): 5, ("all_gather", "backward"): 4, ("reduce_scatter", "backward"): 5}
