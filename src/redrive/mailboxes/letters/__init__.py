"""Dead letters of mailboxes: as messages, replayed, taken to where they belong, worked off."""
