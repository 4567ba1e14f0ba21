"""Arguments of `dragoman`: what is refused, how it is said, and addresses of servers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dragoman.cli.main import COMMANDS, main
from dragoman.client import AsyncTranslationClient, TranslationClient
from dragoman.client.channel import server_target
from dragoman.client.commands import arguments

ADDRESSES_THAT_ARE_NONE = [
    *("", " ", "localhost:99999", "localhost:0", "http://127.0.0.1:50051", ":50051", "[::1", "[x]:1", "a:b:1", "a b"),
    *("dns:", "dns:///"),
]

Wrong = Callable[..., str]


@pytest.fixture
def wrong(capsys: pytest.CaptureFixture[str]) -> Wrong:
    """Runs a command that must be refused, and returns what it said."""

    def run(*given: str) -> str:
        code: object
        try:
            code = main(given)
        except SystemExit as ended:
            code = ended.code
        captured = capsys.readouterr()
        assert (code, captured.out) == (2, "")
        return captured.err

    return run


@pytest.mark.parametrize("name", COMMANDS)
def test_a_wrong_argument_is_one_line_and_a_hint(wrong: Wrong, name: str) -> None:
    """Of every command, whatever its arguments are; thirty lines of usage would push the error off the screen."""
    pytest.importorskip(COMMANDS[name].module)
    error = wrong(name, "--no-such-flag")

    assert re.fullmatch(rf"dragoman {name}: .*\n`dragoman {name} --help` shows the usage\n", error)


def test_a_wrong_subcommand_is_one_line_and_a_hint(wrong: Wrong) -> None:
    """Of `dragoman` itself, and of commands that have subcommands."""
    assert re.fullmatch(r"dragoman: .*'nonsense'.*\n`dragoman --help` shows the usage\n", wrong("nonsense"))
    pytest.importorskip("dragoman.model.commands.corpus")
    error = wrong("corpus", "generate", "--no-such-flag")
    assert re.fullmatch(r"dragoman corpus generate: .*\n`dragoman corpus generate --help` shows the usage\n", error)


@pytest.mark.parametrize(
    "given",
    [
        ["translate", "--beam", "4", "a"],
        ["translate", "--suppres", "x", "a"],
        ["score", "--me"],
        ["corpus", "generate", "--see", "1"],
        ["--vers"],
    ],
    ids=" ".join,
)
def test_a_flag_cannot_be_abbreviated(wrong: Wrong, given: list[str]) -> None:
    """The next release may have two that begin alike."""
    flag = next(one for one in given if one.startswith("--"))
    error = wrong(*given)

    assert error.startswith("dragoman")
    assert flag in error or "required" in error


YEAR = 31536000
RANGES = {
    "--temperature nan": "'nan' is not a number above 0, at most 100",
    "--length-penalty inf": "'inf' is not a number from -100 to 100",
    "--top-p x": "'x' is not a number above 0, at most 1",
    "--max-length-ratio nan": "'nan' is not a number from 0 to 100",
    "--coverage-penalty 1e999": "'1e999' is not a number from 0 to 100",
    "--beam-size 4294967296": "'4294967296' is not a whole number from 0 to what the server allows",
    "--max-new-tokens -1": "'-1' is not a whole number from 0 to what the server allows",
    "--top-k x": "'x' is not a whole number from 0 to what the server allows",
    "--seed -1": "'-1' is not a whole number from 0 to 9223372036854775807",
    f"--beam-size {'9' * 5000}": "is not a whole number from 0 to what the server allows",
    "--timeout 9e9": f"'9e9' is not a number of seconds above 0, at most {YEAR} (a year)",
    "--timeout inf": f"'inf' is not a number of seconds above 0, at most {YEAR} (a year)",
    "--wait 9e9": f"'9e9' is not a number of seconds from 0 to {YEAR} (a year)",
    "--wait nan": f"'nan' is not a number of seconds from 0 to {YEAR} (a year)",
}


@pytest.mark.parametrize("flags", RANGES, ids=lambda flags: flags[:40])
def test_a_value_that_can_never_be_right_is_refused_with_its_range(wrong: Wrong, flags: str) -> None:
    """Where only the server knows the limit, no other one is claimed."""
    assert RANGES[flags] in wrong("translate", *flags.split(), "a")


@pytest.mark.parametrize(
    "arguments",
    [["--batch", "0"], ["--max-new-tokens", "-1"], ["--timeout", "0"], ["--timeout", "nan"], ["--stream", "--json"]],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(wrong: Wrong, arguments: list[str]) -> None:
    """Values that can never be right are refused by the parser."""
    assert arguments[0] in wrong("translate", *arguments, "a")


def test_texts_and_files_together_are_wrong_usage(wrong: Wrong) -> None:
    """Which one comes first would be a guess."""
    problem = "dragoman translate: give texts or --file, not both\n`dragoman translate --help` shows the usage\n"

    assert wrong("translate", "a", "--file", "b") == problem


def test_a_text_behind_file_is_told_from_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is taken for one more file, and the message says so; a file that is misspelt alone needs no such hint."""
    path = tmp_path / "corpus.en"
    path.touch()
    hint = "Every argument behind --file is taken for the name of a file"

    for text in ("some text", "long " * 1000):
        assert main(["translate", "--file", str(path), text]) == 1
        assert hint in capsys.readouterr().err
    assert main(["translate", "--file", str(tmp_path / "gone")]) == 1
    assert hint not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("localhost", "localhost:50051"),
        ("localhost:9", "localhost:9"),
        ("[::1]:9", "[::1]:9"),
        ("[::1]", "[::1]:50051"),
        ("::1", "[::1]:50051"),
        ("fe80::1%lo", "[fe80::1%lo]:50051"),
        ("dns:///translate.example:50051", "dns:///translate.example:50051"),
        ("dns:translate.example", "dns:translate.example"),
        ("ipv4:127.0.0.1:9", "ipv4:127.0.0.1:9"),
        ("unix:/run/dragoman.sock", "unix:/run/dragoman.sock"),
    ],
)
def test_server_address_gets_our_port(given: str, used: str) -> None:
    """A bare host means Dragoman's port and not gRPC's 443, in the library too; gRPC's own targets stay as they are."""
    assert arguments.server(given) == server_target(given) == used


@pytest.mark.parametrize("given", ADDRESSES_THAT_ARE_NONE)
def test_server_address_that_is_none_is_refused(given: str) -> None:
    """Before any network attempt, with an example of a right one."""
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not HOST:PORT .* for example 127\.0\.0\.1:50051"):
        arguments.server(given)
    for kind in (TranslationClient, AsyncTranslationClient):
        with pytest.raises(ValueError, match=r"is not HOST:PORT .* for example 127\.0\.0\.1:50051"):
            kind(given)
