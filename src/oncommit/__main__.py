"""``python -m oncommit`` is ``oncommit``."""

from oncommit.cli.main import main

if __name__ == "__main__":
    main()
