//! The layers of a crate: which module uses which, read from its sources.
//!
//! A module may use what stands below it, and its own ancestors; no module may reach a module that reaches it. A path
//! that leads to a re-export counts as a use of the module that defines the item. Code under `#[cfg(test)]` is left
//! out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs;
use std::path::Path;

use crate::repository::sources;

/// A module of a crate: the names from the crate's root on.
type Module = Vec<String>;

/// A path in the source of a module, from the crate's root on.
struct Use {
    line: usize,
    path: Vec<String>,
    /// The name that the module has for it, in a `use`.
    name: Option<String>,
}

/// Contents of a file.
#[derive(Default)]
struct Source {
    file: String,
    uses: Vec<Use>,
    /// Names of items that are defined in it.
    items: HashSet<String>,
}

/// The modules of a crate, by name.
pub struct Layers(BTreeMap<Module, Source>);

/// An import of one module by another.
struct Import {
    to: Module,
    text: String,
}

impl Layers {
    /// Reads the crate whose root is in that folder.
    pub fn read(folder: &Path) -> Self {
        let mut modules = BTreeMap::new();
        for file in sources(folder) {
            let relative = file.strip_prefix(folder).expect("below the folder").with_extension("");
            let mut module: Module = relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            let last = module.last().map(String::as_str);
            if last == Some("mod") || relative == Path::new("lib") {
                module.pop();
            } else if relative == Path::new("main") && folder.join("lib.rs").exists() {
                continue;
            } else if relative == Path::new("main") {
                module.clear();
            }
            let text = fs::read_to_string(&file).expect("a source");
            modules.insert(module, (file.display().to_string(), tokens(&text)));
        }
        let names: HashSet<Module> = modules.keys().cloned().collect();
        let read = |(module, (file, tokens)): (Module, (String, Vec<Token>))| {
            let source = Reader { module: &module, names: &names, tokens: &tokens }.source(file);
            (module, source)
        };
        let mut modules: BTreeMap<_, _> = modules.into_iter().map(read).collect();
        // Files that are crates of their own have no root in common.
        modules.entry(Module::new()).or_default();
        Self(modules)
    }

    /// Describes each circle of modules: the imports that make it.
    pub fn circles(&self) -> Vec<String> {
        let graph: BTreeMap<&Module, Vec<Import>> =
            self.0.keys().map(|module| (module, self.imports(module))).collect();
        let mut told: HashSet<&Module> = HashSet::new();
        let mut circles = Vec::new();
        for &start in graph.keys() {
            if told.contains(start) {
                continue;
            }
            if let Some(circle) = shortest(&graph, start) {
                told.extend(circle.iter().map(|(module, _)| *module));
                let lines: Vec<_> = circle.iter().map(|(_, import)| import.text.clone()).collect();
                circles.push(lines.join("\n"));
            }
        }
        circles
    }

    /// Describes each import of a room from its own floor or a higher one. Rooms are the modules of the crate's root,
    /// by floors from the ground up; modules without a floor stand above all.
    pub fn upward(&self, floors: &[&[&str]]) -> Vec<String> {
        let floor_of = |module: &Module| {
            let room = module.first().map_or("", String::as_str);
            floors.iter().position(|rooms| rooms.contains(&room)).unwrap_or(floors.len())
        };
        let mut upward = Vec::new();
        for module in self.0.keys().filter(|module| floor_of(module) < floors.len()) {
            let imports = self.imports(module).into_iter();
            let up = imports.filter(|one| one.to.first() != module.first() && floor_of(&one.to) >= floor_of(module));
            upward.extend(up.map(|one| one.text));
        }
        upward
    }

    /// The imports of a module from modules that are not its ancestors.
    fn imports(&self, module: &Module) -> Vec<Import> {
        let source = &self.0[module];
        let mut imports: BTreeMap<Module, Import> = BTreeMap::new();
        for one in &source.uses {
            let Some(to) = self.resolve(&one.path, 8) else { continue };
            if !module.starts_with(&to) {
                let path = one.path.join("::");
                let text = format!("{}:{}: crate::{path} is of crate::{}", source.file, one.line, to.join("::"));
                imports.entry(to.clone()).or_insert(Import { to, text });
            }
        }
        imports.into_values().collect()
    }

