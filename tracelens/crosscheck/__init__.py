"""Our numbers beside HolisticTraceAnalysis', and a way into its other analyses (extra `hta`)."""

from tracelens.crosscheck.compare import compare_with_hta
from tracelens.crosscheck.neighbour import open_hta

__all__ = ["compare_with_hta", "open_hta"]
