"""The time model against published step times, one row each: prediction, published value, error.

No rate is solved for (though what is modelled was chosen with these rows in view): the clusters are data sheets and
the rates that cuBLAS and NCCL commonly reach. Run with `python benchmarks/time_model.py`. Sources of the rows are
named beside them.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from tracelens.ledger.cluster import Cluster, load_cluster
from tracelens.ledger.layout import CpKind, Framework, Layout, Recompute
from tracelens.ledger.model import ModelSpec, Norm
from tracelens.ledger.model_source import load_preset
from tracelens.ledger.options import MegatronOptions
from tracelens.ledger.predict import predict
from tracelens.ledger.results import TimeEstimate


@dataclass(frozen=True)
class Row:
    """One published run."""

    source: str
    run: str
    model: ModelSpec
    layout: Layout
    cluster: str | Cluster
    published: float
    unit: str
    """`s` a step, `MFU` as a fraction, or `tok/s` per GPU."""


def gpt(name: str, layers: int, hidden: int, heads: int) -> ModelSpec:
    """Megatron's GPT with a vocabulary of 51,200 and sequences of 2,048."""
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=4 * hidden,
        vocab=51200,
        seq_len=2048,
        gated=False,
        norm=Norm.layernorm,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_embeddings=True,
    )


def megatron(**fields: object) -> Layout:
    """Megatron-LM of 2021 and 2022: no distributed optimizer, no flash attention."""
    defaults: dict[str, object] = {"framework": Framework.megatron, "zero": 0, "flash_attention": False}
    return Layout(**(defaults | fields))  # type: ignore[arg-type]


KORTHIKANTI = [  # layers, hidden, heads, t, p, v, GPUs, batch, b, full recompute s, selective + SP s
    ("22B", 48, 6144, 64, 8, 1, 1, 8, 4, 4, 1.42, 1.10),
    ("175B", 96, 12288, 96, 8, 8, 3, 64, 64, 1, 18.13, 13.75),
    ("530B", 105, 20480, 128, 8, 35, 3, 280, 280, 1, 49.05, 37.83),
    ("1T", 128, 25600, 160, 8, 64, 1, 512, 512, 1, 94.42, 71.49),
]


