"""`fork show` in the terminal, and its page for a browser."""

import re
from pathlib import Path

from expecttest import assert_expected_inline
from pytest import MonkeyPatch, fixture, mark

from fork.page import html, markdown
from fork.page.code import coloured, lexer_of, rows
from fork.page.html import LONG, Change, Content, page, render
from fork.series import MARKS, Series
from fork.tests.helpers import Tool, fork, write
from fork.tests.pages import CHROMIUM, faults, measured, whole
from fork.tests.tiny import SERIES, STACK, on_a_wheel, stack
from fork.verify.prefix import Result, Run

DOCUMENT = r"""# Twice

$\bar x$ is in `Twice.cpp`, see [there](../aten/src/ATen/native/Twice.cpp), not [here](gone.md) or [on](#why).

## Why

```math
\begin{aligned} a &= 2 x \\ b &= \sum_{r,c} y_{rc} \end{aligned}
```
"""


def test_one_pr_with_its_files_and_their_places(tmp_path: Path, tool: Tool) -> None:
    head, description, files = tool("--root", stack(tmp_path), "show", "fast").out.partition(STACK["stack/fast/PR.md"])
    assert head == "PR 2 of 2: fast\n\n" and description
    assert_expected_inline(
        files,
        """\

-------------------------------------------------------------------------------
~ torch/overrides.py
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


def test_a_pr_without_a_description(tmp_path: Path, tool: Tool) -> None:
    (stack(tmp_path) / "stack/plain/PR.md").unlink()
    told = f"fork: plain has no description: write {tmp_path}/stack/plain/PR.md\n"
    assert tool.refusal("--root", tmp_path, "show", "1") == told


@fixture
def shown(tmp_path: Path) -> Series:
    """The tiny stack as the installed torch can show it; its first PR also brings documents and a long file."""
    more = "".join(f"      - docs/{name}\n" for name in ("twice.md", "long.py"))
    series = SERIES.replace("      - docs/source/ops.md\n", f"      - docs/source/ops.md\n{more}")
    files = on_a_wheel(series) | {
        "docs/twice.md": DOCUMENT,
        "docs/long.py": "x = 1\n" * (LONG + 1),
    }
    return Series.load(write(tmp_path, STACK | files))


def part(text: str, start: str, end: str) -> str:
    return text[text.index(start) :].partition(end)[0]


def test_a_page_is_whole_and_needs_nothing_else(tmp_path: Path, shown: Series) -> None:
    for words in ([], ["1"], ["fast"]):
        assert fork("--root", tmp_path, "show", *words, "--html", tmp_path / "page.html") == 0
        assert whole((tmp_path / "page.html").read_text()).formulas == (0 if words == ["fast"] else 2)


@mark.skipif(not CHROMIUM, reason="no Chromium is installed to look at the page with")
def test_a_browser_shows_a_page_without_fault(tmp_path: Path, shown: Series) -> None:
    (tmp_path / "page.html").write_text(page(shown, None))
    assert faults(measured(tmp_path / "page.html", tmp_path)) == []


def test_a_page_shows_what_a_pr_does_to_a_file_between_its_neighbours(tmp_path: Path) -> None:
    """The tiny stack's yaml entry, woven into the base's own file."""
    loaded = Series.load(write(tmp_path, STACK | on_a_wheel(SERIES)))
    text = page(Series(tmp_path, loaded.prs[:1], {**loaded.anchors}), loaded.prs[0])
    rows = re.findall(r'<tr class="(add|del|gap|)">(.*?)</tr>', text)
    plain = [(kind, re.sub(r"<[^>]+>", "", row)) for kind, row in rows]
    at = next(n for n, (_, row) in enumerate(plain) if "- func: twice(Tensor a)" in row)
    assert plain[at][0] == "add"
    assert any("- func: baddbmm(" in row and kind == "" for kind, row in plain[at : at + 4])


def test_a_page_has_every_pr_and_an_index_of_its_files(shown: Series) -> None:
    text = page(shown, None)
    for pr in shown.commits:
        assert f'<h2 id="{pr.name}">' in text
        assert all(f"<code>{path}</code>" in text for path in pr.paths)
        index = part(text, f'aria-label="files of {pr.name}"', "</nav>")
        leads = re.findall(rf'<a href="#{pr.name}/([^"]+)"><i>', index)
        assert leads == list(pr.paths)
        for path in pr.paths:
            entry = part(index, f'#{pr.name}/{path}"', "</a>")
            file = part(text, f'id="{pr.name}/{path}"', '<details class="file"')
            for kind, sign in (("add", "+"), ("del", "−")):
                count = file.count(f'<tr class="{kind}">')
                assert (f">{sign}{count}<" in entry) == (count > 0)


def test_a_page_counts_what_is_new_and_what_changes_files_of_pytorch(shown: Series) -> None:
    text = page(shown, None)
    assert "plain: 3 new, 3 changed files" in text and "fast: 2 changed, 1 dropped files" in text
    assert text.count(MARKS) == 1
    index = part(text, 'aria-label="files of plain"', "</nav>")
    assert [index.count(f"<i>{mark}</i>") for mark in "+~-"] == [3, 3, 0]


def test_a_page_leads_from_pr_to_pr(shown: Series) -> None:
    """From the picture, the list in the description and the line below the title. Other PRs are there in short."""
    for pr in (None, shown.prs[1]):
        text = page(shown, pr)
        picture = part(text, 'class="stack"', "</nav>")
        assert re.findall(r'<a href="#(\w+)"', picture) == ["fast", "plain"]
        section = part(text, '<h2 id="fast">', "</section>")
        assert '<li><strong><a href="#fast">fast</a></strong> (this PR)</li>' in section
        assert '<li><a href="#plain">plain</a></li>' in section
        assert 'on <a href="#plain">plain</a>' in section
    short = part(text, '<details class="short" id="plain">', "</details>")
    assert "1. Add twice" in short and "Twice is needed." in short and "Twice.cpp" not in short


def test_a_document_is_read_as_text_with_its_diff_behind_a_switch(shown: Series) -> None:
    text = page(shown, shown.prs[0])
    file = part(text, 'id="plain/docs/twice.md"', "</div></details>\n</details>")
    read, diff = file.split('<details class="part">')
    assert '<details class="part" open><summary>the text</summary>' in read and "<math>" in read
    assert "<summary>the diff</summary>" in diff and '<tr class="add">' in diff
    read = part(text, '<div class="document">', "</details>")
    there = "#plain/aten/src/ATen/native/Twice.cpp"
    assert f'<a href="{there}"><code>Twice.cpp</code></a>, see <a href="{there}">there</a>' in read
    assert "not <a>here</a>" in read and '<a href="#plain/docs/twice.md-why">on</a>' in read
    assert '<a href="#plain/docs/twice.md-why">Why</a>' in part(text, 'class="index"', "</nav>")


def test_a_name_of_a_file_leads_to_it_whichever_pr_has_it(tmp_path: Path, shown: Series) -> None:
    words = "Make twice fast\n\n## Tests\n\n`twice.md` and `Twice.cpp` and `test.py`\n"
    (tmp_path / "stack/fast/PR.md").write_text(words)
    whole(page(shown, None))  # its heading is not taken for the page's own "Tests"
    text = part(page(shown, None), '<h2 id="fast">', "</section>")
    assert '<a href="#plain/docs/twice.md"><code>twice.md</code></a>' in text
    assert '<a href="#fast/aten/src/ATen/native/Twice.cpp"><code>Twice.cpp</code></a> and <code>test.py' in text
    assert "<p><code>twice.md</code> and" in page(shown, shown.prs[1])


def test_a_page_of_prs_from_elsewhere() -> None:
    """What it says is text, and a name that two files have leads to none."""
    paths = ("x/f.py", "y/f.py", "y/g&h.py")
    changes = [Change(path, "+", "<new>", "", "a < b") for path in paths]
    text = render("<i>", "<b>", [Content("1", "one", "<u>", "`f.py`, `x/f.py`, `g&h.py`", "", None, changes)])
    whole(text)
    assert "<h1>&lt;i&gt;</h1>" in text and "1. &lt;u&gt;</h2>" in text and "&lt;new&gt;" in text
    assert '<p><code>f.py</code>, <a href="#one/x/f.py"><code>x/f.py</code></a>, <a href="#one/y/g&amp;h.py">' in text


def test_a_file_without_lines(tmp_path: Path, shown: Series) -> None:
    (tmp_path / "docs/long.py").write_text("")
    text = page(shown, None)
    whole(text)
    assert "No line differs." in part(text, 'id="plain/docs/long.py"', "</details>")


def test_a_line_has_its_place_and_a_long_file_is_folded(shown: Series) -> None:
    text = page(shown, None)
    line = "plain/docs/long.py-L7"
    assert f'<a id="{line}" href="#{line}">7</a>' in text
    assert '<a id="fast/aten/src/ATen/native/Twice.cpp-Lold1"' not in text
    assert '<details class="file" id="plain/docs/long.py">' in text
    assert '<details class="file" id="plain/aten/src/ATen/native/Twice.cpp" open>' in text


def test_a_page_tells_the_results_of_the_tests(shown: Series, monkeypatch: MonkeyPatch) -> None:
    assert "Not run here yet" in page(shown, None)
    runs = (Run("test/test_x.py", "2 passed in 1 s", 1.2, True), Run("test/test_y.py", "1 failed", 0.4, False))
    monkeypatch.setattr(html, "results", lambda *_: Result("2.13.0", runs))
    text = page(shown, None)
    assert '<td><code>test/test_x.py</code></td><td class="good">2 passed in 1 s</td><td>1 s</td>' in text
    assert '<td class="bad">1 failed</td>' in text and '<b class="bad">1 failed</b>' in text
    monkeypatch.setattr(html, "results", lambda *_: Result("2.13.0", runs[:1]))
    assert '<b class="good">passed</b>' in page(shown, None)


def test_rows_have_the_lines_of_both_sides_in_order() -> None:
    before = "def f():\n" + "".join(f"    {n}\n" for n in range(20)) + "last\f\n"
    after = before.replace("    9\n", "    nine\n").replace("last", "def g(): 0\nlast")
    found = rows("a.py", before, after)
    plain = "\n".join(f"{row.kind} {row.old:2} {row.new:2} {row.code.striptags()}" for row in found)
    assert_expected_inline(
        plain,
        """\
@  0  0 line 7: def f():
   7  7 5
   8  8 6
   9  9 7
  10 10 8
- 11  0 9
+  0 11 nine
  12 12 10
  13 13 11
  14 14 12
  15 15 13
@  0  0 line 18: def f():
  18 18 16
  19 19 17
  20 20 18
  21 21 19
+  0 22 def g(): 0
  22 23 last""",
    )


def test_colours_of_a_token_of_several_lines() -> None:
    text = 'def f(x):\n    """One\n    & two."""\n    return 1\n# end\n'
    assert_expected_inline(
        "\n".join(coloured(lexer_of(language="python"), text)),
        """\
<span style="color: var(--word)">def</span> <span style="color: var(--name)">f</span>(x):
    <span style="color: var(--text)">\"\"\"One</span>
<span style="color: var(--text)">    &amp; two.\"\"\"</span>
    <span style="color: var(--word)">return</span> <span style="color: var(--count)">1</span>
<span style="color: var(--note); font-style: italic"># end</span>
""",
    )
    (header,) = rows("a.h", "", "class A;")
    assert header.code == '<span style="color: var(--word)">class</span> <span style="color: var(--name)">A</span>;'
    assert coloured(lexer_of(language="of no name"), "a < b\n") == ["a &lt; b", ""]


def test_markdown() -> None:
    text = """\
## One *two* `a * b * c`

A line that goes
on with [a link](https://example.org), **bold** and 2 * 3 * 4 < 25.

| a | b |
| --- | ---: |
| `x` | 1 |

```python
x = "<&>"
```

<b>Raw</b> ![image](https://example.org/x.png) for $5-$6,
and $x^2$
"""
    assert_expected_inline(
        markdown.render(text, "here-", {}).html,
        """\
<h3 id="here-one-two-a--b--c">One <em>two</em> <code>a * b * c</code></h3>
<p>A line that goes
on with <a href="https://example.org">a link</a>, <strong>bold</strong> and 2 * 3 * 4 &lt; 25.</p>
<div class="wide"><table>
<thead>
<tr>
<th>a</th>
<th style="text-align:right">b</th>
</tr>
</thead>
<tbody>
<tr>
<td><code>x</code></td>
<td style="text-align:right">1</td>
</tr>
</tbody>
</table></div>
<pre><code>x = <span style="color: var(--text)">"&lt;&amp;&gt;"</span>
</code></pre>
<p>&lt;b&gt;Raw&lt;/b&gt; !<a href="https://example.org/x.png">image</a> for $5-$6,
and <span class="math inline"><math><msup><mi>x</mi><mn>2</mn></msup></math></span></p>
""",
    )


def test_a_formula_that_is_none_shows_as_written_with_the_reason() -> None:
    text = markdown.render(r"$\nonsense{<}$", "", {}).html
    assert r"<code>\nonsense{&lt;}</code>" in text and "Unknown command" in text and "<math" not in text
