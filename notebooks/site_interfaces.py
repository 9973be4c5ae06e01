"""Pages about interfaces: the C++ headers that are installed, C, and the Python package."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from site_sources import MARKDOWN, ROOT, Page, block, plain

# Of Python, the modules that are meant for callers.
PYTHON = (
    "__init__",
    "torch/__init__",
    "torch/conversion",
    "torch/run_file",
    "torch/steps",
    "torch/huggingface",
    "arithmetic",
    "quantizer",
    "model",
    "runs",
    "recorder",
    "conformance/__init__",
    "conformance/checks",
    "library_recipes",
    "tokens/__init__",
    "gguf/__init__",
    "errors",
)
CLOSING = {"(": ")", "{": "}", "[": "]"}


# --- C++ ------------------------------------------------------------------------------------------


def installed_headers() -> dict[str, list[Path]]:
    """Headers by folder, as emulation/CMakeLists.txt installs them."""
    text = (ROOT / "emulation/CMakeLists.txt").read_text(encoding="utf-8")
    folders = re.search(r"install\(DIRECTORY ([\w ]+)\n", text)
    assert folders, "emulation/CMakeLists.txt installs folders"
    files = re.findall(r"[\w/]+\.hpp", " ".join(re.findall(r"install\(FILES ([^)]*)\)", text)))
    found: dict[str, list[Path]] = {}
    for folder in folders[1].split():
        found[folder] = sorted((ROOT / "emulation" / folder).rglob("*.hpp"))
    found["backends"] = [ROOT / "emulation" / name for name in sorted(files)]
    return found


def declaration_end(text: str, start: int) -> tuple[int, str]:
    """Where a declaration ends, and its text: a type with its body, a function without one."""
    head = re.match(r"(?:template\s*<[^{;]*?>\s*)?(?:struct|class|enum|union)\b", text[start:])
    depth: list[str] = []
    at = start
    while at < len(text):
        letter = text[at]
        if text.startswith("//", at):
            at = text.find("\n", at)
            continue
        if letter == "{" and not depth and not head:
            return at, text[start:at].rstrip() + ";"
        if letter in CLOSING:
            depth.append(CLOSING[letter])
        elif depth and letter == depth[-1]:
            depth.pop()
        elif letter == ";" and not depth:
            return at + 1, text[start : at + 1]
        at += 1
    return at, text[start:at].rstrip()


def declared_name(declaration: str) -> str:
    """The name that a declaration introduces."""
    text = re.sub(r"//.*", "", declaration)
    if found := re.match(
        r"(?:template\s*<.*?>\s*)?(?:struct|class|enum class|enum)\s+(\w+)", text, re.S
    ):
        return found[1]
    if found := re.match(r"using\s+([\w:]+)", text):
        return found[1].rpartition(":")[2]
    before = re.split(r"\(|\{|(?<![=!<>])=(?!=)|;", text)[0]
    operator = re.search(r"operator\S*$", text.split("(")[0].rstrip())
    names = re.findall(r"\w+", re.sub(r"\[[^\]]*\]", "", before))
    return operator.group() if operator else names[-1] if names else "declaration"


def documented(text: str) -> Iterator[tuple[str, str]]:
    """Comments that begin with /// at the level of a namespace, and what each is about."""
    for found in re.finditer(r"(?m)^((?:///(?: .*)?\n)+)(?=[^\s/])", text):
        words = re.sub(r"(?m)^///? ?", "", found[1]).strip()
        yield words, declaration_end(text, found.end())[1]


def header_page(folder: str, files: list[Path]) -> Page:
    """The documented declarations of a folder of headers."""
    parts = [f"# C++: {folder}\n"]
    for file in files:
        text = file.read_text(encoding="utf-8")
        about = re.match(r"(?:// ?(?!/).*\n)+", text)
        path = file.relative_to(ROOT).as_posix()
        parts.append(f"## {path}\n")
        if about:
            parts.append(plain(re.sub(r"(?m)^// ?", "", about.group())) + "\n")
        for words, declaration in documented(text):
            parts.append(f"### {plain(declared_name(declaration))}\n")
            parts.append(plain(words) + "\n")
            parts.append(block(declaration, "cpp"))
    return Page(f"api/cpp/{folder}.md", "\n".join(parts))


def c_page() -> Page:
    """The C interface: its header documents itself."""
    text = (ROOT / "src/interface/fp8lab.h").read_text(encoding="utf-8")
    return Page(f"api/c{MARKDOWN}", f"# C interface: fp8lab.h\n\n{block(text, 'c')}")


# --- Python ---------------------------------------------------------------------------------------


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """A function's or class's first lines, without its body."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        fields = [ast.unparse(entry) for entry in node.body if isinstance(entry, ast.AnnAssign)]
        fields = [field for field in fields if not field.startswith("_")]
        return "\n    ".join(
            [f"class {node.name}" + (f"({bases})" if bases else "") + ":", *fields]
        )
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(line) > 100:
        line = line.replace(", ", ",\n    ")
    return line


def docstring(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    """A docstring as Markdown: indented lines are code, the rest words."""
    parts = []
    for paragraph in re.split(r"\n[ \t]*\n", inspect.cleandoc(ast.get_docstring(node) or "")):
        is_code = paragraph.startswith(" ") or paragraph.lstrip().startswith(">>>")
        parts.append(block(textwrap.dedent(paragraph)) if is_code else plain(paragraph) + "\n")
    return "\n".join(parts)


def is_public(node: ast.AST) -> bool:
    """Whether it is a function or class with a docstring that callers may use."""
    return (
        isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and (not node.name.startswith("_"))
        and ast.get_docstring(node) is not None
    )


def python_page(module: str) -> Page:
    """The public names of a module."""
    tree = ast.parse((ROOT / f"src/python/fp8lab/{module}.py").read_text(encoding="utf-8"))
    name = ".".join(["fp8lab", *module.removesuffix("__init__").strip("/").split("/")]).rstrip(".")
    parts = [f"# {name}\n", docstring(tree)]
    for node in tree.body:
        if not is_public(node):
            continue
        assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
        parts += [f"## {plain(node.name)}\n", block(signature(node), "python"), docstring(node)]
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and (
                is_public(member) or (member.name == "__init__" and ast.get_docstring(member))
            ):
                parts += [f"### {plain(f'{node.name}.{member.name}')}\n"]
                parts += [block(signature(member), "python"), docstring(member)]
    return Page(f"api/python/{name}.md", "\n".join(parts))


def interface_pages() -> tuple[Page, ...]:
    """Python, C++, C."""
    return (
        *map(python_page, PYTHON),
        *(header_page(folder, files) for folder, files in installed_headers().items()),
        c_page(),
    )
