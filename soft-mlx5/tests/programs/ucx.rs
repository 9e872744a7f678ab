//! UCX, which has a data path for mlx5 of its own beside that over libibverbs: `rc_x` and `ud_x` write WQEs,
//! ring doorbells and read CQEs themselves.

use crate::{LINKS, pair};

const TRANSPORTS: [&str; 4] = ["rc_v", "ud_v", "rc_x", "ud_x"];

fn perftest(link: &str, settings: &[&str], test: &str, size: &str) -> [String; 2] {
    let program = ["ucx_perftest", "-t", test, "-s", size, "-n", "300", "-w", "10"];
    pair(&["--strict", "--link", link], &[&["env"], settings, &program].concat())
}

fn over_all_transports(test: &str, size: &str) {
    for link in LINKS {
        for transport in TRANSPORTS {
            let setting = format!("UCX_TLS={transport},self");
            let [_, client] = perftest(link, &[&setting], test, size);
            assert!(client.contains("Final:"), "{link} {transport} {test}: {client}");
        }
    }
}

#[test]
fn small_tagged_messages() {
    over_all_transports("tag_lat", "8");
}

#[test]
fn tagged_messages_by_rendezvous() {
    over_all_transports("tag_bw", "100000");
}

#[test]
fn remote_memory() {
    for (test, size) in [("ucp_put_bw", "20000"), ("ucp_get", "20000"), ("ucp_fadd", "8"), ("ucp_cswap", "8")] {
        for transport in ["rc_v", "rc_x"] {
            let setting = format!("UCX_TLS={transport},self");
            let [_, client] = perftest("ib", &[&setting], test, size);
            assert!(client.contains("Final:"), "{transport} {test}: {client}");
        }
    }
}

#[test]
fn tags_matched_by_the_adapter_over_verbs() {
    let settings = ["env", "UCX_TLS=rc_x,self", "UCX_RC_MLX5_TM_ENABLE=y", "UCX_LOG_LEVEL=debug"];
    for size in ["64", "4000", "100000"] {
        let program = ["ucx_perftest", "-t", "tag_lat", "-s", size, "-n", "300", "-w", "10"];
        let outputs = pair(&["--strict", "--devx", "off"], &[&settings[..], &program].concat());
        for output in &outputs {
            assert!(output.contains("Tag Matching enabled"), "{size}: {output}");
        }
        assert!(outputs[1].contains("Final:"), "{size}: {}", outputs[1]);
    }
}

/// With DEVX UCX makes its queue pairs, SRQs and keys by firmware commands.
#[test]
fn all_tests_over_devx() {
    let tests =
        [("tag_lat", "8"), ("tag_bw", "100000"), ("ucp_put_bw", "20000"), ("ucp_get", "20000"), ("ucp_fadd", "8")];
    for link in LINKS {
        for (test, size) in tests {
            for output in over_devx(link, &[], test, size) {
                assert!(output.contains("opened DEVX md"), "{link} {test}: {output}");
            }
        }
    }
}

/// UCX leaves the source address of a queue pair that is connected to itself at index 0, which must be that of the
/// destination on RoCE.
#[test]
fn tags_matched_by_the_adapter_over_devx() {
    for link in LINKS {
        for size in ["64", "4000", "100000"] {
            let settings = ["UCX_RC_MLX5_TM_ENABLE=y", "UCX_IB_GID_INDEX=0"];
            for output in over_devx(link, &settings, "tag_lat", size) {
                assert!(output.contains("Activate tag offload"), "{link} {size}: {output}");
            }
        }
    }
}

/// The address of the target stands in each WQE of `dc_x`.
#[test]
fn dynamic_connections() {
    for link in LINKS {
        let settings = ["UCX_TLS=dc_x,self", "UCX_LOG_LEVEL=debug"];
        for output in perftest(link, &settings, "tag_lat", "8") {
            assert!(output.contains("created DevX DCI"), "{link}: {output}");
        }
    }
}

fn over_devx(link: &str, settings: &[&str], test: &str, size: &str) -> [String; 2] {
    let program = ["ucx_perftest", "-t", test, "-s", size, "-n", "300", "-w", "10"];
    let settings = [&["env", "UCX_TLS=rc_x,self", "UCX_LOG_LEVEL=debug"], settings].concat();
    let outputs = pair(&["--strict", "--link", link], &[&settings[..], &program].concat());
    assert!(outputs[1].contains("Final:"), "{link} {test}: {}", outputs[1]);
    outputs
}

/// UCX puts hooks in the place of mmap, in three ways, and the function that it takes for the original depends on the
/// order of libraries. Its registration cache works in all ways with hooks.
#[test]
fn memory_is_registered_through_the_cache_with_all_hooks() {
    const AS_LINKED: &str = "exec \"$@\"";
    const BEFORE_LIBC: &str = "LD_PRELOAD=$LD_PRELOAD:libucm.so.0 exec \"$@\"";
    // UCX 1.13 with `reloc` and libc before libucm waits for its own lock as soon as it sees the first sbrk, with no
    // device at all: its dlsym fails, which allocates memory.
    for (mode, order) in [("none", AS_LINKED), ("bistro", AS_LINKED), ("bistro", BEFORE_LIBC), ("reloc", BEFORE_LIBC)] {
        let hooks = format!("UCX_MEM_MMAP_HOOK_MODE={mode}");
        let settings = [&*hooks, "UCX_TLS=rc_x,self", "UCX_LOG_LEVEL=debug"];
        let settings = [&["sh", "-c", order, "sh", "env"][..], &settings].concat();
        let outputs = perftest("ib", &settings, "tag_bw", "1000000");
        assert!(outputs[1].contains("Final:"), "{mode} {order}: {}", outputs[1]);
        for output in &outputs {
            // Without hooks UCX has no cache, by design.
            let refused = output.contains("failed to create registration cache");
            assert_eq!(refused, mode == "none", "{mode} {order}: {output}");
        }
    }
}
