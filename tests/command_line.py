"""The command line in the process of the tests; its commands are built once.

typer builds them for every call of its ``CliRunner``, which takes longer than most commands run.
"""

from functools import cache

from typer import testing

from diffbisim.cli import app

testing._get_command = cache(testing._get_command)


def invoke(*arguments, **options):
    """What a command prints, in both streams, and its exit code."""
    return testing.CliRunner().invoke(app, [str(argument) for argument in arguments], **options)
