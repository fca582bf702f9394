"""Check the documentation: links and anchors resolve, Python blocks run, YAML and JSON files parse.

    python script/check_docs.py

A Python block runs in a fresh process from the repository root. A block is left out only if a comment
``<!-- not run: reason -->`` stands on the line before it.
"""

import json
import pathlib
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import yaml

ROOT = pathlib.Path(__file__).parents[1]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def tracked(pattern: str) -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "--", pattern], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / line for line in listed.splitlines()]


def anchor(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    text = re.sub(r"[`*_]", "", heading.strip()).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(page: pathlib.Path) -> set[str]:
    return {anchor(m[1]) for m in re.finditer(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)}


def link_problems(page: pathlib.Path) -> list[str]:
    problems = []
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, fragment = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        if not found.exists():
            problems.append(f"{page.relative_to(ROOT)}: link to {target}, which does not exist")
        elif fragment and found.suffix == ".md" and fragment not in anchors(found):
            problems.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
    return problems


def blocks(page: pathlib.Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"```python\n(.*?)```", text, re.S):
        before = text[: match.start()].rstrip().splitlines()
        if before and before[-1].strip().startswith("<!-- not run:"):
            continue
        found.append((f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 1}", match[1]))
    return found


def run_block(block: tuple[str, str]) -> str | None:
    where, code = block
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    return None if done.returncode == 0 else f"{where}: the block fails: {done.stderr.strip().splitlines()[-1]}"


def main() -> int:
    pages = tracked("*.md")
    problems = [p for page in pages for p in link_problems(page)]
    code = [b for page in pages for b in blocks(page)]
    with ThreadPoolExecutor(2) as pool:
        problems += [p for p in pool.map(run_block, code) if p]
    parsed = 0
    for pattern, parse in (("*.yaml", yaml.safe_load), ("*.yml", yaml.safe_load), ("*.json", json.loads)):
        for path in tracked(pattern):
            parsed += 1
            try:
                parse(path.read_text(encoding="utf-8"))
            except ValueError as error:
                problems.append(f"{path.relative_to(ROOT)}: {error}")
            except yaml.YAMLError as error:
                problems.append(f"{path.relative_to(ROOT)}: {error}")
    print(
        "\n".join(problems) or "no problems",
        f"\n{len(pages)} pages, {len(code)} Python blocks run, {parsed} YAML and JSON files parsed",
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
