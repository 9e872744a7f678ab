//! A list of calls and their answers, which the guest of `make vm` compares with those of its kernel.

use std::path::Path;
use std::process::Command;

use crate::common::{finish, run};

/// Compiles `answers.c`; returns the program.
fn compile() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/answers.c");
    let program = std::env::temp_dir().join(format!("answers-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    let compiler = compiler.args(["-Wall", "-Wextra", "-Werror", "-O1"]).arg(source).args(["-libverbs", "-o"]);
    finish(compiler.arg(&program)).succeeded();
    program.into_os_string().into_string().unwrap()
}

#[test]
fn the_answers_of_soft_mlx5_are_those_that_a_kernel_is_compared_with() {
    let program = compile();
    for (link, expected) in [("ib", include_str!("answers.txt")), ("roce", include_str!("answers-roce.txt"))] {
        let answers = finish(&mut run(&["--link", link], &[&program])).succeeded();
        for (line, (answer, expected)) in answers.lines().zip(expected.lines()).enumerate() {
            assert_eq!(answer, expected, "{link}, line {}", line + 1);
        }
        assert_eq!(answers.lines().count(), expected.lines().count(), "{link}");
    }
    std::fs::remove_file(program).unwrap();
}
