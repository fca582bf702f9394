"""Platforms: data files, their errors, detection and probing."""

import pytest
import yaml

from opgraft import platforms
from opgraft.platforms import Status, load_profile, probe, profiles

GOOD = dict(
    name="acme", vendor="Acme", device_type="acme", module="torch_acme", autograd_key="AutogradPrivateUse1",
    backend_key="PrivateUse1", kernel_level="triton",
)  # fmt: skip


def written(tmp_path, text):
    path = tmp_path / "acme.yaml"
    path.write_text(text if isinstance(text, str) else yaml.safe_dump(text))
    return path


def test_the_shipped_profiles():
    known = profiles()
    assert list(known) == ["ascend", "cambricon", "cpu", "cuda", "sim"]
    assert known["cambricon"].device == "mlu:0" and known["cambricon"].dispatch_key == "AutogradPrivateUse1"
    assert (
        known["ascend"].module == "torch_npu"
        and known["cuda"].keys == ("AutogradCUDA", "CUDA")
        and known["cpu"].device == "cpu"
    )


def test_a_good_file(tmp_path):
    assert load_profile(written(tmp_path, GOOD)).device == "acme:0"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"color": "red"}, ["unknown field(s) ['color']", "kernel_level"]),
        ({"module": 3}, ["module must be text or null", "3"]),
        ({"kernel_level": "cuda"}, ["'cuda'", "torch, triton"]),
        ({"autograd_key": "AutogradAcme"}, ["no dispatch key"]),
        ({"autograd_key": "AutogradCPU"}, ["autograd key", "'PrivateUse1'"]),
        ({"vendor": None}, ["vendor must be text, got None"]),
    ],
)
def test_a_malformed_file_names_file_field_and_what_is_accepted(tmp_path, change, words):
    with pytest.raises(ValueError) as raised:
        load_profile(written(tmp_path, {**GOOD, **change}))
    assert "acme.yaml" in str(raised.value) and all(w in str(raised.value) for w in words), str(raised.value)


@pytest.mark.parametrize(
    "text, words", [("a: [", "not valid YAML"), ("- x", "is a mapping"), ("name: acme", "missing field(s)")]
)
def test_text_that_is_no_platform(tmp_path, text, words):
    with pytest.raises(ValueError, match="acme.yaml") as raised:
        load_profile(written(tmp_path, text))
    assert words in str(raised.value)


def test_an_outside_package_adds_a_platform(tmp_path, monkeypatch):
    path = written(tmp_path, GOOD)

    class Entry:
        def load(self):
            return lambda: path

    monkeypatch.setattr(
        platforms.importlib.metadata, "entry_points", lambda group: [Entry()] if group == "opgraft.platforms" else []
    )
    platforms.profiles.cache_clear()
    try:
        assert "acme" in profiles()
        written(tmp_path, {**GOOD, "name": "cpu"})
        platforms.profiles.cache_clear()
        with pytest.raises(ValueError, match="a platform named 'cpu' already"):
            profiles()
    finally:
        monkeypatch.undo()
        platforms.profiles.cache_clear()


def test_probe_says_exactly_why():
    known = profiles()
    assert probe(known["cpu"]) == Status(True, "always present")
    assert probe(known["sim"]).simulated
    assert "module torch_mlu is not installed; PrivateUse1 is the backend 'sim' here" in probe(known["cambricon"]).reason


def test_probe_of_a_module_whose_native_library_is_missing(tmp_path, monkeypatch):
    """torch_npu without CANN: importing it raises ImportError for libhccl.so."""
    (tmp_path / "torch_npu.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file: No such file or directory')"
    )
    monkeypatch.syspath_prepend(tmp_path)
    status = probe(profiles()["ascend"])
    assert not status.usable
    assert "torch_npu is installed but cannot be loaded: libhccl.so" in status.reason and "CANN" in status.reason


def test_two_chips_named_privateuse1_are_told_apart(python):
    source = "import opgraft.sim\nopgraft.sim.enable({name!r})\nfrom opgraft import platforms\nprint(platforms.resolve('PrivateUse1', None).name)"
    assert python(source.format(name="mlu")).strip() == "cambricon"
    assert python(source.format(name="npu")).strip() == "ascend"


def test_a_backend_that_no_platform_describes(python):
    python(
        "import opgraft.sim\nopgraft.sim.enable('foo')\nfrom opgraft.ops.clone import register_a1\n"
        "try:\n    register_a1()\nexcept RuntimeError as error:\n    assert \"named 'foo'\" in str(error) and 'entry point' in str(error)\nelse:\n    raise SystemExit(1)"
    )


def test_no_backend_at_all(python):
    python(
        "from opgraft.ops.clone import register_a1\n"
        "try:\n    register_a1()\nexcept RuntimeError as error:\n    assert 'no PrivateUse1 backend is present' in str(error)\nelse:\n    raise SystemExit(1)"
    )
