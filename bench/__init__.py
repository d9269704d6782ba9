"""How fast redrive is, as ratios beside the bare engine and a peer in the same run: `make bench`."""
