"""Pure values and functions: no io, clock, randomness, logging or asyncio."""
