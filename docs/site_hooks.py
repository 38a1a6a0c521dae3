"""What mkdocs does beside building `docs/`: pages that lie elsewhere in the repository, links to its files.

Links of the pages are those of the repository, so that they also work where it is read. In the site a link to
a file that is no page becomes the file's path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ELSEWHERE = {
    "benchmarks.md": "benchmarks/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "security.md": "SECURITY.md",
}
"""Pages of the site that are files elsewhere in the repository."""
CODE_IN_ROW = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([\w./-]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add the pages that lie elsewhere."""
    from mkdocs.structure.files import File

    for name, path in ELSEWHERE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite links that leave `docs/`, and pipes in the code of tables.

    GitHub needs `\\|` there. Python-Markdown would show the backslash, and takes a pipe in code for code.
    """
    folder = ROOT / ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    pages = {(ROOT / path).resolve(): name for name, path in ELSEWHERE.items()}
    up = "../" * page.file.src_uri.count("/")

    def rewritten(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        linked = (folder.parent / target).resolve()
        if linked in pages:
            return f"[{text}]({up}{pages[linked]}{anchor})"
        if linked.is_relative_to(ROOT / "docs") and linked.suffix == ".md":
            return f"[{text}]({up}{linked.relative_to(ROOT / 'docs').as_posix()}{anchor})"
        outside = linked.exists() and not linked.is_relative_to(ROOT / "docs")
        return f"`{linked.relative_to(ROOT)}`" if outside else match[0]

    lines = (
        CODE_IN_ROW.sub(lambda code: code[0].replace(r"\|", "|"), line) if line[:1] == "|" else line
        for line in LINK.sub(rewritten, markdown).split("\n")
    )
    return "\n".join(lines)
