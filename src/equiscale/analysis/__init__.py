"""From records to tables and statistics. No torch, no plotting; needs the extra `report`."""

from equiscale.core.errors import MissingExtraError

try:
    import polars  # noqa: F401
    import scipy  # noqa: F401
except ImportError as error:
    raise MissingExtraError(error.name or "polars", "report") from error
