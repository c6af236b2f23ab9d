"""`python -m vertinumpyro`: the command line."""

from vertinumpyro.cli.main import main

if __name__ == "__main__":
    main()
