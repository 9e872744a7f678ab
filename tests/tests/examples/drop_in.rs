//! The drop-in under C programs: objects that are attached one by one, and programs that use it in unusual ways.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use doorbell_tests::programs::{Ended, Temporary, built, on_soft_mlx5, succeed};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

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

/// The compiler's arguments for the files that `scripts/install-c.sh` installed.
fn installed(folder: &Path) -> Vec<String> {
    let mut install = Command::new(format!("{ROOT}/scripts/install-c.sh"));
    succeed(install.arg(folder).arg(built("libdoorbell_drop_in.so")));
    let mut config = Command::new("pkg-config");
    config.env("PKG_CONFIG_PATH", folder.join("lib/pkgconfig"));
    let flags = succeed(config.args(["--cflags", "--libs", "doorbell-drop-in"])).printed;
    flags.split_whitespace().map(String::from).chain(["-libverbs".into()]).collect()
}

/// The compiler's arguments for the modes of `tests/interop/drop_in.c` that attach objects.
fn attaching(installed: &[String]) -> Vec<&str> {
    installed.iter().map(String::as_str).chain(["-DATTACH"]).collect()
}

/// A program that opens a plugin, and the plugin: `tests/interop/drop_in.c` in both.
fn host_and_plugin(folder: &Path, arguments: &[&str]) -> [PathBuf; 2] {
    let plugin = worst(folder, "plugin.so", &[arguments, &["-shared", "-fPIC"]].concat());
    let host = folder.join("host");
    compile("tests/interop/drop_in.c", &["-DHOST", "-ldl"], &host);
    [host, plugin]
}

#[test]
fn a_library_attaches_its_objects() {
    let folder = Temporary::folder("attach");
    let program = folder.join("attach");
    let flags = installed(&folder);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    compile("drop-in/examples/attach.c", &flags, &program);
    let run = |path: &str, link: &str| {
        let mut command = on_soft_mlx5(&["--link", link], &program);
        // The program finds the library by the rpath of the file for pkg-config.
        command.env_remove("LD_LIBRARY_PATH").env("DOORBELL_LOG", "1");
        succeed(command.env("DOORBELL_PATH", path))
    };
    for link in ["ib", "roce"] {
        let ended = run("", link);
        assert!(ended.printed.contains("1000 messages received by doorbell"), "{ended}");
        // The sends are not attached: libmlx5 posts and polls them.
        let totals = "posts: 1016 by doorbell, 1000 by libmlx5; polls: 1000 by doorbell, 1000 by libmlx5";
        assert!(ended.complained.contains(totals), "{ended}");
    }
    let ended = run("libmlx5", "ib");
    assert!(ended.printed.contains("1000 messages received by libmlx5"), "{ended}");
    let totals = "posts: 0 by doorbell, 2016 by libmlx5; polls: 0 by doorbell";
    assert!(ended.complained.contains(totals), "{ended}");
}

#[test]
fn what_cannot_be_attached_works_on() {
    let folder = Temporary::folder("refused");
    let flags = installed(&folder);
    let flags = attaching(&flags);
    let program = worst(&folder, "worst", &flags);
    // The library of a plugin is visible to the plugin only.
    for command in [&[program][..], &host_and_plugin(&folder, &flags)] {
        let mut command_line = on_soft_mlx5(&[], &command[0]);
        command_line.args(&command[1..]).arg("attach").env("DOORBELL_LOG", "1");
        let ended = succeed(command_line.env("LD_LIBRARY_PATH", folder.join("lib")));
        let log = &ended.complained;
        let is_ours = log.contains("posts: 300 by doorbell, ") && log.contains("polls: 300 by doorbell, ");
        assert!(is_ours, "{log}");
        // The functions of a context may lead to it.
        assert!(command.len() == 1 || ended.printed.contains("doorbell stays"), "{ended}");
    }
}

#[test]
fn a_cq_is_attached_while_another_one_at_its_address_is_destroyed() {
    let folder = Temporary::folder("destroyed");
    let flags = installed(&folder);
    let flags = attaching(&flags);
    let program = worst(&folder, "worst", &flags);
    let mut command = on_soft_mlx5(&[], &program);
    // Without its cache the allocator gives memory that was freed out again at once.
    command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
    command.arg("attach-while-destroyed").env("LD_LIBRARY_PATH", folder.join("lib"));
    succeed(&mut command);
}

/// `tests/interop/drop_in.c` as a program, or with other arguments of the compiler.
fn worst(folder: &Path, name: &str, arguments: &[&str]) -> PathBuf {
    let to = folder.join(name);
    compile("tests/interop/drop_in.c", &[arguments, &["-pthread", "-libverbs"]].concat(), &to);
    to
}

