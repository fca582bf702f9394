"""Real vLLM with many operators at once: the run of ``opgraft verify --engine vllm`` as a test, where vLLM is installed."""

import importlib.util

import pytest

from opgraft import ops, platforms
from opgraft.verify.engine_level import EngineLevel
from opgraft.verify.levels import run_check
from opgraft.vllm.engine import SCENARIOS

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM has an environment of its own: see docs/vllm.md"
)
CALLED = {
    "llama": {"copy_", "detach", "empty_strided", "item"},
    "gemma3n served": {"clone", "contiguous", "type_as"},
    "phi by transformers, tensor parallel 2": {"dropout", "empty_like"},
}


@pytest.mark.parametrize("number, name", [(i, name) for i, s in enumerate(SCENARIOS) for name in sorted(CALLED[s.name])])
def test_all_operators_together_are_reached_in_inference_mode(number, name):
    result = run_check(list(EngineLevel(ops.load(name).OPERATOR).checks(platforms.profiles()["cpu"]))[number])
    assert result.ok, result.error
    assert result.figures["hits in inference_mode"] > 0, result.figures


def test_not_asked_the_plugin_changes_nothing_of_vllm(python):
    """No dispatch table, and two small modules are all it loads. ``VLLM_PLUGINS`` names plugins to load; "none" is none."""
    look = (
        "import sys, hashlib, torch\nfrom vllm.plugins import load_general_plugins\nload_general_plugins()\n"
        "import vllm.v1.engine.core\n"
        "names = sorted(n for n in torch._C._dispatch_get_all_op_names() if n.startswith('aten::'))\n"
        "tables = hashlib.sha256(''.join(torch._C._dispatch_dump_table(n) for n in names).encode()).hexdigest()\n"
        "print(len(names), tables, sorted(m for m in sys.modules if m.partition('.')[0] == 'opgraft'))"
    )
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "OPGRAFT_VLLM_OPS": ""}
    asked = python(look, **quiet).splitlines()[-1]
    without = python(look, **quiet, VLLM_PLUGINS="none").splitlines()[-1]
    assert without.endswith("['opgraft', 'opgraft._autoload']") and int(without.split()[0]) > 1000
    assert asked.split()[:2] == without.split()[:2], "the plugin changed a dispatch table although it was not asked"
    assert asked.endswith("['opgraft', 'opgraft._autoload', 'opgraft.vllm', 'opgraft.vllm.plugin']"), asked
