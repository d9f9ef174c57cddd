"""`tracelens dry-run`: scripts, unmodified, and their faults."""

from __future__ import annotations

import importlib.util
import json
import resource
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tracelens.cli.main import main

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs the extra torch"),
]

TRAIN = """
    import argparse, os, torch, torch.distributed as dist
    from torch import nn

    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=8)
    hidden = parser.parse_args().hidden

    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = nn.parallel.DistributedDataParallel(nn.Linear(hidden, hidden, bias=False).cuda())
    optimizer = torch.optim.AdamW(model.parameters())
    print("this goes nowhere")
    while True:
        loss = model(torch.ones(2, hidden, device="cuda")).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 8:
            dist.broadcast(torch.ones(3), src=8, async_op=True)
"""


KEYS = ("ranks", "axis", "primitive", "dtype", "phase", "wire_bytes_per_step")


def write(folder: Path, source: str) -> str:
    path = folder / "train.py"
    path.write_text(dedent(source), encoding="utf-8")
    return str(path)


def test_a_script_without_end_gives_the_rows_of_a_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(tmp_path, TRAIN)
    arguments = ["--world-size", "16", "--ranks", "8,0", "--format", "json", "--", "--hidden", "16"]
    assert main(["dry-run", script, *arguments]) == 0

    document = json.loads(capsys.readouterr().out)
    run = {"world_size": 16, "ranks": [0, 8], "steps": [2], "backend": "fake"}
    assert document["run"] | run == document["run"]
    rows = [
        (*(row[key] for key in KEYS), row["calls_per_step"]["mean"], row["payload_bytes_per_step"])
        for row in document["traffic"]
    ]
    assert rows == [
        ([0], None, "all_reduce", "fp32", "backward", 1920, 1, 1024),
        ([8], None, "all_reduce", "fp32", "backward", 1920, 1, 1024),
        ([8], None, "broadcast", "fp32", "optimizer", 12, 1, 12),
    ]
    assert document["calls"][0] | {"module": None} == {
        "rank": 0,
        "step": 2,
        "phase": "backward",
        "module": None,
        "primitive": "all_reduce",
        "name": "allreduce",
        "group": "[[16,1]]@0",
        "dtype": "fp32",
        "in_elements": 256,
        "out_elements": 256,
        "peer": None,
    }


def test_saved_dry_runs_stand_on_either_side_of_diff_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, TRAIN)
    eight, sixteen = str(tmp_path / "8.json"), str(tmp_path / "16.json")
    for hidden, path in ((8, eight), (16, sixteen)):
        assert main(["dry-run", script, "--world-size", "4", "-o", path, "--", "--hidden", str(hidden)]) == 0

    assert main(["diff", eight, "--against", eight]) == 0
    assert "unchanged 100.00 % of the bytes" in capsys.readouterr().out
    assert main(["diff", eight, "--against", sixteen, "--format", "json"]) == 1
    rows = json.loads(capsys.readouterr().out)["comparison"]["rows"]
    (row,) = (row for row in rows if row["from_bytes"] is None)
    # 2 · 3/4 of 8 · 8 and of 16 · 16 gradients in fp32
    assert (row["base_calls"], row["candidate_calls"]) == (1, 1)
    assert (row["base_bytes"], row["candidate_bytes"], row["verdict"]) == (384, 1536, "more")

    policy = str(tmp_path / "policy.toml")
    assert main(["check", eight, "--write-policy", policy]) == 0
    assert main(["check", eight, "--policy", policy]) == 0
    assert main(["check", sixteen, "--policy", policy]) == 1
    assert main(["analyze", eight]) == 0
    assert "no communication" not in capsys.readouterr().out


