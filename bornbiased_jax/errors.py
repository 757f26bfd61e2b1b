"""The one exception that means "the caller or the caller's input is at fault"."""


class InputError(ValueError):
    """Bad input, said in one sentence that names the thing and the remedy.

    The command line prints the sentence on standard error and exits with code 2; a library caller
    gets an ordinary ``ValueError``.
    """
