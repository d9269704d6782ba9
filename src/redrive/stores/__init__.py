"""One module or package per engine; all pass `redrive.testing.conformance`."""
