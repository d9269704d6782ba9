"""HTTP to the outside: one client, and the guard against requests into the own network."""
