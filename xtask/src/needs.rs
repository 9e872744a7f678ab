//! The needs of a test binary. Its package says them, or a line `//! Needs: WORD` at the head of its first file.

use std::fs;
use std::path::Path;

/// Requirements of a test binary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Needs {
    Nothing,
    /// A device in the process of the test.
    Device,
    /// Verbs programs of the system.
    Programs,
    /// A device that libibverbs lists.
    AnyDevice,
    /// A device that libibverbs lists, and that reaches the devices of other processes.
    Network,
    /// The programs of this build, which it starts on devices of their own.
    Examples,
    /// The twins of the conformance test.
    Twins,
    /// A device that gives no QP number twice, and time.
    Soak,
    /// A link that loses, doubles and reorders packets.
    Lossy,
    /// A link that may be taken down, as only the virtual machine has.
    Link,
}

impl Needs {
    /// Returns what a test of this package and kind of target needs, whose first file is `source`.
    pub fn of(package: &str, kind: &str, source: &Path) -> Self {
        match word(&fs::read_to_string(source).unwrap_or_default()) {
            Some("nothing") => return Self::Nothing,
            Some("programs") => return Self::Programs,
            Some("network") => return Self::Network,
            Some("examples") => return Self::Examples,
            Some("soak") => return Self::Soak,
            Some("lossy") => return Self::Lossy,
            Some("link") => return Self::Link,
            Some(other) => panic!("{}: `Needs: {other}` is not a word of xtask/src/needs.rs", source.display()),
            None => {}
        }
        match (package, kind) {
            ("soft-mlx5" | "doorbell-stepped-tests", _) => Self::Device,
            ("doorbell-conformance", _) => Self::Twins,
            ("doorbell-tests", "test") => Self::AnyDevice,
            _ => Self::Nothing,
        }
    }
}

fn word(source: &str) -> Option<&str> {
    source.lines().take_while(|line| line.starts_with("//!")).find_map(|line| line.strip_prefix("//! Needs: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_line_at_the_head_of_a_file_counts() {
        assert_eq!(word("//! A test.\n//!\n//! Needs: network\n\nuse std::fs;\n"), Some("network"));
        assert_eq!(word("//! A test.\n\n//! Needs: network\n"), None);
    }

    #[test]
    fn a_test_without_a_line_has_the_needs_of_its_package() {
        let nowhere = Path::new("/no/such/file.rs");
        assert_eq!(Needs::of("doorbell-tests", "test", nowhere), Needs::AnyDevice);
        assert_eq!(Needs::of("doorbell-tests", "lib", nowhere), Needs::Nothing);
        assert_eq!(Needs::of("soft-mlx5", "lib", nowhere), Needs::Device);
        assert_eq!(Needs::of("mlx5-ring", "test", nowhere), Needs::Nothing);
    }
}
