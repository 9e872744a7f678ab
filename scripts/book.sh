#!/usr/bin/env bash
# Renders the book in docs as HTML, with an mdbook of its own in the target directory.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

target=$(target_directory)
version=0.4.52
mdbook=$target/tools/bin/mdbook
if [ "$("$mdbook" --version 2>/dev/null)" != "mdbook v$version" ]; then
    echo "book: building mdbook $version, which takes some minutes, once"
    cargo install --locked --force --root "$target/tools" --version "$version" mdbook
fi
echo "book: rendering the pages of docs"
"$mdbook" build docs --dest-dir "$target/book"
echo "book: $target/book/index.html"
