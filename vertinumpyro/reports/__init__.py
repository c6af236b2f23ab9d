"""What a run shows: files, tables and a page about its result, for the command line and for Python alike.

`vertinumpyro.write_report` writes all of it. Nothing is imported here, so that words need no engine.
"""
