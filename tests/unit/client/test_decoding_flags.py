"""`dragoman translate` with options of decoding, and `dragoman score`."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from dragoman.cli.main import main
from dragoman.client.commands.lines import argument_lines
from dragoman.client.commands.report import _violation
from dragoman.client.errors import FieldViolation
from dragoman.v1 import translation_pb2 as pb
from tests.fakes.translation_server import Failure, FakeTranslationService

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(address: str, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    def command(name: str, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = main([name, "--server", address, *arguments])
        captured = capsysbinary.readouterr()
        return code, captured.out.decode(), captured.err.decode()

    return command


def sent(service: FakeTranslationService) -> pb.TranslateRequest:
    [request] = service.requests
    assert isinstance(request, pb.TranslateRequest)
    return request


FLAGS = {
    "--max-new-tokens 9": pb.DecodingOptions(max_new_tokens=9),
    "--min-new-tokens 2": pb.DecodingOptions(min_new_tokens=2),
    "--max-length-ratio 1.5": pb.DecodingOptions(max_length_ratio=1.5),
    "--beam-size 4": pb.DecodingOptions(beam_size=4),
    "--length-penalty 0": pb.DecodingOptions(length_penalty=0.0),
    "--normalization gnmt": pb.DecodingOptions(normalization=pb.NORMALIZATION_GNMT),
    "--coverage-penalty 0.2": pb.DecodingOptions(coverage_penalty=0.2),
    "--patience 2": pb.DecodingOptions(patience=2.0),
    "--early-stopping true": pb.DecodingOptions(early_stopping=pb.EARLY_STOPPING_TRUE),
    "--sample": pb.DecodingOptions(sampling=pb.Sampling()),
    "--temperature 0.5": pb.DecodingOptions(sampling=pb.Sampling(temperature=0.5)),
    "--top-k 0": pb.DecodingOptions(sampling=pb.Sampling(top_k=0)),
    "--top-p 0.9": pb.DecodingOptions(sampling=pb.Sampling(top_p=0.9)),
    "--seed 9223372036854775807": pb.DecodingOptions(sampling=pb.Sampling(seed=2**63 - 1)),
    "--repetition-penalty 1.3": pb.DecodingOptions(repetition_penalty=1.3),
    "--no-repeat-ngram-size 3": pb.DecodingOptions(no_repeat_ngram_size=3),
    "--suppress x --suppress y": pb.DecodingOptions(suppressed_texts=["x", "y"]),
    "--stop-sequence . --stop-sequence ;": pb.DecodingOptions(stop_sequences=[".", ";"]),
    "--priority bulk": pb.DecodingOptions(priority=pb.PRIORITY_BULK),
    "--scores": pb.DecodingOptions(return_scores=True),
    "--alignment": pb.DecodingOptions(return_alignment=True),
    "--json --token-scores": pb.DecodingOptions(return_token_scores=True),
    "--json --alternatives 3": pb.DecodingOptions(return_alternatives=3),
    "--n-best --beam-size 3 --num-hypotheses 3": pb.DecodingOptions(beam_size=3, num_hypotheses=3, return_scores=True),
}


@pytest.mark.parametrize("flags", FLAGS)
def test_a_flag_sets_its_option_and_no_other(run: Run, service: FakeTranslationService, flags: str) -> None:
    """Everything else stays the server's default."""
    code, _, errors = run("translate", *flags.split(), "a b")

    assert (code, sent(service).options) == (0, FLAGS[flags]), errors


def test_the_prefix_is_sent_with_every_line(run: Run, service: FakeTranslationService) -> None:
    """It is part of the output."""
    code, out, _ = run("translate", "--target-prefix", "Ja,", "a", "b")

    assert (code, out) == (0, "Ja, A\nJa, B\n")
    assert list(sent(service).target_prefixes) == ["Ja,", "Ja,"]
    assert run("translate", "--stream", "--target-prefix", "Ja,", "a")[1] == "Ja, A\n"