/// `tests/interop/drop_in.c` as a program in a folder of its own.
fn worst_alone(arguments: &[&str]) -> (Temporary, PathBuf) {
    let folder = Temporary::folder("worst");
    let program = worst(&folder, "worst", arguments);
    (folder, program)
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

/// Runs a command both ways; libmlx5 must have posted and polled nothing in the second. Returns the counts of each
/// process of the second.
fn succeed_twice(command: &[&Path]) -> Vec<String> {
    let [mut stock, mut ours] = twice(command);
    succeed(&mut stock);
    let log = succeed(&mut ours).complained;
    let totals: Vec<_> = log.lines().filter(|line| line.contains("posts: ")).map(String::from).collect();
    assert!(!totals.is_empty(), "{log}");
    for line in &totals {
        let is_ours = line.matches(", 0 by libmlx5").count() == 2 && !line.contains("posts: 0 ");
        assert!(is_ours, "{log}");
    }
    totals
}

#[test]
fn forks_and_contexts_are_apart() {
    let (_folder, program) = worst_alone(&[]);
    let totals = succeed_twice(&[&program, Path::new("fork")]);
    // The first child posts nothing; the parent posted before the second one came and ends after it.
    let line =
        |count| format!("doorbell: posts: {count} by doorbell, 0 by libmlx5; polls: {count} by doorbell, 0 by libmlx5");
    assert_eq!(totals, [line(400), line(502)]);
    succeed_twice(&[&program, Path::new("contexts")]);
}

#[test]
fn libibverbs_may_come_with_a_plugin() {
    let folder = Temporary::folder("plugin");
    let [host, plugin] = host_and_plugin(&folder, &[]);
    succeed_twice(&[&host, &plugin, Path::new("contexts")]);
}

/// Copies a library under a name that no other one has, and has the copy look for such names, as packages for Python
/// do.
fn rename(from: &Path, to: &Path) {
    let mut bytes = fs::read(from).unwrap();
    let names: [(&[u8], &[u8]); 3] = [
        (b"libibverbs.so.1\0", b"libibverbs.so.9\0"),
        (b"libmlx5.so.1\0", b"libmlx5.so.9\0"),
        // The copy of libibverbs loads no provider of the system.
        (b"/etc/libibverbs.d\0", b"/non/libibverbs.d\0"),
    ];
    for (old, new) in names {
        for at in 0..bytes.len() - old.len() {
            if bytes[at..].starts_with(old) {
                bytes[at..at + new.len()].copy_from_slice(new);
            }
        }
    }
    fs::write(to, bytes).unwrap();
}

#[test]
fn a_process_has_several_copies_of_libmlx5() {
    let folder = Temporary::folder("copies");
    for name in ["libibverbs.so", "libmlx5.so"] {
        let mut compiler = Command::new("cc");
        let path = succeed(compiler.arg(format!("-print-file-name={name}"))).printed;
        rename(Path::new(path.trim()), &folder.join(format!("{name}.9")));
    }
    let (host, of_system, of_copies) = (folder.join("host"), folder.join("system.so"), folder.join("copies.so"));
    compile("tests/interop/copies.c", &["-DHOST", "-ldl"], &host);
    let plugin = ["-shared", "-fPIC", "-Wl,-rpath,$ORIGIN", "-libverbs", "-lmlx5"];
    compile("tests/interop/copies.c", &plugin, &of_system);
    rename(&of_system, &of_copies);
    for plugins in [&[&of_copies][..], &[&of_system, &of_copies], &[&of_copies, &of_system]] {
        let command: Vec<&Path> = [&[&host], plugins].concat().into_iter().map(|p| &**p).collect();
        let [stock, ours] = twice(&command).map(|mut command| succeed(command.env("LD_LIBRARY_PATH", &*folder)));
        let log = ours.complained;
        assert!(stock.complained.is_empty(), "{stock}");
        let count = 400 * plugins.len();
        let totals = format!("posts: {count} by doorbell, 0 by libmlx5; polls: {count} by doorbell");
        assert!(log.contains(&totals), "{log}");
    }
}

/// `THREAD_SANITIZER` is a drop-in that was built with ThreadSanitizer: `cargo xtask tsan`.
#[test]
fn threads_share_queues() {
    let modes = ["threads", "apart"];
    if env::var_os("THREAD_SANITIZER").is_none() {
        let (_folder, program) = worst_alone(&[]);
        for mode in modes {
            succeed_twice(&[&program, Path::new(mode)]);
        }
        return;
    }
    // The symbols of the program are the library's.
    let (_folder, program) = worst_alone(&["-fsanitize=thread", "-rdynamic"]);
    for mode in modes {
        let mut command = on_soft_mlx5(&[], "sh");
        command.args(["-c", "LD_PRELOAD=$LD_PRELOAD:$THREAD_SANITIZER exec \"$0\" \"$1\""]);
        // The device has locks that the sanitizer does not see.
        command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1").env("DOORBELL_LOG", "1");
        // As `doorbell run` does.
        command.env("DOORBELL_DROP_IN", "all");
        let log = succeed(command.arg(&program).arg(mode)).complained;
        let is_ours = !log.contains("posts: 0 ") && log.contains(" by doorbell, 0 by libmlx5; polls");
        assert!(is_ours, "{log}");
    }
}

/// A CQ is polled while the kernel destroys a queue pair or refuses to, and between the calls of a batch of `ibv_wr_*`,
/// by the thread of the batch and by another one. Threads wait for each other in every order that libmlx5 allows.
#[test]
fn a_cq_is_polled_while_queue_pairs_are_destroyed_and_batches_are_open() {
    let (_folder, program) = worst_alone(&[]);
    let modes = ["destroy", "refuse", "inline", "batch", "contended-batch", "reset-by-another", "refused-creation"];
    for mode in modes {
        succeed_twice(&[&program, Path::new(mode)]);
    }
    // Where libmlx5 has no lock, a doorbell beside the reset leaves its record as it was before.
    let [_, mut ours] = twice(&[&program, Path::new("reset-beside-posts")]);
    succeed(&mut ours);
    // A CQ that was resized stays with libmlx5, whole.
    for mut command in twice(&[&program, Path::new("before")]) {
        succeed(&mut command);
    }
}

/// Threads wait for the events of a device and of a connection manager, and for completions. The port goes first.
#[test]
fn a_device_is_removed_while_a_program_waits() {
    let folder = Temporary::folder("removal");
    let program = folder.join("removal");
    compile("tests/interop/removal.c", &["-pthread", "-libverbs", "-lrdmacm"], &program);
    for words in [&[][..], &["run", "--"]] {
        // A busy machine may remove the device before all wait: each attempt has more time than the last.
        let mut attempts = [1, 4, 16, 64].into_iter().map(|slower| {
            let times = [format!("{0}:{0}", 200 * slower), format!("{}", 500 * slower)];
            let options = ["--link", "roce", "--port-flap", &times[0], "--remove-after", &times[1]];
            let command = if words.is_empty() { program.clone() } else { built("doorbell") };
            let mut command = on_soft_mlx5(&options, &command);
            command.args(words).args((!words.is_empty()).then_some(&program)).arg("10.219.0.1");
            Ended::of(command.env("DOORBELL_LOG", "1"))
        });
        let last = attempts.find(|ended| !ended.printed.is_empty()).expect("the device goes before the program waits");
        assert!(last.code == Some(0) && last.printed == "waiting\nremoved, after the port\n", "{last}");
        let is_ours = last.complained.contains("posts: 18 by doorbell, 0 by libmlx5; polls: 2 by doorbell");
        assert_eq!(is_ours, !words.is_empty(), "{last}");
    }
}

#[test]
fn requests_and_completions_are_as_with_libmlx5() {
    let (_folder, program) = worst_alone(&[]);
    for mode in ["edges", "windows"] {
        succeed_twice(&[&program, Path::new(mode)]);
    }
    let mut command = on_soft_mlx5(&["--fault", "double-cqe"], built("doorbell"));
    succeed(command.args(["run", "--"]).arg(&program).arg("stray"));
}

#[test]
fn a_program_ends_in_the_middle() {
    let (_folder, program) = worst_alone(&[]);
    for mut command in twice(&[&program, Path::new("abort")]) {
        // As a shell says it.
        let ended = Ended::of(&mut command);
        assert_eq!(ended.code, Some(128 + libc::SIGABRT), "{ended}");
    }
    for mut command in twice(&[&program, Path::new("exit")]) {
        succeed(&mut command);
    }
}

#[test]
fn a_static_program_is_refused() {
    let folder = Temporary::folder("static");
    let source = folder.join("nothing.c");
    fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let program = folder.join("nothing");
    succeed(Command::new("cc").arg("-static").arg(&source).arg("-o").arg(&program));
    let ended = Ended::of(Command::new(built("doorbell")).args(["run", "--"]).arg(&program));
    let refused = ended.complained.contains("is statically linked");
    assert!(ended.code != Some(0) && refused, "{ended}");
    // The loader is a static program that preloads.
    let loader = succeed(Command::new("cc").arg("-print-file-name=ld-linux-x86-64.so.2")).printed;
    let mut command = Command::new(built("doorbell"));
    succeed(command.args(["run", "--", loader.trim(), "/bin/true"]));
}

/// Payload in a CQE has to be copied to its place, which may be memory of a GPU: the program receives and reads into a
/// dma-buf that it posts by its address for the device. libmlx5 copies there, unless the environment forbids payload in
/// CQEs; queue pairs that doorbell drives have none, unless the environment asks for it.
#[test]
fn no_payload_is_in_cqes_unless_the_environment_asks_for_it() {
    const VARIABLE: &str = "MLX5_SCATTER_TO_CQE";
    let (_folder, program) = worst_alone(&[]);
    for (given, [stock_lives, ours_lives]) in [(None, [false, true]), (Some("0"), [true; 2]), (Some("1"), [false; 2])] {
        let commands = twice(&[&program, Path::new("opaque")]);
        for (mut command, lives) in commands.into_iter().zip([stock_lives, ours_lives]) {
            let ended = Ended::of(command.env_remove(VARIABLE).envs(given.map(|value| (VARIABLE, value))));
            let expected = if lives { 0 } else { 128 + libc::SIGSEGV };
            assert_eq!(ended.code, Some(expected), "{given:?}: {ended}");
            let is_ours = ended.complained.contains("posts: 3 by doorbell, 0 by libmlx5");
            assert!(!lives || is_ours || !ended.complained.contains("posts: "), "{ended}");
        }
    }
}
