"""Every error that the library raises on purpose.

    VertinumpyroError
    ├── ArgumentError        an argument or a setting is wrong               (also a ValueError)
    ├── SchemaError          the public schema contradicts itself            (also a ValueError)
    ├── DataError            a party's table breaks the schema               (also a ValueError)
    │   └── AlignmentError   the parties' records cannot be matched by id
    ├── ModelContractError   the model cannot be split between parties       (also a ValueError)
    ├── RangeError           a fixed-point value could wrap around the ring  (also an ArithmeticError)
    ├── PrivacyError         a privacy requirement is not met
    │   ├── PlanSpentError   the plan's budget is already spent
    │   └── UnprovenError    a bound is not proved and nobody opted in
    └── BackendError         a secure backend failed or is not available     (also a RuntimeError)

Messages name the argument, the column, the site or the party, and the fix. They never hold a value
from a party's table: an exception travels to logs that the table's owner does not control.
"""


class VertinumpyroError(Exception):
    """Base class of the library's own errors."""


class ArgumentError(VertinumpyroError, ValueError):
    """An argument or a setting is wrong; the message names it and the fix."""


class SchemaError(VertinumpyroError, ValueError):
    """The public schema contradicts itself."""


class DataError(VertinumpyroError, ValueError):
    """A party's table breaks the public schema; the message names party and column, never a value."""


class AlignmentError(DataError):
    """The parties' records cannot be matched by their id column."""


class ModelContractError(VertinumpyroError, ValueError):
    """The model cannot be split between the parties; the message names the site."""


class RangeError(VertinumpyroError, ArithmeticError):
    """A fixed-point value could wrap around the ring, so the run refuses to start."""


class PrivacyError(VertinumpyroError):
    """A privacy requirement is not met."""


class PlanSpentError(PrivacyError):
    """The plan's privacy budget is already spent."""


class UnprovenError(PrivacyError):
    """A privacy bound is not proved for this configuration, and nobody opted in."""


class BackendError(VertinumpyroError, RuntimeError):
    """A secure backend failed or is not available."""


class InferenceWarning(UserWarning):
    """A fit has not converged, or its model cannot have made what it was fitted to."""


class LongFitWarning(UserWarning):
    """A fit will take long, as a step of it on stand-ins took."""