def test_a_prefix_that_leaves_no_room_is_named(run: Run) -> None:
    """The flag that sets the limit cannot raise it beyond the model's, which the prefix uses up."""
    _, _, errors = run("translate", "--target-prefix", "Ja,", "--max-new-tokens", "1", "a b")

    assert "--max-new-tokens sets it, as far as --target-prefix leaves room: a shorter one leaves more" in errors
    assert "prefix" not in run("translate", "--max-new-tokens", "1", "a b")[2]


def test_n_best_writes_every_hypothesis_with_its_line_and_score(run: Run) -> None:
    """The format of Moses; numbers count lines of the whole input from 0, blank ones included."""
    _, out, _ = run("translate", "--n-best", "--sample", "--num-hypotheses", "2", "--batch", "1", stdin="a\n\nb")

    assert out.split("\n") == [
        "0 ||| A ||| -0.500000",
        "0 ||| A! ||| -1.500000",
        "1 |||  ||| -0.500000",
        "1 ||| ! ||| -1.500000",
        "2 ||| B ||| -0.500000",
        "2 ||| B! ||| -1.500000",
        "",
    ]


def test_scores_and_alignment_stand_behind_the_text(run: Run) -> None:
    """One line per line, endings kept."""
    assert run("translate", "--scores", "a b")[1] == "A B ||| -0.500000\n"
    assert run("translate", "--alignment", stdin="a b\r\nc")[1] == "A B ||| 0-0 1-1\r\nC ||| 0-0"
    assert run("translate", "--scores", "--alignment", "a b")[1] == "A B ||| 0-0 1-1 ||| -0.500000\n"


def test_json_has_the_hypotheses(run: Run) -> None:
    """With what was asked for and nothing else."""
    flags = ["--json", "--scores", "--token-scores", "--alignment", "--seed", "7"]
    _, out, _ = run("translate", *flags, "a bc")

    written = json.loads(out)
    assert written["hypotheses"] == [
        {
            "text": "A BC",
            "finish_reason": "EOS",
            "target_tokens": 2,
            "score": -0.5,
            "log_prob": -1.0,
            "tokens": [
                {"text": "a", "log_prob": -1.0},
                {"text": "bc", "log_prob": -2.0},
                {"text": "", "log_prob": -0.5},
            ],
            "alignment": [[1.0, 0.0], [0.0, 1.0]],
            "seed": 7,
        }
    ]
    assert written["source_pieces"] == ["a", "bc"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--num-hypotheses 2", "--num-hypotheses needs --n-best or --json"),
        ("--alternatives 2", "--alternatives needs --n-best or --json"),
        ("--token-scores", "--token-scores needs --json"),
        ("--stream --scores", "--stream writes nothing but text, so it does not go together with --scores"),
        ("--n-best --json", "give --n-best or --json, not both"),
    ],
)
def test_flags_that_do_not_go_together_are_wrong_usage(
    run: Run, service: FakeTranslationService, flags: str, problem: str
) -> None:
    """Nothing is sent that would not be written."""
    code, _, errors = run("translate", *flags.split(), "a")

    assert code == 2
    assert problem in errors
    assert service.requests == []


@pytest.mark.parametrize("flags", ["--seed -1", "--seed 9223372036854775808", "--top-p nan", "--patience x"])
def test_a_value_that_can_never_be_right_is_wrong_usage(run: Run, flags: str) -> None:
    """Refused by the parser."""
    with pytest.raises(SystemExit) as caught:
        run("translate", *flags.split(), "a")

    assert caught.value.code == 2


