"""What runs: client, registry, worker, and the parts that each exist once: source, caller, keeper, batcher, reaper."""
