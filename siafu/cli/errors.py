"""Turn an exception into a message for the user."""

import errno


class WrongUse(ValueError):
    """A command was used in a wrong way: exit code 2."""


def explain(error: Exception) -> str:
    """Return the message for the user: what went wrong and what to do."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        advice = "; make room there and try again" if error.errno == errno.ENOSPC else ""
        return f"{error.filename}: {error.strerror}{advice}"
    if isinstance(error, ValueError | OSError):
        return str(error)
    if isinstance(error, MemoryError) or "can't allocate memory" in str(
        error
    ):  # torch has no error of its own
        return "not enough memory; lower --hidden or --layers, or use a machine with more"
    if _is_rank_failure(error):
        notes = [note for note in getattr(error, "__notes__", []) if "Traceback" not in note]
        return "\n".join([str(error), *notes])
    return f"{type(error).__name__}: {error} (a fault of siafu; --traceback shows where)"


def _is_rank_failure(error: Exception) -> bool:
    """Whether ranks were lost or failed; such an error explains itself."""
    if not isinstance(error, RuntimeError):
        return False
    from siafu.comm import CommError
    from siafu.launch.failures import RanksFailed

    return isinstance(error, CommError | RanksFailed)
