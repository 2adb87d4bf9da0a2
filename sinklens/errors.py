"""The kinds of error that sinklens raises. Each message names what was wrong, what was expected, what was got and what to do."""


class SinklensError(Exception):
    """Base of every error that sinklens raises on purpose; the command line prints it as one line, exit code 2."""


class InputError(SinklensError, ValueError):
    """An argument, a text or a file cannot be used as given."""


class ModelLoadError(SinklensError):
    """A model could not be loaded: unknown name, no network, too little memory, unsupported architecture."""


class UnsupportedAttentionError(SinklensError):
    """A layer's attention does not decompose as sinklens needs it to (``z = A v``, ``output = sum z W_O + b_O``)."""


class HookNotFiredError(SinklensError):
    """A hook that was asked for did not fire exactly once in a forward pass."""


class NoEffectError(SinklensError):
    """An edit changed nothing, although it should have; a result of it would be the unedited model's."""


class ConvergenceError(SinklensError):
    """A solver did not reach the tolerance that was asked for; the message has the bounds that it did reach."""


class ResultFileError(SinklensError):
    """A result file is missing, unreadable, of another kind, or cannot be written."""


class FrameWarning(UserWarning):
    """The model's weights were folded or centred, so value norms and contributions differ from the raw model's."""
