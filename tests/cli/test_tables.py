"""One description of a list, and every form in which it can be asked for."""

import json

import pytest

from redrive.cli.tables import Listing, Shape, show_facts, show_list
from redrive.errors import ConfigError

LISTING: Listing[int] = Listing(
    key="id",
    as_object=lambda n: {"id": f"i{n}", "size": n, "inside": {"deep": None}, "words": ["a\x1b"]},
    table=lambda rows: (["ID", "SIZE"], [[f"i{n}", str(n)] for n in rows]),
    line=lambda n: [f"i{n}", str(n)],
    none="nothing",
    inside="things",
)


def told(capsys: pytest.CaptureFixture[str], shape: Shape, *rows: int, more: str | None = None) -> tuple[str, str]:
    capsys.readouterr()
    show_list(LISTING, rows, shape, more=more)
    said = capsys.readouterr()
    return said.out, said.err


def test_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, Shape(), 1, 2) == ("i1\t1\ni2\t2\n", "")
    assert told(capsys, Shape(), 1, more="abc") == ("i1\t1\n", "there are more: --cursor abc\n")
    assert told(capsys, Shape()) == ("", "")


def test_ids_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, Shape(quiet=True), 1, 2) == ("i1\ni2\n", "")


def test_json_has_the_rows_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, Shape(json=True), 1, more="abc")
    assert err == ""
    assert json.loads(out) == {
        "things": [{"id": "i1", "size": 1, "inside": {"deep": None}, "words": ["a\x1b"]}],
        "next": "abc",
    }
    assert "\x1b" not in out


def test_json_lines_are_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = told(capsys, Shape(jsonl=True), 1, 2, more="abc")
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["i1", "i2"]
    assert "--cursor abc" in err


@pytest.mark.parametrize(
    ("shape", "out"),
    [
        (Shape(fields=("size", "id", "inside.deep", "words")), '1\ti1\t-\t["a\\u001b"]\n'),
        (Shape(fields=("size",), jsonl=True), '{"size": 1}\n'),
        (Shape(fields=("inside.deep",), jsonl=True), '{"inside.deep": null}\n'),
    ],
)
def test_chosen_fields(shape: Shape, out: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, shape, 1)[0] == out


@pytest.mark.parametrize(
    ("field", "hint"),
    [("sise", "did you mean size?"), ("zzz", "there are id, size"), ("inside.dep", "deep"), ("size.x", "none inside")],
)
def test_a_field_that_is_not_there(field: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="--fields") as caught:
        told(capsys, Shape(fields=(field,)), 1)
    assert hint in caught.value.hint


def test_facts_in_a_pipe_are_names_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    show_facts("a thing", [("one", "1"), ("two", "a\tb")])
    assert capsys.readouterr().out == "one\t1\ntwo\ta\\tb\n"
