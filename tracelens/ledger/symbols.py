"""The named unknowns that every formula of the ledger is written in.

Sizes of the model, sizes of the work, degrees of the layout, and counts of one pipeline stage. `bindings.py`
gives them their numbers for a model and a layout; inference solves for them instead.
"""

from __future__ import annotations

from tracelens.ledger.expressions import Symbol

# model
h = Symbol("h")
"""Hidden size."""
h_q = Symbol("h_q")
"""Width of all query heads: heads times head dim."""
h_kv = Symbol("h_kv")
"""Width of all key (or value) heads: kv heads times head dim."""
d_h = Symbol("d_h")
"""Dimension of one head."""
a = Symbol("a")
"""Query heads."""
f = Symbol("f")
"""Width of the feed-forward layer of a dense block."""
V = Symbol("V")
"""Vocabulary, padded as the framework pads it."""
L = Symbol("L")
"""Layers of the whole model."""
N = Symbol("N")
"""Parameters of the whole model."""
E = Symbol("E")
"""Routed experts of a mixture-of-experts block."""
k = Symbol("k")
"""Experts that a token is routed to."""
f_e = Symbol("f_e")
"""Width of one routed expert."""
f_s = Symbol("f_s")
"""Width of all shared experts of a block together."""
positions = Symbol("positions")
"""Rows of a learned position table."""
q_rank = Symbol("q_rank")
"""Rank of the compressed queries of latent attention."""
kv_rank = Symbol("kv_rank")
"""Rank of the compressed keys and values of latent attention."""
d_nope = Symbol("d_nope")
"""Dimension of a latent-attention head without position."""
d_rope = Symbol("d_rope")
"""Dimension of a latent-attention head with rotary position."""
d_v = Symbol("d_v")
"""Dimension of a latent-attention value head."""

# work
s = Symbol("s")
"""Tokens of a sequence."""
b = Symbol("b")
"""Sequences of a micro-batch."""
m = Symbol("m")
"""Micro-batches per step and replica."""

# layout
t = Symbol("t")
"""Degree of tensor parallelism."""
c = Symbol("c")
"""Degree of context parallelism."""
p = Symbol("p")
"""Pipeline stages."""
v = Symbol("v")
"""Model chunks per pipeline rank (virtual stages)."""
d = Symbol("d")
"""Data-parallel replicas and shards, without context parallelism."""
e = Symbol("e")
"""Degree of expert parallelism."""
etp = Symbol("etp")
"""Degree of tensor parallelism inside experts."""
edp = Symbol("edp")
"""Ranks that hold a replica or shard of the same experts."""
n = Symbol("n")
"""Ranks that the parameters, gradients or optimizer states of dense layers are sharded over, cp included."""
r = Symbol("r")
"""Replicas of a sharded set (the outer level of HSDP)."""
n_e = Symbol("n_e")
"""Ranks that expert parameters are sharded over."""
r_e = Symbol("r_e")
"""Replicas of a sharded set of experts."""
w = Symbol("W")
"""Ranks of the whole job."""

# one pipeline rank
L_s = Symbol("L_s")
"""Layers on this pipeline rank."""
L_d = Symbol("L_d")
"""Dense layers on this pipeline rank."""
L_e = Symbol("L_e")
"""Mixture-of-experts layers on this pipeline rank."""
chunks_sent_forward = Symbol("S_f")
"""Activation messages that this pipeline rank sends forward per micro-batch."""
chunks_sent_backward = Symbol("S_b")
"""Gradient messages that this pipeline rank sends backward per micro-batch."""
chunks_received_forward = Symbol("R_f")
"""Activation messages that this pipeline rank receives per micro-batch."""
chunks_received_backward = Symbol("R_b")
"""Gradient messages that this pipeline rank receives per micro-batch."""
