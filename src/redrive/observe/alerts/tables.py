"""Parser of the `[alerts]` tables of a settings file, channels and rules. It collects all faults before it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from inspect import signature
from typing import Any, NamedTuple

from redrive.core.quantity import shown
from redrive.errors import ConfigError
from redrive.observe.alerts.book import queue_of
from redrive.observe.alerts.channels import CHANNELS
from redrive.observe.alerts.conditions import CONDITIONS
from redrive.observe.alerts.model import Channel, Condition, Rule
from redrive.observe.alerts.options import channel_of, checked, rule_of
from redrive.office.settings import check_name


class Faults(Exception):
    """`texts` has one line per fault, which begins with the name of the option."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__("; ".join(texts))
        self.texts = texts


class Form(NamedTuple):
    """A kind of table. The option `word` names one of the `makers`; its arguments are the other options, except those
    in `beside`, which `finish` adds to the result.
    """

    word: str
    makers: Mapping[str, Callable[..., Any]]
    beside: tuple[str, ...]
    blank: Channel | Condition
    finish: Callable[[str, Any, dict[str, Any]], Any]


def _channel(name: str, made: Channel, rest: dict[str, Any]) -> Channel:
    queue_of(check_name(name, "channel"))
    return channel_of(made, **rest)


def _rule(name: str, made: Condition, rest: dict[str, Any]) -> Rule:
    given = {"to": (), **{("for_" if option == "for" else option): value for option, value in rest.items()}}
    if given.get("repeat") == "never":
        given["repeat"] = None
    return rule_of(name, made, **given)


# Kinds that take a function can be declared in code only.
_CHANNELS = {name: make for name, make in CHANNELS.items() if name != "callback"}
_RULES = {name: make for name, make in CONDITIONS.items() if name != "custom"}
CHANNEL = Form("kind", _CHANNELS, ("quiet", "timezone", "digest"), Channel("", {}), _channel)
RULE = Form("when", _RULES, ("to", "queues", "members", "for", "severity", "repeat"), Condition(""), _rule)


def read_tables(tables: object, where: str, form: Form) -> dict[str, Any]:
    """The channels or rules by name. Raises Faults."""
    if not isinstance(tables, dict):
        raise Faults([f"{where}: {shown(tables)} is not a table (write [{where}.NAME])"])
    made, faults = {}, []
    for name, table in tables.items():
        try:
            made[str(name)] = _read(str(name), table, f"{where}.{name}", form)
        except Faults as found:
            faults += found.texts
    if faults:
        raise Faults(faults)
    return made


def _read(name: str, table: object, where: str, form: Form) -> Any:
    """An option that ends in `_env` names the environment variable with its value."""
    if not isinstance(table, dict):
        raise Faults([f"{where}: {shown(table)} is not a table (write [{where}])"])
    given, faults = _from_environment(table, where)
    kind = given.pop(form.word, None)
    rest = {option: given.pop(option) for option in form.beside if option in given}
    if isinstance(kind, str) and kind in form.makers:
        faults += _wrong_arguments(kind, given, table, where, form)
    else:
        near = get_close_matches(str(kind), form.makers, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(form.makers)}"
        faults.append(f"{where}.{form.word}: {shown(kind)} is unknown ({hint})")
    needed = {"to": ()} if form is RULE else {}
    for option, value in {**needed, **rest}.items():
        beside = {"to": "x", option: value} if needed else {option: value}
        faults += _fault_of(f"{where}.{option}", partial(form.finish, "x", form.blank, beside))
    faults += _fault_of(where, partial(form.finish, name, form.blank, {"to": "x"} if needed else {}))
    if faults:
        raise Faults(faults)
    return form.finish(name, form.makers[kind](**given), rest)


def _wrong_arguments(
    kind: str, given: Mapping[str, Any], table: Mapping[str, Any], where: str, form: Form
) -> list[str]:
    faults = []
    parameters = signature(form.makers[kind]).parameters
    for option, value in given.items():
        if option in parameters:
            faults += _fault_of(f"{where}.{option}", partial(checked, **{option: value}))
        else:
            known = ", ".join([*parameters, *form.beside])
            faults.append(f"{where}.{option}: there is no such option ({kind} has {known})")
    for option, each in parameters.items():
        if each.default is each.empty and not {option, f"{option}_env"} & table.keys():
            faults.append(f"{where}.{option}: it is missing ({kind} needs it)")
    return faults


def _fault_of(where: str, call: Callable[[], object]) -> list[str]:
    """The fault of an option as a list of one text; an empty list if it is valid."""
    try:
        call()
    except ConfigError as error:
        text = error.message.removeprefix(f"{error.field}: ")
        return [f"{where}: {text}{f' ({error.hint})' if error.hint else ''}"]
    return []


def _from_environment(table: Mapping[str, Any], where: str) -> tuple[dict[str, Any], list[str]]:
    given, faults = {}, []
    for name, value in table.items():
        if not name.endswith("_env"):
            given[name] = value
        elif isinstance(value, str) and os.environ.get(value):
            given[name.removesuffix("_env")] = os.environ[value].strip()
        else:
            faults.append(f"{where}.{name}: the variable {shown(value)} is not set (set it, or give the value itself)")
    return given, faults
