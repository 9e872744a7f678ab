//! The example `tag_ranks`: three processes, one of which dies, and an end on which the others agree.

use std::process::{Child, Stdio};

use doorbell_tests::programs::{example, poisoned};

fn start(link: &str, path: &str, rank: usize, options: &[&str]) -> Child {
    let mut command = example(&["--link", link], "tag_ranks");
    command.args(["--path", path, "--rounds", "60"]).args(options).arg(rank.to_string());
    // Addresses of the loopback interface that no other process takes.
    let [high, low] = (std::process::id() as u16).to_be_bytes();
    command.args((1..=3).map(|rank| format!("127.{high}.{low}.{rank}:18517")));
    if path == "direct" {
        poisoned(&mut command);
    }
    command.stdout(Stdio::piped()).spawn().unwrap()
}

fn printed(rank: Child) -> (bool, String) {
    let output = rank.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn the_ranks_that_are_left_go_on_and_end_in_order() {
    for (link, path) in [("ib", "direct"), ("roce", "direct"), ("ib", "verbs")] {
        let ranks = [start(link, path, 0, &[]), start(link, path, 1, &[]), start(link, path, 2, &["--dies", "30"])];
        let [first, second, dead] = ranks.map(printed);
        assert!(!dead.0);
        for (rank, (succeeded, printed)) in [first, second].into_iter().enumerate() {
            assert!(succeeded, "{printed}");
            assert!(printed.contains(&format!("rank {rank}: 2 others, path {path}\n")), "{printed}");
            assert_eq!(printed.matches(": rank 2 has died in round 3").count(), 1, "{printed}");
            assert!(printed.ends_with(": 60 rounds, 1 others at the end, sum 1\n"), "{printed}");
        }
    }
}
