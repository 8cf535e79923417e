"""The errors a user can fix. Anything else that escapes is a bug of ours and shows a traceback.

EdgeCompressError
├── ConfigError         an option, name or file of settings is wrong
├── ModelError          a model cannot be found, built or run
│   ├── WeightsError    a checkpoint does not fit or cannot be trusted
│   └── UnsupportedLayer  a method cannot rewrite this layer
├── DataError           images or labels are missing or unusable
├── BudgetError         no plan meets the budget
├── ArtefactError       a run or artefact directory is missing or damaged
├── ExportError         a file could not be produced or does not agree with the model
├── DeviceError         a device is missing, does not answer or refuses
└── MissingPackage      an optional package is needed; the message says how to get it

Messages read *where: what was found; what to do*.
"""


class EdgeCompressError(Exception):
    """Something the user can fix; the command line shows it in one line and exits with 1."""


class ConfigError(EdgeCompressError):
    """An option, a name or a file of settings is wrong."""


class ModelError(EdgeCompressError):
    """A model cannot be found, built or run."""


class WeightsError(ModelError):
    """A checkpoint does not fit the model or cannot be trusted."""


class UnsupportedLayer(ModelError):
    """A method cannot rewrite this layer."""


class DataError(EdgeCompressError):
    """Images or labels are missing or unusable."""


class BudgetError(EdgeCompressError):
    """No plan meets the budget; the message names the nearest reachable value."""

    def __init__(self, message: str, *, nearest: float | None = None) -> None:
        """Takes the message, and the nearest reachable cost where it is known."""
        super().__init__(message)
        self.nearest = nearest


class ArtefactError(EdgeCompressError):
    """A run or artefact directory is missing or damaged."""


class ExportError(EdgeCompressError):
    """An exported file could not be produced or does not agree with the model."""


class DeviceError(EdgeCompressError):
    """A device is missing, does not answer or refuses."""


class MissingPackage(EdgeCompressError):
    """An optional package is needed; the message says how to get it."""
