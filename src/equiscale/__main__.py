"""`python -m equiscale` is the `equiscale` command."""

from equiscale.cli import main

if __name__ == "__main__":
    main()
