//! The InfiniBand classes of sysfs, as programs see them without libibverbs.

use crate::common::{SOFT_MLX5, finish, run};

fn shell(script: &str) -> String {
    finish(&mut run(&["--link", "roce"], &["sh", "-c", script])).succeeded()
}

fn python(script: &str) -> String {
    finish(&mut run(&[], &["/usr/bin/python3", "-c", script])).succeeded()
}

#[test]
fn the_first_look_finds_the_device() {
    for look in [
        "ls /sys/class/infiniband",
        "cat /sys/class/infiniband_verbs/uverbs*/ibdev",
        "ls \"$SYSFS_PATH/class/infiniband\"",
        "cd /sys/class/infiniband && echo *",
        "cat /sys/class/infiniband_verbs/uverbs0/device/infiniband_verbs/uverbs0/ibdev",
        "test -e /sys/class/infiniband/mlx5_0/ports/1/gids/0 && echo mlx5_0",
    ] {
        let found = shell(look);
        assert!(found.split_whitespace().any(|name| name == "mlx5_0"), "{look}: {found}");
    }
}

#[test]
fn real_paths_lead_to_the_pci_function() {
    let script = "readlink -f /sys/class/infiniband/mlx5_0/device; realpath /sys/class/infiniband/mlx5_0";
    let found = shell(script);
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines[1], format!("{}/infiniband/mlx5_0", lines[0]));
    assert!(lines[0].ends_with("/0000:80:00.0"), "{found}");
    assert_eq!(shell(&format!("cat {}/vendor", lines[0])), "0x15b3\n");
}

#[test]
fn the_pci_function_is_listed_beside_the_real_ones() {
    const LIST: &str = "/sys/bus/pci/devices";
    let listed = shell(&format!("ls {LIST}"));
    let mut found: Vec<_> = listed.lines().collect();
    found.retain(|name| *name != "0000:80:00.0");
    assert_eq!(found.len() + 1, listed.lines().count(), "{listed}");
    let real = std::fs::read_dir(LIST).map_or(0, Iterator::count);
    assert_eq!(found.len(), real, "{listed}");
    assert_eq!(shell(&format!("cat {LIST}/0000:80:00.0/vendor")), "0x15b3\n");
}

/// A child of a program that has a device sees that device, and not one of its own.
#[test]
fn a_child_sees_the_device_of_its_parent() {
    let found = python(
        "import ctypes, subprocess
ibv = ctypes.CDLL('libibverbs.so.1')
count = ctypes.c_int()
assert ibv.ibv_get_device_list(ctypes.byref(count)) and count.value >= 1
gid = '/sys/class/infiniband/mlx5_0/ports/1/gids/0'
mine = open(gid).read()
print(mine == subprocess.check_output(['cat', gid], text=True))
print(mine == subprocess.check_output(f'x=$(cat {gid}); echo $x', shell=True, text=True))
print(mine == subprocess.check_output('sh -c \"cat ' + gid + '\"; true', shell=True, text=True))",
    );
    assert_eq!(found, "True\nTrue\nTrue\n");
}

/// Calls each function with which a C program can look at a path.
#[test]
fn every_call_on_a_path_is_led_into_the_tree() {
    const SCRIPT: &str = r#"
import ctypes, os
c = ctypes.CDLL(None, use_errno=True)
DIR, FILE = b'/sys/class/infiniband/mlx5_0', b'/sys/class/infiniband/mlx5_0/node_type'
AT, buf = -100, ctypes.create_string_buffer(4096)
def text(fd):
    assert fd >= 0, os.strerror(ctypes.get_errno())
    got = os.read(fd, 100); os.close(fd); return got
for name in 'open', 'open64', '__open_2', '__open64_2':
    assert text(getattr(c, name)(FILE, 0)) == b'1: CA\n', name
for name in 'openat', 'openat64', '__openat_2', '__openat64_2':
    assert text(getattr(c, name)(AT, FILE, 0)) == b'1: CA\n', name
c.fdopendir.restype = ctypes.c_void_p
for name in 'fopen', 'fopen64', 'opendir', 'realpath', '__realpath_chk', 'canonicalize_file_name':
    getattr(c, name).restype = ctypes.c_void_p
for name in 'fopen', 'fopen64':
    file = getattr(c, name)(FILE, b'r')
    assert file and c.fileno(ctypes.c_void_p(file)) >= 0, name
assert c.opendir(DIR)
entries = ctypes.c_void_p()
for name in 'scandir', 'scandir64':
    assert getattr(c, name)(DIR, ctypes.byref(entries), None, None) > 3, name
for name in 'stat', 'stat64', 'lstat', 'lstat64':
    assert getattr(c, name)(FILE, buf) == 0, name
for name in '__xstat', '__xstat64', '__lxstat', '__lxstat64':
    assert getattr(c, name)(1, FILE, buf) == 0, name
for name in '__fxstatat', '__fxstatat64':
    assert getattr(c, name)(1, AT, FILE, buf, 0) == 0, name
for name in 'fstatat', 'fstatat64':
    assert getattr(c, name)(AT, FILE, buf, 0) == 0, name
assert c.statx(AT, FILE, 0, 0x7ff, buf) == 0
for name in 'access', 'euidaccess', 'eaccess':
    assert getattr(c, name)(FILE, os.R_OK) == 0, name
assert c.faccessat(AT, FILE, os.R_OK, 0) == 0
for name, before, after in ('readlink', (), ()), ('readlinkat', (AT,), ()), ('__readlink_chk', (), (4096,)):
    length = getattr(c, name)(*before, DIR, buf, 4096, *after)
    assert buf.raw[:length].endswith(b'/infiniband/mlx5_0'), name
for name, after in ('realpath', (None,)), ('realpath', (buf,)), ('__realpath_chk', (buf, 4096)), ('canonicalize_file_name', ()):
    found = getattr(c, name)(DIR, *after)
    found = ctypes.cast(found, ctypes.c_char_p).value
    assert found.startswith(b'/sys/devices/') and c.access(found, 0) == 0, (name, found)
# A slash at the end means the target of a link, also where links are not followed.
assert os.path.islink(DIR) and not os.path.islink(DIR + b'/')
assert c.readlink(DIR + b'/', buf, 4096) == -1 and ctypes.get_errno() == 22
assert c.lstat(FILE + b'/', buf) == -1 and ctypes.get_errno() == 20
for name in 'getxattr', 'lgetxattr':
    assert getattr(c, name)(DIR, b'user.none', buf, 10) == -1 and ctypes.get_errno() in (61, 95), name
assert c.chdir(DIR) == 0 and open('node_type').read() == '1: CA\n'
# What is not there is not there, and others' paths are their own.
assert c.access(b'/sys/class/infiniband/mlx5_9', 0) == -1 and ctypes.get_errno() == 2
assert c.access(b'/sys/class/infiniband_other', 0) == -1
assert c.realpath(b'/usr/bin/../bin', buf) and buf.value == os.path.realpath('/usr/bin').encode()
assert c.fopen(b'/proc/self/maps', b'r')
print('fine')
"#;
    assert_eq!(python(SCRIPT), "fine\n");
}

