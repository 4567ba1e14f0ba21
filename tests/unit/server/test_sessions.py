"""Sessions are opened as asked for, or not at all; stand-ins say what a session on a GPU would."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

from dragoman.export import bundle
from dragoman.server import cuda_memory, sessions
from dragoman.server.device import Device
from dragoman.server.errors import StartupError

BUNDLE = Path(__file__).parents[2] / "data" / "tiny-v1"
CUDA, CPU = sessions.PROVIDER, sessions.CPU_PROVIDER
ON_BOTH = (CUDA, CPU)


@dataclass
class Named:
    """Whatever has a name."""

    name: str
    op_type: str = ""


@dataclass
class Part:
    """Nodes on one provider."""

    ep_name: str
    nodes: list[Named]

    def get_nodes(self) -> list[Named]:
        """Return them."""
        return self.nodes


@dataclass
class FakeSession:
    """What a session says of itself."""

    providers: tuple[str, ...] = ON_BOTH
    parts: list[Part] = field(default_factory=list)
    places: dict[str, str] = field(default_factory=dict)

    def get_providers(self) -> tuple[str, ...]:
        """Return where it may run."""
        return self.providers

    def get_provider_graph_assignment_info(self) -> list[Part]:
        """Return where its nodes are."""
        return self.parts

    def get_inputs(self) -> list[Named]:
        """Return its inputs."""
        return [Named(name) for name in self.places]

    def get_input_memory_infos(self) -> list[Named]:
        """Return where it wants them."""
        return [Named(place) for place in self.places.values()]


def nodes(*operators: str) -> list[Named]:
    return [Named(f"node_{index}", operator) for index, operator in enumerate(operators)]


def test_a_graph_whose_products_are_on_the_gpu_is_accepted() -> None:
    """Arithmetic with sizes stays on the CPU: ONNX Runtime puts it there, and nothing large is copied."""
    session = FakeSession(parts=[Part(CUDA, nodes("MatMul", "If")), Part(CPU, nodes("Squeeze", "Add", "Concat"))])

    sessions.require_cuda(session, "decoder.onnx")


def test_a_product_on_the_cpu_is_refused() -> None:
    """Silently it would cost copies in every step; the message names what it is."""
    session = FakeSession(parts=[Part(CUDA, nodes("MatMul")), Part(CPU, nodes("Squeeze", *["MatMulInteger"] * 6))])

    with pytest.raises(StartupError) as caught:
        sessions.require_cuda(session, "decoder.onnx")

    message = str(caught.value)
    assert message.startswith("decoder.onnx has 6 operators that would run on the CPU")
    assert "MatMulInteger node_1, " in message
    assert " ..." in message
    assert "--precision fp16 or fp32 and --device cuda" in message


def test_a_session_that_fell_back_is_refused() -> None:
    """ONNX Runtime makes one without CUDA if a library is missing, and only logs it."""
    with pytest.raises(StartupError, match=r"would run encoder.onnx on the CPU.*onnxruntime-gpu\[cuda,cudnn\]"):
        sessions.require_cuda(FakeSession(providers=(CPU,)), "encoder.onnx")


def test_inputs_that_stay_on_the_host_are_known() -> None:
    """Bundles of earlier versions read `cache_lengths` on the CPU."""
    session = FakeSession(places={"input_ids": "Cuda", "cache_lengths": "Cpu", "self_key.0": "Cuda"})

    assert sessions.inputs_on_host(session) == {"cache_lengths"}


def test_a_session_on_a_gpu_is_opened_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the GPU's provider alone, no second try, the limit, the stream, and a record of where nodes are."""
    opened: list[tuple[Any, Any, dict[str, Any]]] = []

    def open_fake(_path: Path, options: Any, providers: Any, **rest: Any) -> FakeSession:
        opened.append((options, providers, rest))
        return FakeSession()

    monkeypatch.setattr(onnxruntime, "InferenceSession", open_fake)
    sessions.open_session(Path("decoder.onnx"), Device("cuda", 2), threads=1, gpu_mem_limit=5000, stream=77)

    [(options, [(provider, settings)], rest)] = opened
    assert provider == CUDA
    assert rest == {"enable_fallback": 0}
    assert settings == {
        "device_id": "2",
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": "0",
        "user_compute_stream": "77",
        "gpu_mem_limit": "5000",
    }
    assert options.get_session_config_entry("session.record_ep_graph_assignment_info") == "1"


def test_there_is_no_limit_unless_it_is_set() -> None:
    """0 would be a limit of nothing."""
    assert "gpu_mem_limit" not in sessions.cuda_options(0, 0, 1)


def test_a_session_on_the_cpu_is_one() -> None:
    """And knows where its nodes are placed only if it was asked to, which costs memory."""
    session = sessions.open_session(BUNDLE / bundle.ENCODER, Device("cpu"), threads=1)

    assert session.get_providers() == [CPU]


def test_a_package_without_cuda_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything of CUDA is imported, with the extra to install."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["AzureExecutionProvider", CPU])
    monkeypatch.setattr(cuda_memory, "find_problem", lambda _: pytest.fail("imported"))

    problem = sessions.find_problem(0)

    assert problem is not None
    assert f"the installed onnxruntime {onnxruntime.__version__} has no {CUDA}" in problem
    assert "install the extra dragoman[server-gpu]" in problem


def test_a_package_with_cuda_is_asked_for_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider alone is no GPU."""
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, CPU])
    monkeypatch.setattr(cuda_memory, "find_problem", lambda index: f"no GPU {index}")

    assert sessions.find_problem(3) == "no GPU 3"


def test_what_is_missing_of_cuda_is_said_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stdout has one line of ours, which scripts read."""
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("Failed to load libcudnn.so.9"))
    sessions.load_cuda_libraries()

    said = capsys.readouterr()
    assert said.out == ""
    assert "libcudnn" in said.err
