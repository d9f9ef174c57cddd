"""The engine of several machines: Dask (extra `cluster`).

Dask and not Ray, because the traces of training jobs lie where Slurm and Kubernetes are, and there a Dask cluster is
one `srun dask worker` or one Helm chart away, needs no head node of its own and nothing but Python. Its scheduler
gives the files of a lost worker to another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tracelens.engines.base import Outcome, Work, reader_died
from tracelens.errors import MissingExtraError, UsageError
from tracelens.trace.discover import Source

_CONNECT_S = 20


class Dask:
    """Workers of a Dask cluster that see the files under the same paths."""

    def __init__(self, scheduler: str) -> None:
        """Connect later.

        Args:
            scheduler: its address (`tcp://host:8786`) or its scheduler file (`scheduler.json`).
        """
        self._scheduler = scheduler

    def run(self, work: Work, sources: Sequence[Source]) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes as they come.

        Raises:
            MissingExtraError: Dask is not installed.
            UsageError: no scheduler answers.
        """
        distributed = _import_distributed()
        with self._connect(distributed) as client:
            # the same file may be given twice, and every call must run: nothing is pure here
            futures = client.map(work, list(sources), pure=False)
            places = {future.key: index for index, future in enumerate(futures)}
            for future in distributed.as_completed(futures, loop=client.loop):
                index = places[future.key]
                yield index, _outcome(distributed, future, sources[index])
                future.release()

    def _connect(self, distributed: Any) -> Any:
        is_file = self._scheduler.endswith(".json")
        if is_file and not Path(self._scheduler).is_file():
            raise UsageError(f"no such scheduler file: `{self._scheduler}`", hint="start `dask scheduler` first")
        where = {"scheduler_file": self._scheduler} if is_file else {"address": self._scheduler}
        try:
            return distributed.Client(**where, timeout=_CONNECT_S, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            hint = "give the address that `dask scheduler` prints, such as tcp://host:8786"
            raise UsageError(f"no Dask scheduler answers at `{self._scheduler}`", hint=hint) from error


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise MissingExtraError.for_extra("cluster", what="--engine") from error
    return distributed


def _outcome(distributed: Any, future: Any, source: Source) -> Outcome:
    error = future.exception()
    if isinstance(error, distributed.scheduler.KilledWorker):
        return reader_died(source)
    outcome: Outcome = future.result()
    return outcome
