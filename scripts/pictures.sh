#!/usr/bin/env bash
# Draws docs/pictures/*.dot as SVG for light and dark pages. Needs graphviz; the pictures are committed.
set -euo pipefail
cd "$(dirname "$0")/../docs/pictures"

style='<style>:root { color: #1f2328 } @media (prefers-color-scheme: dark) { :root { color: #d1d7e0 } }<\/style>'
for source in *.dot; do
    # No version of graphviz, no titles of nodes, and the colour of the page in place of black on white.
    dot -Tsvg -Gbgcolor=transparent "$source" |
        sed -e '/^<!--/d' -e '/^ .*-->$/d' -e '/<title>/d' -e 's/"black"/"currentColor"/g' \
            -e 's/<text /&fill="currentColor" /' -e "s/^<g id=\"graph0\"/$style\n&/" >"${source%.dot}.svg"
done
