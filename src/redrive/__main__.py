"""`python -m redrive` is the command line."""

from redrive.cli import main

if __name__ == "__main__":
    main()
