//! The drop-in under C programs: objects that are attached one by one, and what programs do to a library at their worst.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

use doorbell_tests::programs::{built, on_soft_mlx5};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("doorbell-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs a command to its end; returns what it printed.
fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn compile(source: &str, arguments: &[&str], to: &Path) {
    let mut compiler = Command::new("cc");
    compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"]).arg(to);
    succeed(compiler.arg(format!("{ROOT}/{source}")).args(arguments));
}

#[test]
fn the_header_is_what_cbindgen_makes() {
    let config = cbindgen::Config::from_file(format!("{ROOT}/drop-in/cbindgen.toml")).unwrap();
    let source = format!("{ROOT}/drop-in/src/attach.rs");
    let made = cbindgen::Builder::new().with_config(config).with_src(source).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let path = format!("{ROOT}/drop-in/include/doorbell.h");
    if env::var_os("WRITE_HEADER").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let text = String::from_utf8(text).unwrap();
    let there = fs::read_to_string(&path).unwrap();
    assert!(text == there, "WRITE_HEADER=1 writes doorbell.h:\n{text}");
}

/// The compiler's arguments for what `scripts/install-c.sh` installed.
fn installed(folder: &Path) -> Vec<String> {
    let mut install = Command::new(format!("{ROOT}/scripts/install-c.sh"));
    succeed(install.arg(folder).arg(built("libdoorbell_drop_in.so")));
    let mut config = Command::new("pkg-config");
    config.env("PKG_CONFIG_PATH", folder.join("lib/pkgconfig"));
    let flags = succeed(config.args(["--cflags", "--libs", "doorbell-drop-in"])).stdout;
    let flags = String::from_utf8(flags).unwrap();
    flags.split_whitespace().map(String::from).chain(["-libverbs".into()]).collect()
}

#[test]
fn a_library_attaches_its_objects() {
    let folder = Folder::new("attach");
    let program = folder.0.join("attach");
    let flags = installed(&folder.0);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    compile("drop-in/examples/attach.c", &flags, &program);
    let run = |path: &str, link: &str| {
        let mut command = on_soft_mlx5(&["--link", link], &program);
        command.env("LD_LIBRARY_PATH", folder.0.join("lib")).env("DOORBELL_LOG", "1");
        let output = succeed(command.env("DOORBELL_PATH", path));
        [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap())
    };
    for link in ["ib", "roce"] {
        let [printed, log] = run("", link);
        assert!(printed.contains("1000 messages received by doorbell"), "{printed}{log}");
        // What was not attached stays: sends that are posted and polled.
        let totals =
            "posts: 1016 by doorbell, 1000 by libmlx5; polls: 1000 by doorbell, 1000 by libmlx5";
        assert!(log.contains(totals), "{log}");
    }
    let [printed, log] = run("libmlx5", "ib");
    assert!(printed.contains("1000 messages received by libmlx5"), "{printed}{log}");
    assert!(log.contains("0 by doorbell, 2016 by libmlx5; polls: 0 by doorbell"), "{log}");
}

#[test]
fn what_cannot_be_attached_works_on() {
    let folder = Folder::new("refused");
    let flags = installed(&folder.0);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-DATTACH"]).collect();
    let program = worst(&folder, "worst", &flags);
    // Of a plugin, nobody else sees the library.
    let plugin = worst(&folder, "plugin.so", &[&flags[..], &["-shared", "-fPIC"]].concat());
    let host = folder.0.join("host");
    compile("tests/interop/drop_in.c", &["-DHOST", "-ldl"], &host);
    for command in [&[program][..], &[host, plugin]] {
        let mut command_line = on_soft_mlx5(&[], &command[0]);
        command_line.args(&command[1..]).arg("attach").env("DOORBELL_LOG", "1");
        let output = succeed(command_line.env("LD_LIBRARY_PATH", folder.0.join("lib")));
        let log = String::from_utf8(output.stderr).unwrap();
        let is_ours =
            log.contains("posts: 300 by doorbell, ") && log.contains("polls: 300 by doorbell, ");
        assert!(is_ours, "{log}");
    }
}

/// `tests/interop/drop_in.c` as a program, or with other arguments of the compiler.
fn worst(folder: &Folder, name: &str, arguments: &[&str]) -> PathBuf {
    let to = folder.0.join(name);
    compile("tests/interop/drop_in.c", &[arguments, &["-pthread", "-libverbs"]].concat(), &to);
    to
}

/// A command on the device: as it is, and on doorbell's data path.
fn twice(command: &[&Path]) -> [Command; 2] {
    let doorbell = built("doorbell");
    [vec![], vec![doorbell.as_path(), Path::new("run"), Path::new("--")]].map(|mut words| {
        words.extend(command);
        let mut command = on_soft_mlx5(&[], words[0]);
        command.args(&words[1..]).env("DOORBELL_LOG", "1");
        command
    })
}

/// Runs a command both ways; libmlx5 must have posted and polled nothing in the second. Returns what each process of the second
/// posted and polled.
fn succeed_twice(command: &[&Path]) -> Vec<String> {
    let [mut stock, mut ours] = twice(command);
    succeed(&mut stock);
    let log = String::from_utf8(succeed(&mut ours).stderr).unwrap();
    let totals: Vec<_> =
        log.lines().filter(|line| line.contains("posts: ")).map(String::from).collect();
    assert!(!totals.is_empty(), "{log}");
    for line in &totals {
        let is_ours = line.matches("0 by libmlx5").count() == 2 && !line.contains("posts: 0 ");
        assert!(is_ours, "{log}");
    }
    totals
}

#[test]
fn forks_and_contexts_are_apart() {
    let folder = Folder::new("apart");
    let program = worst(&folder, "worst", &[]);
    let totals = succeed_twice(&[&program, Path::new("fork")]);
    // The first child posts nothing; the parent posted before the second one came and ends after it.
    let line = |count| {
        format!(
            "doorbell: posts: {count} by doorbell, 0 by libmlx5; polls: {count} by doorbell, 0 by libmlx5"
        )
    };
    assert_eq!(totals, [line(400), line(502)]);
    succeed_twice(&[&program, Path::new("contexts")]);
}

#[test]
fn libibverbs_may_come_with_a_plugin() {
    let folder = Folder::new("plugin");
    let plugin = worst(&folder, "plugin.so", &["-shared", "-fPIC"]);
    let host = folder.0.join("host");
    compile("tests/interop/drop_in.c", &["-DHOST", "-ldl"], &host);
    succeed_twice(&[&host, &plugin, Path::new("contexts")]);
}

/// `THREAD_SANITIZER` is a drop-in that was built with ThreadSanitizer: `cargo xtask tsan`.
#[test]
fn threads_share_queues() {
    let folder = Folder::new("threads");
    if env::var_os("THREAD_SANITIZER").is_none() {
        let program = worst(&folder, "worst", &[]);
        succeed_twice(&[&program, Path::new("threads")]);
        return;
    }
    // The symbols of the program are the library's.
    let program = worst(&folder, "worst", &["-fsanitize=thread", "-rdynamic"]);
    let mut command = on_soft_mlx5(&[], "sh");
    command.args(["-c", "LD_PRELOAD=$LD_PRELOAD:$THREAD_SANITIZER exec \"$0\" threads"]);
    // The device has locks that the sanitizer does not see.
    command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1").env("DOORBELL_LOG", "1");
    let output = succeed(command.arg(program));
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("posts: 4000 by doorbell, 0 by libmlx5"), "{log}");
}

