"""The table of settings says what the code uses, all of it and nothing else; and a URL is shown without its secrets."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.settings import Settings
from redrive.settings.model import door_sections, fields, schema, sections, settings_from, value_of
from redrive.settings.readers import HIDDEN, without_password

FIELDS, SECTIONS = fields(), sections()


def names(struct: Any, prefix: str = "") -> list[str]:
    found = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if name == "doors":
            parts = door_sections().items()
            found += [inner for door, section in parts for inner in names(section.kind(), f"{door}.")]
        else:
            found += names(value, f"{name}.") if isinstance(value, msgspec.Struct) else [f"{prefix}{name}"]
    return found


def test_every_setting_is_in_the_table() -> None:
    assert names(Settings()) == list(FIELDS)


@pytest.mark.parametrize("name", FIELDS)
def test_what_is_shown_is_read_back(name: str) -> None:
    field = FIELDS[name]
    default = value_of(Settings(), name)
    if default not in (None, ()):
        assert field.read(field.show(default), name) == default
        assert value_of(settings_from({name: default}), name) == default


def test_the_schema_has_every_setting_and_takes_nothing_else() -> None:
    made: Any = schema()
    inside = {f"{section}.{name}" for section in SECTIONS for name in made["properties"][section]["properties"]}
    assert inside | set(made["properties"]) - set(SECTIONS) == set(FIELDS)
    assert made["additionalProperties"] is False
    assert all(made["properties"][section]["additionalProperties"] is False for section in SECTIONS)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory:", "memory:"),
        ("sqlite:////srv/redrive.db?network=refuse", "sqlite:////srv/redrive.db?network=refuse"),
        ("redis://:hunter2@cache:6379/0", "redis://:…@cache:6379/0"),
        ("redis://cache:6379/0", "redis://cache:6379/0"),
        ("postgresql://shop:hunter2@db/shop?schema=q", "postgresql://shop:…@db/shop?schema=q"),
        ("postgresql://shop:hun/te?r2@db/shop", "postgresql://shop:…@db/shop"),
        ("postgresql://shop@db/shop?password=hunter2&pool=3", "postgresql://shop@db/shop?password=…&pool=3"),
        ("postgresql://shop@db/shop?password=hun@ter2&pool=3", "postgresql://shop@db/shop?password=…&pool=3"),
        ("postgresql://shop:hunter2@db/?application_name=a@b", "postgresql://shop:…@b"),
        ("postgresql:///shop?SSLPassword=hunter2", "postgresql:///shop?SSLPassword=…"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert without_password(url) == shown


@given(
    st.text(min_size=1), st.sampled_from(["postgresql://shop:{}@db/shop", "redis://:{}@cache", "pg://d/?password={}"])
)
def test_no_password_is_shown_whatever_is_in_it(text: str, form: str) -> None:
    secret = f"<{text.replace('&', '')}>"
    assert secret not in without_password(form.format(secret)).replace(HIDDEN, "")


@pytest.mark.slow
def test_settings_cost_nothing_where_there_are_none() -> None:
    unwanted = ("yaml", "tomllib", "psycopg", "redis", "redrive.stores")
    code = (
        f"import sys; from redrive.settings import load; load(environ={{}}); print(set({unwanted}) & set(sys.modules))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert told.stdout == "set()\n"