    /// Returns the module that defines what a path names; `None` if another crate does.
    fn resolve(&self, path: &[String], depth: usize) -> Option<Module> {
        let mut module = Module::new();
        for (at, name) in path.iter().enumerate() {
            module.push(name.clone());
            if self.0.contains_key(&module) {
                continue;
            }
            module.pop();
            let source = &self.0[&module];
            if depth == 0 || source.items.contains(name) {
                return Some(module);
            }
            let named = |one: &&Use| one.name.as_ref() == Some(name);
            if let Some(found) = source.uses.iter().find(named) {
                let on: Vec<_> = found.path.iter().chain(&path[at + 1..]).cloned().collect();
                // A name that leads to itself is of another crate.
                return if on == path { None } else { self.resolve(&on, depth - 1) };
            }
            let globs = source.uses.iter().filter(|one| one.name.as_deref() == Some("*"));
            for glob in globs.filter_map(|glob| self.resolve(&glob.path, depth - 1)) {
                if glob != module && self.0[&glob].items.contains(name) {
                    return Some(glob);
                }
            }
            return Some(module);
        }
        Some(module)
    }
}

/// Returns the shortest way from a module back to it.
fn shortest<'a>(
    graph: &'a BTreeMap<&'a Module, Vec<Import>>,
    start: &'a Module,
) -> Option<Vec<(&'a Module, &'a Import)>> {
    let mut came: HashMap<&Module, (&Module, &Import)> = HashMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(module) = next.pop_front() {
        for import in graph.get(module).into_iter().flatten() {
            if came.contains_key(&import.to) || !graph.contains_key(&import.to) {
                continue;
            }
            came.insert(&import.to, (module, import));
            next.push_back(&import.to);
        }
    }
    let mut circle = vec![*came.get(start)?];
    while circle[circle.len() - 1].0 != start {
        circle.push(came[circle[circle.len() - 1].0]);
    }
    circle.reverse();
    Some(circle)
}

/// A word, `::`, or one other character, with its line from 1.
type Token = (usize, String);

/// Splits a source into tokens, without comments, strings and characters.
fn tokens(text: &str) -> Vec<Token> {
    let text: Vec<char> = text.chars().collect();
    let at = |i: usize| text.get(i).copied().unwrap_or('\0');
    let (mut tokens, mut i, mut line) = (Vec::new(), 0, 1);
    while i < text.len() {
        let start = i;
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < text.len() && at(i) != '\n' {
                    i += 1
                }
            }
            '/' if at(i + 1) == '*' => {
                i += 2;
                while i < text.len() && (at(i - 1), at(i)) != ('*', '/') {
                    i += 1
                }
                i += 1;
            }
            'r' if matches!((at(i + 1), at(i + 2)), ('"', _) | ('#', '"' | '#')) => {
                let mut hashes = 0;
                while at(i + 1 + hashes) == '#' {
                    hashes += 1
                }
                i += hashes + 2;
                let closes = |i: usize| at(i) == '"' && (1..=hashes).all(|n| at(i + n) == '#');
                while i < text.len() && !closes(i) {
                    i += 1
                }
                i += hashes + 1;
            }
            '"' => {
                i += 1;
                while i < text.len() && at(i) != '"' {
                    i += 1 + usize::from(at(i) == '\\')
                }
                i += 1;
            }
            '\'' if at(i + 1) == '\\' || at(i + 2) == '\'' => {
                i += 2 + usize::from(at(i + 1) == '\\');
                while i < text.len() && at(i) != '\'' {
                    i += 1
                }
                i += 1;
            }
            c if c.is_alphanumeric() || c == '_' => {
                while at(i).is_alphanumeric() || at(i) == '_' {
                    i += 1
                }
                tokens.push((line, text[start..i].iter().collect()));
            }
            ':' if at(i + 1) == ':' => {
                tokens.push((line, "::".into()));
                i += 2;
            }
            c => {
                if !c.is_whitespace() {
                    tokens.push((line, c.into()));
                }
                i += 1;
            }
        }
        line += text[start..i.min(text.len())].iter().filter(|&&c| c == '\n').count();
    }
    tokens
}

/// Reads the tokens of a file.
struct Reader<'a> {
    module: &'a Module,
    names: &'a HashSet<Module>,
    tokens: &'a [Token],
}

