"""scikit-learn's base classes, or stand-ins that say what is missing: the package imports without the extra."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vertinumpyro.evaluation.plot_style import missing_extra

__all__ = [
    "BaseEstimator",
    "ClassifierMixin",
    "RegressorMixin",
    "TransformerMixin",
    "available_if",
    "check_is_fitted",
    "validate_data",
]

if TYPE_CHECKING:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.validation import check_is_fitted, validate_data
else:
    try:
        from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, TransformerMixin
        from sklearn.utils.metaestimators import available_if
        from sklearn.utils.validation import check_is_fitted, validate_data
    except ModuleNotFoundError:

        class BaseEstimator:
            """Stand-in."""

        class ClassifierMixin:
            """Stand-in."""

        class RegressorMixin:
            """Stand-in."""

        class TransformerMixin:
            """Stand-in."""

        def available_if(_: Any) -> Any:
            """Stand-in."""
            return lambda method: method

        def validate_data(*_: Any, **__: Any) -> Any:
            """Stand-in."""
            raise missing_extra("scikit-learn")

        check_is_fitted = validate_data
