"""What a command's end means to the shell, and the one table that says which error ends it how."""

from __future__ import annotations

import errno
import os
import re
import traceback
from dataclasses import dataclass, field
from enum import IntEnum

import click
from click.core import ParameterSource

from redrive import errors
from redrive.cli.output import Unwritten, as_json, clean, say, unwritten
from redrive.errors import BadFilter, ConfigError, QueueFull, RedriveError

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF})
"""What a disk or a closed stream says, and no fault of the program."""
NONE = re.compile(r"\bNone\b")
PASSWORD = re.compile(r"""(://[^\s'"/@:]*:)[^'"\n]*@""")


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    STORE = 7
    STILL_GOING = 8
    PARTLY = 9
    UNSOUND = 10
    INTERRUPTED = 130
    UNREAD = 141
    """As programs that SIGPIPE ends, so that `redrive … | head` is to a script what `git log | head` is."""


class Refused(RedriveError):
    """Not confirmed, or a confirmation was needed and nobody could give it."""


class NotAllowed(RedriveError):
    """Another side does not know this one, or does not let it do this."""


class UserCodeFailed(RedriveError):
    """The user's module raised while it was imported; `shown` is its traceback."""

    def __init__(self, message: str, *, shown: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.shown = shown


# The first that fits wins, so a subclass stands before its base.
TABLE: tuple[tuple[type[BaseException], Exit, str], ...] = (
    (Refused, Exit.REFUSED, "refused"),
    (NotAllowed, Exit.NOT_ALLOWED, "not_allowed"),
    (errors.NotFound, Exit.NOT_FOUND, "not_found"),
    (errors.UnknownQueue, Exit.NOT_FOUND, "unknown_queue"),
    (errors.Conflict, Exit.CONFLICT, "conflict"),
    (errors.LeaseLost, Exit.CONFLICT, "lease_lost"),
    (errors.WaitTimeout, Exit.STILL_GOING, "still_going"),
    (errors.StoreUnavailable, Exit.STORE, "store_unavailable"),
    (errors.OutcomeUnknown, Exit.STORE, "outcome_unknown"),
    (errors.StoreCorrupt, Exit.STORE, "store_corrupt"),
    (errors.StoreTooNew, Exit.STORE, "store_too_new"),
    (errors.StoreError, Exit.STORE, "store"),
    (errors.BadFilter, Exit.USAGE, "bad_filter"),
    (errors.ConfigError, Exit.USAGE, "usage"),
    (click.UsageError, Exit.USAGE, "usage"),
    (click.Abort, Exit.INTERRUPTED, "interrupted"),
    (KeyboardInterrupt, Exit.INTERRUPTED, "interrupted"),
    (Unwritten, Exit.FAILED, "unwritten"),
    (RedriveError, Exit.FAILED, "failed"),
)


@dataclass
class Talk:
    """How this command wants to be spoken to, whether it may ask, and the settings that it names."""

    json: bool = False
    debug: bool = field(default_factory=lambda: os.environ.get("REDRIVE_DEBUG", "") not in ("", "0"))
    colour: bool = True
    ask: bool = True
    config: str | None = None
    context: click.Context | None = None
    """Of the command, as soon as there is one."""
    door: str = ""
    """The door that the command belongs to, if it is not one of redrive's own."""


def tell(error: BaseException, talk: Talk) -> int:
    """Say what went wrong, and how the command ends because of it."""
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        error = unwritten(error, str(error.filename or "its output"))
    code, word = _ending(error, talk.door)
    if talk.debug:
        say(_discreet("".join(traceback.format_exception(error)).rstrip()), keep="\n")
    error = _as_typed(error, talk.context)
    message, hint = _words(error, word, talk.door)
    if talk.json:
        told = {"code": word, "message": message, "hint": hint, "details": _details(error)}
        say(as_json({"error": told}, indent=None))
        return code
    if isinstance(error, UserCodeFailed):
        say(_discreet(error.shown), keep="\n")
    line = f"{clean(message)} ({clean(hint)})" if hint else clean(message)
    say(f"redrive: {line}")
    if isinstance(error, BadFilter):
        before = clean(error.text[: error.column - 1])
        say(f"  {clean(error.text)}\n  {' ' * len(before)}^", keep="\n")
    return code


def _ending(error: BaseException, of_door: str) -> tuple[int, str]:
    """Errors of redrive's kind end as their door says, wherever they come from; others in the door's commands alone."""
    code, word = next(((code, word) for kind, code, word in TABLE if isinstance(error, kind)), (Exit.FAILED, "bug"))
    if word in ("failed", "bug"):
        from redrive import doors

        if isinstance(error, doors.BadDoor):
            return Exit.USAGE, "usage"
        own = [door for door in doors.every() if word == "failed" or door.name == of_door]
        for kind, ending in [each for door in own for each in door.exits.items()]:
            if isinstance(error, kind):
                return ending
    return code, word


def _as_typed(error: BaseException, context: click.Context | None) -> BaseException:
    """The library names its parameters: whoever typed an option is told of the option, and None is typed as none."""
    if context is None or not isinstance(error, ConfigError) or isinstance(error, BadFilter):
        return error
    for option in context.command.params:
        said = isinstance(option, click.Option) and option.name == error.field
        if said and context.get_parameter_source(error.field) is ParameterSource.COMMANDLINE:
            message = error.message.removeprefix(f"{error.field}: ")
            return ConfigError(message, field=max(option.opts, key=len), hint=NONE.sub("none", error.hint))
    return error


def _details(error: BaseException) -> dict[str, object]:
    """What a program would otherwise have to read out of the message."""
    if isinstance(error, BadFilter):
        return {"filter": error.text, "column": error.column}
    if isinstance(error, ConfigError) and error.field:
        return {"field": error.field}
    if isinstance(error, QueueFull):
        return {"queue": error.queue, "fill": error.fill, "capacity": error.capacity}
    return {}


def _discreet(text: str) -> str:
    """A traceback shows lines of the user's source, and one may have a URL with its password in it."""
    return PASSWORD.sub(r"\1…@", text)


def _dashed(error: click.UsageError) -> str:
    """For a command that takes names: one of them may look like an option."""
    takes = () if error.ctx is None else [each for each in error.ctx.command.params if isinstance(each, click.Argument)]
    return "; a name that begins with - goes after --" if isinstance(error, click.NoSuchOption) and takes else ""


def _words(error: BaseException, word: str, door: str) -> tuple[str, str]:
    if isinstance(error, BadFilter):
        return error.message.partition("\n")[0], error.hint
    if isinstance(error, RedriveError):
        return error.message, error.hint
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "redrive"
        return error.format_message(), f"see {path} -h{_dashed(error)}"
    if word == "interrupted":
        return "interrupted", ""
    if word != "bug":  # a door's error with an exit code of its own
        return str(error) or type(error).__name__, ""
    fault = f"this is an error in the door {door}" if door else "this is a bug in redrive"
    return f"{fault}: {type(error).__name__}: {error}", "REDRIVE_DEBUG=1 shows where"
