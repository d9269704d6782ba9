"""How something that runs lives: it beats, keeps its leases, is watched and probed, and stops when it is told to."""
