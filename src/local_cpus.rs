//! The processors near a device.

use std::fs;
use std::path::Path;

/// Returns the processors that sysfs names as near the device in this directory.
pub(crate) fn of(device: &Path) -> Vec<usize> {
    let list = fs::read_to_string(device.join("device/local_cpulist")).unwrap_or_default();
    parse(&list).unwrap_or_default()
}

/// Reads a list like `0-3,8`.
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_processors_are_read() {
        assert_eq!(parse("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse("5\n"), Some(vec![5]));
        for bad in ["", "\n", "a", "1-", "-1", "1,,2", "0-3 5"] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_device_without_a_list_has_none() {
        assert!(of(Path::new("/nowhere")).is_empty());
    }
}
