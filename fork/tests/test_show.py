"""`fork show` in the terminal, and its page for a browser."""

import re
from html.parser import HTMLParser
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import CaptureFixture

from fork.cli import main
from fork.page import markdown
from fork.page.html import page
from fork.series import Series
from fork.tests.tiny import stack

ROOT = Path(__file__).resolve().parents[2]


def test_the_stack(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["--root", str(stack(tmp_path)), "show"]) == 0
    assert_expected_inline(
        capsys.readouterr().out,
        """\
1  plain: Add twice
   + aten/src/ATen/native/Twice.cpp
   + aten/src/ATen/native/native_functions.yaml
   + build_variables.bzl
   + docs/source/ops.md
2  fast: Make twice fast
   + torch/overrides.py
   ~ aten/src/ATen/native/Twice.cpp
   - build_variables.bzl
""",
    )


def test_one_pr_with_its_files_and_their_places(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    assert main(["--root", str(stack(tmp_path)), "show", "fast"]) == 0
    assert_expected_inline(
        capsys.readouterr().out,
        """\
PR 2 of 2: fast

Make twice fast

Stack (oldest at bottom):
* **fast** (this PR)
* plain

## Why

Twice is needed.

## How to review

Top down.

## Test plan

`make test`: 2 passed.

-------------------------------------------------------------------------------
+ torch/overrides.py
  goes after one in names

names = ['twice']

-------------------------------------------------------------------------------
~ aten/src/ATen/native/Twice.cpp
  changed

// 2 * a, and fast

-------------------------------------------------------------------------------
- build_variables.bzl
  dropped: upstream's file is as it was
""",
    )


def test_a_pr_without_a_description(tmp_path: Path, capsys: CaptureFixture[str]) -> None:
    (stack(tmp_path) / "stack/plain/PR.md").unlink()
    assert main(["--root", str(tmp_path), "show", "1"]) == 1
    assert_expected_inline(
        capsys.readouterr().err.replace(str(tmp_path), "ROOT"),
        """\
fork: PR plain has no description: write ROOT/stack/plain/PR.md
""",
    )


class Elements(HTMLParser):
    """Fails where a tag is not closed in its turn; keeps the addresses that the page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [
            value or "" for name, value in attrs if name in ("src", "srcset") or (tag, name) == ("link", "href")
        ]
        if tag not in ("meta", "link", "img", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def elements(text: str) -> Elements:
    parser = Elements()
    parser.feed(text)
    parser.close()
    return parser


def test_a_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    for words in ([], ["1"], [Series.load(ROOT).prs[-1].name]):
        assert main(["show", *words, "--html", str(target)]) == 0
        parsed = elements(target.read_text())
        assert parsed.open == []
        assert parsed.loads == []
        assert "@import" not in target.read_text() and "url(" not in target.read_text()


def test_a_page_shows_what_a_pr_does_to_a_file_between_its_neighbours(tmp_path: Path) -> None:
    """The tiny stack's yaml entry, woven into the base's own file."""
    series = stack(tmp_path) / "stack/series.yaml"
    series.write_text(series.read_text().replace("file: after one", "file: before baddbmm"))
    loaded = Series.load(tmp_path)
    text = page(Series(tmp_path, loaded.prs[:1], {**loaded.anchors}), loaded.prs[0])
    rows = re.findall(r'<tr class="(add|del|gap|)">(.*?)</tr>', text)
    plain = [(kind, re.sub(r"<[^>]+>", "", row)) for kind, row in rows]
    at = next(n for n, (_, row) in enumerate(plain) if "- func: twice(Tensor a)" in row)
    assert plain[at][0] == "add"
    assert any("- func: baddbmm(" in row and kind == "" for kind, row in plain[at : at + 4])


def test_the_page_of_this_stack_has_every_pr(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    assert main(["show", "--html", str(target)]) == 0
    text = target.read_text()
    for pr in Series.load(ROOT).prs:
        assert f'<h2 id="{pr.name}">' in text
        assert all(f"<code>{path}</code>" in text for path in pr.paths)


def test_markdown() -> None:
    text = """\
## One *two* `a * b * c`

A line that goes
on with [a link](https://example.org), **bold** and 2 * 3 * 4 < 25.
- first
  goes on
  1. inner
- second

| a | b |
| --- | ---: |
| `x` | 1 |

```python
x = "<&>"
```
"""
    assert_expected_inline(
        markdown.html(text),
        """\
<h3>One <em>two</em> <code>a * b * c</code></h3>
<p>A line that goes on with <a href="https://example.org">a link</a>, <strong>bold</strong> and 2 * 3 * 4 &lt; 25.</p>
<ul><li>first goes on<ol><li>inner</li></ol></li><li>second</li></ul>
<table><tr><th>a</th><th>b</th></tr><tr><td><code>x</code></td><td>1</td></tr></table>
<pre><code>x = &quot;&lt;&amp;&gt;&quot;</code></pre>""",
    )
