"""`python -m vertinumpyro`: the command line.

Short because it calls the command.
"""

from vertinumpyro.cli.main import main

if __name__ == "__main__":
    main()
