import re
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "clients" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_examples_run(address: str, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """What a reader copies runs as it is, but for the address."""
    source = EXAMPLES[number].replace("127.0.0.1:50051", address)

    exec(compile(source, f"README example {number}", "exec"), {"__name__": "example"})  # noqa: S102 - our own text

    assert "Error" not in capsys.readouterr().out


def test_every_example_was_found() -> None:
    """A change of format must not leave the examples unread."""
    assert len(EXAMPLES) >= 6
