"""A share of the random programs, which one process runs."""

from __future__ import annotations

import argparse
import os

import torch

from tests.fullgraph.fuzz.campaign import Campaign, Report


def run_job(options: argparse.Namespace, job: int) -> Report:
    """Runs every `jobs`-th program."""
    torch.set_num_threads(1)
    if options.device == "cuda":  # each job begins with another GPU
        count = torch.cuda.device_count()
        gpus = [str((job + i) % count) for i in range(count)]
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    ranks, chunks = ([int(n) for n in text.split(",")] for text in (options.ranks, options.chunks))
    campaign = Campaign(ranks, chunks, options.device, options.deadline, options.loaders)
    count = len(range(job, options.programs, options.jobs))
    try:
        return campaign.run(options.seed + job, count, options.jobs, options.minutes * 60)
    finally:
        campaign.close()
