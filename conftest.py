"""Which modules have their doctests collected: those that import an optional engine at once, where it is installed."""

from importlib.util import find_spec

_HERE = all(find_spec(name) is not None for name in ("crypten", "torch"))
collect_ignore = (
    [] if _HERE else [f"vertinumpyro/secure/crypten/{n}.py" for n in ("engine", "fixed", "paper", "protocol")]
)
