"""What runs: client, registry, runner, worker, keeper, reaper."""
