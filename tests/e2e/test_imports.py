"""What a serving process loads, and what it leaves on the disk."""

import json
import sys
from pathlib import Path

from dragoman.model.generated import number_example
from dragoman.v1 import translation_pb2 as pb
from tests.e2e.process import WAIT_S, ServerProcess, clean_environment, serve_command

GOOD = number_example(42)
# Serves as the command line does, then writes down what was imported. A finder that finds nothing
# notes the environment at the moment when onnxruntime is imported.
SCRIPT = """
import json, os, sys

seen = {}

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            seen["telemetry"] = os.environ.get("ORT_DISABLE_TELEMETRY")
        return None

sys.meta_path.insert(0, Finder())
from dragoman.cli.main import main
code = main(sys.argv[2:])
seen["modules"] = sorted(sys.modules)
with open(sys.argv[1], "w") as file:
    json.dump(seen, file)
sys.exit(code)
"""
FORBIDDEN = {"torch", "onnx", "onnxscript", "safetensors", "sacrebleu", "sqlite3", "tensorflow", "transformers"}
OWN = {"dragoman.client", "dragoman.export.write", "dragoman.export.to_onnx", "dragoman.model.transformer"}


def test_a_serving_process_imports_no_training_code_and_writes_no_file(tmp_path: Path) -> None:
    """No torch or onnx, no database, and the runtime's telemetry is off before it is imported."""
    home, report = tmp_path / "home", tmp_path / "report.json"
    home.mkdir()
    folders = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), str(home))
    command = serve_command(command=(sys.executable, "-c", SCRIPT, str(report)))

    with ServerProcess(command, clean_environment(**folders), home) as server:
        response = server.stub.Translate(pb.TranslateRequest(texts=[GOOD.source]), timeout=WAIT_S)

    seen = json.loads(report.read_text())
    assert response.translations[0].text == GOOD.target
    assert "onnxruntime" in seen["modules"]
    assert not {name for name in seen["modules"] if name.split(".")[0] in FORBIDDEN}
    assert not OWN & set(seen["modules"])
    assert seen["telemetry"] == "1"
    assert list(home.rglob("*")) == []
