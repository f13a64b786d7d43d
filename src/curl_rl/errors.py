"""Errors that a user can mend: one sentence with the offending value and the remedy."""


class UserError(Exception):
    """A mistake, or a missing thing outside the program: the command line prints its sentence and exits non-zero."""