#[test]
fn a_cq_is_resized_before_its_first_use_and_in_traffic() {
    let folder = Folder::new("resize");
    let program = worst(&folder, "worst", &[]);
    succeed_twice(&[&program, Path::new("resize")]);
}

#[test]
fn a_cq_is_polled_while_the_kernel_destroys_a_queue_pair() {
    let folder = Folder::new("destroy");
    let program = worst(&folder, "worst", &[]);
    succeed_twice(&[&program, Path::new("destroy")]);
}

#[test]
fn no_completion_is_lost_when_a_queue_pair_cannot_be_destroyed() {
    let folder = Folder::new("refuse");
    let program = worst(&folder, "worst", &[]);
    succeed_twice(&[&program, Path::new("refuse")]);
}

#[test]
fn a_thread_polls_in_a_batch_of_ibv_wr() {
    let folder = Folder::new("batch");
    let program = worst(&folder, "worst", &[]);
    succeed_twice(&[&program, Path::new("batch")]);
}

#[test]
fn a_program_ends_in_the_middle() {
    let folder = Folder::new("middle");
    let program = worst(&folder, "worst", &[]);
    for mut command in twice(&[&program, Path::new("abort")]) {
        let output = command.output().unwrap();
        // As a shell says it.
        assert_eq!(output.status.code(), Some(128 + libc::SIGABRT), "{output:?}");
    }
    for mut command in twice(&[&program, Path::new("exit")]) {
        succeed(&mut command);
    }
}

#[test]
fn a_static_program_is_refused() {
    let folder = Folder::new("static");
    let source = folder.0.join("nothing.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = folder.0.join("nothing");
    succeed(Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program));
    let output = Command::new(built("doorbell")).args(["run", "--"]).arg(&program).output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && printed.contains("is statically linked"), "{output:?}");
}
