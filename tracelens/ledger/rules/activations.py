"""Shapes of activations, in elements, that several frameworks send."""

from __future__ import annotations

from tracelens.ledger import symbols as y

TOKENS = y.s * y.b / y.c
"""Tokens of one rank and micro-batch, before sequence parallelism cuts them."""
ACTIVATION = TOKENS * y.h
"""One whole layer-boundary activation."""
