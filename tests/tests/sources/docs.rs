//! All targets of references in the documentation exist: files, headings, and the pages of the book.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use doorbell_tests::repository::{root, sources};

/// The README, the changelog and all pages of the book.
fn pages() -> Vec<PathBuf> {
    let others = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "soft-mlx5/README.md"];
    let mut pages = others.map(|page| root().join(page)).to_vec();
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    pages
}

fn read(page: &Path) -> String {
    fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// The lines that are not code.
fn prose(text: &str) -> Vec<&str> {
    let mut code = false;
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code {
            lines.push(line);
        }
    }
    lines
}

/// The targets of links of the form `[text](target)`.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        for rest in line.split("](").skip(1) {
            links.push(rest.split([')', ' ']).next().unwrap().to_owned());
        }
    }
    links
}

/// The headings as anchors: lower case, words joined by hyphens.
fn anchors(text: &str) -> HashSet<String> {
    let headings = prose(text).into_iter().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let line = line.trim_start_matches('#').trim().to_lowercase();
        let kept = line.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

/// Returns the error of a link of `page`, if there is one.
fn complaint(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") {
        return None;
    }
    let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if file.is_empty() { page.to_owned() } else { page.parent()?.join(file) };
    if !target.exists() {
        return Some(format!("{}: {link}: there is no such file", page.display()));
    }
    if !anchor.is_empty() && !anchors(&read(&target)).contains(anchor) {
        return Some(format!("{}: {link}: there is no such heading", page.display()));
    }
    None
}

