"""What HongTu's paper reports, on four A100s (80 GB) over PCIe 4 with 512 GB of host memory."""

from __future__ import annotations

DUPLICATION = {  # Table 3, by parts
    "it-2004": {32: 1.60, 128: 1.71, 512: 1.85},
    "papers100m": {32: 4.46, 128: 8.50, 512: 12.3},
    "friendster": {32: 5.48, 128: 10.70, 512: 18.1},
}
# Table 8: chunks of all GPUs; rows for each node that are needed, saved between GPUs, and saved
# between batches.
SAVED = {
    "it-2004": (32, 1.6, 0.26, 0.15),
    "papers100m": (128, 8.5, 0.77, 4.1),
    "friendster": (128, 10.7, 2.50, 5.09),
}
CHUNKS = {  # of each of four GPUs (7.1), GCN and GAT
    "it-2004": {"GCN": 8, "GAT": 16},
    "papers100m": {"GCN": 32, "GAT": 64},
    "friendster": {"GCN": 32, "GAT": 64},
}
# Seconds of an epoch, Tables 5 (one GPU) to 7 (four), by (graph, kind, layers).
ONE_GPU = {
    ("reddit", "GCN", 2): 0.33, ("products", "GCN", 2): 0.84,
    ("reddit", "GAT", 2): 1.15, ("products", "GAT", 2): 1.93,
    ("reddit", "GCN", 4): 0.62, ("products", "GCN", 4): 2.09,
    ("reddit", "GAT", 4): 2.21, ("products", "GAT", 4): 3.82,
    ("reddit", "GCN", 8): 1.15, ("products", "GCN", 8): 4.14,
    ("reddit", "GAT", 8): 4.50, ("products", "GAT", 8): 8.23,
}  # fmt: skip
IN_MEMORY_ONE_GPU = {
    ("reddit", "GCN", 2): 0.20, ("products", "GCN", 2): 0.32,
    ("reddit", "GAT", 2): 0.77, ("products", "GAT", 2): 1.14,
    ("reddit", "GCN", 4): 0.39, ("products", "GCN", 4): 0.81,
    ("reddit", "GAT", 4): 1.21, ("products", "GAT", 4): 2.01,
    ("reddit", "GCN", 8): 0.69, ("products", "GCN", 8): 1.76, ("reddit", "GAT", 8): 2.43,
}  # fmt: skip
FOUR_GPUS = {
    ("reddit", "GCN", 2): 0.13, ("products", "GCN", 2): 0.45,
    ("reddit", "GCN", 4): 0.23, ("products", "GCN", 4): 0.95,
    ("reddit", "GCN", 8): 0.45, ("products", "GCN", 8): 2.03,
    ("it-2004", "GCN", 2): 3.6, ("it-2004", "GCN", 3): 6.0, ("it-2004", "GCN", 4): 8.3,
    ("papers100m", "GCN", 2): 25.1, ("papers100m", "GCN", 3): 40.0,
    ("papers100m", "GCN", 4): 59.4,
    ("friendster", "GCN", 2): 15.5, ("friendster", "GCN", 3): 25.1,
    ("friendster", "GCN", 4): 34.6,
    ("it-2004", "GAT", 2): 7.5, ("it-2004", "GAT", 3): 12.7, ("it-2004", "GAT", 4): 17.5,
    ("papers100m", "GAT", 2): 42.4, ("papers100m", "GAT", 3): 65.6,
    ("papers100m", "GAT", 4): 95.0,
    ("friendster", "GAT", 2): 27.5, ("friendster", "GAT", 3): 42.8,
    ("friendster", "GAT", 4): 58.0,
}  # fmt: skip
# Table 6: other systems on four GPUs, seconds of an epoch of a GCN; None: out of memory.
IN_MEMORY_FOUR_GPUS = {
    ("reddit", 2): 0.09, ("products", 2): 0.29, ("reddit", 4): 0.16, ("products", 4): 0.55,
    ("reddit", 8): 0.25, ("products", 8): 1.04,
}  # fmt: skip
SANCUS = {
    ("reddit", 2): 0.09, ("products", 2): 0.37, ("reddit", 4): 0.15, ("products", 4): 0.65,
    ("reddit", 8): 0.27, ("products", 8): 1.16,
}  # fmt: skip
DISTDGL = {
    ("reddit", 2): 0.61, ("products", 2): 0.58, ("it-2004", 2): 33.8, ("papers100m", 2): 1.95,
    ("friendster", 2): 52.3,
    ("reddit", 4): 1.49, ("products", 4): 4.13, ("it-2004", 3): 281.5, ("papers100m", 3): 6.95,
    ("friendster", 3): 397.2,
    ("reddit", 8): 22.4, ("papers100m", 4): 19.2,
}  # fmt: skip
# Table 7: DistGNN on 16 nodes of CPUs, by (graph, kind, layers); what is missing ran out of memory.
DISTGNN = {
    ("it-2004", "GCN", 2): 38.9, ("papers100m", "GCN", 2): 213.5, ("friendster", "GCN", 2): 183.0,
    ("it-2004", "GCN", 3): 59.5, ("papers100m", "GCN", 3): 312.6, ("friendster", "GCN", 3): 277.5,
    ("it-2004", "GCN", 4): 85.7, ("friendster", "GCN", 4): 369.4, ("it-2004", "GAT", 2): 151.3,
}  # fmt: skip
# Figure 11: speed-ups from one GPU to four, the least and the greatest of the three large graphs.
SPEEDUPS = {"GCN": (3.3, 3.7), "GAT": (3.4, 3.8)}
# Table 9: seconds of 100 epochs of a GCN of two layers without and with deduplication, and of the
# preparation.
DEDUPLICATION = {
    "it-2004": (502.8, 359.6, 4.5),
    "papers100m": (6260.2, 2513.0, 33.9),
    "friendster": (4907.5, 1554.1, 22.7),
}
