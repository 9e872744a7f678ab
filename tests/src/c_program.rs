//! C programs in processes of their own.

use std::io::{BufRead, BufReader, ErrorKind, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A C program of `tests/interop`: it executes the lines of standard input, and answers each with one line.
pub struct Program {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Compiles and starts it. A virtual machine has no compiler: it has the program `peer-NAME` in its path.
    pub fn start(name: &str) -> Self {
        let compiled = compile(name);
        let program = compiled.clone().unwrap_or_else(|| format!("peer-{name}").into());
        let mut process = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}; is there a C compiler?", program.display()));
        if let Some(program) = compiled {
            let _ = std::fs::remove_file(program);
        }
        let input = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { process, input, lines }
    }

    /// Says a line.
    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Waits for a line.
    pub fn hear(&mut self) -> String {
        self.lines.next().expect("an answer").unwrap()
    }

    /// Says a line, and waits for one.
    pub fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }
}

/// Returns the compiled program, or `None` where there is no C compiler.
fn compile(name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("interop/{name}.c"));
    let program = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    // The compiler runs without a device.
    let compiled = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-O1", "-o"])
        .args([&program, &source])
        .arg("-libverbs")
        .env_remove("LD_PRELOAD")
        .status();
    match compiled {
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        compiled => {
            assert!(compiled.expect("cc").success(), "{}", source.display());
            Some(program)
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
