"""What texts that say how long or how much have in common."""

from __future__ import annotations

LONGEST_TEXT = 64


def trimmed(text: str) -> str:
    """Without blanks around it. Raises ValueError for what cannot be a quantity."""
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"it is longer than {LONGEST_TEXT} characters")
    found = text.strip()
    if not found:
        raise ValueError("it is empty")
    if found[0] in "-+":
        raise ValueError("it must not carry a sign")
    return found


def cut(text: str, limit: int) -> str:
    """At most `limit` characters; … for what is left out."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:
        # Python refuses to print integers of more than 4,300 digits.
        return "this number"
    return text if len(text) <= LONGEST_TEXT + 2 else text[:LONGEST_TEXT] + "…"
