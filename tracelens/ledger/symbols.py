"""The named unknowns that every formula of the ledger is written in.

Sizes of the model, sizes of the work, degrees of the layout, and counts of one pipeline stage. `bindings.py`
gives them their numbers for a model and a layout; inference solves for them instead.
"""

from __future__ import annotations

from tracelens.ledger.expressions import Symbol

# model
h = Symbol("h", "hidden size")
h_q = Symbol("h_q", "width of all query heads: heads times head dim")
h_kv = Symbol("h_kv", "width of all key (or value) heads: kv heads times head dim")
d_h = Symbol("d_h", "dimension of one head")
a = Symbol("a", "query heads")
f = Symbol("f", "width of the feed-forward layer of a dense block")
V = Symbol("V", "vocabulary, padded as the framework pads it")
L = Symbol("L", "layers of the whole model")
N = Symbol("N", "parameters of the whole model")
E = Symbol("E", "routed experts of a mixture-of-experts block")
k = Symbol("k", "experts that a token is routed to")
f_e = Symbol("f_e", "width of one routed expert")
f_s = Symbol("f_s", "width of all shared experts of a block together")
positions = Symbol("positions", "rows of a learned position table")
q_rank = Symbol("q_rank", "rank of the compressed queries of latent attention")
kv_rank = Symbol("kv_rank", "rank of the compressed keys and values of latent attention")
d_nope = Symbol("d_nope", "dimension of a latent-attention head without position")
d_rope = Symbol("d_rope", "dimension of a latent-attention head with rotary position")
d_v = Symbol("d_v", "dimension of a latent-attention value head")

# work
s = Symbol("s", "tokens of a sequence")
b = Symbol("b", "sequences of a micro-batch")
m = Symbol("m", "micro-batches per step and replica")

# layout
t = Symbol("t", "degree of tensor parallelism")
c = Symbol("c", "degree of context parallelism")
u = Symbol("u", "ranks of an inner all-to-all group of hierarchical context parallelism")
p = Symbol("p", "pipeline stages")
v = Symbol("v", "model chunks per pipeline rank (virtual stages)")
d = Symbol("d", "data-parallel replicas and shards, without context parallelism")
e = Symbol("e", "degree of expert parallelism")
etp = Symbol("etp", "degree of tensor parallelism inside experts")
edp = Symbol("edp", "ranks that hold a replica or shard of the same experts")
n = Symbol(
    "n", "ranks that the parameters, gradients or optimizer states of dense layers are sharded over, cp included"
)
r = Symbol("r", "replicas of a sharded set (the outer level of HSDP)")
n_e = Symbol("n_e", "ranks that expert parameters are sharded over")
r_e = Symbol("r_e", "replicas of a sharded set of experts")
w = Symbol("W", "ranks of the whole job")

# one pipeline rank
L_s = Symbol("L_s", "layers on this pipeline rank")
L_d = Symbol("L_d", "dense layers on this pipeline rank")
L_e = Symbol("L_e", "mixture-of-experts layers on this pipeline rank")
chunks_sent_forward = Symbol("S_f", "activation messages that this pipeline rank sends forward per micro-batch")
chunks_sent_backward = Symbol("S_b", "gradient messages that this pipeline rank sends backward per micro-batch")
chunks_received_forward = Symbol("R_f", "activation messages that this pipeline rank receives per micro-batch")
chunks_received_backward = Symbol("R_b", "gradient messages that this pipeline rank receives per micro-batch")

MEANINGS: dict[str, str] = {
    symbol.name: symbol.meaning for symbol in tuple(globals().values()) if isinstance(symbol, Symbol)
}
"""What every name stands for."""
