"""Private PostgreSQL, Redis and Valkey servers for tests, without Docker.

One server of each kind for a whole run of pytest (`shared`), started by the first test that needs it, and servers of a
test's own (`private`) to kill, stop, pause and start again. All listen on loopback, keep their data in a temporary
folder, and end with the process they were started for, however that ends (`guard`).
"""
