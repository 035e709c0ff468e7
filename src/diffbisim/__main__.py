"""The command line as a module: ``python -m diffbisim`` where the script ``diffbisim`` is not on the path."""

from diffbisim.cli import main

if __name__ == "__main__":
    main()
