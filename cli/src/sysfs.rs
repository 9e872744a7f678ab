//! Devices and NUMA nodes in sysfs.

use std::fs;
use std::path::Path;

/// The RDMA devices that the kernel has, in order of their names.
pub fn devices(root: &Path) -> Vec<String> {
    let mut names = entries(&root.join("class/infiniband"));
    names.sort();
    names
}

/// A file of one line.
pub fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

/// The last part of the target of a link.
pub fn link(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Each NUMA node and its CPUs.
pub fn numa_nodes(root: &Path) -> Vec<(u32, Vec<u32>)> {
    let dir = root.join("devices/system/node");
    let mut nodes: Vec<_> = entries(&dir)
        .into_iter()
        .filter_map(|name| {
            let number = name.strip_prefix("node")?.parse().ok()?;
            Some((number, cpu_list(&read(&dir.join(&name).join("cpulist"))?)))
        })
        .collect();
    nodes.sort();
    nodes
}

/// The names in a directory; none where it cannot be read.
pub fn entries(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Numbers and ranges with commas between, as `0-3,8`.
fn cpu_list(text: &str) -> Vec<u32> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_as_the_kernel_writes_them() {
        assert_eq!(cpu_list("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list("5"), [5]);
        assert!(cpu_list("").is_empty());
    }

    #[test]
    fn what_is_not_there_is_none() {
        let nowhere = Path::new("/nowhere");
        assert_eq!(read(nowhere), None);
        assert_eq!(link(nowhere), None);
        assert!(devices(nowhere).is_empty() && numa_nodes(nowhere).is_empty());
    }
}
