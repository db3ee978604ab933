"""The one error a user of the command line ever sees: a sentence that names the place and the fix."""

from __future__ import annotations


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is a complete sentence: what is wrong, in which file and field, and what to write instead.
    The command line prints it and exits with code 2; nothing has been written by then.
    """