#[test]
fn links_lead_somewhere() {
    let mut complaints = Vec::new();
    let mut count = 0;
    for page in pages() {
        for link in links(&read(&page)) {
            count += 1;
            complaints.extend(complaint(&page, &link));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
    assert!(count > 20, "only {count} links were found");
}

#[test]
fn a_wrong_link_is_found() {
    let page = root().join("docs/architecture.md");
    assert_eq!(complaint(&page, "safety.md"), None);
    assert_eq!(complaint(&page, "#frames"), None);
    assert!(complaint(&page, "sizes.md#nowhere").is_some());
    assert!(complaint(&page, "nothing.md").is_some());
    assert_eq!(links("a [b](c.md), [d](e.md#f)\n```\n[g](h)\n```"), ["c.md", "e.md#f"]);
}

/// Files that the documentation names in backquotes, such as `examples/srq_server.rs`.
#[test]
fn files_that_are_named_exist() {
    let folders = ["examples/", "tests/tests/", "mlx5/", "src/", "soft-mlx5/src/", "scripts/", "docs/"];
    let mut missing = Vec::new();
    for page in pages().iter().filter(|page| !page.ends_with("CHANGELOG.md")) {
        let text = prose(&read(page)).join("\n");
        for name in text.split('`').skip(1).step_by(2) {
            let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "/_-.".contains(c));
            if plain && folders.iter().any(|folder| name.starts_with(folder)) {
                let example = root().join(format!("{name}.rs"));
                if !root().join(name).exists() && !example.exists() {
                    missing.push(format!("{}: `{name}`", page.display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "there is no\n{}", missing.join("\n"));
}

/// Every page is a chapter, and every block of code says in which language it is.
#[test]
fn the_book_is_complete() {
    let chapters = links(&read(&root().join("docs/SUMMARY.md")));
    for page in pages().iter().filter(|page| page.parent().is_some_and(|at| at.ends_with("docs"))) {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || chapters.iter().any(|chapter| chapter == name), "{name}");
        let text = read(page);
        let fences = text.lines().filter(|line| line.starts_with("```"));
        assert!(fences.step_by(2).all(|fence| fence != "```"), "{name}: code without a language");
    }
}

/// The first programs of the book are examples, which another test runs.
#[test]
fn the_first_programs_are_the_examples() {
    let page = read(&root().join("docs/first-program.md"));
    for name in ["first_receiver", "first_sender"] {
        let text = read(&root().join(format!("examples/{name}.rs")));
        let code = text.split_once("\n\n").expect("a paragraph about it").1;
        let shown = page.contains(&format!("```rust,no_run\n{code}```\n"));
        assert!(shown, "{name} is not what the page shows");
    }
}

/// Returns the public types, traits and functions of `text` that have no example, and the number of all.
fn without_example(text: &str) -> (Vec<String>, usize) {
    let (mut names, mut count) = (Vec::new(), 0);
    // Whether the lines since the last blank line have an example.
    let mut example = false;
    for line in text.lines() {
        example |= line.starts_with("/// ```");
        let mut words = line.split([' ', '<', '(']).filter(|&word| !matches!(word, "unsafe" | "const"));
        let kind = words.next().filter(|&word| word == "pub").and_then(|_| words.next());
        if let (Some("struct" | "enum" | "trait" | "fn"), Some(name)) = (kind, words.next()) {
            count += 1;
            if !example {
                names.push(name.trim_end_matches([';', ':']).to_owned());
            }
        }
        example &= !line.is_empty();
    }
    (names, count)
}

/// The names that `pub use` exports.
fn exports(text: &str) -> String {
    text.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next()).collect()
}

#[test]
fn every_type_of_the_library_is_documented_with_an_example() {
    let (mut missing, mut all) = (Vec::new(), 0);
    let sources = sources(&root().join("src"));
    // A type of a sealed trait must be declared public, but no program can name it.
    let texts = sources.iter().map(|source| read(source));
    let exported: String = texts.map(|text| exports(&text)).collect();
    let is_exported =
        |name: &&String| exported.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == *name);
    for source in sources {
        let (names, count) = without_example(&read(&source));
        let names = names.iter().filter(is_exported);
        missing.extend(names.map(|name| format!("{}: {name}", source.display())));
        all += count;
    }
    assert!(missing.is_empty(), "without an example:\n{}", missing.join("\n"));
    assert!(all > 80, "only {all} were found");
    let text = "/// One.\n///\n/// ```\n/// ```\npub fn one() {\n\npub struct Two<T>(T);\n    pub fn method() {";
    assert_eq!(without_example(text), (vec!["Two".to_owned()], 2));
    assert_eq!(
        exports("use a::Four;\npub use a::{\n    One, Two,\n};\npub use b::Three;"),
        "a::{\n    One, Two,\n}b::Three"
    );
}

/// Returns `true` if there is the test that a page names `module` or `module::function`.
fn has_test(name: &str) -> bool {
    let has = |module: &str, what: &str| {
        let path = module.replace("::", "/");
        let places = [
            format!("tests/tests/{path}.rs"),
            format!("tests/stepped/tests/suite/{path}.rs"),
            format!("mlx5/ring/src/{path}.rs"),
            format!("mlx5/ring/src/{path}/tests.rs"),
            format!("soft-mlx5/tests/{path}.rs"),
            format!("soft-mlx5/src/{path}/tests.rs"),
        ];
        let text = |place: &String| fs::read_to_string(root().join(place)).unwrap_or_default();
        places.iter().any(|place| text(place).contains(what))
    };
    let function = |(module, name): (&str, &str)| has(module, &format!("fn {name}("));
    has(name, "#[test]") || name.rsplit_once("::").is_some_and(function)
}

/// Each form of CQE is produced by a test, and on a path.
#[test]
fn the_tests_of_all_completions_exist() {
    let text = read(&root().join("docs/completions.md"));
    let table = text.lines().skip_while(|line| !line.starts_with("| form |")).skip(2);
    let mut forms = 0;
    for row in table.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [form, _, _, tests, path] = cells[..] else { panic!("{row}") };
        let names: Vec<_> = tests.split('`').skip(1).step_by(2).filter(|&name| name != "mlx5-ring").collect();
        // A form that the device cannot be asked for has no test.
        assert_eq!(names.is_empty(), path.is_empty(), "{form}");
        for name in &names {
            assert!(has_test(name), "{form}: there is no test `{name}`");
        }
        forms += usize::from(!names.is_empty());
    }
    assert!(forms > 15, "only {forms} forms were found");
    assert!(has_test("suite::order::many_messages_over_64_queue_pairs_complete_in_any_order"));
    assert!(!has_test("suite::order::nothing") && !has_test("suite::nothing"));
}

/// Comments begin their sentences with the subject. The words are those of sentences that readers had to read twice.
#[test]
fn no_comment_begins_with_a_riddle() {
    const OPENINGS: [&str; 11] = [
        "As above",
        "Behind ",
        "Of ",
        "One that ",
        "That ",
        "The same for ",
        "The same in ",
        "The same with ",
        "The same, ",
        "What ",
        "Whose ",
    ];
    let folders = "benches cli drop-in examples fuzz mlx5 rdma-core-sys soft-mlx5 src tests xtask".split(' ');
    let mut riddles = Vec::new();
    for file in folders.flat_map(|folder| sources(&root().join(folder))) {
        for line in read(&file).lines().map(str::trim_start) {
            let text = line.trim_start_matches(['/', '!']);
            let begins = |opening: &&str| text.trim_start().starts_with(*opening);
            if line.starts_with("//") && OPENINGS.iter().any(begins) {
                riddles.push(format!("{}: {line}", file.display()));
            }
        }
    }
    assert!(riddles.is_empty(), "name the subject first:\n{}", riddles.join("\n"));
}

/// Returns `true` if a line of Rust is a comment of more than 120 columns. Rows of tables and links cannot be broken.
fn is_wide_comment(line: &str) -> bool {
    let text = line.trim_start();
    let breakable = !text.trim_start_matches(['/', '!']).trim_start().starts_with('|') && !text.contains("://");
    text.starts_with("//") && breakable && line.chars().count() > 120
}

/// rustfmt breaks code at 120 columns, but leaves comments as they are.
#[test]
fn no_comment_is_wider_than_the_code() {
    let folders = "benches cli drop-in examples fuzz mlx5 rdma-core-sys soft-mlx5 src tests xtask".split(' ');
    let mut wide = Vec::new();
    for file in folders.flat_map(|folder| sources(&root().join(folder))).chain([root().join("build.rs")]) {
        let text = read(&file);
        let lines = text.lines().enumerate().filter(|(_, line)| is_wide_comment(line));
        wide.extend(lines.map(|(number, _)| format!("{}:{}", file.display(), number + 1)));
    }
    assert!(wide.is_empty(), "comments of more than 120 columns:\n{}", wide.join("\n"));
    let long = "a ".repeat(60);
    assert!(is_wide_comment(&format!("    /// {long}")) && is_wide_comment(&format!("// {long}")));
    assert!(!is_wide_comment(&format!("//! | {long}|")) && !is_wide_comment(&format!("// https://a.b {long}")));
    assert!(!is_wide_comment(&format!("let a = \"{long}\";")) && !is_wide_comment(&format!("//{}", &long[..118])));
}

/// The first screen says what a message costs, as it was counted.
#[test]
fn what_the_readme_says_of_cost_is_what_was_counted() {
    let (readme, tables) = (read(&root().join("README.md")), read(&root().join("docs/performance.md")));
    let baseline = read(&root().join("benches/baseline.txt"));
    let cells = |text: &str, name: &str| -> Vec<f64> {
        let start = format!("| {name} |");
        let row = text.lines().find_map(|line| line.strip_prefix(&start));
        let row = row.unwrap_or_else(|| panic!("no row {name}"));
        row.split('|').filter_map(|cell| cell.trim().parse().ok()).collect()
    };
    // The column of libmlx5 in the tables of performance.md is the last argument.
    for (row, operation, libmlx5) in [
        ("receive, from the poll that finds the CQE to address and length", "one message: critical, receive", 2),
        ("send of 32 bytes inline, from the call to the register", "one message: critical, send", 2),
        ("round: send, receive, completion", "one message: round", 2),
        ("in order, batches of 32", "SRQ cycle, lending batch", 1),
        ("random order, batches of 32", "SRQ cycle, lending batch, 10 messages at once", 1),
        ("SEND, batches of 32", "SEND post and poll, Sender", 1),
        ("Ethernet frames, plain queue, batches of 32", "frame lent", 1),
    ] {
        let counted = baseline
            .lines()
            .find_map(|line| line.strip_prefix(operation)?.strip_prefix('\t'))
            .and_then(|rest| rest.split('\t').next()?.parse::<f64>().ok())
            .unwrap_or_else(|| panic!("{operation} was not counted"));
        let table = cells(&tables, row);
        let printed = cells(&readme, row);
        assert_eq!(printed.len(), 2, "{row}: doorbell and libmlx5");
        for (printed, counted) in printed.into_iter().zip([counted, table[libmlx5]]) {
            assert!((printed - counted).abs() < 1.0, "{row}: README.md {printed}, {counted}");
        }
    }
}

/// The rows of the table of the drop-in were counted.
#[test]
fn what_the_drop_in_costs_is_what_was_counted() {
    let page = read(&root().join("docs/drop-in.md"));
    let baseline = read(&root().join("benches/baseline.txt"));
    let table = page.lines().skip_while(|line| !line.starts_with("| operation | drop-in |")).skip(2);
    let rows: Vec<_> = table.take_while(|line| line.starts_with('|')).collect();
    assert!(rows.len() > 5, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [operation, figures @ ..] = &cells[..] else { panic!("{row}") };
        let counted = baseline.lines().find_map(|line| line.strip_prefix(operation)?.strip_prefix('\t'));
        let counted = counted.unwrap_or_else(|| panic!("{operation} was not counted"));
        let counted: f64 = counted.split('\t').next().unwrap().parse().unwrap();
        let figures: Vec<f64> = figures.iter().map(|cell| cell.parse().unwrap()).collect();
        let [drop_in, libmlx5, ratio] = figures[..] else { panic!("{row}") };
        assert!((drop_in - counted).abs() < 1.0, "{operation}: {drop_in}, counted {counted}");
        assert!((drop_in / libmlx5 - ratio).abs() < 0.02, "{operation}: {ratio}");
    }
}