def test_a_failing_script_shows_its_own_error_and_nothing_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, "def build():\n    raise ValueError('no such data set')\n\nbuild()\n")
    assert main(["dry-run", script, "--world-size", "4"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: `{script}` failed as rank 0\nTraceback (most recent call last):\n")
    assert err.rstrip().endswith("ValueError: no such data set")
    assert "runpy" not in err
    assert "tracelens/capture" not in err


@pytest.mark.parametrize("end", ["sys.exit()", "sys.exit(0)", "sys.exit(None)", "raise SystemExit"])
def test_a_script_may_end_as_programs_end(end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"import sys, torch, torch.distributed as dist\ndist.all_reduce(torch.ones(256))\n{end}\n"
    assert main(["dry-run", write(tmp_path, source), "--world-size", "8"]) == 0
    assert "all_reduce" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("sys.exit(3)", "ended with exit code 3 as rank 0\nreading the data\n"),
        ("sys.exit('no such data set')", "ended with exit code 1 as rank 0\nreading the data\nno such data set\n"),
        ("argparse.ArgumentParser('train').parse_args(['--x'])", "error: unrecognized arguments: --x\n"),
    ],
)
def test_a_script_that_gives_up_is_told_by_its_code_and_its_last_words(
    end: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, f"import argparse, sys\nprint('reading the data')\n{end}\n")
    assert main(["dry-run", script, "--world-size", "8"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: `{script}` ended with exit code ")
    assert err.endswith(told)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("asked", "counted", "told"),
    [
        ("0:50", [0, 1, 2], "warning: rank 0 ended with step 2, and steps 0 to 50 are asked for: steps 0 to 2 are"),
        ("7", [2], "warning: rank 0 ended with step 2, and step 7 is asked for: step 2 is"),
        ("1:2", [1, 2], None),
    ],
)
def test_fewer_steps_than_asked_for_are_told_of(
    asked: str, counted: list[int], told: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = write(tmp_path, TRAIN.replace("while True", "for _ in range(3)"))
    assert main(["dry-run", script, "--world-size", "2", "--steps", asked, "--format", "json"]) == 0
    out, err = capsys.readouterr()
    run = json.loads(out)["run"]
    assert run["steps"] == counted
    assert err == ("" if told is None else f"{told} counted\n")
    assert [(problem["code"], problem["rank"]) for problem in run["problems"]] == [("steps-missing", 0)] * bool(told)


def test_a_mesh_that_does_not_fit_the_world_is_the_scripts_own_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (4, 4))\n"
    assert main(["dry-run", write(tmp_path, source), "--world-size", "8"]) == 2
    assert "RuntimeError" in capsys.readouterr().err


def test_traffic_that_depends_on_values_gets_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
        import torch, torch.distributed as dist
        chosen = torch.randn(8, 4).argmax(dim=1)
        dist.all_reduce(torch.ones(len(chosen.nonzero())))
    """
    script = write(tmp_path, source)
    assert main(["dry-run", script, "--world-size", "8"]) == 2
    assert "--real-tensors" in capsys.readouterr().err
    assert main(["dry-run", script, "--world-size", "8", "--real-tensors"]) == 0


def test_bare_collectives_are_one_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = """
        import torch, torch.distributed as dist
        dist.init_process_group("gloo")
        for _ in range(5):
            dist.all_reduce(torch.ones(256))
    """
    assert main(["dry-run", write(tmp_path, source), "--world-size", "8"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        *("0-7", "default_pg", "all_reduce", "fp32", "?", "5", "5.00", "KiB", "8.75", "KiB")
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.py", "--world-size", "8"], "no script `nowhere.py`"),
        (["nowhere.py", "--world-size", "8", "--ranks", "8"], "rank 8 is not in a world of 8"),
        (["nowhere.py", "--world-size", "8", "--ranks", "a"], "`a` is no list of ranks"),
    ],
)
def test_bad_usage_says_what_is_wrong(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dry-run", *arguments]) == 2
    assert message in capsys.readouterr().err


EIGHT_BILLION = """
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from tests.capture.llama import Llama, shard

    shape = dict(hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256, layers=32)
    dist.init_process_group("nccl")
    model = Llama(shape)
    shard(model, init_device_mesh("cuda", (64,)))
    optimizer = torch.optim.AdamW(model.parameters())
    while True:
        model(torch.randint(0, 128256, (1, 8192), device="cuda")).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.slow
def test_eight_billion_parameters_on_64_ranks_fit_a_laptop(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tracelens", "dry-run", write(tmp_path, EIGHT_BILLION)]
    done = subprocess.run(
        [*command, "--world-size", "64", "--format", "json"],
        env={"PYTHONPATH": str(Path(__file__).resolve().parents[2]), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    parameters = 8_030_261_248
    payloads = {
        (row["primitive"], row["phase"]): row["payload_bytes_per_step"] for row in json.loads(done.stdout)["traffic"]
    }
    assert payloads == {
        ("all_gather", "forward"): 2 * parameters,
        ("all_gather", "backward"): 2 * parameters,
        ("reduce_scatter", "backward"): 4 * parameters,
    }
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2 << 20  # KiB
