import io
import os
import sys
from pathlib import Path

import pytest

from dragoman.client.commands.lines import Line, argument_lines, batches, count_lines, file_lines
from dragoman.client.errors import InputError


def _write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def _texts_and_endings(*paths: str) -> list[tuple[str, str]]:
    return [(line.text, line.ending) for line in file_lines(paths) if line is not None]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [("", "\n")]),
        (b"a\n\n b\n", [("a", "\n"), ("", "\n"), (" b", "\n")]),
        (b"a\nb", [("a", "\n"), ("b", "")]),
        (b"a\r\nb\nc\r\n", [("a", "\r\n"), ("b", "\n"), ("c", "\r\n")]),
        ("a\u2028b\x85c\rd\x0ce\n".encode(), [("a\u2028b\x85c\rd\x0ce", "\n")]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", [("a", "\n"), ("\ufeffb", "\n")]),
        (b"x" * 200_000 + b"\ny", [("x" * 200_000, "\n"), ("y", "")]),
    ],
    ids=["empty", "blank", "blanks", "no end", "crlf", "other breaks", "bom", "over chunks"],
)
def test_only_line_feeds_end_lines(tmp_path: Path, data: bytes, expected: list[tuple[str, str]]) -> None:
    """Text and ending together are the input, byte for byte but for a byte order mark."""
    path = _write(tmp_path / "in", data)

    assert _texts_and_endings(path) == expected
    assert count_lines([path]) == len(expected)


def test_files_follow_one_another(tmp_path: Path) -> None:
    """A file without a last line feed is not glued to the next, and the very last line stays as it is."""
    first = _write(tmp_path / "first", b"a\nb")
    empty = _write(tmp_path / "empty", b"")
    second = _write(tmp_path / "second", b"c\nd")

    assert _texts_and_endings(first, empty, second) == [("a", "\n"), ("b", "\n"), ("c", "\n"), ("d", "")]
    assert [line.number for line in file_lines([first, second]) if line is not None] == [1, 2, 1, 2]
    assert count_lines([first, empty, second]) == 4


def test_invalid_utf8_names_file_line_and_offset(tmp_path: Path) -> None:
    """The user can go to the place with an editor or with dd."""
    path = _write(tmp_path / "latin1.txt", b"one\r\ntwo\nna\xefve\n")

    with pytest.raises(
        InputError, match=r"latin1\.txt: line 3 is not UTF-8: byte 0xef at byte 3 of the line, offset 11 of the input"
    ):
        list(file_lines([path]))


def test_a_binary_file_does_not_fill_the_memory(tmp_path: Path) -> None:
    """A line without end is refused at a limit instead of being collected."""
    path = _write(tmp_path / "binary", bytes(3 * 2**20))

    with pytest.raises(InputError, match="line 1 is longer than 1048576 bytes"):
        list(file_lines([path]))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """Absent files and folders are input errors, when read and when counted."""
    for path in (str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(InputError, match=path):
            list(file_lines([path]))
    with pytest.raises(InputError, match="absent: No such file"):
        count_lines([str(tmp_path / "absent")])


def test_arguments_are_lines() -> None:
    """Each argument is one text, whatever it contains."""
    assert list(argument_lines(["a\nb", ""])) == [Line("a\nb", "\n", "argument", 1), Line("", "\n", "argument", 2)]
    with pytest.raises(InputError, match="argument 2: character 3 is not UTF-8"):
        list(argument_lines(["fine", "ab\udcff"]))


def test_stdin_cannot_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe can be read only once, so its length stays unknown."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))

    assert count_lines(["-"]) is None
    assert _texts_and_endings("-") == [("a", "\n"), ("b", "\n")]


def test_a_pipe_that_pauses_gives_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines before a pause are a batch of their own; a half line waits for its end."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as stdin, os.fdopen(writer, "wb", buffering=0) as producer:
        monkeypatch.setattr(sys, "stdin", stdin)
        lines = batches(file_lines(["-"]), max_lines=10)
        producer.write(b"one\ntwo\nthr")

        first = next(lines)
        producer.write(b"ee\n")
        second = next(lines)

        assert [line.text for line in first] == ["one", "two"]
        assert [line.text for line in second] == ["three"]


def _lines(*texts: str) -> list[Line]:
    return [Line(text, "\n", "f", number) for number, text in enumerate(texts, start=1)]


def test_batches_are_full_but_for_the_last() -> None:
    """Files give batches of the wanted size, which nothing but the end of the input cuts short."""
    assert [len(batch) for batch in batches(_lines(*"abcdefg"), max_lines=3)] == [3, 3, 1]
    assert list(batches([None, None], max_lines=3)) == []


def test_long_lines_make_short_batches() -> None:
    """A batch stays below the message limit of the server."""
    lines = _lines("x" * 200_000, "y" * 200_000, "z")

    assert [len(batch) for batch in batches(lines, max_lines=32)] == [1, 2]


def test_lines_before_bad_input_are_still_a_batch(tmp_path: Path) -> None:
    """What was read before the error is handed out before it is raised."""
    path = _write(tmp_path / "in", b"a\nb\n\xff\n")
    groups = batches(file_lines([path]), max_lines=10)

    assert [line.text for line in next(groups)] == ["a", "b"]
    with pytest.raises(InputError):
        next(groups)