impl Reader<'_> {
    fn word(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.1)
    }

    fn source(&self, file: String) -> Source {
        const KEYWORDS: [&str; 9] =
            ["fn", "struct", "enum", "trait", "type", "const", "static", "union", "macro_rules"];
        let mut source = Source { file, ..Source::default() };
        // Inline modules, by the depth of braces in which they stand.
        let (mut inline, mut depth, mut at) = (Vec::new(), 0usize, 0);
        while at < self.tokens.len() {
            let word = self.word(at);
            match word {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    inline.retain(|&opened| opened < depth);
                }
                "#" if self.is_test(at) => at = self.end_of_item(at) - 1,
                "pub" if self.word(at + 1) == "(" => {
                    while self.word(at) != ")" {
                        at += 1
                    }
                }
                "mod" if self.word(at + 2) == "{" => {
                    inline.push(depth);
                    depth += 1;
                    at += 2;
                }
                "use" => {
                    let mut leaves = Vec::new();
                    at = self.tree(at + 1, &mut Vec::new(), &mut leaves);
                    for (line, path, name) in leaves {
                        // A local name of a function or of an inline module is none of the module.
                        let name = name.filter(|_| depth == 0);
                        self.add(&mut source, line, &path, name, inline.len());
                    }
                }
                _ if KEYWORDS.contains(&word) && depth == 0 => {
                    let name = at + 1 + usize::from(word == "macro_rules");
                    source.items.insert(self.word(name).to_owned());
                }
                _ if self.word(at + 1) == "::" && self.word(at.wrapping_sub(1)) != "::" => {
                    let (line, mut path) = (self.tokens[at].0, vec![word.to_owned()]);
                    while self.word(at + 1) == "::" && is_name(self.word(at + 2)) {
                        path.push(self.word(at + 2).to_owned());
                        at += 2;
                    }
                    self.add(&mut source, line, &path, None, inline.len());
                }
                _ => {}
            }
            at += 1;
        }
        source
    }

    /// Returns `true` at `#[cfg(test)]` and `#[cfg(all(test, ..))]`.
    fn is_test(&self, at: usize) -> bool {
        let words: Vec<_> = (at..at + 7).map(|at| self.word(at)).collect();
        words.starts_with(&["#", "[", "cfg", "(", "test"])
            || words.starts_with(&["#", "[", "cfg", "(", "all", "(", "test"])
    }

    /// Returns the token after the item that begins at `at`, with its attributes.
    fn end_of_item(&self, mut at: usize) -> usize {
        let mut depth = 0usize;
        while at < self.tokens.len() {
            match self.word(at) {
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                _ => {}
            }
            at += 1;
            if depth == 0 && matches!(self.word(at - 1), "}" | ";" | ",") {
                break;
            }
        }
        at
    }

    /// Reads a tree of a `use` from `at` on; returns the token after it.
    fn tree(
        &self,
        mut at: usize,
        path: &mut Vec<String>,
        leaves: &mut Vec<(usize, Vec<String>, Option<String>)>,
    ) -> usize {
        let (before, line) = (path.len(), self.tokens.get(at).map_or(0, |token| token.0));
        loop {
            match self.word(at) {
                "{" => {
                    at += 1;
                    while !matches!(self.word(at), "}" | "") {
                        at = self.tree(at, path, leaves);
                        at += usize::from(self.word(at) == ",");
                    }
                    path.truncate(before);
                    return at + 1;
                }
                "::" => at += 1,
                "*" => {
                    leaves.push((line, path.clone(), Some("*".into())));
                    path.truncate(before);
                    return at + 1;
                }
                "self" if before > 0 && path.len() == before => at += 1,
                word if is_name(word) && word != "as" => {
                    path.push(word.to_owned());
                    at += 1;
                }
                _ => break,
            }
        }
        let mut name = path.last().cloned();
        if self.word(at) == "as" {
            name = Some(self.word(at + 1).to_owned());
            at += 2;
        }
        leaves.push((line, path.clone(), name));
        path.truncate(before);
        at
    }

    /// Adds a path, unless it begins with a name that is no module here.
    fn add(&self, source: &mut Source, line: usize, path: &[String], name: Option<String>, inline: usize) {
        let mut from = self.module.clone();
        let mut rest = path;
        let mut left = inline;
        match path.first().map(String::as_str) {
            Some("crate") => {
                from.clear();
                rest = &path[1..];
            }
            Some("self") => rest = &path[1..],
            Some("super") => {
                while rest.first().is_some_and(|first| first == "super") {
                    rest = &rest[1..];
                    match left {
                        0 => drop(from.pop()),
                        _ => left -= 1,
                    }
                }
            }
            Some(first) => {
                from.push(first.to_owned());
                if !self.names.contains(&from) {
                    // Another crate's, or a name that a `use` of this module has.
                    if let Some(name) = name.filter(|name| name != "*") {
                        source.items.insert(name);
                    }
                    return;
                }
                rest = &path[1..];
            }
            None => return,
        }
        from.extend(rest.iter().cloned());
        source.uses.push(Use { line, path: from, name });
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}
