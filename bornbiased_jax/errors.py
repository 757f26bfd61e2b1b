"""The exception that means "the caller or the caller's input is at fault", and how lack of memory is told."""

import difflib
from collections.abc import Collection


class InputError(ValueError):
    """Bad input, said in one sentence that names the thing and the remedy.

    The command line prints the sentence on standard error and exits with code 2; a library caller
    gets an ordinary ``ValueError``.
    """


def cut_short(file: str) -> InputError:
    """Return the error of a file that ends before what it announces, for the caller to raise.

    Fetching repairs that alone, so that no other message advises it.

    Args:
        file: the file, and what of it is known to be missing.
    """
    return InputError(f"{file} is cut short: fetch it again")


def suggestion(name: str, choices: Collection[str], plural: str) -> str:
    """Suggest the nearest of the names that there are, or list them."""
    near = difflib.get_close_matches(name, choices, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the {plural} are {', '.join(choices)}"


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory of the machine or of a device ran out, as Python and XLA say it."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error) or "Out of memory" in str(error)
