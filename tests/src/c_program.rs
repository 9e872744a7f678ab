//! C programs in processes of their own.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A C program of `tests/interop`: it executes the lines of standard input, and answers each with one line.
pub struct Program {
    process: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    /// Compiles and starts it.
    pub fn start(name: &str) -> Self {
        let source = format!("{}/interop/{name}.c", env!("CARGO_MANIFEST_DIR"));
        let program = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        // The compiler runs without a device.
        let compiled = Command::new("cc")
            .args(["-Wall", "-Wextra", "-Werror", "-O1", &source, "-libverbs", "-o"])
            .arg(&program)
            .env_remove("LD_PRELOAD")
            .status()
            .expect("a C compiler");
        assert!(compiled.success());
        let mut process = Command::new(&program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let _ = std::fs::remove_file(program);
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

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