def korthikanti() -> Iterator[Row]:
    """Rows of arXiv 2205.05198, table 5: A100, s = 2048; step seconds as Calculon's validation set has them."""
    for name, layers, hidden, heads, t, p, v, _, batch, b, full, selective in KORTHIKANTI:
        common = {"tp": t, "pp": p, "vp": v, "micro_batch": b, "num_microbatches": batch // b}
        for label, seconds, fields in (
            ("full recompute", full, {"recompute": Recompute.full, "sequence_parallel": False}),
            ("SP + selective", selective, {"recompute": Recompute.selective}),
        ):
            layout = megatron(**common, **fields)
            model = gpt(name, layers, hidden, heads)
            yield Row("Korthikanti 2022", f"{name} {label}", model, layout, "a100", seconds, "s")


NARAYANAN = [  # billions, layers, hidden, heads, t, p, d, batch, step s derived from the published FLOP/s
    (1.7, 24, 2304, 24, 1, 1, 32, 512, 3.53),
    (3.6, 30, 3072, 32, 2, 1, 32, 512, 3.70),
    (7.5, 36, 4096, 32, 4, 1, 32, 512, 3.70),
    (18.4, 40, 6144, 48, 8, 1, 32, 1024, 9.40),
    (39.1, 48, 8192, 64, 8, 2, 32, 1536, 14.45),
    (76.1, 60, 10240, 80, 8, 4, 32, 1792, 16.06),
    (145.6, 80, 12288, 96, 8, 8, 24, 2304, 24.82),
    (310.1, 96, 16384, 128, 8, 16, 15, 2160, 37.61),
    (529.6, 105, 20480, 128, 8, 35, 9, 2520, 54.08),
    (1008.0, 128, 25600, 160, 8, 64, 6, 3072, 102.6),
]
# micro-batches of that table are not published; these divide the batch and are what its text suggests
NARAYANAN_MICRO_BATCH = {1.7: 16, 3.6: 16, 7.5: 16, 18.4: 8, 39.1: 4, 76.1: 2, 145.6: 2, 310.1: 1}


def narayanan() -> Iterator[Row]:
    """Rows of arXiv 2104.04473, table 1: A100, s = 2048, full recompute."""
    for billions, layers, hidden, heads, t, p, d, batch, seconds in NARAYANAN:
        b = NARAYANAN_MICRO_BATCH.get(billions, 1)
        layout = megatron(
            tp=t,
            pp=p,
            dp=d,
            micro_batch=b,
            num_microbatches=batch // d // b,
            recompute=Recompute.full,
            sequence_parallel=False,
        )
        model = gpt(f"{billions}B", layers, hidden, heads)
        yield Row("Narayanan 2021", f"{billions}B on {t * p * d}", model, layout, "a100", seconds, "s")


LLAMA3 = [  # GPUs, cp, dp, sequence, sequences per replica, MFU
    (8192, 1, 64, 8192, 32, 0.43),
    (16384, 1, 128, 8192, 16, 0.41),
    (16384, 16, 8, 131072, 16, 0.38),
]


def llama3() -> Iterator[Row]:
    """Rows of arXiv 2407.21783, table 4: 405B on H100, tp 8, pp 16; its schedule is interleaved, v is not published.

    Its context parallelism gathers keys and values before attention (section 3.3.2) instead of passing them around.
    """
    for gpus, cp, dp, seq, batch, mfu in LLAMA3:
        layout = Layout(
            framework=Framework.megatron,
            tp=8,
            cp=cp,
            cp_kind=CpKind.allgather,
            pp=16,
            vp=8,
            dp=dp,
            seq_len=seq,
            num_microbatches=batch,
            options=MegatronOptions(overlap_grad_reduce=True, overlap_param_gather=True),
        )
        yield Row("Llama 3", f"405B {gpus} GPUs, s {seq}", load_preset("llama3-405b"), layout, "h100", mfu, "MFU")


MEGASCALE = [  # batch, GPUs, Megatron-LM s
    (768, 256, 40.0),
    (768, 512, 21.2),
    (768, 768, 15.2),
    (768, 1024, 11.9),
    (6144, 3072, 29.02),
    (6144, 6144, 14.78),
    (6144, 8192, 12.24),
    (6144, 12288, 8.57),
]


def megascale() -> Iterator[Row]:
    """Rows of NSDI '24, table 2, its Megatron-LM baseline: 175B on A100, t 8, p 8, v 6.

    FlashAttention-2 is one of the steps from that baseline to MegaScale (table 3), so the baseline has none.
    """
    for batch, gpus, seconds in MEGASCALE:
        d = gpus // 64
        layout = megatron(
            tp=8,
            pp=8,
            vp=6,
            dp=d,
            zero=1,
            num_microbatches=batch // d,
            recompute=Recompute.selective,
        )
        yield Row("MegaScale", f"175B {gpus} GPUs", gpt("175B", 96, 12288, 96), layout, "a100", seconds, "s")


def titan_clusters() -> Iterator[tuple[str, Cluster]]:
    """What the torchtitan team's H100s can be: HBM2e at 2.4 TB/s, a limit of 500 W, and a peak that it does not know.

    Its page puts that peak between those of the SXM and the NVL card, so both ends are taken: 989 and 835 TFLOP/s of
    dense bf16 by the data sheets.
    """
    h100 = load_cluster("h100")
    for card, peak in (("SXM peak", h100.peak_flop_per_s), ("NVL peak", 8.35e14)):
        yield card, msgspec.structs.replace(h100, name=f"H100, {card}", peak_flop_per_s=peak, memory_bytes_per_s=2.4e12)


TITAN = [  # preset, GPUs, tp, sequence, micro-batch, recompute, tokens/s/GPU
    ("llama3-8b", 8, 1, 8192, 2, Recompute.op_selective, 6667),
    ("llama3-8b", 128, 1, 8192, 2, Recompute.op_selective, 6514),
]


def titan() -> Iterator[Row]:
    """Rows of torchtitan benchmarks/llama3_h100_202412: bf16 with compile; its other rows are FP8."""
    for preset, gpus, tp, seq, b, recompute, rate in TITAN:
        layout = Layout(
            framework=Framework.torchtitan, dp=gpus // tp, tp=tp, seq_len=seq, micro_batch=b, recompute=recompute
        )
        for card, cluster in titan_clusters():
            run = f"{preset} {gpus} GPUs, {card}"
            yield Row("torchtitan", run, load_preset(preset), layout, cluster, rate, "tok/s")


def in_unit(row: Row, time: TimeEstimate) -> float:
    """The prediction as the row's publication gives it."""
    if row.unit == "s":
        return time.step_seconds
    if row.unit == "MFU":
        return time.mfu
    layout = row.layout
    tokens = layout.dp * layout.num_microbatches * layout.micro_batch * (layout.seq_len or row.model.seq_len)
    return tokens / time.step_seconds / layout.world_size


def all_rows() -> Iterator[Row]:
    """Every published run that is compared."""
    for source in (korthikanti, narayanan, llama3, megascale, titan):
        yield from source()


def main() -> None:
    """Print the table and the mean absolute errors."""
    errors: dict[str, list[float]] = {}
    print(f"{'source':<18}{'run':<34}{'predicted':>11}{'published':>11}  {'unit':<6}{'error':>8}")
    for row in all_rows():
        time = predict(row.model, row.layout, cluster=row.cluster).time
        if time is None:
            continue
        value = in_unit(row, time)
        error = value / row.published - 1
        errors.setdefault(row.source, []).append(abs(error))
        print(f"{row.source:<18}{row.run:<34}{value:>11.4g}{row.published:>11.4g}  {row.unit:<6}{error:>8.1%}")
    print()
    for source, values in errors.items():
        print(f"{source:<18}mean |error| {statistics.mean(values):6.1%}   largest {max(values):6.1%}")


if __name__ == "__main__":
    main()