def test_a_refused_option_is_named(run: Run, service: FakeTranslationService) -> None:
    """The server's message names field, value and range; a prefix is named by its line."""
    problem = ("options.beam_size", "99 is out of range; it must be 0 to 32")
    service.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(problem,)))
    prefix = ("target_prefixes[1]", "300 tokens, the limit is 100; shorten it")
    service.failures.append(Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(prefix,)))

    assert "options.beam_size: 99 is out of range; it must be 0 to 32" in run("translate", "a")[2]
    assert "argument 2: 300 tokens, the limit is 100" in run("translate", "a", "b")[2]


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ("options.suppressed_texts[0]", "options.suppressed_texts[0]: is empty"),
        ("target_prefixes[0]", "--target-prefix of argument 1: is empty"),
        ("texts[0]", "argument 1: is empty"),
    ],
)
def test_only_fields_of_texts_become_places(field: str, shown: str) -> None:
    """A field whose name ends like that of the texts is another one."""
    violation = FieldViolation(field, "is empty")

    assert _violation(violation, list(argument_lines(["Hello."]))) == shown


def test_score_writes_one_number_per_line(run: Run, service: FakeTranslationService, tmp_path: Path) -> None:
    """The sum of log-probabilities, or their mean; what is impossible is -inf."""
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\txx y\n\t\n\tx\n")

    code, out, _ = run("score", "--file", str(path), "--source", "en", "--target", "de", "--priority", "bulk")

    assert (code, out) == (0, "-3.500000\n0.000000\n-inf\n")
    assert service.requests == [
        pb.ScoreRequest(
            pairs=[
                pb.ScorePair(source="a b", target="xx y"),
                pb.ScorePair(),
                pb.ScorePair(target="x"),
            ],
            source_language="en",
            target_language="de",
            priority=pb.PRIORITY_BULK,
        )
    ]
    assert run("score", "--mean", stdin="a b\txx y")[1] == "-1.166667"


def test_score_keeps_the_order_over_batches(run: Run) -> None:
    """Line N of the output belongs to line N of the input."""
    lines = [f"a\t{'x' * length}\n" for length in range(1, 30)]

    _, out, _ = run("score", "--batch", "4", stdin="".join(lines))

    assert out == "".join(f"{-length - 0.5:.6f}\n" for length in range(1, 30))


def test_score_as_json(run: Run) -> None:
    """Valid JSON also for what is impossible."""
    _, out, _ = run("score", "--json", stdin="a b\txx\n\tx\n")

    first, second = map(json.loads, out.splitlines())
    assert first == {
        "source": "a b",
        "target": "xx",
        "log_prob": -2.5,
        "source_tokens": 2,
        "target_tokens": 1,
        "tokens": [{"text": "xx", "log_prob": -2.0}, {"text": "", "log_prob": -0.5}],
    }
    assert second["log_prob"] is None


@pytest.mark.parametrize(("line", "tabs"), [("no tab", 0), ("one\ttwo\tthree", 2), ("", 0)])
def test_a_line_that_is_no_pair_is_named(run: Run, line: str, tabs: int) -> None:
    """A shifted column would be scored as if it were a translation."""
    code, out, errors = run("score", "--batch", "1", stdin=f"a\tb\n{line}\nc\td\n")

    assert (code, out) == (1, "-1.500000\n")
    assert f"stdin: line 2 has {tabs} tabs, a line is a source, one tab and its translation" in errors


def test_a_refused_pair_is_named_by_its_line(run: Run, service: FakeTranslationService) -> None:
    """The place in the request becomes the place in the file, and which side it is."""
    problem = ("pairs[1].target", "700 tokens, the limit is 127")
    service.rejected["c"] = Failure(grpc.StatusCode.INVALID_ARGUMENT, "bad", violations=(problem,))

    code, _, errors = run("score", stdin="a\tb\nc\td\n")

    assert code == 1
    assert "stdin: lines 1-2 not scored: target of stdin: line 2: 700 tokens, the limit is 127" in errors


def test_a_failed_score_leaves_the_old_output(run: Run, service: FakeTranslationService, tmp_path: Path) -> None:
    """A file is complete or as it was."""
    path = tmp_path / "scores"
    path.write_text("old\n")
    service.failures.append(Failure(grpc.StatusCode.INTERNAL, "engine fault 4711"))

    code, _, errors = run("score", "--output", str(path), stdin="a\tb\n")

    assert (code, path.read_text()) == (1, "old\n")
    assert f"engine fault 4711. {path} was not written" in errors