#[test]
fn programs_that_look_at_other_paths_get_no_device() {
    // Each run has a directory of its own, in which a device would leave a tree.
    let script = "ls /sys/class /dev >/dev/null; dir=${SOFT_MLX5##*,dir=}; ls \"$dir\" | wc -l";
    assert_eq!(shell(script).trim(), "0");
    let inner = [SOFT_MLX5, "run", "--", "sh", "-c", "ls /sys/class/infiniband | wc -l"];
    assert_eq!(finish(&mut run(&[], &inner)).succeeded().trim(), "1");
}

#[test]
fn the_pci_function_and_the_port_show_what_the_kernel_does() {
    let script = "cd /sys/class/infiniband/mlx5_0 && cat device/class ports/1/cap_mask ports/1/has_smi && \
        wc -c < device/config && wc -l < device/resource && basename $(readlink device/driver) && ls device/net && \
        cat ports/1/counters/port_xmit_data ports/1/hw_counters/out_of_buffer && ls ports/1/counters | wc -l && \
        cat /sys/class/infiniband_mad/abi_version && ls /sys/class/infiniband_mad && ls -l device/ >/dev/null";
    let on_ethernet = finish(&mut run(&["--link", "roce", "--netdev", "lo"], &["sh", "-c", script]));
    assert_eq!(on_ethernet.stderr, "");
    assert_eq!(
        on_ethernet.succeeded(),
        "0x020700\n0x04010000\n0\n256\n13\nmlx5_core\nlo\n0\n0\n21\n5\nabi_version\numad0\n"
    );
    let found = finish(&mut run(&[], &["sh", "-c", &script.replace("ls device/net", "echo")]));
    assert_eq!(
        found.succeeded(),
        "0x020700\n0x2651e848\n1\n256\n13\nmlx5_core\n\n0\n0\n21\n5\nabi_version\nissm0\numad0\n"
    );
    let ndevs = "cat /sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0; rdma link show";
    let found = finish(&mut run(&["--link", "roce", "--netdev", "lo"], &["sh", "-c", ndevs]));
    let found = found.succeeded();
    assert!(found.starts_with("lo\n") && found.ends_with(" netdev lo \n"), "{found}");
}

#[test]
fn gid_tables_show_types_and_interfaces() {
    let script = "cd /sys/class/infiniband/mlx5_0/ports/1 && cat gid_attrs/types/* && cat gid_attrs/ndevs/* && \
        ls gids | wc -l && cat gids/3 gids/4";
    let found = shell(script);
    let lines: Vec<_> = found.lines().collect();
    assert_eq!(lines[..4], ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"]);
    // Programs ask the kernel for the interface of this name.
    for name in &lines[4..8] {
        assert!(std::path::Path::new("/sys/class/net").join(name).exists(), "{found}");
    }
    assert_eq!(lines[8], "255");
    assert!(lines[9].starts_with("0000:0000:0000:0000:0000:ffff:"), "{found}");
    assert_eq!(lines[10], "0000:0000:0000:0000:0000:0000:0000:0000");
    let devinfo = finish(&mut run(&["--link", "roce"], &["ibv_devinfo", "-v"])).succeeded();
    assert_eq!(devinfo.matches("GID[").count(), 4, "{devinfo}");

    let on_infiniband = "cd /sys/class/infiniband/mlx5_0/ports/1 && ls gids | wc -l && cat gids/[1-7] | uniq && \
        cat gid_attrs/types/*";
    let found = finish(&mut run(&[], &["sh", "-c", on_infiniband])).succeeded();
    assert_eq!(found, "8\n0000:0000:0000:0000:0000:0000:0000:0000\nIB/RoCE v1\n");
}

/// Firedancer drives a device without libibverbs, and looks at both versions and at the driver first.
#[test]
fn the_versions_of_the_interface_and_the_driver_are_those_of_a_kernel() {
    let script = "cd /sys/class/infiniband_verbs && cat abi_version uverbs0/abi_version && \
        basename $(readlink uverbs0/device/driver)";
    assert_eq!(shell(script), "6\n1\nmlx5_core\n");
}
