"""The house: which room may import which. docs/architecture.md draws it."""

import ast
import pathlib

ROOT = pathlib.Path(__file__).parents[2] / "opgraft"

#: Rooms from the ground up; each imports what stands before it, also within functions.
ROOMS = [
    "memo", "catalogue", "call_path", "platforms", "routing", "kernels", "a1", "opgraft", "sim", "models", "ops", "evidence", "vllm",
    "verify", "bench", "proofs", "scaffold", "cli", "pytest_plugin",
]  # fmt: skip
#: `import torch` and `import opgraft.sim` call each other in either order (the entry point of torch.backends).
EXEMPT = {("_autoload", "sim"), ("sim", "_autoload")}
#: What an operator's folder brings for proving and measuring it.
PROOFS = ("test", "bench.py", "example.py", "test_packaging.py")
#: Inside a1: declare, decide, derive, install, register.
A1 = ["arguments", "declare", "decide", "derive", "python_path", "install", "register", "__init__"]


def room(path: pathlib.Path) -> str:
    inside = path.relative_to(ROOT).parts
    if inside[0] == "__init__.py":
        return "opgraft"
    if inside[0] == "ops" and any(part in PROOFS for part in inside):
        return "proofs"
    return inside[0].removesuffix(".py")


def imports(path: pathlib.Path):
    """(line, module) of every import, relative ones made absolute."""
    package = ["opgraft", *path.relative_to(ROOT).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def target(module: str) -> str | None:
    parts = module.split(".")
    if parts[0] != "opgraft":
        return None
    if len(parts) > 1 and ((ROOT / parts[1]).is_dir() or (ROOT / f"{parts[1]}.py").exists()):
        if parts[1] == "ops" and any(part in ("test", "bench", "example") for part in parts[2:]):
            return "proofs"
        return parts[1]
    return "opgraft"


def wrong_imports(paths) -> list[str]:
    found = []
    for path in paths:
        here = room(path)
        for line, module in imports(path):
            there = target(module)
            if there in (None, here) or (here, there) in EXEMPT:
                continue
            if there not in ROOMS or here not in ROOMS or ROOMS.index(there) > ROOMS.index(here):
                found.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    return found


def test_rooms_import_what_stands_before_them():
    paths = [p for p in sorted(ROOT.rglob("*.py")) if p.name != "_autoload.py" and "templates" not in p.parts]
    assert not wrong_imports(paths)


def test_a1_has_one_direction():
    found = []
    for path in (ROOT / "a1").glob("*.py"):
        for line, module in imports(path):
            parts = module.split(".")
            if parts[:2] == ["opgraft", "a1"] and len(parts) > 2 and parts[2] in A1:
                if A1.index(parts[2]) >= A1.index(path.stem):
                    found.append(f"{path.name}:{line} imports {module}")
    assert not found


def test_an_import_upwards_is_found(monkeypatch):
    wrong = ROOT / "kernels" / "launch.py"
    tree = wrong.read_text(encoding="utf-8") + "\ndef f():\n    from opgraft.verify import run\n"
    monkeypatch.setattr(pathlib.Path, "read_text", lambda self, **_: tree)
    assert wrong_imports([wrong]) and "opgraft.verify.run" in wrong_imports([wrong])[0]
